"""What a model's file holds, read without torch, and the hash that names its weights.

The file is in the safetensors format: eight bytes that say how long the header is, the header (a
JSON object that says of every tensor its type, shape and place), and the numbers. The hash is over
the name, type, shape and bytes of every tensor, in the order of names. So it is the same wherever
and in whatever order the tensors lie in a file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dpdt.errors import InputError

if TYPE_CHECKING:
    from torch import nn

HEADER = 100_000_000  # bytes that a header may have
CHUNK = 1 << 20
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1}
SIZES |= {"F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4}
SIZES |= {"I64": 8, "U64": 8, "F64": 8, "C64": 8}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of a file: what it is, and the bytes it has there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def hash_of_file(path: Path) -> str:
    """The hash of the weights in a file. Nothing is unpacked: numbers pass by in small pieces."""
    try:
        with open(path, "rb") as file:
            return _hash_of(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path.name}: not a file of weights ({error})") from None


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a file."""
    try:
        with open(path, "rb") as file:
            found, _ = entries(file, os.fstat(file.fileno()).st_size)
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name}: not a file of weights ({error})") from None
    return {entry.name: entry.shape for entry in found}


def storable(model: nn.Module) -> bool:
    """Whether a file can hold the model's weights."""
    return _stored(model) is not None


def hash_of_model(model: nn.Module) -> str | None:
    """The hash that a file of this model's weights has; None if no file can hold them."""
    from safetensors.torch import save

    state = _stored(model)
    if state is None:
        return None
    parts = []
    for name, value in state.items():  # one by one, so that few are in memory twice
        packed = save({name: value.contiguous()})
        parts += _parts(io.BytesIO(packed), len(packed))
    return _combined(parts)


def _stored(model: nn.Module) -> dict[str, Any] | None:
    """What a file would hold: tied weights once. None if it cannot."""
    from safetensors.torch import _remove_duplicate_names, save
    from torch import Tensor, strided

    state: dict[str, Any] = dict(model.state_dict())
    plain = all(isinstance(v, Tensor) and v.layout == strided for v in state.values())
    if not plain or any(v.is_quantized for v in state.values()):
        return None
    try:
        for again in _remove_duplicate_names(state).values():
            for name in again:
                del state[name]
        for kind in {v.dtype for v in state.values()}:  # of each type, none: whether it is known
            packed = save({"x": next(v for v in state.values() if v.dtype == kind).new_empty(0)})
            entries(io.BytesIO(packed), len(packed))
    except (RuntimeError, ValueError, KeyError, TypeError):
        return None
    return state


def _hash_of(file: BinaryIO, size: int) -> str:
    return _combined(_parts(file, size))


def _combined(parts: Iterable[list[Any]]) -> str:
    lines = sorted(json.dumps(part) for part in parts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _parts(file: BinaryIO, size: int) -> list[list[Any]]:
    """Name, type, shape and a hash of the bytes of every tensor."""
    found, base = entries(file, size)
    parts: list[list[Any]] = []
    for entry in found:
        digest = hashlib.sha256()
        file.seek(base + entry.start)
        left = entry.end - entry.start
        while left:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise ValueError("it ends too early")
            digest.update(chunk)
            left -= len(chunk)
        parts.append([entry.name, entry.dtype, list(entry.shape), digest.hexdigest()])
    return parts


def entries(file: BinaryIO, size: int) -> tuple[list[Entry], int]:
    """The tensors of a file in the order of their places, and where the first of them begins.

    They must follow each other without a gap, up to the end of the file. Sizes are checked before
    anything is read.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(HEADER, size - 8):
        raise ValueError("its header has no possible length")
    try:
        header = json.loads(file.read(length), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    header.pop("__metadata__", None)
    found = sorted((_entry(n, v) for n, v in header.items()), key=lambda e: (e.start, e.end))
    end = 0
    for entry in found:
        if entry.start != end:
            raise ValueError(f"tensor {entry.name!r} does not follow the one before it")
        end = entry.end
    if end != size - 8 - length:
        raise ValueError("it is longer or shorter than its tensors")
    return found, 8 + length


def _entry(name: str, value: Any) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} is not described by dtype, shape and data_offsets")
    dtype, shape, places = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ValueError(f"tensor {name!r} has a type that is not known")
    if not (_numbers(shape) and _numbers(places) and len(places) == 2):
        raise ValueError(f"tensor {name!r} has an impossible shape or place")
    start, end = places
    if end - start != prod(shape) * SIZES[dtype]:
        raise ValueError(f"tensor {name!r} has a place that does not fit its shape")
    return Entry(name=name, dtype=dtype, shape=tuple(shape), start=start, end=end)


def _numbers(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > 64:
        return False
    return all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found
