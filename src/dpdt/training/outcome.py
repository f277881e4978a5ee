"""What a run came to, and what its folder keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dpdt.accounting import Privacy
from dpdt.runs import Run
from dpdt.training.recorder import Recorder
from dpdt.training.step import Step


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to; `finished` is false if it was interrupted."""

    run: Path
    metric: str  # what the model is judged by
    value: float | None  # None: nothing but the last iterate may be seen, or nothing is held out
    epochs: float
    steps: int
    seconds: float
    nonfinite: int
    privacy: Privacy
    finished: bool
    ways: list[str]  # in which contributions were computed, in words
    shown: bool  # whether the model may be seen
    status: int  # of a command: 0, or 128 and the number of the signal that interrupted it

    @classmethod
    def of(cls, path: Path, learner: nn.Module, recorder: Recorder, status: int) -> Outcome:
        """What a run came to that has ended, with a command's status."""
        step, finished = recorder.step, status == 0
        shown = finished or step.plan.training.privacy.release != "last"
        ledger = step.writer.ledger
        return cls(
            run=path,
            metric=step.held.name,
            value=step.held(learner) if shown else None,
            epochs=ledger.epochs,
            steps=ledger.steps,
            seconds=recorder.seconds,
            nonfinite=recorder.nonfinite,
            privacy=step.privacy(),
            finished=finished,
            ways=step.engine.executor.words() if hasattr(step.engine, "executor") else [],
            shown=shown,
            status=status,
        )

    @property
    def accuracy(self) -> float | None:
        """The accuracy, if it is what the model is judged by."""
        return self.value if self.metric == "accuracy" else None

    def as_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "accuracy": self.accuracy,
            "metric": {"name": self.metric, "value": self.value},
            "epochs": self.epochs,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "finished": self.finished,
            "privacy": self.privacy.as_json(),
        }

    def keep(
        self, folder: Run, model: nn.Module, step: Step, kept: Callable[[Outcome], None] | None
    ) -> None:
        """Keep the model, if it may be seen, and what the method found.

        A finished run needs no checkpoint. It goes last, after what `kept` keeps: until then a
        crash leaves a run that comes out again, bit for bit, when it is resumed.
        """
        training = step.plan.training
        if self.shown:
            folder.save_model(model)
        folder.keep_tail(step.writer.tail)
        if found := training.method.findings(step.engine, training.privacy.delta):
            folder.write_findings(found)
        if self.finished:
            if kept is not None:
                kept(self)
            folder.remove_checkpoint()
