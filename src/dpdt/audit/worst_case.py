"""The worst case, run through the real engine: does an accountant's number survive it?

The loss is linear, ℓ(θ; x) = ⟨x, θ⟩. All examples are 0 but one, which is x in D and −x in D′. What
this record does to a coordinate of θ then depends on no other coordinate. So if every coordinate is
clipped by itself, one run is thousands of independent trials of a one-parameter model. Half of them
train on D, half on D′.

Only the last iterate is looked at. Nothing in the run depends on how long it will last, so the
iterate after E epochs is the last one of a run of E epochs.

The record lies in the last mini-batch of the epoch. x is as large as clipping makes it useful. The
threshold for guessing is chosen on a quarter of the trials and judged on the rest.

Guarantees: all numbers of a report hold at once with its confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.accounting import Privacy, account
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.layout import ENTRY
from dpdt.algorithm.recipe import Recipe
from dpdt.audit.bounds import Measured, measure
from dpdt.errors import ArgumentError
from dpdt.lattice import on_lattice
from dpdt.ledger import Block, Header, Ledger, Setting
from dpdt.noise import Randomness

# |x|, in units of the largest x that is not clipped where nothing is remembered. There, a little
# less is as bad as any, and keeps to the conditions of the convex bound. With memory, multipliers
# are better fed with more.
SIZE = {"auxiliary": 10.0, "shared": 10.0, "none": 0.999}
# K. Where auxiliaries remember, a record influences every step, and K is that of the paper.
# Elsewhere a record influences one step an epoch, and among 40 auxiliaries it would hardly be
# noticed.
AUXILIARIES = {"auxiliary": 40, "shared": 2, "none": 2}


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One tensor of the paper's CIFAR-10 setting, unless said otherwise."""

    memory: str = "auxiliary"
    epochs: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200)  # when the model is looked at
    batches: int = 20  # M
    clip: float = 0.004  # C
    noise: float = 0.001 * (2 / 0.099) ** 0.5  # σ
    lr: float = 1e-4  # η
    global_lr: float = 0.99  # η_θ
    penalty: float = 10.0  # ρ
    weight_decay: float = 5e-5  # λ

    @property
    def auxiliaries(self) -> int:
        return AUXILIARIES[self.memory]

    @property
    def size(self) -> float:
        """|x|; without memory its contribution is 2ρη·x."""
        return SIZE[self.memory] * self.clip / (2 * self.penalty * self.lr)

    def recipe(self, coordinates: int) -> Recipe:
        return Recipe(
            auxiliaries=self.auxiliaries,
            clip=(self.clip,) * coordinates,
            noise=(self.noise,) * coordinates,
            lr=self.lr,
            global_lr=self.global_lr,
            penalty=(self.penalty,),
            memory=self.memory,
            regularizer="l2" if self.weight_decay else "none",
            weight_decay=self.weight_decay,
        )

    def ledger(self, epochs: int) -> Ledger:
        """What a run of one coordinate writes down."""
        bounded = self.memory == "none"
        header = Header(
            method="dpdt",
            examples=self.auxiliaries * self.batches,
            auxiliaries=self.auxiliaries,
            batches=self.batches,
            memory=self.memory,
            sampling="partition",
            unit="example",
            relation="replace-one",
            blocks=(Block(name="coordinate", kind="other", size=1),),
            per_example=True,
            regularizer="l2" if self.weight_decay else "none",
            weight_decay=self.weight_decay,
            gradient_bound=self.size if bounded else None,
            smoothness=0.0 if bounded else None,
            release="last",  # which is what the attacker is shown
        )
        ledger = Ledger(header, closed=True)
        ledger.append(self.setting(1), epochs * self.batches)
        return ledger

    def setting(self, coordinates: int) -> Setting:
        """What every step does, each coordinate being a block of its own."""
        block = Block(name="coordinate", kind="other", size=1)
        number = self.auxiliaries
        return on_lattice(self.recipe(coordinates).at(0), (block,) * coordinates, number, number)


