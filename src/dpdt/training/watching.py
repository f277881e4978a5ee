"""What `dpdt.train` does beside its steps: tell callbacks, show progress, hear Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.data.access import sample
from dpdt.errors import InputError
from dpdt.training.callbacks import (
    CANNOT_STOP,
    ONLY_EARLY,
    PUBLIC,
    Callback,
    EarlyStopping,
    Facts,
    Record,
    name_of,
)
from dpdt.training.fitted import Fitted, Interrupted
from dpdt.training.interrupt import Interrupt
from dpdt.training.kept import keeping
from dpdt.training.offered import NOT_PUBLIC
from dpdt.training.progress import Display
from dpdt.training.recorder import Recorder
from dpdt.training.spent import Spent
from dpdt.training.step import Step
from dpdt.training.tally import Tally

ENDED_BY_PRIVATE = (
    "the run was ended by {error} out of a callback that sees private numbers, and when it ended "
    "would tell about the data past the noise"
)
NOT_HEARD = (
    "the signal came while a callback saw private numbers, which must not stop the run; it goes "
    "on, please ask again"
)


@dataclass(frozen=True)
class Keep:
    """Where a run is kept, and whether one that was interrupted goes on there."""

    path: Path
    resume: bool

    @classmethod
    def of(cls, out: str | Path | None, resume: bool, ledger: Any) -> Keep | None:
        """What a caller has said; None if the run is kept in memory."""
        if out is None:
            if resume:
                raise InputError("resume: needs the folder of the run, out=…, which is missing")
            return None
        if ledger is not None:
            raise InputError("ledger: is in the folder that out names; give one or the other")
        return cls(Path(out), resume)


@contextmanager
def watching(
    model: nn.Module,
    step: Step,
    callbacks: list[Callback],
    on_step: Callable[[StepResult, Batch], None] | None,
    keep: Keep | None,
    *,
    show: bool,
) -> Iterator[Watch]:
    """What listens to a run, from before its first step until after its last."""
    world, epochs = step.world, step.plan.training.train.epochs
    display = Display(step.plan.steps, epochs, show and world.first, step.held.name)
    with world.telling(), display, Interrupt(_heard()) as interrupt, ExitStack() as held:
        world.asked = lambda: interrupt.asked
        world.refuse_differences(
            {"out": keep and str(keep.path), "resume": bool(keep and keep.resume)}
        )
        heard = callbacks if world.first else []
        for callback in heard:  # it may refuse, before there is a folder
            callback.on_start(_facts(model, step))
        recorder = None
        if keep is not None:
            kept = keeping(keep.path, step, display, interrupt, resume=keep.resume)
            recorder = held.enter_context(kept)
        if callbacks or on_step is not None:
            step.export("what callbacks saw on the way")
        watch = Watch(step, heard, on_step, display, recorder, interrupt)
        try:
            yield watch
        except KeyboardInterrupt:
            if recorder is None or not world.asked_to_stop():
                raise
            result = Fitted.of(model, step, watch.history)
            watch.tell(result)
            raise Interrupted(result) from None


def _facts(model: nn.Module, step: Step) -> Facts:
    header, training = step.plan.header, step.plan.training
    others: list[Any] = []  # examples that were found not to be the training data

    def same(examples: Any) -> bool:
        return step.held.trained(examples) or sample(step.held.read(examples)) == step.seen

    def loss(examples: Any) -> float | None:
        if not any(examples is known for known in others):
            if same(examples):
                raise InputError(f"facts.loss: {NOT_PUBLIC}")
            others.append(examples)
        return step.held.loss(model, examples)

    return Facts(
        model=model,
        loss=loss,
        same=same,
        method=header.method,
        examples=header.examples,
        parameters=step.plan.problem.size,
        epochs=training.train.epochs,
        steps=step.plan.steps,
        batch_size=training.train.batch_size,
        delta=training.privacy.delta,
        unit=header.unit,
        sampling=header.sampling,
    )


def _heard() -> tuple[signal.Signals, ...]:
    """Ctrl-C, unless the program has its own way with it."""
    own = threading.current_thread() is threading.main_thread()
    usual = own and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return (signal.SIGINT,) if usual else ()


class Hooks(TypedDict):
    """What the loop tells of a run, and where it adds up an epoch."""

    on_epoch: Callable[[dict[str, Any]], bool]
    on_step: Callable[[StepResult, Batch], bool]
    tally: Tally


class Watch:
    """Listens to the loop. What it returns says whether to stop, on all ranks the same."""

    def __init__(
        self,
        step: Step,
        callbacks: list[Callback],
        on_step: Callable[[StepResult, Batch], None] | None,
        display: Display,
        recorder: Recorder | None,
        interrupt: Interrupt,
    ):
        self._interrupt = interrupt
        self._seeing = [bool(callback.private) for callback in callbacks]  # asked once
        self._shows = on_step is not None or any(self._seeing)
        self.step, self.callbacks, self.display = step, callbacks, display
        self._recorder, self._on_step, self._spent = recorder, on_step, Spent(step)
        self.history: list[dict[str, Any]] = []
        self._began, self.interrupted = time.perf_counter(), False

    def hooks(self) -> Hooks:
        """What the loop is given."""
        tally = Tally() if self._recorder is None else self._recorder.tally
        return {"on_epoch": self.on_epoch, "on_step": self.on_step, "tally": tally}

    def on_epoch(self, record: dict[str, Any]) -> bool:
        epsilon = None
        self.history.append(record)
        if self._recorder is not None:  # which shows it too
            self._recorder.on_epoch(record)
            epsilon = self._recorder.epsilon
        elif self.callbacks or self.display.enabled:
            epsilon, _ = self._spent(record["epoch"], record["step"])
            self.display.epoch(record[self.step.held.name], epsilon)
        known = None if epsilon == math.inf else epsilon
        everything = {**record, "epsilon": known, "seconds": time.perf_counter() - self._began}
        public = Record({name: everything[name] for name in PUBLIC})
        stop = False
        for callback, private in zip(self.callbacks, self._seeing, strict=True):
            told = dict(everything) if private else Record(public)
            may = not self._shows or (type(callback) is EarlyStopping and not private)
            with nullcontext() if may else self._shown_private():
                asks = callback.on_epoch(told) is True
            if asks and not may:
                why = CANNOT_STOP if private else ONLY_EARLY
                warnings.warn(why.format(name=name_of(callback)), stacklevel=2)
            stop |= asks and may
        return bool(self.step.world.from_first(stop))

    def on_step(self, result: StepResult, batch: Batch) -> bool:
        if self._on_step is not None:
            with self._shown_private():
                self._on_step(result, batch)
        if self._recorder is not None:
            self._recorder.on_step(result, batch)  # at Ctrl-C it keeps where the run stands
            return False
        self.display.step(batch.epoch, result.loss)
        self.interrupted = self.step.world.asked_to_stop()
        return self.interrupted

    @contextmanager
    def _shown_private(self) -> Iterator[None]:
        """Around code that sees private numbers, which must not decide when the run ends.

        What it raises ends the run, and voids it. A signal that comes meanwhile may be its own, and
        is not heard.
        """
        asked = self._interrupt.asked
        try:
            yield
        except BaseException as error:
            self.step.writer.void(ENDED_BY_PRIVATE.format(error=type(error).__name__))
            raise
        if self._interrupt.asked and not asked:
            self._interrupt.asked = False
            print(NOT_HEARD, file=sys.stderr)

    def tell(self, result: Fitted) -> None:
        """Tell the callbacks what the run guarantees."""
        for callback in self.callbacks:
            callback.on_end(result.privacy)

    def end(self, result: Fitted) -> Fitted:
        """What the run came to; if it was interrupted, an exception has it."""
        self.tell(result)
        if self.interrupted:
            raise Interrupted(result)
        return result
