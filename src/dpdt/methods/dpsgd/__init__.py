"""DP-SGD (Abadi et al. 2016): every example's gradient is clipped, their sum gets noise."""

from __future__ import annotations

from dataclasses import dataclass

from dpdt.fields import choice, named, number, positive
from dpdt.methods import sampled
from dpdt.methods.method import Engine, Job, Method, Training
from dpdt.methods.plan import Plan
from dpdt.methods.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Dpsgd(Method):
    """DP-SGD: Poisson sampling, one example a contribution."""

    name: str = named("dpsgd")
    clipping: str = choice("flat", ("flat", "layer", "automatic"))
    clip: float = positive(1.0)  # of an example's whole gradient
    stability: float = positive(0.01)  # γ of automatic clipping
    noise: float | None = number(None)  # the noise multiplier, in units of clip
    optimizer: str = choice("sgd", ("sgd", "adamw"))
    lr: float = positive(0.1)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(0.0)

    def plan(self, problem: Problem, training: Training) -> Plan:
        blocks = problem.blocks(self.granularity).blocks
        return sampled.plan(training, problem, blocks, (self.clip,))

    def engine(self, job: Job) -> Engine:
        from dpdt.methods.dpsgd.engine import DpsgdEngine

        return DpsgdEngine(self, job)
