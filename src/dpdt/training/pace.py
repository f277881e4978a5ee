"""When a run writes checkpoints: after so many steps, after so much time, or as it can afford.

Ranks (processes) must agree on it. Rank 0 has the clock. It says what it finds to the others, not
after every step, but at steps that all of them know beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dpdt.distributed.world import World
from dpdt.fields import AUTO

SOONEST = 5.0  # seconds between checkpoints, at "auto"
SHARE = 0.02  # of a run's time that checkpoints may take, at "auto"
UNITS = {"s": 1.0, "m": 60.0}


class Pace:
    """`due` after each step, and `taken` after each checkpoint. Times are in seconds."""

    def __init__(self, setting: int | str, world: World, now: Callable[[], float] = time.monotonic):
        self.setting, self.world, self.now = setting, world, now
        self.latest, self.cost = now(), 0.0
        self._step = 0  # of the latest checkpoint
        self._look = 1  # the next step after which the clock is looked at

    @property
    def pause(self) -> float:
        """How much time is to pass until the next checkpoint."""
        if self.setting == AUTO:
            return max(SOONEST, self.cost / SHARE)
        text = str(self.setting)
        return float(text[:-1]) * UNITS[text[-1]]

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be taken after so many steps."""
        if isinstance(self.setting, int):
            return step % self.setting == 0
        if step < self._look:
            return False
        passed, since = self.now() - self.latest, max(1, step - self._step)
        # Ranks look again when the time is half over, as far as can be told, and then at its end.
        ahead = 1 if self.world.alone else since * (self.pause / max(passed, 1e-9) - 1)
        due, ahead = self.world.from_first((passed >= self.pause, max(1, min(since, int(ahead)))))
        self._look = step + ahead
        return bool(due)

    def taken(self, step: int, began: float) -> None:
        """A checkpoint was taken, from `began` until now."""
        self.latest, self._step, self._look = self.now(), step, step + 1
        self.cost = self.latest - began
