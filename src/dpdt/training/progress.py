"""A live progress line: epoch, loss, metric, ε so far, time left. Silent when not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_CEILING
from importlib.util import find_spec
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpdt.accounting.guarantee import shown


@contextmanager
def counting(what: str, total: int, *, enabled: bool) -> Iterator[Callable[..., None]]:
    """A bar that is told how many of `total` are done, and perhaps another total."""
    console = Console(file=sys.stderr)
    progress = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not (enabled and total and console.is_terminal),
        transient=True,
    )
    with progress:
        task = progress.add_task(what, total=total)
        yield lambda done, of=total: progress.update(task, completed=done, total=of)


class Display:
    def __init__(self, steps: int, epochs: int, enabled: bool, metric: str):
        console = Console(file=sys.stderr)
        notebook = console.is_jupyter and find_spec("ipywidgets") is not None
        self.enabled = enabled and (console.is_terminal or notebook)
        self.epochs = epochs
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn(
                "loss {task.fields[loss]:.3f}  " + metric + " {task.fields[measured]}  "
                "ε {task.fields[epsilon]}  left"
            ),
            TimeRemainingColumn(),
            console=console,
            disable=not self.enabled,
            transient=True,
        )
        self.task = self.progress.add_task(
            "train", total=steps, epoch=0, epochs=epochs, loss=0.0, measured="-", epsilon="0"
        )

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.progress.stop()

    def step(self, epoch: int, loss: float) -> None:
        self.progress.update(self.task, advance=1, epoch=epoch + 1, loss=loss)

    def epoch(self, measured: float | None, epsilon: float | None) -> None:
        self.progress.update(self.task, measured="-" if measured is None else f"{measured:.3f}")
        if epsilon is not None:
            self.progress.update(self.task, epsilon=shown(epsilon, ROUND_CEILING))
