"""PATE (Papernot et al. 2018): teachers on disjoint shards vote, a student learns the winners."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dpdt.errors import InputError
from dpdt.fields import choice, integer, named, number, positive
from dpdt.ledger import Block, Header
from dpdt.methods.method import Engine, Job, Method, Training
from dpdt.methods.plan import Plan
from dpdt.methods.problem import Problem
from dpdt.methods.sampled import equal_step

UNSCALED = 0.15  # noise of the votes before calibration, in units of the number of teachers


@dataclass(frozen=True, kw_only=True)
class Pate(Method):
    """Private aggregation of teacher ensembles, with confident GNMax."""

    needs_public: ClassVar[bool] = True
    takes_pulls: ClassVar[bool] = False  # an example reaches the student through one vote
    goes_back: ClassVar[bool] = False  # what was asked again would be answered again

    name: str = named("pate")
    teachers: int = integer(100, 1)
    teacher_epochs: int = integer(20, 1)
    queries: int | None = integer(None, 1)  # public examples shown to the teachers; else all
    answers: int | None = integer(None, 1)  # at most this many are labelled; else half of them
    threshold: float = number(0.6, most=1.0)  # share of the votes that the winner must have
    threshold_noise: float = positive(0.15)  # in units of the number of teachers
    noise: float | None = number(None)  # of the votes, likewise
    optimizer: str = choice("adamw", ("sgd", "adamw"))
    lr: float = positive(0.01)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(1e-4)

    def plan(self, problem: Problem, training: Training) -> Plan:
        """One step for each teacher, which costs nothing by itself, then one for each query.

        A query compares the winner's votes with a threshold. An answer is a noisy winner. One
        example changes one teacher's vote. So the largest count moves by at most 1, and the vector
        of counts by √2. Both are Gaussian mechanisms, so they compose exactly. The answers are paid
        for in full, whether or not they are given.
        """
        if self.teachers > problem.examples:
            raise InputError(
                f"method.teachers: must be at most the number of examples, {problem.examples}, "
                f"found {self.teachers}"
            )
        queries, answers = self._numbers(problem.public)
        header = Header(
            method=self.name,
            examples=problem.examples,
            auxiliaries=1,
            batches=self.teachers + queries,
            memory="auxiliary",
            sampling="partition",
            unit="example",
            relation="zero-out",
            blocks=(
                Block(name="threshold", kind="other", size=1),
                Block(name="votes", kind="other", size=1),
            ),
            private=training.privacy.noise_seed is None,
        )
        votes = UNSCALED if self.noise is None else self.noise
        noise = (self.teachers * self.threshold_noise, self.teachers * votes)
        query = equal_step(clip=(0.5, 0.0), noise=noise, lr=self.lr)
        runs = (
            (replace(query, clip=(0.0, 0.0)), self.teachers),
            (replace(query, clip=(0.5, math.sqrt(0.5))), answers),
            (query, queries - answers),
        )
        return Plan(
            training=training,
            problem=problem,
            header=header,
            epochs=1,
            equal=tuple(run for run in runs if run[1]),
            shards=self.teachers,
        )

    def _numbers(self, public: int) -> tuple[int, int]:
        """How many queries are asked, and how many of them are answered at most."""
        queries = public if self.queries is None else self.queries
        if queries > public:
            raise InputError(
                f"method.queries: must be at most the number of public examples, {public}, "
                f"found {queries}"
            )
        half = max(1, queries // 2)
        return queries, min(queries, half if self.answers is None else self.answers)

    def engine(self, job: Job) -> Engine:
        from dpdt.methods.pate.engine import PateEngine

        return PateEngine(self, job)

    def findings(self, engine: Any, delta: float) -> dict[str, Any]:
        """What the votes cost given how they fell."""
        found: dict[str, Any] = engine.data_dependent(delta)
        return found
