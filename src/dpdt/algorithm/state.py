"""What a model holds besides what is trained, and that none of it changes.

A forward pass can leave private data on the module: in a buffer, a frozen parameter, an attribute.
These data would reach other auxiliaries, or the released model, past the norm bound and the noise.

Guarantees: training calls copies of the module (`replica`). A copy shares the module's tensors and
is thrown away after a pass. Every auxiliary's pass starts from what the copy, and all that it and
the loss can reach, held at first (reachable.py). torch does not count every write to a tensor
(`.data`, numpy). Such writes are found by content (`check`): after the first step, at checkpoints
and at the end. Whoever finds a change raises `Tainted`, which voids the ledger.
"""

from __future__ import annotations

import copy
import hashlib
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.algorithm.reachable import changed
from dpdt.errors import Tainted as Tainted

OWN = ("training",)  # attributes that say nothing about data, and that a loop may change
UNSEEN = frozenset((*OWN, "_parameters", "_buffers", "_modules"))  # compared elsewhere, or not
EXACT = (bool, int, str)
EMPTY = (dict, OrderedDict, list, tuple, set, frozenset)
PASSED_OVER = (
    nn.Module, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType,
    types.MethodType,
)  # fmt: skip
DEEP = 6  # levels of attributes of attributes that are looked into


def described(model: nn.Module) -> dict[str, str]:
    """Describe what every attribute of a module's layers holds, the same in every process."""
    known: dict[int, str] = {}
    return {
        f"attribute {key!r} of layer {name or 'model'!r}": str(_summary(value, known))
        for name, module in model.named_modules()
        for key, value in module.__dict__.items()
        if key not in UNSEEN
    }


class Kept:
    """The tensors of a module that are not trained, as they were at one time.

    `others` are tensors and large arrays that are no part of the module, but that it or the loss
    can reach, by their labels.
    """

    def __init__(self, model: nn.Module, others: Mapping[str, Any] | None = None):
        self.model, self.others = model, dict(others or {})
        self.versions = {name: tensor._version for name, tensor in self._tensors()}
        self.content = self._digests()

    def add(self, others: Mapping[str, Any]) -> None:
        """Keep more tensors and arrays, as they are now."""
        known = set(map(id, self.others.values()))
        for label, value in others.items():
            if id(value) not in known:
                name = label if label not in self.others else f"{label}, made anew"
                self.others[name] = value
                self.content[name] = _digest(value)

    def passed(self) -> None:
        """Refuse a pass that changed a tensor in place, as far as torch counts such changes."""
        for name, tensor in self._tensors():
            if self.versions.get(name) != tensor._version:
                raise changed(name)

    def check(self) -> None:
        """Refuse any change, by content."""
        now = self._digests()
        for name in {**self.content, **now}:
            if self.content.get(name) != now.get(name):
                raise changed(name)

    def _digests(self) -> dict[str, str]:
        return {name: _digest(value) for name, value in (*self._tensors(), *self.others.items())}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in self.model.named_buffers():
            yield f"buffer {name!r}", buffer
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                yield f"frozen parameter {name!r}", parameter


def replica(model: nn.Module, others: Iterable[Any] = ()) -> nn.Module:
    """Copy a module; return the module itself if it cannot be copied.

    The copy shares all parameters and buffers, and `others`.
    """
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers(), *others)}
    try:
        return copy.deepcopy(model, shared)
    except Exception:  # attributes of the user's own can refuse in any way
        return model


def model_hash(model: nn.Module) -> str:
    """A hash of all tensors of a module, trained or not, and of their names."""
    digest = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(name.encode())
        _feed(digest, tensor, 0, set())
    return digest.hexdigest()


def _summary(value: Any, known: dict[int, str]) -> Any:
    """What a value holds: its type and the value, if it is plain; of what is empty the type alone,
    since it may be filled later; otherwise a hash.
    """
    kind = type(value)
    if value is None or kind in EXACT:
        return kind, value
    if kind is float:  # as it is printed: NaN is equal to itself then, and −0 is not 0
        return kind, repr(value)
    if kind in EMPTY and not value:
        return kind
    if id(value) not in known:
        known[id(value)] = _digest(value)
    return known[id(value)]


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    _feed(digest, value, 0, set())
    return digest.hexdigest()


def _feed(digest: Any, value: Any, depth: int, seen: set[int]) -> None:
    """Put a value into a hash by its content, as far as the content can be known."""
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, Tensor):
        try:
            plain = value.detach().cpu().to_dense().contiguous().flatten()
            digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
            digest.update(plain.view(torch.uint8).numpy().data)
        except (RuntimeError, TypeError, NotImplementedError):  # such as one that escaped from vmap
            digest.update(b"cannot be read")
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.shape}{value.dtype}".encode())
        digest.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        digest.update(repr(value).encode())
    elif isinstance(value, torch.Generator):
        _feed(digest, value.get_state(), depth, seen)
    elif isinstance(value, PASSED_OVER) or depth > DEEP or id(value) in seen:
        return  # modules are visited by themselves; functions are code
    else:
        seen.add(id(value))
        for part in _parts(value):
            _feed(digest, part, depth + 1, seen)


def _parts(value: Any) -> list[Any]:
    """What an object is made of."""
    if isinstance(value, Mapping):
        return [x for pair in value.items() for x in pair]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, tuple | list | deque):
        return list(value)
    names = [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ())]
    slots = [getattr(value, n) for n in names if n != "__weakref__" and hasattr(value, n)]
    return [*slots, *(x for pair in getattr(value, "__dict__", {}).items() for x in pair)]
