"""What reading an example can write to, and that every example is read from the same state.

A Dataset, its transforms and its collate function are code. They may keep something from one
example to the next: a cache, a generator of their own, the example before. So everything that they
can reach is known from the start (algorithm/reachable.py). Before an example is read, generators
are set by the seed, the step and its own key; after it, all else is put back.

Containers with many members are not compared at every read. They are compared after each
mini-batch. If one was written to, it is put back, and the mini-batch is read again, with
comparisons after every example from then on. What is within their members, and large arrays, is
compared now and then, as numbers alone (`lasting`): a change there cannot be put back.

Of every mini-batch one example, by a secret draw, is read again after the others. It alone shows
what else may be written to: files on the disk, and what objects of `STORAGE` hold. Reading from
such an object is taken to leave it as it is.
"""

from __future__ import annotations

import array
import io
import mmap
import secrets
import struct
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpdt.algorithm.batch import Data, leaves
from dpdt.algorithm.names import installed
from dpdt.algorithm.places import same_bits
from dpdt.algorithm.randomness import seed_of, seeded
from dpdt.algorithm.reachable import PLAIN, Items, Opaque, Place, Snapshot, Table
from dpdt.errors import InputError, Tainted

MEMBERS = 256  # of a container that is compared at every read
BYTES = 1 << 16  # of an array that is compared at every read
BLOCK, BLOCKS = 1 << 16, 256  # bytes of a large array that are compared, evenly spaced
THOROUGH = 256  # one mini-batch in so many, by a secret coin, is followed by a look at all members
STORAGE = frozenset(
    ("PIL", "pandas", "pyarrow", "polars", "h5py", "zarr", "tables", "netCDF4", "lmdb", "sqlite3",
     "tokenizers", "sentencepiece", "tiktoken", "cv2", "tifffile", "rasterio", "pydicom", "nibabel",
     "soundfile", "rdkit", "shapely")
)  # fmt: skip
FIXED = frozenset(PLAIN)
Reading = Callable[[int], Data]


class Few(Place):
    """A tensor of few bytes, which is put back by content."""

    def read(self) -> Tensor:
        content: Tensor = self.obj.detach().clone()
        return content

    def same(self) -> bool:
        return same_bits(self.obj, self.saved)

    def write(self) -> None:
        self.obj.data.copy_(self.saved)


class Many(Place):
    """A large array or tensor. Changes that torch counts are noticed at once, others now and then.

    It cannot be put back.
    """

    def __init__(self, obj: Any, label: str):
        super().__init__(obj, label)
        self.digest = _digest(obj)

    def read(self) -> int:
        counted = isinstance(self.obj, Tensor) and not self.obj.is_inference()
        return self.obj._version if counted else 0

    def intact(self) -> bool:
        """Tell whether the content is the same, as far as some of it tells."""
        return self.same() and _digest(self.obj) == self.digest

    def write(self) -> None:
        raise written(self.label)


class Arrays(Place):
    """The arrays and tensors among many objects, as `Many` looks at one."""

    def __init__(self, label: str):
        self.obj, self.label = [], label
        self.saved: list[int] = []

    def take(self, parts: tuple[Any, ...]) -> Iterator[Any]:
        """Keep arrays, also those in tuples; yield what else can change."""
        for part in parts:
            kind = type(part)
            if kind is tuple:
                yield from self.take(part)
            elif kind is Tensor or (kind is np.ndarray and part.dtype != object):
                self.obj.append(part)
            elif kind not in FIXED:
                yield part

    def noted(self) -> Arrays:
        """Note what the arrays hold."""
        self.saved = self.read()
        return self

    def read(self) -> list[int]:
        return [_digest(t) for t in self.obj]

    def same(self) -> bool:
        return self.read() == self.saved


class Long(Place):
    """A container with many members: they are compared after a mini-batch, its length always."""

    def __init__(self, inner: Place):
        self.inner = inner
        super().__init__(inner.obj, inner.label)

    def read(self) -> int:
        return len(self.obj)

    def intact(self) -> bool:
        """Tell whether the members are the same objects, or equal ones."""
        saved = self.inner.saved
        try:
            if isinstance(self.obj, list | dict):
                return bool(self.obj == saved)
            return self.inner.same()
        except (ValueError, RuntimeError, TypeError):  # arrays are not equal or unequal
            return False

    def write(self) -> None:
        self.inner.write()


class Position(Place):
    """Where an open file is read from."""

    def read(self) -> Any:
        try:
            return self.obj.tell()
        except (OSError, ValueError):  # it was iterated, or closed
            return None

    def write(self) -> None:
        if not self.obj.closed:
            self.obj.seek(self.saved)


