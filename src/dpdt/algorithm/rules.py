"""Which functions may say themselves how `vmap` maps them: the library's own, and no others.

A `torch.autograd.Function` or an operator of `torch.library` can bring a rule of its own along.
Such a rule is handed the examples of all micro-batches at once, and may mix them. It may also wait
with that until it sees something that made-up inputs never have. So it is not called at all.

torch keeps its way of calling rules in one place for all threads. So rules are refused in every
thread while any thread maps, and the library's own are let through in their own thread alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._functorch import autograd_function

from dpdt.errors import Tainted

_torch: Any = autograd_function  # which makes a VmapInfo before it calls such a rule
_INFO = _torch.VmapInfo
_LOCK = threading.Lock()
_own = threading.local()
_mapping = 0  # how many are mapping now


class Foreign(Tainted, NotImplementedError):
    """A rule was about to be called. In trials this says that the model cannot be mapped."""


def _unless_foreign(**given: Any) -> Any:
    if not getattr(_own, "allowed", False):
        raise Foreign(
            "the model calls a function that has a vmap rule of its own, and did not on made-up "
            "inputs; such a rule sees the examples of all auxiliaries"
        )
    return _INFO(**given)


@contextmanager
def no_foreign_rules() -> Iterator[None]:
    """Inside, no function is mapped by a rule of its own."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _mapping
    with _LOCK:
        _mapping += change
        _torch.VmapInfo = _unless_foreign if _mapping else _INFO


@contextmanager
def own_rule() -> Iterator[None]:
    """Inside, and in this thread, the library's own rule is called."""
    before, _own.allowed = getattr(_own, "allowed", False), True
    try:
        yield
    finally:
        _own.allowed = before
