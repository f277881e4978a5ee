"""Everything Algorithm 1 is told beforehand, for each block and step (no torch).

Nothing here may depend on the data. The effective step size is η̂ = K·η_θ / Σ_k ρ_k = η_θ / mean ρ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.algorithm.proximal import contraction
from dpdt.algorithm.schedule import Constant, Schedule, stretches
from dpdt.ledger import Setting


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Algorithm 1's settings. `clip` and `noise` hold one base value for each block."""

    auxiliaries: int  # K
    clip: tuple[float, ...]  # C
    noise: tuple[float, ...]  # σ
    lr: float  # η
    global_lr: float = 0.99  # η_θ
    penalty: tuple[float, ...] = (1.0,)  # ρ_k: one for all, or one for each auxiliary
    clip_schedule: Schedule = Constant()
    noise_schedule: Schedule = Constant()
    penalty_schedule: tuple[Schedule, ...] = (Constant(),)  # one for all, or one for each
    memory: str = "shared"
    bounded: bool = True  # the shared multiplier is clipped, as in Algorithm 1
    preconditioner: Preconditioner = field(default_factory=Preconditioner)
    regularizer: str = "l2"
    weight_decay: float = 0.0  # λ, in the proximal step on θ
    auxiliary_weight_decay: float = 0.0
    averaging: float = 0.0  # weight of the past in the average of the published θ

    def _penalties(self, epoch: int, step: int) -> tuple[float, ...]:
        """ρ_k at a step: a single value if all auxiliaries share it."""
        factors = [schedule.factor(epoch, step) for schedule in self.penalty_schedule]
        number = max(len(self.penalty), len(factors))
        return tuple(
            self.penalty[k % len(self.penalty)] * factors[k % len(factors)] for k in range(number)
        )

    @property
    def shared_penalty(self) -> bool:
        """Whether all auxiliaries have one ρ."""
        return len(self.penalty) == len(self.penalty_schedule) == 1

    def runs(self, epochs: int, batches: int) -> tuple[tuple[Setting, int], ...]:
        """Every setting in order, and for how many steps it holds."""
        found: list[tuple[Setting, int]] = []
        for step, number in stretches(self.schedules, epochs, batches):
            setting = self.at(step // batches, step)
            if found and found[-1][0] == setting:
                number += found.pop()[1]
            found.append((setting, number))
        return tuple(found)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """All schedules, by their keys in [method]."""
        penalties = {f"penalty_schedule[{k}]": s for k, s in enumerate(self.penalty_schedule)}
        if len(self.penalty_schedule) == 1:
            penalties = {"penalty_schedule": self.penalty_schedule[0]}
        return {
            **penalties,
            "clip_schedule": self.clip_schedule,
            "noise_schedule": self.noise_schedule,
        }

    def at(self, epoch: int, step: int = 0) -> Setting:
        """What a step does."""
        penalties = self._penalties(epoch, step)
        penalty = sum(penalties) / len(penalties)
        step_size = self.global_lr / penalty
        clip = self.clip_schedule.factor(epoch, step)
        noise = self.noise_schedule.factor(epoch, step)
        return Setting(
            clip=tuple(c * clip for c in self.clip),
            noise=tuple(s * noise for s in self.noise),
            penalty=penalty,
            lr=self.lr,
            global_lr=self.global_lr,
            step_size=step_size,
            contraction=contraction(self.regularizer, self.weight_decay, step_size),
            penalties=() if self.shared_penalty else penalties,
        )
