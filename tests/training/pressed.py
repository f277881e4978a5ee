"""Something that happens right after a step, such as Ctrl-C, outside of any callback."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dpdt.training.step import Step


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def after_step(number: int, happens: Callable[[], None] = ctrl_c) -> Iterator[None]:
    """Within, the step of that number, counted from 1, is followed by what happens."""
    take = Step.__call__

    def taken(self, batch):
        result = take(self, batch)
        if batch.step + 1 == number:
            happens()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "__call__", taken)
        yield
