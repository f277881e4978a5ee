"""Which functions may say themselves how `vmap` maps them: the library's own, and no others.

A `torch.autograd.Function` or an operator of `torch.library` can bring a rule of its own along.
Such a rule is handed the examples of all micro-batches at once, and may mix them. It may also wait
with that until it sees something that made-up inputs never have. So it is not called at all.

torch keeps its way of calling rules in one place for all threads. So rules are refused in every
thread while any thread maps, and the library's own are let through in their own thread alone.
Functions of torch that have no rule are replaced in the same way (`while_mapping`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import autograd_function

from dpdt.errors import Tainted

_torch: Any = autograd_function  # which makes a VmapInfo before it calls such a rule
_INFO = _torch.VmapInfo
_LOCK = threading.Lock()
_own = threading.local()
_mapping = 0  # how many are mapping now
_replaced: list[tuple[Any, str, Any, Any]] = []  # where, its name, as it is, and while mapping


class Foreign(Tainted, NotImplementedError):
    """A rule was about to be called. In trials this says that the model cannot be mapped."""


def _unless_foreign(**given: Any) -> Any:
    if not getattr(_own, "allowed", False):
        raise Foreign(
            "the model calls a function that has a vmap rule of its own, and did not on made-up "
            "inputs; such a rule sees the examples of all auxiliaries"
        )
    return _INFO(**given)


def while_mapping(where: Any, name: str, other: Callable[..., Any]) -> None:
    """Let a function be another one inside `no_foreign_rules`, in every thread.

    The other one must do what the function does in threads that are not `mapping_here`. A function
    that somebody else has replaced is left alone.
    """
    _replaced.append((where, name, getattr(where, name), other))


@contextmanager
def no_foreign_rules() -> Iterator[None]:
    """Inside, no function is mapped by a rule of its own."""
    before = mapping_here()
    _count(1)
    _own.mapping = True
    try:
        yield
    finally:
        _own.mapping = before
        _count(-1)


def mapping_here() -> bool:
    """Whether this thread is inside `no_foreign_rules`."""
    return getattr(_own, "mapping", False)


def _count(change: int) -> None:
    global _mapping
    with _LOCK:
        _mapping += change
        _torch.VmapInfo = _unless_foreign if _mapping else _INFO
        for where, name, *pair in _replaced:
            now, other = pair if _mapping else reversed(pair)
            if getattr(where, name) is now:
                setattr(where, name, other)


@contextmanager
def own_rule() -> Iterator[None]:
    """Inside, and in this thread, the library's own rule is called."""
    before, _own.allowed = getattr(_own, "allowed", False), True
    try:
        yield
    finally:
        _own.allowed = before


def folded(function: Any, in_dims: Any, mapped: Any, rest: Any) -> Any:
    """The rule of a function that treats the examples of a batch one by one already.

    It is called on the examples of all micro-batches at once. `mapped` are the arguments that have
    examples, `rest` those that must be the same for all.
    """
    if any(dim is not None for dim in in_dims[len(mapped) :]):
        raise RuntimeError("what must be the same for all micro-batches differs between them")
    size = next(t.shape[d] for t, d in zip(mapped, in_dims, strict=False) if d is not None)
    moved = [
        t.unsqueeze(0).expand(size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(mapped, in_dims, strict=False)
    ]
    found = function.apply(*(t.flatten(0, 1) for t in moved), *rest)
    if isinstance(found, Tensor):
        return torch.unflatten(found, 0, (size, -1))
    return tuple(torch.unflatten(t, 0, (size, -1)) for t in found)
