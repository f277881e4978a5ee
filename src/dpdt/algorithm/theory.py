"""The quantities of the convergence theory, at every step that is diagnosed.

The paper's ℓ is the loss on all data, and ℓ(·; D_m^k) that of a micro-batch. Here the mini-batch at
hand stands for all data. Its micro-batches are what the auxiliaries have, and the mean of their
gradients stands for the full gradient. Where auxiliaries have weight decay it is part of ℓ.

Sums over auxiliaries are exact (observed.py). Three things need a model at another point than θ:

    ℓ(θ) and ℓ(θ')    one forward pass over the mini-batch each, θ' being θ after the step
    ℓ_k(θ_k)          only for some auxiliaries, spread evenly over the mini-batch

From the latter come the largest gradient deviation, the local descent, and the remainder
ℓ_k(θ_k) − ℓ_k(θ) − ⟨g, θ_k − θ⟩, whose mean stands for that of all. Up to 16 auxiliaries are looked
at, fewer for models of more than four million parameters.

Nothing here touches what the step computes, and the global generators are set back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.batch import Batch, Data
from dpdt.algorithm.diagnostics import BOUND, Diagnostics
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.gradients import Loss, channels_last, looped
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.memory import Memory, StepValues
from dpdt.algorithm.observed import Moves, Seen, observe
from dpdt.algorithm.proximal import regularization
from dpdt.algorithm.randomness import kept, seeded
from dpdt.algorithm.recipe import Recipe
from dpdt.ledger import Setting

LOOKED = 16  # auxiliaries that are looked at more closely in a step
HELD = 1 << 26  # numbers in the gradients of these
FORWARD = 64  # examples in one forward pass


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What was found at the auxiliaries that were looked at."""

    gradients: Tensor  # g of each, a row each
    held: int  # for how many the inequality of the local descent lemma held
    remainder: float  # mean of ℓ_k(θ_k) − ℓ_k(θ) − ⟨g, θ_k − θ⟩


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the step on θ did."""

    theta: Tensor  # θ before
    new: Tensor  # θ'
    mean: Tensor  # the mean contribution before noise, float64
    slope: Tensor  # ∇h at θ: the direction of the step without its noise


class Theory:
    """Looks at the steps of an engine. `begin` comes before a step, `end` after it."""

    def __init__(self, recipe: Recipe, layout: Layout, executor: Executor, memory: Memory):
        self.recipe, self.layout = recipe, layout
        self.executor, self.memory = executor, memory
        conditioned = recipe.preconditioner.stateful and recipe.memory != "none"
        self.floor = recipe.preconditioner.floor if conditioned else 1.0  # τ
        self.path_length = 0.0
        self.smoothness: float | None = None  # estimate of L, made at the first step

    def begin(self, batch: Batch, now: StepValues) -> None:
        """Look at θ and at some auxiliaries, before anything has moved."""
        self._model, self._batch, self._now = self.executor.copy(), batch, now
        if self.smoothness is None:
            found = smoothness(self._model, self.executor.loss, self.layout, batch)
            self.smoothness = found + self.recipe.auxiliary_weight_decay
        with kept():
            self._loss = self._mean_loss()
            self._looked = self._look()

    def seen(self, rows: slice, gradient: Tensor) -> Seen:
        """What these auxiliaries are about to do."""
        return self._observe(rows, gradient, self.memory.moves(rows, gradient.clone(), self._now))

    def _observe(self, rows: slice, gradient: Tensor, moves: Moves) -> Seen:
        now = self._now
        return observe(
            self.layout,
            gradient,
            moves,
            penalty=now.penalty_of(rows),
            lr=now.lr,
            decay=now.decay,
            smoothness=self.smoothness or 0.0,
            floor=self.floor,
        )

    def end(self, seen: Seen | None, setting: Setting, step: Published) -> Diagnostics:
        """What the theory says of the step that was taken. `seen` is None for no auxiliaries."""
        seen = seen or Seen.nothing(step.theta)
        deviation, typical = self._deviations(seen)
        K, largest = self.recipe.auxiliaries, max(setting.penalties, default=setting.penalty)
        limit = 2.0 * self.floor / ((self.smoothness or 0.0) + 5.0 * largest + 2.0)
        remembers, filled = self.recipe.memory != "none", sum(map(bool, self._batch.sizes))
        # ℓ(θ) − mean ℓ_k(θ_k)
        lower = (seen.along - filled * self._looked.remainder) / K
        self.path_length += float((step.new - step.theta).double().norm())
        return Diagnostics(
            lagrangian=self._loss - lower + self._regular(step.theta) + seen.proximity / K,
            consensus_residual=(seen.spread / K) ** 0.5,
            clipping_bias=seen.bias if remembers else None,
            path_length=self.path_length,
            share_cut=seen.cut / max(1, seen.pairs),
            smoothness=self.smoothness or 0.0,
            lr_limit=limit,
            lr_condition=setting.lr < limit,
            global_lr_condition=setting.global_lr < 1.0,
            looked=len(self._looked.gradients),
            gradient_deviation=deviation,
            gradient_deviation_rms=typical,
            **self._local(seen),
            dual_ascent=seen.penalised / K,
            dual_bias=seen.bias_along / K if remembers else None,
            **self._global(seen, lower, deviation, setting, step),
            **self._limits(setting, step.mean),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"path_length": self.path_length, "smoothness": self.smoothness}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.path_length, self.smoothness = state["path_length"], state["smoothness"]

    def _local(self, seen: Seen) -> dict[str, Any]:
        """The local descent lemma. With memory `shared` π has another rate than the gradient."""
        number, known = len(self._looked.gradients), self.recipe.memory != "shared"
        return {
            "descent_constant": seen.constant if known and seen.constant < math.inf else None,
            "descent_held": self._looked.held / number if known and number else None,
        }

    def _global(
        self, seen: Seen, lower: float, deviation: float, setting: Setting, step: Published
    ) -> dict[str, Any]:
        """The step on θ, the reset, and the Lyapunov function over the whole step."""
        K, moved = self.recipe.auxiliaries, (step.new - step.theta).double()
        square = float(moved @ moved)
        h = float(step.slope.double() @ moved) + 0.5 * setting.penalty * square
        regular = self._regular(step.new) - self._regular(step.theta)
        noise = setting.step_size * float(self.layout.spread(setting.noise).square().sum())
        descent = (1.0 / setting.step_size - 0.5 * setting.penalty) * square
        with kept():
            loss = self._mean_loss()
        gap = loss - self._loss + lower - seen.proximity / K - h
        change = bound = None
        if self.recipe.memory != "shared" and seen.constant > 0:
            change = loss - self._loss + regular - deviation**2 / (2.0 * seen.constant)
            local = 0.5 * seen.descent - seen.penalised - 0.5 * seen.spread
            bound = (0.5 * seen.bias_squares - local) / K - descent + gap + noise
        return {
            "global_change": h + regular,
            "global_bound": noise - descent,
            "reset_gap": gap,
            "lyapunov": loss + self._regular(step.new),
            "lyapunov_change": change,
            "lyapunov_bound": bound,
            "lyapunov_fell": None if change is None else change < 0.0,
        }

    def _limits(self, setting: Setting, mean: Tensor) -> dict[str, Any]:
        """What keeps the step small: its bound, and the noise."""
        norms = self.layout.norms(mean.unsqueeze(0))[0]
        reached = norms >= BOUND * norms.new_tensor(setting.clip)
        signal, noise = float(norms.norm()), float(self.layout.spread(setting.noise).norm())
        return {
            "share_step_bound": float(reached.double().mean()),
            "noise_to_signal": noise / signal if signal > 0.0 else None,
        }

    def _deviations(self, seen: Seen) -> tuple[float, float]:
        """‖g_k − mean g‖: the largest that was looked at, and the root mean square of all."""
        filled = max(1, sum(map(bool, self._batch.sizes)))
        mean = seen.gradient / filled
        spread = max(0.0, seen.squares / filled - float(mean @ mean))
        found = [float((g.double() - mean).norm()) for g in self._looked.gradients]
        return max(found, default=0.0), spread**0.5

    def _look(self) -> Looked:
        """Move some auxiliaries by themselves, and ask for their loss where they end."""
        layout, batch, theta = self.layout, self._batch, self.layout.gather()
        filled = [k for k, size in enumerate(batch.sizes) if size]
        number = min(LOOKED, max(1, HELD // layout.size), len(filled))
        chosen = [filled[i * len(filled) // number] for i in range(number)]
        gradients = torch.zeros(number, layout.size, dtype=layout.dtype, device=layout.device)
        held, remainders = 0, []
        for k, gradient in zip(chosen, gradients, strict=True):
            data = self._examples(*batch.bounds[k])
            seeded(self.executor.seed, batch.step, k)
            row, one = gradient.unsqueeze(0), slice(k, k + 1)
            here = float(looped(self._model, self.executor.loss, layout, data, row))
            moves = self.memory.moves(one, row.clone(), self._now)
            seen, u = self._observe(one, row, moves), moves.step[0]
            try:
                layout.scatter(theta - u)
                seeded(self.executor.seed, batch.step, k)
                there = self._loss_of(data)
            finally:
                layout.scatter(theta)
            decay = 0.5 * self.recipe.auxiliary_weight_decay * seen.spread
            own = float(gradient.double() @ u.double())
            remainders.append(there - here + own + decay)
            # The Lagrangian with the multiplier before it moved: less what the dual ascent added.
            change = remainders[-1] - seen.along + seen.proximity - seen.penalised - seen.bias_along
            rounding = 32.0 * torch.finfo(layout.dtype).eps * abs(here)
            held += change <= rounding - seen.descent
        return Looked(
            gradients=gradients, held=held, remainder=sum(remainders) / max(1, len(remainders))
        )

    def _mean_loss(self) -> float:
        """ℓ of the mini-batch at the model as it is now, weight decay of auxiliaries included."""
        total, number = 0.0, sum(self._batch.sizes)
        for first in range(0, number, FORWARD):
            last = min(first + FORWARD, number)
            seeded(self.executor.seed, self._batch.step, first)
            total += (last - first) * self._loss_of(self._examples(first, last))
        decay, theta = self.recipe.auxiliary_weight_decay, self.layout.gather().double()
        return total / max(1, number) + 0.5 * decay * float(theta @ theta)

    def _loss_of(self, data: Data) -> float:
        with torch.no_grad():
            return float(self.executor.loss(self._model, data))

    def _examples(self, first: int, last: int) -> Data:
        data = self._batch.slice(first, last)
        return channels_last(data) if self.layout.channels_last else data

    def _regular(self, theta: Tensor) -> float:
        return regularization(theta, self.recipe.regularizer, self.recipe.weight_decay)


def smoothness(
    model: nn.Module, loss: Loss, layout: Layout, batch: Batch, iterations: int = 10
) -> float:
    """Estimate L, the largest curvature in absolute value, by power iteration.

    The curvature is that of the first micro-batch that is not empty. Products with the Hessian are
    differences of gradients, so that every model can be asked. The estimate is a lower one: more
    iterations can only raise it.
    """
    bounds = [b for b in batch.bounds if b[1] > b[0]]
    if not bounds:
        return 0.0
    data, theta = batch.slice(*bounds[0]), layout.gather()
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(layout.size, generator=generator, dtype=layout.dtype).to(layout.device)
    v *= layout.spread((1.0,) * layout.count)  # padding stays 0
    reach = (1e-3 if layout.dtype == torch.float32 else 1e-5) * max(1.0, float(theta.norm()))
    estimate = 0.0

    def gradient(at: torch.Tensor) -> torch.Tensor:
        seeded(0, 0, 0)
        layout.scatter(at)
        out = torch.empty_like(theta)
        looped(model, loss, layout, data, out.unsqueeze(0))
        return out

    try:
        with kept(), torch.no_grad():
            for _ in range(iterations):
                v = v / v.norm()
                product = (gradient(theta + reach * v) - gradient(theta - reach * v)) / (2 * reach)
                estimate = float(product.norm())
                if not 0.0 < estimate < float("inf"):
                    break
                v = product
    finally:
        layout.scatter(theta)
    return estimate
