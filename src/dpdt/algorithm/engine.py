"""Algorithm 1: one step is its stages in order.

    for every auxiliary k:   gradient at θ → contribution of norm ≤ C, new π_k     (auxiliary.py)
    θ ← Prox(θ − η̂ · direction(mean contribution + noise))                         (publish.py)
    ρ_k for the next epoch                                                         (schedule.py)

An auxiliary is a copy θ_k of the parameters with a share of the mini-batch, its micro-batch. The
auxiliaries themselves are never stored, since the reset makes θ_k = θ. After a step two things
remain: θ, in the model, and what the memory keeps (memory.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm import memory, publish
from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.diagnostics import Diagnostics
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.gradients import Loss
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.precision import Lowered
from dpdt.algorithm.ranks import arrange, everywhere
from dpdt.algorithm.recipe import Recipe
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.theory import Published, Theory
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.ledger import Setting
from dpdt.mechanism import full_precision
from dpdt.noise import Randomness, Single


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What the person training sees of a step. Private: it depends on the data."""

    loss: float
    nonfinite: int
    diagnostics: Diagnostics | None = None


class Decoupled(Single):
    """Trains `model` by Algorithm 1, one `step` at a time.

    Args:
        model: any module without layers that mix examples or keep running statistics.
        loss: (model, micro-batch) → mean loss of the micro-batch.
        recipe: the algorithm's settings.
        granularity: what is one block: a layer, a tensor, all of a kind, or the whole model.
        noise: the source of noise. Unless given, it is keyed by operating-system entropy.
        seed: public, for what is random inside the model (dropout).
        diagnose: whether to compute the quantities of the convergence theory at every step.
        expected: the planned size of a micro-batch.
        world: the ranks that train together. Each holds a range of the auxiliaries.

    Guarantees: each step releases a mean with Gaussian noise. Its sensitivity is at most 2C/K in
    every block, up to rounding that is accounted (mechanism.py, lattice.py). This holds for any
    model, loss and data. All state but the noise is in the model and in `state_dict()`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        recipe: Recipe,
        *,
        granularity: str = "layer",
        noise: Randomness | None = None,
        seed: int = 0,
        diagnose: bool = False,
        expected: int = 1,
        world: World | None = None,
    ):
        if diagnose and isinstance(loss, Lowered):
            raise InputError(
                "train.precision: diagnosing takes differences of gradients, which bfloat16 "
                "cannot show; use float32"
            )
        self.model, self.loss, self.recipe = model, loss, recipe
        self.world = world or World()
        self.layout = Layout(model, granularity)
        for name, values in (("clip", recipe.clip), ("noise", recipe.noise)):
            if len(values) != self.layout.count:
                raise InputError(
                    f"{name}: {len(values)} values for a model of {self.layout.count} blocks"
                )
        self.noise = noise or Randomness()
        own = len(self.world.share_of(recipe.auxiliaries))
        self.memory = memory.make(recipe, self.layout, own)
        self.steps = 0
        # An exponential average of the published iterates, corrected for its start.
        self.average = self.layout.gather().zero_() if recipe.averaging else None
        self.executor = Executor(
            model,
            loss,
            self.layout,
            auxiliaries=own,
            expected=expected,
            seed=seed,
            scales=recipe.memory != "auxiliary",
        )
        self.theory = Theory(recipe, self.layout, self.executor, self.memory) if diagnose else None

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        """Take one step on a mini-batch, with the setting that was recorded for it."""
        with full_precision():
            return self._step(batch, setting)

    def _step(self, batch: Batch, setting: Setting) -> StepResult:
        recipe = self.recipe
        arrange(self.world, self.executor, batch)
        layout, decay = self.layout, recipe.auxiliary_weight_decay
        theta = layout.gather()
        own = setting.penalties[batch.first : batch.first + len(batch.sizes)]
        penalties = own or (setting.penalty,)
        now = memory.StepValues(
            index=self.steps,
            clip=torch.tensor(setting.clip, dtype=torch.float64, device=layout.device),
            penalty=torch.tensor(penalties, dtype=torch.float64, device=layout.device)[:, None],
            lr=setting.lr,
            decay=theta * decay if decay else None,
        )
        if self.theory is not None:
            self.theory.begin(batch, now)
        drawn = self.noise.ahead(layout.size)
        scaled = self.memory.scaled(now)
        found = self._total(batch, setting, now, scaled)
        total, loss, tally = everywhere(self.world, self.executor, batch, found)
        if self.theory is not None and scaled:  # gradients were never written out, to be seen
            tally.seen = self._total(batch, setting, now, None)[2].seen
        noisy = publish.aggregate(layout, total, recipe.auxiliaries, setting, drawn)
        direction = self.memory.publish(noisy, now)
        new = publish.descend(
            theta,
            direction,
            step_size=setting.step_size,
            regularizer=self.recipe.regularizer,
            weight_decay=self.recipe.weight_decay,
        )
        layout.scatter(new)
        self.steps += 1
        if self.average is not None:
            self.average.lerp_(new, (1.0 - recipe.averaging) / (1.0 - recipe.averaging**self.steps))
        told = None
        if self.theory is not None:
            mean = total / recipe.auxiliaries
            step = Published(theta=theta, new=new, mean=mean, slope=direction - noisy + mean)
            told = self.theory.end(tally.seen, setting, step)
        return StepResult(loss=loss, nonfinite=tally.nonfinite, diagnostics=told)

    def _total(
        self, batch: Batch, setting: Setting, now: memory.StepValues, scaled: Scaled | None
    ) -> tuple[Tensor, Tensor, Tally]:
        """The sum of all contributions, the losses, and what was seen."""

        def contribute(rows: slice, gradient: Tensor, scratch: Tensor) -> tuple[Tensor, Tally]:
            seen = None if self.theory is None else self.theory.seen(rows, gradient)
            tally = self.memory.contribute_(rows, gradient, scratch, now)
            tally.seen = seen
            return gradient, tally

        return self.executor.total(
            batch,
            columns=self.layout.columns,
            clip=setting.clip,
            contribute=contribute,
            scaled=scaled,
        )

    def check(self) -> None:
        """Refuse a model in which anything that is not trained has changed."""
        self.executor.check()

    def finish(self) -> None:
        """Leave in the model what is to be released: the average, if there is one, else θ."""
        if self.average is not None and self.steps:
            self.layout.scatter(self.average)

    def state_dict(self) -> dict[str, Any]:
        """Everything the run needs to continue, but for its noise. As secret as the data.

        All ranks must ask for it. What auxiliaries remember is then whole at rank 0 alone.
        """
        copied = self.world.rows_at_first if self.recipe.memory == "auxiliary" else torch.clone
        return {
            "steps": self.steps,
            "parameters": {
                n: t.detach().clone()
                for n, t in zip(self.layout.names, self.layout.tensors, strict=True)
            },
            "memory": {name: copied(t) for name, t in self.memory.state().items()},
            "average": None if self.average is None else self.average.clone(),
            "theory": None if self.theory is None else self.theory.state_dict(),
            "executor": self.executor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of an engine made with the same arguments.

        All ranks must do so; the number of ranks may be another.
        """
        mine = self.memory.state()
        if set(mine) != set(state["memory"]) or set(self.layout.names) != set(state["parameters"]):
            raise InputError("the state belongs to a run with another model or memory")
        self.executor.load_state_dict(state["executor"])
        with torch.no_grad():
            for name, tensor in zip(self.layout.names, self.layout.tensors, strict=True):
                tensor.copy_(state["parameters"][name])
            for name, kept in mine.items():
                if self.recipe.memory == "auxiliary":
                    self.world.rows_from_first(state["memory"][name], kept)
                else:
                    kept.copy_(state["memory"][name])
        if self.average is not None:
            self.average.copy_(state["average"])
        self.steps = state["steps"]
        if self.theory is not None and state["theory"] is not None:
            self.theory.load_state_dict(state["theory"])
