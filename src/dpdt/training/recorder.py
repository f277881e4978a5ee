"""What is kept of a run while it goes on: metrics, diagnostics, progress, checkpoints.

Of several ranks (processes) only rank 0 has a folder. The others take part in every checkpoint,
since it holds what they hold.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from typing import Any

from dpdt import seal
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.errors import InputError
from dpdt.ledger import Ledger, nonce
from dpdt.runs import Run
from dpdt.training.depends import same_ranks
from dpdt.training.interrupt import Interrupt
from dpdt.training.pace import Pace
from dpdt.training.progress import Display
from dpdt.training.recorded import continued
from dpdt.training.spent import Spent
from dpdt.training.step import Step
from dpdt.training.tally import Tally


def expected(step: Step, folder: Run | None, state: Any, depends: dict[str, str]) -> Ledger:
    """The ledger that a run will have at its end; `folder` and `state` are of one that goes on.

    If that is with fresh noise, the ledger has the fork already.
    """
    if folder is None:
        return continued(step.plan, step.writer.ledger, None, exact=False)
    ledger = folder.ledger()
    exact = _why_fresh(state, ledger, depends) is None
    whole = continued(step.plan, ledger, state["step"], exact=exact)
    return whole if exact else replace(whole, forks=[*whole.forks, nonce()])


def _why_fresh(state: dict[str, Any], ledger: Ledger, depends: dict[str, str]) -> str | None:
    """Why a run cannot go on from a state with the state's own draws, if it cannot.

    After a fork the steps in the ledger had other draws: those of the state would be a second
    answer about the same steps, which the ledger does not count.
    """
    if not same_ranks(state["depends"], depends):
        return "by another number of ranks"
    if state["step"]["forks"] != ledger.forks:
        return "from a checkpoint that is older than its last fresh noise"
    return None


class Recorder:
    """Listens to the loop. At an interrupt it writes a checkpoint and raises KeyboardInterrupt."""

    def __init__(
        self,
        folder: Run | None,
        step: Step,
        depends: dict[str, str],
        *,
        display: Display,
        interrupt: Interrupt,
        repeats: bool = True,
    ):
        self.folder, self.step, self.depends, self.repeats = folder, step, depends, repeats
        self.display, self.world = display, step.world
        self.world.asked = lambda: interrupt.asked
        self.nonfinite = 0
        self.tally = Tally()  # of the epoch that is being trained
        self.began = time.perf_counter()
        self.pace = Pace(step.plan.training.train.checkpoint, self.world)
        self._spent = Spent(step)
        self.epsilon: float | None = None  # after the last epoch

    @property
    def seconds(self) -> float:
        """How long the run has taken, with what it took before it was interrupted."""
        return time.perf_counter() - self.began

    def checkpoint(self) -> None:
        """Keep what the run needs to go on, after checking that nothing has voided it."""
        began = self.pace.now()
        self.step.check()
        self.step.agree()
        self.step.writer.sync()
        state = self.step.state_dict()
        if self.folder is not None:
            self.folder.save_checkpoint(
                {
                    "step": state,
                    "secrets": self.step.secrets(),
                    "depends": self.depends,
                    "nonfinite": self.nonfinite,
                    "tally": vars(self.tally),
                    "seconds": self.seconds,
                }
            )
            self.folder.keep_tail(self.step.writer.tail)
        self.pace.taken(self.step.engine.steps, began)

    def resume(self, state: dict[str, Any] | None, fork: str | None = None) -> None:
        """Go on from a checkpoint, which rank 0 has.

        It is gone on from bit for bit by as many ranks, unless there is more that numbers depend on
        than can be compared (`repeats`). Else it goes on with fresh noise and coins. Fresh ones are
        in a checkpoint before the first of them is drawn. So those of the old checkpoint are never
        drawn again, not even if it is put back: it lacks a fork that the ledger has. `fork` is the
        number that this was announced with, if it was.
        """
        why = None
        if self.folder is not None and state is not None:
            why = _why_fresh(state, self.folder.ledger(), self.depends)
            if why is not None:
                print(f"the run goes on {why}, so with fresh noise", file=sys.stderr)
        exact = self.world.from_first(why is None and self.repeats)
        given = state or {}  # other ranks take rank 0's
        self.step.refuse_another(given.get("step", {}))  # before anything is written
        writer = self.step.writer
        if self.folder is not None:
            mine = writer.ledger.data
            writer.reopen(self.folder.ledger_path, repeats=exact)
            if seal.differ(seal.own_key(), mine, writer.ledger.data):
                raise InputError(f"{self.folder.path}: belongs to a run on other data")
            if not exact:
                writer.fork(fork)
        ledger = self.world.from_first(writer.ledger)
        if self.folder is None:
            writer.follow(ledger)
        self.step.resume(given.get("step", {}), given.get("secrets") if exact else None)
        if self.folder is not None and state is not None:
            self.folder.forget_after(self.step.engine.steps)
            self.nonfinite = state["nonfinite"]
            vars(self.tally).update(state["tally"])
            self.began -= state["seconds"]
        self.pace.taken(self.step.engine.steps, self.pace.now())
        if not exact:
            self.checkpoint()

    def on_epoch(self, record: dict[str, Any]) -> None:
        if self.folder is not None:
            epsilon, claimed = self._spent(record["epoch"], record["step"])
            self.epsilon = epsilon
            known = None if epsilon == math.inf else epsilon
            more = {"epsilon": known, "claimed": claimed, "seconds": self.seconds}
            self.folder.metrics({**record, **more})
            self.display.epoch(record[self.step.held.name], epsilon)

    def on_step(self, result: StepResult, batch: Batch) -> None:
        self.nonfinite += result.nonfinite
        if result.diagnostics is not None and self.folder is not None:
            number = {"epoch": batch.epoch + 1, "step": batch.step + 1}
            self.folder.add_diagnostics(number | vars(result.diagnostics))
        self.display.step(batch.epoch, result.loss)
        stop = self.world.asked_to_stop()
        if stop or self.pace.due(self.step.engine.steps):
            self.checkpoint()
        if stop:
            raise KeyboardInterrupt