class Line(nn.Module):
    """⟨x, θ⟩."""

    def __init__(self, coordinates: int):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(coordinates))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.theta).sum(-1)


def linear_loss(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return model(x).mean()


def iterates(
    instance: Instance,
    trials: int,
    *,
    noise: Randomness | None = None,
    on_step: Callable[[int], None] = lambda _: None,
) -> dict[int, np.ndarray]:
    """θ after each number of epochs, as [sides, trials]; side 0 is D, side 1 is D′."""
    coordinates = 2 * trials
    model = Line(coordinates)
    engine = Decoupled(
        model,
        linear_loss,
        instance.recipe(coordinates),
        granularity=ENTRY,
        noise=noise,
    )
    plain = torch.zeros(instance.auxiliaries, coordinates)
    special = plain.clone()
    special[0, :trials], special[0, trials:] = instance.size, -instance.size
    setting = instance.setting(coordinates)
    found = {}
    for step in range(max(instance.epochs) * instance.batches):
        epoch, position = divmod(step, instance.batches)
        last = position == instance.batches - 1
        engine.step(
            Batch(
                step=step,
                epoch=epoch,
                data=special if last else plain,
                sizes=(1,) * instance.auxiliaries,
            ),
            setting,
        )
        if last and epoch + 1 in instance.epochs:
            theta = model.theta.detach()
            found[epoch + 1] = theta.view(2, trials).double().numpy().copy()
        on_step(step + 1)
    return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """One memory after some epochs: what was measured, beside every accountant's number."""

    memory: str
    epochs: int
    auxiliaries: int
    measured: Measured
    privacy: Privacy

    def refutes(self, accountant: str) -> bool:
        """Whether the accountant's number cannot be true."""
        claim = next(g for g in self.privacy.guarantees if g.accountant == accountant)
        above = self.measured.epsilon > claim.epsilon
        if claim.mu is not None:
            above |= self.measured.mu > claim.mu
        return above

    def as_json(self) -> dict[str, Any]:
        return {
            "memory": self.memory,
            "epochs": self.epochs,
            "auxiliaries": self.auxiliaries,
            "measured_mu": self.measured.mu,
            "measured_epsilon": self.measured.epsilon,
            "trials": self.measured.trials,
            "accountants": [
                {
                    "accountant": g.accountant,
                    "epsilon": g.epsilon,
                    "mu": g.mu,
                    "valid": g.valid,
                    "verdict": "refuted" if self.refutes(g.accountant) else "consistent",
                }
                for g in self.privacy.guarantees
                if g.epsilon < float("inf")
            ],
        }


def judge(
    instance: Instance, found: dict[int, np.ndarray], *, delta: float, beta: float
) -> list[Case]:
    """What the iterates prove; every case has failure probability β."""
    cases = []
    for epochs, theta in found.items():
        cases.append(
            Case(
                memory=instance.memory,
                epochs=epochs,
                auxiliaries=instance.auxiliaries,
                # descent goes against x, so D has the lower θ; high scores must speak for D
                measured=measure(-theta[0], -theta[1], delta=delta, beta=beta),
                privacy=account(instance.ledger(epochs), delta),
            )
        )
    return cases


def audit(
    memories: Sequence[str],
    *,
    instance: Instance | None = None,
    trials: int = 3000,
    delta: float = 1e-5,
    beta: float = 0.05,
    on_step: Callable[[str, int], None] = lambda *_: None,
) -> list[Case]:
    """Measure every memory through the real engine. β is divided among all cases."""
    if trials < 100:
        raise ArgumentError("trials", f"must be at least 100, found {trials}")
    instance = instance or Instance()
    share = beta / (len(memories) * len(instance.epochs))
    cases = []
    for memory in memories:
        chosen = replace(instance, memory=memory)

        def report(step: int, memory: str = memory) -> None:
            on_step(memory, step)

        found = iterates(chosen, trials, on_step=report)
        cases += judge(chosen, found, delta=delta, beta=share)
    return cases
