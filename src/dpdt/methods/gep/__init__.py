"""Gradient embedding perturbation (Yu et al. 2021): public directions, and what they leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpdt.fields import choice, integer, named, number, positive
from dpdt.ledger import Block
from dpdt.methods import sampled
from dpdt.methods.method import Engine, Job, Method, Training
from dpdt.methods.plan import Plan
from dpdt.methods.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Gep(Method):
    """Gradient embedding perturbation, under Poisson sampling."""

    needs_public: ClassVar[bool] = True

    name: str = named("gep")
    directions: int = integer(100, 1)  # of the public basis, over all groups
    groups: int = integer(1, 1)  # layers are split into this many groups with a basis each
    power_iterations: int = integer(1, 1, most=1000)
    clip: float = positive(1.0)  # of the embedding
    residual_clip: float = positive(0.2)
    noise: float | None = number(None)  # the noise multiplier of both, in units of their clip
    optimizer: str = choice("sgd", ("sgd", "adamw"))
    lr: float = positive(0.1)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(0.0)

    @property
    def hides_number(self) -> bool:
        return True

    def plan(self, problem: Problem, training: Training) -> Plan:
        """Two blocks: the embedding, with few coordinates, and the residual."""
        blocks = (
            Block(name="embedding", kind="other", size=self.directions),
            Block(name="residual", kind="other", size=problem.size),
        )
        return sampled.plan(training, problem, blocks, (self.clip, self.residual_clip))

    def engine(self, job: Job) -> Engine:
        from dpdt.methods.gep.engine import GepEngine

        return GepEngine(self, job)
