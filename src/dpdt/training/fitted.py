"""What training returns."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from decimal import ROUND_CEILING
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from dpdt.accounting import Privacy
from dpdt.accounting.guarantee import shown
from dpdt.errors import InputError
from dpdt.files import write_atomically
from dpdt.ledger import Ledger, text_of
from dpdt.methods.method import Training
from dpdt.models.metrics import Judge
from dpdt.runs import Run
from dpdt.training.kept import configured
from dpdt.training.step import Step
from dpdt.weights import hash_of_model


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """A trained model, what it guarantees, and a record for each epoch (private, as losses are)."""

    model: nn.Module
    privacy: Privacy
    _ledger: Ledger
    _training: Training
    history: list[dict[str, Any]]
    judge: Judge  # what the model is judged by
    taken: int  # steps; a run that was ended early costs all that were planned

    @classmethod
    def of(cls, model: nn.Module, step: Step, history: list[dict[str, Any]]) -> Fitted:
        """What a run has left; its ledger is copied."""
        return cls(
            model=model,
            privacy=step.privacy(),
            _ledger=copy.deepcopy(step.writer.ledger),
            _training=step.plan.training,
            history=history,
            judge=step.held.judge,
            taken=step.engine.steps,
        )

    @property
    def ledger(self) -> Ledger:
        """What was done: a copy, so that looking at it changes nothing."""
        return copy.deepcopy(self._ledger)

    def save(self, folder: str | Path) -> None:
        """Write the folder of a run, as `dpdt.train(…, out=folder)` does. It must not exist."""
        if not self._ledger.closed:
            raise InputError(
                f"{folder}: the run was interrupted and has no end; dpdt.train(…, out=…) keeps "
                "what it can go on from"
            )
        if hash_of_model(self.model) != self._ledger.model:
            raise InputError(
                f"{folder}: the model's weights are not those that the run left, so its ledger "
                "says nothing about them; save before the model is changed"
            )
        run = Run.create(Path(folder), configured(self._training, self.judge))
        with run.locked():
            text = text_of(self._ledger)
            write_atomically(run.ledger_path, text.encode())
            run.keep_tail(json.loads(text.splitlines()[-1])["hash"])
            for record in self.history:
                run.metrics({"epsilon": None, "claimed": None, **record})
            run.save_model(self.model)

    def __repr__(self) -> str:
        """What was trained and what it guarantees; nothing private."""
        return f"{self._words()}\n{self.privacy}"

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return f"<p>{escape(self._words())}</p>{self.privacy._repr_html_()}"

    def _words(self) -> str:
        size, header = sum(p.numel() for p in self.model.parameters()), self._ledger.header
        kind, counted = type(self.model).__name__, self.privacy.steps
        return f"{kind} with {size:,} parameters, trained by {header.method} in " + (
            f"{self.taken} steps ({self.taken / header.batches:g} epochs)"
            + (f"; {counted} are counted" if counted != self.taken else "")
        )


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended a run; `result` is what `dpdt.train` would have returned of it."""

    def __init__(self, result: Fitted):
        spent = shown(result.privacy.epsilon, ROUND_CEILING)
        cost = (
            "as was planned, since when a run ends may tell" if result.privacy.closed else "so far"
        )
        super().__init__(
            f"the run ended after {result.taken} steps, and costs ε ≤ {spent} {cost}; the result "
            "is in .result of this exception (sys.last_value.result in a notebook)"
        )
        self.result = result
