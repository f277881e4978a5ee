"""What a configuration key may be: a default, the words for what is right, and the check of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

PER_EXAMPLE = "per-example"
AUTO = "auto"  # what fits the noise, the model, the length of the run
PUBLIC = "public"  # the preconditioner from public inputs


LARGEST = 2**63 - 1  # of whole numbers, as in TOML


def is_number(value: Any) -> bool:
    """A number that float64 holds."""
    if isinstance(value, float):
        return math.isfinite(value)
    return is_integer(value)


def is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def is_integer(value: Any) -> bool:
    """A whole number of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def key(default: Any, text: str, check: Callable[[Any], bool], words: Sequence[str] = ()) -> Any:
    """A configuration key: its default, what it must be in words, and the check of it.

    `words` are those among which the nearest may have been meant.
    """
    return field(default=default, metadata={"text": text, "check": check, "words": words})


def number(default: float | None, *, least: float = 0.0, most: float = math.inf) -> Any:
    """A number from least to most, both included."""
    words = f"a number from {least:g}" + ("" if most == math.inf else f" to {most:g}")
    return key(default, words, lambda v: is_number(v) and least <= v <= most)


def positive(default: float | None, most: float = math.inf) -> Any:
    words = "a positive number" + ("" if most == math.inf else f" up to {most:g}")
    return key(default, words, lambda v: is_number(v) and 0 < v <= most)


def integer(default: int | None, least: int, most: int = LARGEST) -> Any:
    words = f"a whole number from {least} to {'2^63 - 1' if most == LARGEST else most}"
    return key(default, words, lambda v: is_integer(v) and least <= v <= most)


def choice(default: str | None, options: tuple[str, ...]) -> Any:
    return key(default, "one of " + ", ".join(options), lambda v: v in options, options)


def flag(default: bool) -> Any:
    return key(default, "true or false", lambda v: isinstance(v, bool))


def or_auto(default: float | str | None, words: str, check: Callable[[Any], bool]) -> Any:
    return key(default, f"{words} or {AUTO!r}", lambda v: v == AUTO or check(v))


def table_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: (
        check(v) or (isinstance(v, Mapping) and len(v) > 0 and all(check(x) for x in v.values()))
    )


def named(name: str) -> Any:
    """A method's own name, which is how the section [method] chooses it."""
    return key(name, repr(name), lambda v: v == name)
