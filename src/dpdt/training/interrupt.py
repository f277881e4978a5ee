"""A signal ends a run after the step it is in; a second one ends it at once.

Ctrl-C is SIGINT. SIGTERM is what `kill`, schedulers and machines that shut down send. SIGHUP comes
when a terminal is closed, and is left alone where it is ignored, as by nohup.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """While active, the first signal only sets `asked`. `number` is the signal's."""

    def __init__(self, signals: tuple[signal.Signals, ...] = SIGNALS) -> None:
        self.asked, self._signals = False, signals
        self.number: int = signal.SIGINT  # until there is one: another rank may have heard it
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            if previous is not None:  # one that was not set from Python
                signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self.number = True, number
        with suppress(OSError, RuntimeError, ValueError):  # nobody may be listening any more
            print("stopping after this step; a second signal stops at once", file=sys.stderr)