def written(label: str) -> Tainted:
    """Make the error for a change that cannot be undone."""
    return Tainted(
        f"{label} changed while examples were read, so that one may depend on others, past the "
        "norm bound; let __getitem__ change a copy of what it holds"
    )


class Contents(Snapshot):
    """What some roots hold, to the depth that is compared at every read.

    Args:
        roots: by the label that errors give them.
        what: the argument of the caller's, for errors.
        near: what is held less deeply already; then containers may be of any length.
    """

    def __init__(self, roots: Mapping[str, Any], what: str, near: Contents | None = None):
        self.what, self.deep = what, near is not None
        self.long: list[Long] = []
        super().__init__(roots, skip=near)

    def members(self) -> tuple[dict[str, Any], list[Place]]:
        """Return the members of long containers by label, and the arrays among them."""
        found: dict[str, list[Any]] = {}
        arrays: list[Place] = []
        for place in self.long:
            obj, many = place.obj, Arrays(place.label)
            parts = (*obj.keys(), *obj.values()) if isinstance(obj, dict) else tuple(obj)
            found.setdefault(place.label, []).extend(many.take(parts))
            arrays.append(many.noted())
        return {label: tuple(parts) for label, parts in found.items()}, arrays

    def _is_library(self, module: str | None) -> bool:
        return super()._is_library(module) or installed(module)

    def _parts(self, obj: Any, label: str, layer: str) -> Iterator[tuple[Any, str, str]]:
        kind = type(obj)
        if kind.__module__.partition(".")[0] in STORAGE or kind is struct.Struct:
            return
        if isinstance(obj, io.IOBase | mmap.mmap):
            self._file(obj, label)
        elif isinstance(obj, np.ndarray | Tensor | bytearray | array.array):
            yield from self._content(obj, label, layer)
        elif self._is_long(obj):
            if not isinstance(obj, tuple | frozenset):
                inner = Table(obj, label) if isinstance(obj, dict) else Items(obj, label)
                self._note(Long(inner))
            else:
                self._note(Long(Unchanging(obj, label)))
        else:
            try:
                yield from super()._parts(obj, label, layer)
            except Opaque:
                raise self._refusal(obj, label) from None

    def _note(self, place: Long) -> None:
        self.places.append(place)
        self.long.append(place)

    def _is_long(self, obj: Any) -> bool:
        kinds = (dict, list, set, tuple, frozenset, deque)
        return not self.deep and isinstance(obj, kinds) and len(obj) > MEMBERS

    def _content(self, obj: Any, label: str, layer: str) -> Iterator[tuple[Any, str, str]]:
        if isinstance(obj, np.ndarray) and obj.dtype == object:
            yield from super()._parts(obj, label, layer)
            return
        if isinstance(obj, np.ndarray) and not obj.flags.writeable:
            return
        if self.deep or _size(obj) > BYTES:
            self.places.append(Many(obj, label))
        elif isinstance(obj, Tensor):
            self.places.append(Few(obj, label))
        else:
            yield from super()._numbers(obj, label)

    def _file(self, obj: Any, label: str) -> None:
        if obj.closed or (isinstance(obj, io.IOBase) and not obj.readable()):
            return
        if isinstance(obj, io.IOBase) and not obj.seekable():
            raise self._refusal(obj, label)
        self.places.append(Position(obj, label))

    def _refusal(self, obj: Any, label: str) -> InputError:
        kind = type(obj)
        return InputError(
            f"{self.what}: {label} is of type {kind.__module__}.{kind.__qualname__}, which can "
            "change from read to read and cannot be set back, so an example could depend on "
            "others; make it within __getitem__, or compute what it gives beforehand"
        )


class Unchanging(Place):
    """A tuple or a frozen set, which cannot change."""

    def read(self) -> None:
        return None

    def same(self) -> bool:
        return True


