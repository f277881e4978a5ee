"""What listens to a run: callbacks, loggers, and early stopping on public examples.

A callback gets public numbers: which epoch, which step, and ε so far. Whatever is computed from the
data (losses, accuracy, counts, even the time that a step takes) it gets only if it says `private =
True`. Then it cannot stop the run. When a run stops, and that it does not stop, would tell what its
callback has seen. If it raises, the run is void.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpdt.accounting import Privacy
from dpdt.errors import InputError

PUBLIC = ("epoch", "step", "epsilon")  # of an epoch's record: what depends on no data
CANNOT_STOP = (
    "{name}: a callback that sees private numbers cannot stop the run, since when it "
    "stops would tell about the data past the noise; the run goes on (dpdt.EarlyStopping takes "
    "public examples)"
)
ONLY_EARLY = (
    "{name}: where on_step or another callback sees private numbers, only dpdt.EarlyStopping can "
    "stop the run, since what was seen may have been passed on; the run goes on"
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run before its first step. All of it is public but the model's iterates.

    model: what is trained. Looking at it on the way shows more than the last iterate, which the
        ledger says of every run with callbacks.
    loss: examples → the model's mean loss on them. The training data are refused.
    same: whether examples are the training data, or some of them, as far as one can see.
    examples: their number; that of users where the unit is a user.
    """

    model: nn.Module
    loss: Callable[[Any], float | None]
    same: Callable[[Any], bool]
    method: str
    examples: int
    parameters: int
    epochs: int
    steps: int
    batch_size: int
    delta: float
    unit: str
    sampling: str

    def numbers(self) -> dict[str, Any]:
        """All but the model and what asks it."""
        return {k: v for k, v in vars(self).items() if isinstance(v, int | float | str)}


class Record(dict[str, Any]):
    """The public numbers of an epoch. Who looks for a private one is told how to get it."""

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"{name}: is not among the public numbers of an epoch ({', '.join(self)}); a "
            "dpdt.Callback with private = True gets the others too, and result.history has them"
        )


class Callback:
    """Listens to a run. Of several ranks (processes) only the first has listeners.

    `on_epoch` may return True to stop the run, which costs what was planned all the same. One that
    is shown private numbers may not. Where anybody is, only `EarlyStopping` may.
    """

    private: bool = False  # whether losses and the like are wanted; asked once, when a run begins

    def on_start(self, facts: Facts) -> None:
        """Before the first step."""

    def on_epoch(self, record: dict[str, Any]) -> bool | None:
        """After each epoch. ε so far is None where it was not computed, which takes time."""

    def on_end(self, privacy: Privacy) -> None:
        """After the last step, also of a run that was stopped or interrupted."""


class _Function(Callback):
    """A function that is told of each epoch."""

    def __init__(self, call: Callable[[dict[str, Any]], bool | None]):
        self.on_epoch = call  # type: ignore[method-assign, assignment]


def name_of(callback: Callback) -> str:
    """How a caller knows what is told of epochs."""
    return "on_epoch" if isinstance(callback, _Function) else f"{type(callback).__name__}.on_epoch"


def listeners(
    callbacks: Sequence[Callback], on_epoch: Callable[..., bool | None] | None
) -> list[Callback]:
    """The callbacks of a run; refused if they cannot be used."""
    if not isinstance(callbacks, Sequence):
        raise InputError(
            f"callbacks: must be a list, as in callbacks=[…], found {type(callbacks).__name__}"
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise InputError(
                f"callbacks: must be dpdt.Callback objects, found {type(callback).__name__}; a "
                "function goes to on_epoch"
            )
    return [*callbacks, *([] if on_epoch is None else [_Function(on_epoch)])]


class EarlyStopping(Callback):
    """Stops a run when it gets no better on public examples.

    Stopping by a private number would leak it. So `public` must be examples that need no
    protection, and that are not among the training data. A run that is stopped early still costs
    what was planned, since when it stopped may tell. What was saved is time.

    Args:
        public: examples that are public, such as a pair (x, y).
        patience: stop after this many epochs that were no better than the best.
        measure: (model, public) → a number of which less is better. Default: the run's loss.
    """

    def __init__(
        self,
        *,
        public: Any,
        patience: int = 3,
        measure: Callable[[nn.Module, Any], float] | None = None,
    ):
        if public is None or not isinstance(patience, int) or patience < 1:
            raise InputError(
                "EarlyStopping: needs public examples and a patience of 1 epoch or more; private "
                "ones would tell about themselves by when the run stops"
            )
        self.public, self.patience, self.measure = public, patience, measure
        self.best, self.waited = math.inf, 0

    def on_start(self, facts: Facts) -> None:
        if facts.same(self.public):
            raise InputError(
                "EarlyStopping.public: these are the training data, or some of them, which are "
                "private; give others"
            )
        self._facts, self.best, self.waited = facts, math.inf, 0

    def on_epoch(self, record: dict[str, Any]) -> bool:
        model, public = self._facts.model, self.public
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        with torch.no_grad():
            score = self.measure(model, public) if self.measure else self._facts.loss(public)
        for module, training in modes:
            module.training = training
        found = math.inf if score is None else float(score)
        self.waited = 0 if found < self.best else self.waited + 1
        self.best = min(self.best, found)
        return self.waited >= self.patience


class Logger(Callback):
    """Passes numbers on to a tracker: anything that has `log_metrics` (MLflow, Lightning's loggers)
    or `log` (a run of Weights & Biases).

    With `private=True` it gets losses and accuracy too. They are then wherever the tracker is.
    """

    def __init__(self, tracker: Any, *, private: bool = False):
        write = getattr(tracker, "log_metrics", None) or getattr(tracker, "log", None)
        if not callable(write):
            raise InputError(
                "Logger: needs an object with log_metrics(numbers, step=…) or log(numbers, "
                f"step=…), found {type(tracker).__name__}"
            )
        self._write, self.private = write, private

    def on_epoch(self, record: dict[str, Any]) -> None:
        numbers = {k: v for k, v in record.items() if k != "step" and isinstance(v, int | float)}
        self._write(numbers, step=record["step"])


class TensorBoard(Callback):
    """Writes numbers to a folder that TensorBoard shows. Needs the package tensorboard."""

    def __init__(self, folder: str, *, private: bool = False):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "TensorBoard: the package tensorboard is not installed; pip install tensorboard"
            ) from None
        self._writer, self.private = SummaryWriter(folder), private

    def on_epoch(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name not in ("epoch", "step") and isinstance(value, int | float):
                self._writer.add_scalar(name, value, record["step"])

    def on_end(self, privacy: Privacy) -> None:
        self._writer.close()
