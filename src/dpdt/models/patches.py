"""Features from random patches: how much each place of an image is like pieces of public images.

A *dictionary* is a set of small image pieces, its *atoms* (Coates & Ng 2011). For every place of an
image, the piece found there is freed of its brightness and contrast, whitened, and compared with
each atom by a dot product r. Two numbers are kept of it, (r − α)₊ and (−r − α)₊. They are averaged
over the cells of a grid, and over the image and its mirror image. The square root of that is the
cell's *likeness* to the atom, and to its negative.

Likenesses to many atoms say much the same. So each cell's likenesses ℓ become a few *channels*, the
features: principal directions of public cells, half whitened,

    s · diag(v + λ)^(−1/4) · Uᵀ(ℓ − m),    λ a hundredth of the mean of v

with U and v the first eigenvectors and eigenvalues of the covariance of ℓ over all public images
and cells, m the public mean of ℓ in this cell, and s so that public features are of size ½. Every
image counts once for each cell, so that there are more samples than whole images would give.

Atoms and channels are taken from public images: inputs of the data set, or those of a folder. Where
there are none, they are taken from made-up ones (`made_up`), a function of a public seed. So
features cost no privacy. Each image is computed by itself, by products of constant size: its
features are the same to the bit whoever else is there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.lanes import one_core
from dpdt.data import Facts, folder, folder_of, images
from dpdt.errors import InputError
from dpdt.models import describe
from dpdt.models.settings import ModelSettings

CONTRAST = 10.0 / 127.5**2  # added to a piece's variance: 10, for pixels of 0 … 255
WHITENING = 0.1  # added to the variance of every direction of pieces
ALIKE = 0.8  # atoms that are more alike than this are not both kept
SAMPLES = 100_000  # pieces that the whitening is computed from
TRIES = 20  # pieces that are looked at for each atom, at most
POWER, LEAST = 0.25, 0.01  # of the whitening of channels; λ as a share of the mean of v
CHUNK = 64  # public images whose likenesses are in memory at once
PLACES = 160  # of an image that are compared at once: what is in between stays in fast memory
MADE_UP, FROM_FOLDER = 1000, 2000  # images, the latter at most
SEED = 0  # the same whatever the run's seed is: so runs share their features


def normalised(pieces: Tensor) -> Tensor:
    """Pieces [entries, places] without their brightness and contrast."""
    centred = pieces - pieces.mean(0)
    return centred.div_(centred.square().mean(0).add_(CONTRAST).sqrt_())


def made_up(shape: tuple[int, ...]) -> Tensor:
    """Images [n, colours, height, width] of noise that is as smooth as photographs are.

    Amplitudes fall as 1/frequency. Most of it is common to all colours.
    """
    colours, *sides = shape
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(MADE_UP, colours, *sides, generator=generator)
    noise = noise + 2.0 * torch.randn(MADE_UP, 1, *sides, generator=generator)
    lines = [torch.fft.fftfreq(sides[0]), torch.fft.rfftfreq(sides[1])]
    frequency = (lines[0][:, None] ** 2 + lines[1] ** 2).sqrt().clamp_min(1.0 / max(sides))
    smooth = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=sides)
    inside: Tensor = (smooth / (2.0 * smooth.std())).clamp_(-1.0, 1.0)
    return inside


def of_folder(name: str, shape: tuple[int, ...]) -> Tensor:
    """Public images of a folder, as given or below the data folder."""
    if (path := folder_of(name)) is not None:
        return images.shaped(path, shape, FROM_FOLDER)
    raise InputError(
        f"model.dictionary_from: must be a folder with folders of images, here or below "
        f"{folder()}, found {name!r}"
    )


class Patches(nn.Module):
    """Images [n, colours, height, width] → features [n, grid² · channels], in float16."""

    atoms: Tensor
    mean: Tensor
    turn: Tensor
    channels: Tensor
    offset: Tensor
    cells: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        size: int,
        channels: int,
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
        self.register_buffer("channels", torch.zeros(2 * size, channels))
        self.register_buffer("offset", torch.zeros(grid**2, channels))
        self.register_buffer("cells", self._cells(), persistent=False)

    def _seeded(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def learn_(self, images: Tensor) -> None:
        """Take whitening, atoms and channels from public images, on one core: always the same."""
        with one_core(), torch.no_grad():
            self._learn_atoms_(images)
            self._learn_channels_(images)

    def _learn_atoms_(self, images: Tensor) -> None:
        per_image = -(-max(SAMPLES, TRIES * len(self.atoms)) // len(images))
        pieces = torch.cat([self._some(image, per_image) for image in images.float()], dim=1)
        pieces = normalised(pieces)
        self.mean.copy_(pieces.mean(1))
        centred = (pieces - self.mean[:, None]).double()
        values, directions = torch.linalg.eigh(centred @ centred.t() / centred.shape[1])
        self.turn.copy_((directions * (values + WHITENING).rsqrt()) @ directions.t())
        order = torch.randperm(pieces.shape[1], generator=self._seeded())
        self._keep(pieces[:, order[: TRIES * len(self.atoms)]])

    def _learn_channels_(self, images: Tensor) -> None:
        views, number = self._views(), len(images) * len(self.cells)
        mean = torch.zeros(len(self.cells), len(self.channels), dtype=torch.float64)
        second = torch.zeros(len(self.channels), len(self.channels), dtype=torch.float64)
        for some in torch.split(images.float(), CHUNK):
            found = torch.stack([self._likeness(image, views) for image in some]).double()
            mean += found.sum(0) / len(images)
            rows = found.flatten(0, 1)
            second.addmm_(rows.t(), rows, alpha=1.0 / number)
        covariance = second - mean.t() @ mean / len(mean)
        values, directions = torch.linalg.eigh(covariance)
        kept = slice(-self.channels.shape[1], None)
        values, directions = values[kept].clamp_min(0.0), directions[:, kept]
        least = LEAST * values.mean().clamp_min(1e-12)
        factors = (values + least) ** -POWER
        size = (values * factors.square()).mean().sqrt().clamp_min(1e-12)
        self.channels.copy_(directions * (factors * describe.SIZE / size))
        self.offset.copy_(mean.float() @ self.channels)

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
        views, rows = self._views(), []
        for image in x.float():
            rows.append((self._likeness(image, views) @ self.channels - self.offset).flatten())
        return torch.stack(rows).half()

    def _views(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For the image and its mirror image: shifts and filters, and the cells."""
        filters = self.atoms @ self.turn
        shift = -(filters @ self.mean)
        sides = self.shape[0], self.patch, self.patch
        turned = filters.view(-1, *sides).flip(-1).reshape(len(filters), -1)
        # the mirror image's pieces, seen in the image itself: its cells are mirrored too
        cells = self.cells.view(self.grid, self.grid, -1).flip(1).reshape(len(self.cells), -1)
        views = [(shift, filters.t(), self.cells), (shift, turned.t(), cells)]
        return views[: 1 + self.mirror]

    def _likeness(self, image: Tensor, views: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """How much each cell is like each atom, and like its negative: [cells, 2 · atoms]."""
        pieces = normalised(F.unfold(image[None], self.patch)[0]).t()
        found = [self._pooled(pieces, *view) for view in views]
        return torch.stack(found).mean(0).sqrt_().transpose(0, 1).flatten(1)

    def _pooled(self, pieces: Tensor, shift: Tensor, filters: Tensor, cells: Tensor) -> Tensor:
        """Both thresholds of all places, averaged over cells: [2, cells, atoms]."""
        α, found = self.threshold, filters.new_zeros(2, len(cells), filters.shape[1])
        parts = torch.split(pieces, PLACES), torch.split(cells, PLACES, dim=1)
        for some, weights in zip(*parts, strict=True):
            beyond = torch.addmm(shift - α, some, filters)  # r − α
            found[0] += weights @ beyond.clamp_min(0.0)
            found[1] -= weights @ beyond.add_(2.0 * α).clamp_max_(0.0)
        return found


class Patched(nn.Module):
    """Features from patches with a linear head, the only part that is trained."""

    def __init__(self, features: Patches, classes: int):
        super().__init__()
        self.features = features
        self.head = nn.Linear(features.offset.numel(), classes)
        found = describe.length(self.head.in_features, describe.SIZE)
        self.head.input_length = found  # type: ignore[assignment]

    @classmethod
    def of(cls, model: ModelSettings, facts: Facts) -> Patched:
        """As a configuration says. It has nothing to compare images with until that is learnt."""
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
            facts.shape, size=model.dictionary,
            channels=describe.channels(model.dictionary, model.channels),
            patch=patch, grid=model.grid, threshold=model.threshold, mirror=model.mirror, seed=SEED,
        )  # fmt: skip
        return cls(features, facts.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).to(self.head.weight))  # type: ignore[no-any-return]
