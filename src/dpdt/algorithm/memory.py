"""What outlives a step. This decides which steps a record influences.

    auxiliary   π_k and V_k for each auxiliary, private: Algorithm 1 as published
    shared      one π and one V, computed only from what was published
    none        nothing: π = 0, V = I

π is the multiplier, V the preconditioner. Each memory turns gradients into contributions
(`contribute_`). It also turns their noisy mean into the direction of the step on θ (`publish`).
With `shared` only the part that depends on the data is clipped. Everything else is post-processing
of noisy releases:

    contributions q_k = clip_C(2ρηV g_k),  G̃ = mean_k q_k + z
    ũ = G̃/(2ρ) + ηV(π̂ + weight decay · θ)
    direction 2ρũ − π̂,  π ← π̂ − ρũ,  V from V⁻¹G̃/(2ρη);  V = I until something was published
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dpdt.algorithm.auxiliary import Tally, clip_, contribution_, move_, scaled_
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.observed import Moves
from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.algorithm.recipe import Recipe
from dpdt.algorithm.scaled import Scaled


@dataclass(frozen=True, kw_only=True)
class StepValues:
    """What a memory is told of one step."""

    index: int
    clip: Tensor  # C, [blocks], float64
    penalty: Tensor  # ρ_k, [auxiliaries, 1], or [1, 1] if they are equal
    lr: float  # η
    decay: Tensor | None  # auxiliary weight decay · θ

    def penalty_of(self, rows: slice) -> Tensor:
        """ρ_k of the auxiliaries in `rows`."""
        return self.penalty if len(self.penalty) == 1 else self.penalty[rows]


class Memory(Protocol):
    def contribute_(
        self, rows: slice, gradient: Tensor, scratch: Tensor, step: StepValues
    ) -> Tally:
        """Turn the gradients of the auxiliaries in `rows` into contributions, in place.

        `scratch` is a buffer of the same shape whose content does not matter.
        """
        ...

    def scaled(self, step: StepValues) -> Scaled | None:
        """The contributions of this step as gradients times numbers, if they are."""
        ...

    def moves(self, rows: slice, gradient: Tensor, step: StepValues) -> Moves:
        """What these auxiliaries do on their gradients. Nothing is kept: for diagnostics.

        The gradients may be overwritten.
        """
        ...

    def publish(self, noisy: Tensor, step: StepValues) -> Tensor:
        """The direction of the step on θ, from the noisy mean contribution."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything that outlives the step, by name; the tensors themselves, not copies."""
        ...


class AuxiliaryMemory:
    """π_k and V_k for every auxiliary."""

    def __init__(self, layout: Layout, preconditioner: Preconditioner, auxiliaries: int):
        self.layout, self.preconditioner = layout, preconditioner
        shape = (auxiliaries, layout.size)
        self.multiplier = torch.zeros(shape, dtype=layout.dtype, device=layout.device)
        self.norms = torch.zeros(
            auxiliaries, layout.count, dtype=torch.float64, device=layout.device
        )
        self.second_moment = torch.zeros_like(self.multiplier) if preconditioner.stateful else None

    def contribute_(
        self, rows: slice, gradient: Tensor, scratch: Tensor, step: StepValues
    ) -> Tally:
        _, broken = self._move_(rows, gradient, scratch, self._of(rows), step)
        return contribution_(self.layout, gradient, self.multiplier[rows], broken)

    def scaled(self, step: StepValues) -> Scaled | None:
        return None

    def moves(self, rows: slice, gradient: Tensor, step: StepValues) -> Moves:
        copies: tuple[Any, ...] = tuple(None if t is None else t.clone() for t in self._of(rows))
        rate, _ = self._move_(rows, gradient, torch.empty_like(gradient), copies, step)
        before, penalty = self.multiplier[rows], step.penalty_of(rows).to(gradient.dtype)
        return Moves(
            step=gradient / penalty, rate=rate, before=before, clipped=copies[0] + gradient
        )

    def _of(self, rows: slice) -> tuple[Any, ...]:
        """What these auxiliaries keep: multipliers, their norms, second moments."""
        second = None if self.second_moment is None else self.second_moment[rows]
        return self.multiplier[rows], self.norms[rows], second

    def _move_(
        self,
        rows: slice,
        gradient: Tensor,
        scratch: Tensor,
        kept: tuple[Any, ...],
        step: StepValues,
    ) -> tuple[Tensor, Tensor]:
        return move_(
            self.layout,
            gradient,
            scratch,
            *kept,
            preconditioner=self.preconditioner,
            updates=step.index + 1,
            decay=step.decay,
            clip=step.clip,
            penalty=step.penalty_of(rows),
            lr=step.lr,
        )

    def publish(self, noisy: Tensor, step: StepValues) -> Tensor:
        return noisy

    def state(self) -> dict[str, Tensor]:
        return _named(
            multiplier=self.multiplier, norms=self.norms, second_moment=self.second_moment
        )


