"""Training without privacy. What privacy costs is measured against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpdt.fields import choice, named, number, positive
from dpdt.ledger import Header
from dpdt.methods.method import Engine, Job, Method, Training
from dpdt.methods.plan import Plan
from dpdt.methods.problem import Problem
from dpdt.methods.sampled import equal_step
from dpdt.methods.settings import PrivacySettings, TrainSettings


@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    """SGD or AdamW, without clipping and noise."""

    private: ClassVar[bool] = False
    takes_pulls: ClassVar[bool] = False

    name: str = named("plain")
    optimizer: str = choice("sgd", ("sgd", "adamw"))
    lr: float = positive(0.1)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(5e-4)
    lr_schedule: str = choice("cosine", ("cosine", "constant"))

    def check(self, train: TrainSettings, privacy: PrivacySettings) -> None:
        """Nothing is promised, so nothing can be wrong."""

    def relation(self, privacy: PrivacySettings) -> str:
        return "replace-one"

    def plan(self, problem: Problem, training: Training) -> Plan:
        """No clipping, no noise, and so no guarantee."""
        train, blocks = training.train, problem.blocks(self.granularity).blocks
        header = Header(
            method=self.name,
            examples=problem.examples,
            auxiliaries=1,
            batches=train.batches(problem.examples),
            memory="none",
            sampling="partition",
            unit=training.privacy.unit,
            relation=self.relation(training.privacy),
            blocks=blocks,
            reshuffle=True,
        )
        nothing = (0.0,) * len(blocks)
        setting = equal_step(clip=nothing, noise=nothing, lr=self.lr)
        steps = train.epochs * header.batches
        return Plan(
            training=training,
            problem=problem,
            header=header,
            epochs=train.epochs,
            equal=((setting, steps),),
        )

    def engine(self, job: Job) -> Engine:
        from dpdt.methods.plain.engine import PlainEngine

        return PlainEngine(self, job)