class Reads:
    """Reads examples of a Dataset, each from the state in which the Dataset was at first."""

    def __init__(self, roots: Mapping[str, Any], what: str):
        self.roots, self.what = dict(roots), what
        self._look()

    def _look(self) -> None:
        """Note what the roots hold. What errors say is about them."""
        self.near = Contents(self.roots, self.what)
        roots, arrays = self.near.members()
        self.far = Contents(roots, self.what, self.near)
        self.far.places += arrays
        self.near.seen, self.far.seen = {}, {}
        self.careful = self.warned = False

    def __getstate__(self) -> dict[str, Any]:
        self._put_back()
        return {"roots": self.roots, "what": self.what}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._look()  # objects are others in another process

    @property
    def file(self) -> str | None:
        """The label of an open file, if there is one."""
        return next((p.label for p in self.near.places if isinstance(p, Position)), None)

    def refuse_trained(self, trained: Iterable[Tensor]) -> None:
        """Refuse a Dataset that can read, or be put back over, what training changes."""
        ids = set(map(id, trained))
        for place in (*self.near.places, *self.far.places):
            among = place.obj if isinstance(place, Arrays) else (place.obj,)
            if not ids.isdisjoint(map(id, among)):
                raise InputError(
                    f"{self.what}: reads {place.label}, which is trained: examples would change "
                    "with every step; give the Dataset a copy of what it needs"
                )

    def batch(
        self, numbers: list[int], keys: list[int], seed: int, step: int, get: Reading
    ) -> list[Data]:
        """Read examples, each as if it were the only one. Its key sets what is random for it."""
        self.begin()
        pairs = list(zip(numbers, keys, strict=True))
        rows = [self.one(*pair, seed, step, get) for pair in pairs]
        if not self.careful and self._written():
            self.careful = True
            rows = [self.one(*pair, seed, step, get) for pair in pairs]
        chosen = secrets.randbelow(len(pairs))
        if not alike(rows[chosen], self.one(*pairs[chosen], seed, step, get)):
            raise Tainted(
                f"{self.what}: gives another example when the same one is read again, after others "
                "and with the same random numbers: so examples depend on what was read before, "
                "past the norm bound"
            )
        if not secrets.randbelow(THOROUGH):
            self.check()
        return rows

    def one(self, number: int, key: int, seed: int, step: int, get: Reading) -> Data:
        """Read an example, and put back what that has changed."""
        row = self.seeded(number, key, seed, step, get)
        self._put_back()
        return row

    def seeded(self, number: int, key: int, seed: int, step: int, get: Reading) -> Data:
        """Read an example with all generators set by its key, and leave what it changes."""
        seeded(seed, step, key)
        if self.near.sources or self.far.sources:
            own = seed_of(seed, step, key)
            self.near.seed(own)
            self.far.seed(own + 1)
        return get(number)

    def begin(self) -> None:
        """Put back what the caller has changed between reads, and say so once."""
        what = self._put_back()
        if what and not self.warned:
            self.warned = True
            warnings.warn(
                f"{what} was changed between reads, and was set back: what is read must be a "
                "function of an example's number and of torch's, numpy's or random's generators",
                stacklevel=2,
            )

    def settle(self) -> str | None:
        """Put back what was read in trial; return what cannot be put back after every example."""
        lasting = self._lasting()
        self.careful = self._written()
        self._put_back()
        return lasting

    def check(self) -> None:
        """Refuse a change that was not put back."""
        if what := self._lasting():
            raise written(what)

    def _put_back(self) -> str | None:
        found = None
        for place in self.near.places:
            whole = self.careful and isinstance(place, Long)
            if not (place.intact() if whole else place.same()):  # type: ignore[attr-defined]
                found = found or place.describe()
                place.write()
        return found

    def _written(self) -> bool:
        """Put long containers back; tell whether one was written to."""
        changed = [place for place in self.near.long if not place.intact()]
        for place in changed:
            place.write()
        return bool(changed)

    def _lasting(self) -> str | None:
        places = [p for p in self.near.places if isinstance(p, Many)] + self.far.places
        for place in places:
            if not (place.intact() if isinstance(place, Many | Long) else place.same()):
                return place.describe()
        return None


def alike(a: Data, b: Data) -> bool:
    """Tell whether two examples are equal to the bit."""
    mine, other = leaves(a), leaves(b)
    return len(mine) == len(other) and all(map(same_bits, mine, other))


def _size(obj: Any) -> int:
    """Return how many bytes an array has."""
    return memoryview(obj).nbytes if isinstance(obj, bytearray | array.array) else obj.nbytes


def _digest(obj: Any) -> int:
    """A checksum of some of an array, evenly spaced, for changes that happen by accident."""
    if isinstance(obj, Tensor):
        if obj.device.type != "cpu" or obj.layout is not torch.strided or obj.is_quantized:
            return 0
        t = obj.detach().resolve_conj().resolve_neg()
        t = t if t.is_contiguous() else t[:: max(1, len(t) // BLOCKS)].contiguous()
        plain: Any = t.reshape(-1).view(torch.uint8).numpy()
    elif isinstance(obj, np.ndarray):
        some = obj if obj.flags.c_contiguous else obj[:: max(1, len(obj) // BLOCKS)]
        plain = np.ascontiguousarray(some).reshape(-1).view(np.uint8)
    else:
        plain = np.frombuffer(obj, np.uint8)
    stride = max(BLOCK, -(-len(plain) // BLOCKS))
    total = 0
    for start in range(0, len(plain), stride):
        total = zlib.crc32(plain[start : start + BLOCK], total)
    return total