class NoMemory:
    """π = 0 and V = I at every step."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def contribute_(
        self, rows: slice, gradient: Tensor, scratch: Tensor, step: StepValues
    ) -> Tally:
        self._scaled_(rows, gradient, step)
        return Tally()

    def scaled(self, step: StepValues) -> Scaled | None:
        if step.decay is not None or len(step.penalty) > 1:
            return None
        return Scaled(factor=2.0 * step.lr * float(step.penalty))

    def moves(self, rows: slice, gradient: Tensor, step: StepValues) -> Moves:
        contribution = self._scaled_(rows, gradient, step)
        return _bounded(self.layout, contribution, step.penalty_of(rows), step)

    def _scaled_(self, rows: slice, gradient: Tensor, step: StepValues) -> Tensor:
        return scaled_(
            gradient if step.decay is None else gradient.add_(step.decay),
            inverse=None,
            penalty=step.penalty_of(rows),
            lr=step.lr,
        )

    def publish(self, noisy: Tensor, step: StepValues) -> Tensor:
        return noisy

    def state(self) -> dict[str, Tensor]:
        return {}


class SharedMemory:
    """One π and one V, functions of what was published and therefore free of privacy cost.

    π is clipped like a contribution, as in Algorithm 1, if it is `bounded`. Else π̂ = π.
    """

    def __init__(self, layout: Layout, preconditioner: Preconditioner, *, bounded: bool = True):
        self.layout, self.preconditioner, self.bounded = layout, preconditioner, bounded
        self.multiplier = torch.zeros(layout.size, dtype=layout.dtype, device=layout.device)
        self.second_moment = torch.zeros_like(self.multiplier) if preconditioner.stateful else None

    def _inverse(self, step: StepValues) -> Tensor | None:
        """V⁻¹, or None for the identity."""
        if self.second_moment is None or step.index == 0:
            return None
        return self.preconditioner.inverse(self.second_moment, step.index)

    def contribute_(
        self, rows: slice, gradient: Tensor, scratch: Tensor, step: StepValues
    ) -> Tally:
        self._scaled_(gradient, step)
        return Tally()

    def scaled(self, step: StepValues) -> Scaled | None:
        inverse = self._inverse(step)
        most = torch.finfo(self.layout.dtype).max
        weights = None if inverse is None else (1.0 / inverse).clamp_max(most)
        return Scaled(factor=2.0 * step.lr * float(step.penalty), weights=weights)

    def moves(self, rows: slice, gradient: Tensor, step: StepValues) -> Moves:
        """As if each auxiliary had the one π: the mean of these is the step without its noise."""
        before, clipped = self.multiplier.unsqueeze(0), self.multiplier.unsqueeze(0).clone()
        self._clip_(clipped, step)
        moves = _bounded(self.layout, self._scaled_(gradient, step), step.penalty, step)
        return replace(
            moves,
            step=moves.step + self._pull(clipped, self._inverse(step), step),
            before=before,
            clipped=clipped,
        )

    def _scaled_(self, gradient: Tensor, step: StepValues) -> Tensor:
        return scaled_(
            gradient,
            inverse=self._inverse(step),
            penalty=step.penalty,
            lr=step.lr,
        )

    def _clip_(self, row: Tensor, step: StepValues) -> None:
        if self.bounded:
            clip_(self.layout, row, self.layout.norms(row), step.clip)

    def _pull(self, clipped: Tensor, inverse: Tensor | None, step: StepValues) -> Tensor:
        """ηV(π̂ + weight decay · θ)."""
        pull = clipped if step.decay is None else clipped + step.decay
        return step.lr * (pull if inverse is None else pull / inverse)

    def publish(self, noisy: Tensor, step: StepValues) -> Tensor:
        rho, multiplier = float(step.penalty), self.multiplier
        inverse = self._inverse(step)
        self._clip_(multiplier.unsqueeze(0), step)  # π̂
        u = noisy / (2.0 * rho) + self._pull(multiplier, inverse, step)
        direction = 2.0 * rho * u - multiplier
        multiplier.sub_(u, alpha=rho)
        if self.second_moment is not None:
            estimate = noisy / (2.0 * rho * step.lr)
            self.preconditioner.update_(
                self.second_moment, estimate if inverse is None else estimate * inverse
            )
        return direction

    def state(self) -> dict[str, Tensor]:
        return _named(multiplier=self.multiplier, second_moment=self.second_moment)


def _bounded(layout: Layout, contribution: Tensor, penalty: Tensor, step: StepValues) -> Moves:
    """The moves that contributions 2ρu stand for, bounded and made finite as their sum does it."""
    norms = layout.norms(contribution)
    finite = torch.isfinite(norms)
    if not bool(finite.all()):
        layout.zero_(contribution, ~finite)
    factors = clip_(layout, contribution, norms, step.clip)
    return Moves(
        step=contribution / (2.0 * penalty).to(contribution.dtype),
        rate=torch.where(finite, step.lr * factors, step.lr),
        before=None,
        clipped=None,
    )


def _named(**tensors: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def make(recipe: Recipe, layout: Layout, auxiliaries: int) -> Memory:
    """The memory that a recipe asks for."""
    match recipe.memory:
        case "auxiliary":
            return AuxiliaryMemory(layout, recipe.preconditioner, auxiliaries)
        case "shared":
            return SharedMemory(layout, recipe.preconditioner, bounded=recipe.bounded)
    return NoMemory(layout)
