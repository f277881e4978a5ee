"""A live progress line: epoch, loss, metric, ε so far, time left. Silent where nobody looks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_CEILING
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpdt.accounting.guarantee import shown

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that a notebook has no widgets, and so it is a line of text
    from tqdm.auto import tqdm


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


class _Terminal:
    """A line by rich, which is gone when the run has ended."""

    def __init__(self, steps: int, epochs: int, metric: str, console: Console):
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/" + str(epochs)),
            BarColumn(),
            TextColumn(
                "loss {task.fields[loss]:.3f}  " + metric + " {task.fields[measured]}  "
                "ε {task.fields[epsilon]}  left"
            ),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task(
            "train", total=steps, epoch=0, loss=0.0, measured="-", epsilon="0"
        )
        self._progress.start()

    def step(self, epoch: int, loss: float) -> None:
        self._progress.update(self._task, advance=1, epoch=epoch, loss=loss)

    def epoch(self, told: dict[str, str]) -> None:
        self._progress.update(self._task, **told)  # type: ignore[arg-type]

    def close(self) -> None:
        self._progress.stop()


class _Notebook:
    """A bar by tqdm, which needs no widgets."""

    def __init__(self, steps: int, epochs: int, metric: str):
        self._bar = tqdm(total=steps, leave=False, unit="step")
        self._epochs, self._metric = epochs, metric
        self._told = {"loss": "-", metric: "-", "ε": "0"}

    def step(self, epoch: int, loss: float) -> None:
        self._told["loss"] = f"{loss:.3f}"
        self._bar.set_description(f"epoch {epoch}/{self._epochs}", refresh=False)
        self._bar.set_postfix(self._told, refresh=False)
        self._bar.update()

    def epoch(self, told: dict[str, str]) -> None:
        names = {"measured": self._metric, "epsilon": "ε"}
        self._told |= {names[name]: value for name, value in told.items()}
        self._bar.set_postfix(self._told)

    def close(self) -> None:
        self._bar.close()


class Display:
    """Where a run stands: by rich on a terminal, by tqdm in a notebook, and nowhere else."""

    def __init__(self, steps: int, epochs: int, enabled: bool, metric: str):
        self._given = steps, epochs, metric
        self._console = Console(file=sys.stderr)
        self.enabled = enabled and (self._console.is_terminal or self._console.is_jupyter)
        self._line: _Terminal | _Notebook | None = None

    def __enter__(self) -> Display:
        if self.enabled:
            notebook = self._console.is_jupyter
            self._line = (
                _Notebook(*self._given) if notebook else _Terminal(*self._given, self._console)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.close()

    def step(self, epoch: int, loss: float) -> None:
        if self._line is not None:
            self._line.step(epoch + 1, loss)

    def epoch(self, measured: float | None, epsilon: float | None) -> None:
        if self._line is not None:
            told = {"measured": "-" if measured is None else f"{measured:.3f}"}
            if epsilon is not None:
                told["epsilon"] = shown(epsilon, ROUND_CEILING)
            self._line.epoch(told)
