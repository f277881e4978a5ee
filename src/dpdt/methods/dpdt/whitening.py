"""A preconditioner from public inputs, for linear models.

With m and Σ the mean and covariance of public inputs without labels, the model is trained in the
coordinates

    φ(x) = s · ((Σ + λI)/λ)^(−1/4) · (x − m),    λ the mean eigenvalue of Σ, s: ‖φ(x)‖ ≈ 4

and W'φ(x) + b' is written back as Wx + b after every step. A step on W' is a step on W that is
preconditioned by the square of φ: directions in which all inputs vary much no longer drown the
others. Half of a whitening is better than a full one, which would blow up directions that are
mostly noise. The bias is an input of 1. Beside inputs of norm 1 half of the noise that an output
may have would be the bias's; beside inputs of norm 4 it is a seventeenth.

Guarantees: φ is a function of public inputs alone, fixed before the first step. φ(x) is a function
of x and of the example's own number, to the bit, whoever else is there. An example's contribution
is clipped in the new coordinates, and noise is added there, so nothing else changes.

All inputs are transformed once, before training. That costs far more than a step, so it is not done
again for every batch. Whoever no longer needs the old coordinates lets them be overwritten: then
the inputs are in memory once.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.gradients import linear_layer
from dpdt.algorithm.places import equal_places, tries_of
from dpdt.errors import InputError

POWER = 0.25
NORM = 4.0  # of φ(x), in the mean over public inputs
ROWS = 256  # examples transformed at once, a multiple of 16: rows are equal within 16 places


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """φ in factored form: 1 outside the span of `directions`, `factors` on them."""

    mean: Tensor  # m, [inputs]
    directions: Tensor  # [rank, inputs], orthonormal rows
    factors: Tensor  # [rank]
    scale: float  # s

    @classmethod
    def of(cls, public: Tensor) -> Whitening:
        """From public inputs, [examples, …]."""
        if len(public) < 2 or not torch.isfinite(public).all():
            raise InputError(
                "data.public: preconditioner 'public' needs at least 2 public examples of finite "
                f"numbers, found {len(public)}"
            )
        rows = public.flatten(1)
        mean = rows.mean(0)
        _, spread, directions = torch.linalg.svd(rows - mean, full_matrices=False)
        eigenvalues = spread.square() / len(rows)
        least = eigenvalues.mean().clamp(min=torch.finfo(rows.dtype).tiny)
        factors = ((eigenvalues + least) / least) ** -POWER
        raw = cls(mean=mean, directions=directions, factors=factors, scale=1.0)
        length = float(torch.linalg.vector_norm(raw.apply(rows), dim=1).mean())
        return cls(mean=mean, directions=directions, factors=factors, scale=NORM / (length or 1.0))

    def apply(self, x: Tensor, *, overwrite: bool = False) -> Tensor:
        """φ of every row; with `overwrite`, in the memory of x, if x lies there row by row.

        A matrix product may round a row by its place and by the number of rows. So there is always
        the same number of them, filled up with copies, and a row's place goes by its own number.
        """
        rows = x.flatten(1)  # no copy, if x lies row by row
        out, number = rows if overwrite else torch.empty_like(rows), self.rows
        for first in range(0, len(rows), number):
            part = rows[first : first + number]
            filled = torch.cat([part, part[:1].expand(number - len(part), -1)])
            out[first : first + number] = self._turn(filled.sub_(self.mean))[: len(part)]
        return out

    @cached_property
    def rows(self) -> int:
        """How many are transformed at once: 1, if equal rows at places that should be alike differ.

        Found out on made-up inputs.
        """
        size = len(self.mean)
        found = equal_places(
            lambda x, _: [self._turn(x)], self.mean.unsqueeze(0), 1, ROWS, tries_of(size)
        )
        return 1 if found is None else ROWS

    def _turn_back(self, rows: Tensor) -> Tensor:
        changed = (rows @ self.directions.t()).mul_(1.0 / self.factors - 1.0) @ self.directions
        return changed.add_(rows).div_(self.scale)

    def _turn(self, rows: Tensor) -> Tensor:
        changed = (rows @ self.directions.t()).mul_(self.factors - 1.0) @ self.directions
        return changed.add_(rows).mul_(self.scale)

    def unfold_(self, inner: nn.Linear, outer: nn.Linear) -> None:
        """The inverse of `fold_`: the inner layer that stands for the outer one."""
        with torch.no_grad():
            inner.weight.copy_(self._turn_back(outer.weight))
            inner.bias.copy_(outer.bias + outer.weight @ self.mean)

    def fold_(self, inner: nn.Linear, outer: nn.Linear) -> None:
        """Write Wx + b = W'φ(x) + b' into the outer layer."""
        with torch.no_grad():
            weight = self._turn(inner.weight)
            outer.weight.copy_(weight)
            outer.bias.copy_(inner.bias - weight @ self.mean)


def trained_layer(model: nn.Module) -> nn.Linear | None:
    """The layer, if the model is a linear one with a bias, all of which is trained."""
    layer = linear_layer(model)
    trained = layer is not None and all(p.requires_grad for p in layer.parameters())
    return layer if layer is not None and layer.bias is not None and trained else None


class Whitened:
    """A linear model in new coordinates, and the one that it stands for."""

    def __init__(self, model: nn.Module, public: Any):
        outer = trained_layer(model)
        if outer is None or not isinstance(public, Tensor):
            raise InputError(
                "method.preconditioner: 'public' is for linear models with a bias, all of it "
                "trained, on inputs that are numbers; use identity, rmsprop or adam"
            )
        self.outer = outer
        self.whitening = Whitening.of(public.to(outer.weight))
        self.inputs = self.whitening.apply(public.to(outer.weight))
        self.inner = nn.Linear(outer.in_features, outer.out_features).to(outer.weight)
        # As torch draws it, a start is mostly noise: 0 is better. One that was trained is kept.
        fresh = all(
            float(p.detach().abs().max()) <= outer.in_features**-0.5 for p in outer.parameters()
        )
        for p in self.inner.parameters():
            nn.init.zeros_(p)
        if not fresh:
            self.whitening.unfold_(self.inner, outer)

    def data(self, data: Any, *, overwrite: bool) -> Any:
        """Training examples (x, y) in the new coordinates, perhaps where the old ones were."""
        if not isinstance(data, tuple) or len(data) != 2 or not isinstance(data[0], Tensor):
            raise InputError(
                "data: preconditioner 'public' needs a tuple of tensors (x, y), found "
                f"{type(data).__name__}"
            )
        return self.whitening.apply(data[0].to(self.outer.weight), overwrite=overwrite), data[1]

    def fold(self) -> None:
        """Bring the outer model up to date."""
        self.whitening.fold_(self.inner, self.outer)

    def seen_from(self, model: nn.Module) -> nn.Linear:
        """Another model of the outer one's kind, in the new coordinates."""
        layer, inner = trained_layer(model), copy.deepcopy(self.inner)
        assert layer is not None
        self.whitening.unfold_(inner, layer)
        return inner
