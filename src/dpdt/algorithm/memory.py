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

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpdt.algorithm.auxiliary import Tally, clip_, contribute_, contribute_plainly_
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.preconditioner import Preconditioner


@dataclass(frozen=True, kw_only=True)
class StepValues:
    """What a memory is told of one step."""

    index: int
    clip: Tensor  # C, [blocks], float64
    penalty: Tensor  # ρ_k, [auxiliaries, 1], or [1, 1] if they are equal
    lr: float  # η
    decay: Tensor | None  # auxiliary weight decay · θ
    diagnose: bool

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
        return contribute_(
            self.layout,
            gradient,
            scratch,
            self.multiplier[rows],
            self.norms[rows],
            None if self.second_moment is None else self.second_moment[rows],
            preconditioner=self.preconditioner,
            updates=step.index + 1,
            decay=step.decay,
            clip=step.clip,
            penalty=step.penalty_of(rows),
            lr=step.lr,
            diagnose=step.diagnose,
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
        return contribute_plainly_(
            self.layout,
            gradient if step.decay is None else gradient.add_(step.decay),
            scratch,
            inverse=None,
            clip=step.clip,
            penalty=step.penalty_of(rows),
            lr=step.lr,
            diagnose=step.diagnose,
        )

    def publish(self, noisy: Tensor, step: StepValues) -> Tensor:
        return noisy

    def state(self) -> dict[str, Tensor]:
        return {}


class SharedMemory:
    """One π and one V, functions of what was published and therefore free of privacy cost."""

    def __init__(self, layout: Layout, preconditioner: Preconditioner):
        self.layout, self.preconditioner = layout, preconditioner
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
        return contribute_plainly_(
            self.layout,
            gradient,
            scratch,
            inverse=self._inverse(step),
            clip=step.clip,
            penalty=step.penalty,
            lr=step.lr,
            diagnose=step.diagnose,
        )

    def publish(self, noisy: Tensor, step: StepValues) -> Tensor:
        rho, multiplier = float(step.penalty), self.multiplier
        inverse = self._inverse(step)
        row = multiplier.unsqueeze(0)
        clip_(self.layout, row, self.layout.norms(row), step.clip)  # π̂
        pull = multiplier if step.decay is None else multiplier + step.decay
        u = noisy / (2.0 * rho) + step.lr * (pull if inverse is None else pull / inverse)
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


def _named(**tensors: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def make(name: str, layout: Layout, preconditioner: Preconditioner, auxiliaries: int) -> Memory:
    """The memory called `name`."""
    match name:
        case "auxiliary":
            return AuxiliaryMemory(layout, preconditioner, auxiliaries)
        case "shared":
            return SharedMemory(layout, preconditioner)
    return NoMemory(layout)
