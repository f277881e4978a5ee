"""What training returns."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpdt.accounting import Privacy
from dpdt.ledger import Ledger
from dpdt.models.metrics import Judge


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained model, what it guarantees, and a record for each epoch (private, as losses are)."""

    model: nn.Module
    privacy: Privacy
    _ledger: Ledger
    history: list[dict[str, Any]]
    judge: Judge  # what the model is judged by

    @property
    def ledger(self) -> Ledger:
        """What was done: a copy, so that looking at it changes nothing."""
        return copy.deepcopy(self._ledger)
