"""DP-SGD (Abadi et al. 2016): every example's gradient is clipped, their sum gets noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dpdt.fields import choice, named, number, positive
from dpdt.methods import sampled
from dpdt.methods.bands import SAMPLINGS, kind_of, noise_bands, refusals
from dpdt.methods.method import Engine, Job, Method, Training, refuse
from dpdt.methods.plan import Plan
from dpdt.methods.problem import Problem
from dpdt.methods.settings import PrivacySettings, TrainSettings

ADAM = 0.9  # the momentum of AdamW
OWN = "own"  # an optimizer that is given in Python


@dataclass(frozen=True, kw_only=True)
class Dpsgd(Method):
    """DP-SGD: Poisson sampling unless said otherwise, one example a contribution."""

    name: str = named("dpsgd")
    clipping: str = choice("flat", ("flat", "layer", "automatic"))
    clip: float = positive(1.0)  # of an example's whole gradient
    stability: float = positive(0.01)  # γ of automatic clipping
    noise: float | None = number(None)  # the noise multiplier, in units of clip
    sampling: str = choice("poisson", SAMPLINGS)
    noise_bands: int | str = noise_bands()
    optimizer: str = choice("sgd", ("sgd", "adamw", OWN))
    lr: float = positive(0.1)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(0.0)

    takes_optimizer: ClassVar[bool] = True

    @property
    def hides_number(self) -> bool:
        return self.sampling == "poisson"

    def plan(self, problem: Problem, training: Training) -> Plan:
        blocks = problem.blocks(self.granularity).blocks
        return sampled.plan(
            training,
            problem,
            blocks,
            (self.clip,),
            momentum=self.momentum if self.optimizer == "sgd" else ADAM,
            sampling=kind_of(self.sampling),
        )

    def check(self, train: TrainSettings, privacy: PrivacySettings) -> None:
        refuse(
            *refusals(self.sampling, self.noise_bands, privacy.epsilon),
            (
                self.sampling == "partition" and privacy.relation not in (None, "replace-one"),
                "privacy.relation: with a fixed partition it is replace-one, since examples are "
                f"dealt by their number, found {privacy.relation!r}",
            ),
        )
        if self.sampling == "partition":
            privacy = replace(privacy, relation=None)
        super().check(train, privacy)

    def relation(self, privacy: PrivacySettings) -> str:
        """With a fixed partition replace-one, else as for any method."""
        return "replace-one" if self.sampling == "partition" else super().relation(privacy)

    def engine(self, job: Job) -> Engine:
        from dpdt.methods.dpsgd.engine import DpsgdEngine

        return DpsgdEngine(self, job)
