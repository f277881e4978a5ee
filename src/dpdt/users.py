"""Who owns each example, where the guarantee is about users.

Guarantees: the set of users is public, and what they hold is not. What is random for an example
follows from its key: from its owner's name and its number among the owner's examples. So how much
one user holds moves nothing of anybody else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpdt.errors import InputError
from dpdt.mixing import GOLDEN

HELD = (
    "users: must be a sequence, one owner for each example, or a mapping from every user to a list "
    "of the numbers of its examples"
)


@dataclass(frozen=True, kw_only=True)
class Users:
    """The users, each once, and the number of every example's owner among them."""

    names: tuple[str, ...]
    owner: np.ndarray

    @classmethod
    def of(cls, users: Any, examples: int) -> Users:
        """The users that a caller names, and who owns which of so many examples.

        A sequence has one owner for each example. A mapping has the numbers of each user's
        examples, and may so name users who hold none. Two owners are the same if they are equal.
        """
        if isinstance(users, Mapping):
            return cls._of_mapping(users, examples)
        plain = users.tolist() if hasattr(users, "tolist") else users  # arrays and tensors
        if not isinstance(plain, Sequence) or isinstance(plain, str | bytes):
            raise InputError(f"{HELD}, found {type(users).__name__}")
        if len(plain) != examples:
            raise InputError(
                f"users: {len(plain)} owners for {examples} examples; give one for each"
            )
        numbers: dict[str, int] = {}
        owner = [numbers.setdefault(_named(u, i), len(numbers)) for i, u in enumerate(plain)]
        return cls(names=tuple(numbers), owner=np.array(owner, dtype=np.int64))

    @classmethod
    def _of_mapping(cls, users: Mapping[Any, Any], examples: int) -> Users:
        numbers: dict[str, int] = {}
        owner = np.full(examples, -1, dtype=np.int64)
        for i, (user, held) in enumerate(users.items()):
            number = numbers.setdefault(_named(user, i), len(numbers))
            for example in _listed(held):
                if not 0 <= example < examples:
                    raise InputError(
                        f"users: {user!r} owns example {example}, and examples are numbered from 0 "
                        f"to {examples - 1}"
                    )
                if owner[example] >= 0:
                    raise InputError(f"users: example {example} has two owners; give it to one")
                owner[example] = number
        if (owner < 0).any():
            raise InputError(
                f"users: example {int(np.argmin(owner))} has no owner; give one for each"
            )
        return cls(names=tuple(numbers), owner=owner)

    @property
    def number(self) -> int:
        """How many users there are, whatever they hold."""
        return len(self.names)

    @cached_property
    def own(self) -> np.ndarray:
        """Every example's number among those of its owner, in the order of the data."""
        return places(self.owner, np.arange(len(self.owner)), self.number)

    @cached_property
    def keys(self) -> np.ndarray:
        """Every example's key: a number that its owner's name and its own number make."""
        digests = [hashlib.sha256(name.encode()).digest()[:8] for name in self.names]
        first = np.array([int.from_bytes(d, "big") for d in digests], dtype=np.uint64)
        found: np.ndarray = (first.view(np.int64)[self.owner] + self.own * GOLDEN) & (2**62 - 1)
        return found

    def ranks(self, seed: int) -> np.ndarray:
        """Every user's place in an order that a public seed and the users' names decide."""
        digests = [hashlib.sha256(f"{seed} {name}".encode()).digest() for name in self.names]
        found = np.empty(self.number, dtype=np.int64)
        found[sorted(range(self.number), key=digests.__getitem__)] = np.arange(self.number)
        return found


def places(owner: np.ndarray, score: np.ndarray, number: int) -> np.ndarray:
    """Every example's place among those of its owner, in the order of scores."""
    order = np.lexsort((score, owner))
    held = np.bincount(owner, minlength=number)
    found = np.empty(len(owner), dtype=np.int64)
    found[order] = np.arange(len(owner)) - np.repeat(np.cumsum(held) - held, held)
    return found


def _listed(held: Any) -> list[int]:
    """The numbers of a user's examples."""
    plain = held.tolist() if hasattr(held, "tolist") else held
    if not isinstance(plain, Sequence) or isinstance(plain, str | bytes):
        raise InputError(f"{HELD}, found {type(held).__name__} in a mapping")
    numbers = [i.item() if hasattr(i, "item") else i for i in plain]
    if not all(type(i) is int for i in numbers):
        raise InputError(f"{HELD}, found {numbers!r:.60} in a mapping")
    return numbers


def _named(user: Any, at: int) -> str:
    name = _name(user.item() if hasattr(user, "item") else user)
    if name is None:
        raise InputError(
            "users: owners must be texts, numbers, bytes, None, or tuples and frozensets of "
            f"them, found {user!r} at {at}"
        )
    return name


def _name(user: Any) -> str | None:
    """A text that is the same for equal owners, in every process. None for what is no owner."""
    match user:
        case None:
            return repr(user)
        case str():
            return repr(str.__str__(user))  # of a kind of its own, which is equal all the same
        case bytes():
            return repr(bytes(user))
        case bool() | int():
            return f"number {int(user)}"
        case float():
            return _name(int(user)) if user.is_integer() else _not_nan(user)
        case tuple() | frozenset():
            parts = [_name(part) for part in user]
            if any(part is None for part in parts):
                return None
            known = [str(part) for part in parts]
            return repr(known if isinstance(user, tuple) else ("set", *sorted(known)))
    return None


def _not_nan(user: float) -> str | None:
    return f"number {user!r}" if user == user else None
