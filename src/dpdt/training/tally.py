"""What the record of an epoch is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpdt.algorithm.engine import StepResult


@dataclass
class Tally:
    """What an epoch's record is made of, over the steps of the epoch so far. Private."""

    loss: float = 0.0
    steps: int = 0
    nonfinite: int = 0

    def add(self, result: StepResult) -> None:
        self.loss += result.loss
        self.steps += 1
        self.nonfinite += result.nonfinite

    def taken(self) -> dict[str, Any]:
        """The mean loss and the count, from which the next epoch begins anew."""
        found = {"loss": self.loss / self.steps, "nonfinite": self.nonfinite}
        self.loss, self.steps, self.nonfinite = 0.0, 0, 0
        return found
