"""The errors that a user is meant to read, and the name that may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(name: object, known: Iterable[str]) -> str:
    """The end of a message: which name may have been meant. Nothing if none is near."""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), list(names), 1)
    return f"; did you mean {names[close[0]]}?" if close else ""


def one_of(name: object, known: Iterable[str]) -> str:
    """What a name must be, and which one may have been meant."""
    names = list(known)
    return f"must be one of {', '.join(names)}, found {name!r}{meant(name, names)}"


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what and why.

    The command line prints the message without a traceback and exits with status 2.
    """


class ArgumentError(InputError):
    """An argument of a function cannot be used.

    The message begins with the argument's name. The command line prints the name as an option.
    """

    def __init__(self, argument: str, problem: str):
        super().__init__(argument, problem)
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.argument}: {self.problem}"


class PrivateWarning(UserWarning):
    """A warning that depends on the training data: for who trains, and for nobody else.

    The command line prints it on a terminal, and never into a file.
    """


class Tainted(InputError):
    """Something was found that breaks a guarantee: nothing is guaranteed any more."""
