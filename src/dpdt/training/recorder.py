"""What is kept of a run while it goes on: metrics, diagnostics, progress, checkpoints."""

from __future__ import annotations

import math
import time
from typing import Any

from dpdt.accounting import account
from dpdt.accounting.composition import Composition
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.runs import Run
from dpdt.training.interrupt import Interrupt
from dpdt.training.progress import Display
from dpdt.training.step import Step

PAUSE = 60.0  # seconds between checkpoints, which are taken after an epoch
LOOKS = 10  # at ε while a run goes on, where each takes time


class Recorder:
    """Listens to the loop. At an interrupt it writes a checkpoint and raises KeyboardInterrupt."""

    def __init__(
        self,
        folder: Run,
        step: Step,
        depends: dict[str, str],
        *,
        display: Display,
        interrupt: Interrupt,
    ):
        self.folder, self.step, self.depends = folder, step, depends
        self.display, self.interrupt = display, interrupt
        self.nonfinite = 0
        self.began = self.latest = time.perf_counter()
        self._epochs = step.plan.training.train.epochs
        self._coarse = Composition(coarse=True)

    @property
    def seconds(self) -> float:
        """How long the run has taken, with what it took before it was interrupted."""
        return time.perf_counter() - self.began

    def checkpoint(self) -> None:
        """Keep what the run needs to go on, after checking that nothing has voided it."""
        self.step.check()
        self.step.writer.sync()
        self.folder.save_checkpoint(
            {
                "step": self.step.state_dict(),
                "secrets": self.step.secrets(),
                "depends": self.depends,
                "nonfinite": self.nonfinite,
                "seconds": self.seconds,
            }
        )
        self.latest = time.perf_counter()

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, bit for bit."""
        self.step.writer.reopen(self.folder.ledger_path)
        self.step.resume(state["step"], state["secrets"])
        self.folder.forget_after(self.step.engine.steps)
        self.nonfinite = state["nonfinite"]
        self.began -= state["seconds"]

    def on_epoch(self, record: dict[str, Any]) -> None:
        epsilon, claimed = self._spent(record["epoch"])
        known = None if epsilon == math.inf else epsilon
        more = {"epsilon": known, "claimed": claimed, "seconds": self.seconds}
        self.folder.metrics({**record, **more})
        self.display.epoch(record["accuracy"], epsilon)
        if time.perf_counter() - self.latest > PAUSE:
            self.checkpoint()

    def on_step(self, result: StepResult, batch: Batch) -> None:
        self.nonfinite += result.nonfinite
        if result.diagnostics is not None:
            number = {"epoch": batch.epoch + 1, "step": batch.step + 1}
            self.folder.add_diagnostics(number | vars(result.diagnostics))
        self.display.step(batch.epoch, result.loss)
        if self.interrupt.asked:
            self.checkpoint()
            raise KeyboardInterrupt

    def _spent(self, epoch: int) -> tuple[float | None, float | None]:
        """ε so far, proven and claimed by the paper.

        Under Poisson sampling this takes time: few looks, all but the last coarse.
        """
        ledger, delta = self.step.writer.ledger, self.step.delta
        if epoch == self._epochs or ledger.header.sampling != "poisson":
            found = account(ledger, delta, allow_large_delta=True)
            return found.epsilon, found.claimed
        if epoch % math.ceil(self._epochs / LOOKS):
            return None, None
        bound = self._coarse.guarantee(ledger, delta)
        return (bound.epsilon if bound.valid else math.inf), None
