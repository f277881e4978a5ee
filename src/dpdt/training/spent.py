"""The ε that a run has spent so far, while it goes on. No data decide it."""

from __future__ import annotations

import math
from dataclasses import replace

from dpdt.accounting import account
from dpdt.accounting.composition import Composition
from dpdt.training.recorded import between
from dpdt.training.step import Step

LOOKS = 10  # at ε while a run goes on, where each takes time


class Spent:
    """ε so far, after an epoch."""

    def __init__(self, step: Step):
        self.step, self._epochs = step, step.plan.training.train.epochs
        self._coarse = Composition(coarse=True)

    def __call__(self, epoch: int, step: int) -> tuple[float | None, float | None]:
        """ε so far, proven and claimed by the paper.

        Steps that a resumed run takes again, as they were, stand in the ledger already: they count
        when they come. Under Poisson sampling this takes time: few looks, all but the last coarse.
        """
        ledger, delta = self.step.writer.ledger, self.step.delta
        if not ledger.repeats:
            ledger = replace(ledger, runs=between(ledger.runs, 0, step))
        if epoch == self._epochs or ledger.header.sampling != "poisson":
            found = account(ledger, delta, allow_large_delta=True)
            return found.epsilon, found.claimed
        if epoch % math.ceil(self._epochs / LOOKS):
            return None, None
        bound = self._coarse.guarantee(ledger, delta)
        return (bound.epsilon if bound.valid else math.inf), None
