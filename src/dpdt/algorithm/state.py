"""What a model holds besides what is trained, and that none of it changes.

A forward pass can leave private data on the module: in a buffer, a frozen parameter, an attribute.
It would reach other auxiliaries, or the released model, past the norm bound and the noise.

Guarantees: every auxiliary's pass starts from the attributes that the module had at the start
(`restore`). A buffer or frozen parameter that a pass has assigned or changed in place is noticed
before anything is published (`passed`), and so is a trained one (executor.py). Writes that torch
does not count (`.data`, numpy) and changes inside lists and dicts are found by content (`check`):
after the first step, at checkpoints and at the end. Whoever finds a change raises `Tainted`, which
voids the ledger.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.errors import InputError

OWN = ("training",)  # attributes that say nothing about data, and that a loop may change
PLAIN = (bool, int, float, str)
DEEP = 6  # levels of attributes of attributes that are looked into


class Tainted(InputError):
    """Something that is not trained has changed: nothing is guaranteed any more."""


class Attributes:
    """The attributes of a module's layers at one time, to compare with and to go back to."""

    def __init__(self, model: nn.Module):
        self.modules = dict(model.named_modules())
        self.tables = [
            (name, table, dict(table))
            for name, module in self.modules.items()
            for table in _tables(module)
        ]

    def restore(self) -> None:
        """Set every attribute back, as a pass may have left something on the module."""
        for _, table, then in self.tables:
            if not _same(table, then):
                kept = {k: table[k] for k in OWN if k in table}
                table.clear()
                table.update({**then, **kept})

    def changed(self, *, buffers: bool = False) -> str | None:
        """The first attribute (or buffer alone) that is another object than it was."""
        for name, table, then in self.tables:
            registered = table is self.modules[name]._buffers
            if (registered or not buffers) and not _same(table, then):
                key = next(
                    k for k in {**then, **table} if not _same({k: table.get(k)}, {k: then.get(k)})
                )
                if registered:
                    return f"buffer {f'{name}.{key}'.lstrip('.')!r}"
                return f"attribute {key!r} of layer {name or 'model'!r}"
        return None

    def refuse_buffers(self) -> None:
        """Refuse a pass that assigned a buffer: it means to keep something."""
        if found := self.changed(buffers=True):
            raise _changed(found)


class State(Attributes):
    """All that a module holds besides what is trained, at one time."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.model = model
        self.versions = self._versions()
        self.content = self._content()

    def passed(self) -> None:
        """Refuse a pass that assigned a buffer, or changed one or a frozen parameter in place."""
        self.refuse_buffers()
        self.restore()
        after = self._versions()
        for name, version in self.versions.items():
            if after[name] != version:
                raise _changed(name)

    def check(self) -> None:
        """Refuse any change by content: of buffers, frozen parameters, attributes."""
        found = self._content()
        for name in {**self.content, **found}:
            if self.content.get(name) != found.get(name):
                raise _changed(name)

    def _versions(self) -> dict[str, int]:
        return {name: tensor._version for name, tensor in self._kept_tensors()}

    def _kept_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in self.model.named_buffers():
            yield f"buffer {name!r}", buffer
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                yield f"frozen parameter {name!r}", parameter

    def _content(self) -> dict[str, str]:
        """A hash of everything that is not trained, by name."""
        found = {name: _digest(tensor) for name, tensor in self._kept_tensors()}
        for name, module in self.modules.items():
            for key, value in module.__dict__.items():
                if key not in (*OWN, "_parameters", "_buffers", "_modules"):
                    where = f"attribute {key!r} of layer {name or 'model'!r}"
                    found[where] = _digest(value)
        return found


def replica(model: nn.Module) -> nn.Module:
    """A module of its own that shares all parameters and buffers, for one lane."""
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def fingerprint(model: nn.Module) -> str:
    """A hash of all tensors of a module, trained or not, and of their names."""
    digest = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(name.encode())
        _feed(digest, tensor, 0, set())
    return digest.hexdigest()


def _changed(what: str) -> Tainted:
    return Tainted(
        f"{what} changed during a training pass: it would carry private data into the released "
        "model or to other auxiliaries; use a layer that keeps nothing between calls"
    )


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    """The dictionaries that hold a module's attributes, and those that torch keeps in them."""
    inner = [v for k, v in module.__dict__.items() if k.startswith("_") and type(v) is dict]
    return [module.__dict__, *inner]


def _same(table: dict[str, Any], then: dict[str, Any]) -> bool:
    return len(table) == len(then) and all(
        table.get(k) is v or k in OWN or (isinstance(v, PLAIN) and table.get(k) == v)
        for k, v in then.items()
    )


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    _feed(digest, value, 0, set())
    return digest.hexdigest()


def _feed(digest: Any, value: Any, depth: int, seen: set[int]) -> None:
    """Put a value into a hash by its content, as far as it can be known."""
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
    elif isinstance(value, nn.Module) or callable(value) or depth > DEEP or id(value) in seen:
        return  # modules are visited by themselves
    else:
        seen.add(id(value))
        if isinstance(value, Mapping):
            parts: Any = [x for pair in value.items() for x in pair]
        elif isinstance(value, tuple | list):
            parts = value
        elif isinstance(value, set | frozenset):
            parts = sorted(map(repr, value))
        else:
            parts = [x for pair in getattr(value, "__dict__", {}).items() for x in pair]
        digest.update(str(len(parts)).encode())
        for part in parts:
            _feed(digest, part, depth + 1, seen)
