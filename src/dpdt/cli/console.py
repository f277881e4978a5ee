"""Standard output and error, on any console: no character and no full disk ends in a traceback.

Where a console's encoding lacks a character, another stands for it: e for ε, <= for ≤. What cannot
be written to standard error is dropped, since a run must not end for the sake of a remark. What
cannot be written to standard output raises an `OutputError`, once.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from typing import Any, TextIO

SPELLED = {
    "ε": "e", "δ": "delta", "μ": "mu", "σ": "sigma", "η": "eta", "ρ": "rho", "θ": "theta",
    "π": "pi", "λ": "lambda", "Δ": "Delta", "Σ": "sum", "β": "beta", "α": "alpha", "γ": "gamma",
    "κ": "kappa", "≤": "<=", "≥": ">=", "∞": "inf", "−": "-", "–": "-", "—": "-", "×": "x",
    "·": "-", "…": "...", "→": "->", "√": "sqrt ", "±": "+-", "²": "^2", "¼": "1/4",
}  # fmt: skip
HANDLER = "dpdt.spelled"


def on_terminal() -> bool:
    """Tell whether standard error is seen by whoever trains, and kept in no log."""
    return sys.stderr is not None and sys.stderr.isatty()


class OutputError(Exception):
    """Standard output cannot be written to. `error` says why."""

    def __init__(self, error: OSError):
        super().__init__(error.strerror)
        self.error = error

    @property
    def broken_pipe(self) -> bool:
        """Whether the reader has gone away, as `head` does when it has seen enough."""
        return self.error.errno == errno.EPIPE


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that a console's encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return "".join(SPELLED.get(character, "?") for character in found), error.end


class _Dropping(io.FileIO):
    """Takes everything, and drops what cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


class _Telling(io.FileIO):
    """Says once that something cannot be written, and drops the rest."""

    failed = False

    def write(self, data: Any) -> int:
        if self.failed:
            return len(data)
        try:
            return super().write(data) or 0
        except OSError as error:
            self.failed = True
            raise OutputError(error) from None


def prepare() -> bool:
    """Make both streams safe. Returns whether standard output is open."""
    codecs.register_error(HANDLER, _spelled)
    if sys.stderr is None:
        _occupy(2)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for ever
    sys.stderr = _safe(sys.stderr, _Dropping)
    if sys.stdout is None:
        _occupy(1)
        return False
    sys.stdout = _safe(sys.stdout, _Telling)
    return True


def _occupy(number: int) -> None:
    """Open what was closed, so that no file of ours gets its number, and what others print."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)


def _safe(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """The stream on a file that does not fail. What is no file (a test's, a console of Windows)
    gets the spelling alone.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    raw = getattr(stream.buffer, "raw", stream.buffer)  # unbuffered, it is the file itself
    if type(raw) is not io.FileIO:
        stream.reconfigure(errors=HANDLER)
        return stream
    stream.flush()
    file = kind(raw.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=HANDLER,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
