"""Features from random patches: how much each place of an image is like pieces of public images.

A *dictionary* is a set of small image pieces, its *atoms* (Coates & Ng 2011). For every place of an
image, the piece found there is freed of its brightness and contrast, whitened, and compared with
each atom by a dot product r. Two numbers are kept of it, (r − α)₊ and (−r − α)₊. They are averaged
over the cells of a grid, and over the image and its mirror image. The square root of that is a
feature.

Atoms are taken from public images (`learn_`), or else they are noise, drawn from a public seed. So
features cost no privacy. Each image is computed by itself, by products of constant size: its
features are the same to the bit whoever else is there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.models import describe
from dpdt.models.settings import ModelSettings

CONTRAST = 10.0 / 127.5**2  # added to a piece's variance: 10, for pixels of 0 … 255
WHITENING = 0.1  # added to the variance of every direction of pieces
ALIKE = 0.8  # atoms that are more alike than this are not both kept
SAMPLES = 100_000  # pieces that the whitening is computed from
TRIES = 20  # pieces that are looked at for each atom, at most


def normalised(pieces: Tensor) -> Tensor:
    """Pieces [entries, places] without their brightness and contrast."""
    centred = pieces - pieces.mean(0)
    return centred.div_(centred.square().mean(0).add_(CONTRAST).sqrt_())


class Patches(nn.Module):
    """Images [n, colours, height, width] → features [n, 2 · atoms · grid²], in float16."""

    atoms: Tensor
    mean: Tensor
    turn: Tensor
    cells: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        size: int,
        patch: int,
        grid: int,
        threshold: float,
        mirror: bool,
        seed: int,
    ):
        super().__init__()
        self.shape, self.patch, self.threshold, self.mirror = shape, patch, threshold, mirror
        self.grid, self.seed = grid, seed
        entries = shape[0] * patch**2
        self.register_buffer("mean", torch.zeros(entries))
        self.register_buffer("turn", torch.eye(entries))
        self.register_buffer("atoms", torch.zeros(size, entries))
        if not self.atoms.is_meta:  # which has no numbers: a model that is only measured
            self._keep(normalised(torch.randn(entries, TRIES * size, generator=self._seeded())))
        self.register_buffer("cells", self._cells(), persistent=False)

    def _seeded(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def learn_(self, images: Tensor) -> None:
        """Take whitening and atoms from public images."""
        per_image = -(-max(SAMPLES, TRIES * len(self.atoms)) // len(images))
        pieces = torch.cat([self._some(image, per_image) for image in images.float()], dim=1)
        pieces = normalised(pieces)
        self.mean.copy_(pieces.mean(1))
        centred = (pieces - self.mean[:, None]).double()
        values, directions = torch.linalg.eigh(centred @ centred.t() / centred.shape[1])
        self.turn.copy_((directions * (values + WHITENING).rsqrt()) @ directions.t())
        order = torch.randperm(pieces.shape[1], generator=self._seeded())
        self._keep(pieces[:, order[: TRIES * len(self.atoms)]])

    def _some(self, image: Tensor, number: int) -> Tensor:
        """Pieces at random places of an image, the same for all images of one seed and number."""
        every = F.unfold(image[None], self.patch)[0]
        places = torch.randint(every.shape[1], (number,), generator=self._seeded())
        return every[:, places]

    def _keep(self, pieces: Tensor) -> None:
        """Take as atoms the first pieces that are not too much alike, and then any others."""
        found = F.normalize(self.turn @ (pieces - self.mean[:, None]), dim=0).t()
        chosen: list[int] = []
        for number, piece in enumerate(found):
            if len(chosen) == len(self.atoms):
                break
            if not chosen or float((found[chosen] @ piece).abs().max()) <= ALIKE:
                chosen.append(number)
        rest = [n for n in range(len(found)) if n not in set(chosen)]
        self.atoms.copy_(found[(chosen + rest)[: len(self.atoms)]])

    def _cells(self) -> Tensor:
        """The average over each cell of the grid as a matrix, [cells, places]."""
        line = [
            F.adaptive_avg_pool1d(torch.eye(side - self.patch + 1)[:, None], self.grid)[:, 0]
            for side in self.shape[1:]
        ]
        return torch.einsum("ai,bj->ijab", *line).reshape(self.grid**2, -1)

    def forward(self, x: Tensor) -> Tensor:
        filters = self.atoms @ self.turn
        shift = -(filters @ self.mean)
        sides = self.shape[0], self.patch, self.patch
        turned = filters.view(-1, *sides).flip(-1).reshape(len(filters), -1)
        # the mirror image's pieces, seen in the image itself: its cells are mirrored too
        cells = self.cells.view(self.grid, self.grid, -1).flip(1).reshape(len(self.cells), -1)
        views = [(filters.t(), self.cells), (turned.t(), cells)][: 1 + self.mirror]
        rows = []
        for image in x.float():
            pieces = normalised(F.unfold(image[None], self.patch)[0]).t()
            found = [self._pooled(torch.addmm(shift, pieces, f), c) for f, c in views]
            rows.append(torch.stack(found).mean(0).sqrt_().flatten())
        return torch.stack(rows).half()

    def _pooled(self, r: Tensor, cells: Tensor) -> Tensor:
        """Both thresholds of all places, averaged over cells: [2, cells, atoms]."""
        α = self.threshold
        above, below = r.clamp_min(α).sub_(α), r.clamp_max(-α).add_(α).neg_()
        return torch.stack([cells @ above, cells @ below])


class Patched(nn.Module):
    """Features from patches with a linear head, the only part that is trained."""

    def __init__(self, features: Patches, classes: int):
        super().__init__()
        self.features = features
        self.head = nn.Linear(2 * len(features.atoms) * features.grid**2, classes)

    @classmethod
    def of(cls, model: ModelSettings, facts: Facts, seed: int) -> Patched:
        """As a configuration says. Its atoms are noise until they are learnt."""
        patch, least = model.patch or describe.PATCH, min(facts.shape[1:])
        if patch > least:
            raise InputError(
                f"model.patch: must be at most the side of the images, {least}, found {patch}"
            )
        if model.grid > least - patch + 1:
            raise InputError(
                f"model.grid: must be at most the number of places on a side, {least - patch + 1}, "
                f"found {model.grid}"
            )
        features = Patches(
            facts.shape, size=model.dictionary, patch=patch, grid=model.grid,
            threshold=model.threshold, mirror=model.mirror, seed=seed,
        )  # fmt: skip
        return cls(features, facts.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).to(self.head.weight))  # type: ignore[no-any-return]
