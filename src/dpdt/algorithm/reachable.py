"""Everything mutable that a model and a loss can reach, as it was at one time.

An example's gradient must not depend on who was computed before it. So whatever a call of a model
or a loss can write to is known here: attributes, containers, modules in plain lists, variables of
closures, global names that their code loads, attributes of classes, generators of random numbers.

Guarantees: `Snapshot.put_back` leaves every object of the walk as it was when the snapshot was
taken. Generators are set by a number of the caller's (`Snapshot.seed`), so that what they draw is a
function of that number. An object whose content cannot be seen is refused with the path to it
(`Opaque`).

Code of torch, numpy, transformers and the like is taken as it is: their classes and functions are
not walked, but what their objects hold is. Of imported modules of the user's own, what the code
names is walked.
"""

from __future__ import annotations

import array
import functools
import inspect
import logging
import random
import threading
import types
import typing
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.algorithm.names import (
    ATTRIBUTE,
    GLOBAL,
    changes,
    installed,
    is_library,
    modules_of,
    names_of,
)
from dpdt.errors import InputError, Tainted

PLAIN = (bool, int, float, complex, str, bytes, type(None))
IMMUTABLE: tuple[type, ...] = (
    *PLAIN, range, slice, types.ModuleType, types.BuiltinFunctionType, types.CodeType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, type(Ellipsis),
    type(NotImplemented), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.finfo, torch.iinfo, torch.jit.ScriptFunction, np.dtype, np.generic, np.ufunc,
    logging.Logger, logging.LoggerAdapter, inspect.Signature,
)  # fmt: skip
EXACT = frozenset(IMMUTABLE)
# modules of the standard library and of torch whose objects do not change, or hold no data
IMMUTABLE_MODULES = frozenset(
    ("re", "datetime", "decimal", "fractions", "pathlib", "uuid", "enum", "operator", "typing",
     "_thread", "_abc", "zoneinfo", "ipaddress")
)  # fmt: skip
OPERATORS = ("torch._ops", "torch._library", "torch.library")  # registries, which are code
CALLABLES = frozenset(("cython_function_or_method", "fused_cython_function", "nb_func"))
POINTER = 8  # bytes that a slot, a __dict__ or a list of weak references takes in an object
ARRAY_BYTES = 1 << 20  # larger arrays are compared by content at checkpoints, not at every call
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
MISSING = object()


class Opaque(InputError):
    """An object that a model or a loss can write to, and that cannot be put back."""


def changed(label: str) -> Tainted:
    """Make the error for something that a call has changed."""
    return Tainted(
        f"{label} changed during a training pass: it would carry private data into the released "
        "model or to other auxiliaries; use a layer that keeps nothing between calls"
    )


class Place:
    """One mutable object and what it held. A `quiet` one is put back without an error."""

    quiet = False

    def __init__(self, obj: Any, label: str):
        self.obj, self.label = obj, label
        self.saved = self.read()

    def read(self) -> Any:
        """Read what the object holds now, for `same` and `write`."""
        raise NotImplementedError

    def write(self) -> None:
        """Put back what the object held."""
        raise NotImplementedError

    def same(self) -> bool:
        return _identical(self.read(), self.saved)

    def describe(self) -> str:
        """Name what has changed."""
        return self.label


class Table(Place):
    """A dictionary: an object's attributes, a module's tensors, or one of the user's own."""

    def __init__(self, obj: Any, label: str, kind: str = "", modes: bool = True):
        self.kind, self.modes = kind, modes
        self.quiet = kind in ("module", "_parameters", "_modules")
        super().__init__(obj, label)
        self.ids = self._ids()

    def _ids(self) -> list[int]:
        return [*map(id, self.obj.keys()), *map(id, self.obj.values())]

    def read(self) -> dict[Any, Any]:
        return dict(self.obj.items())

    def same(self) -> bool:
        return self._ids() == self.ids or not self._differences()

    def _differences(self) -> list[Any]:
        now, names = self.read(), {}
        for key in (*self.saved, *now):
            names[id(key) if not isinstance(key, PLAIN) else (type(key), key)] = key
        return [
            key
            for key in names.values()
            if not _equal(_get(now, key), _get(self.saved, key))
            and not (self.modes is False and key == "training")
        ]

    def write(self) -> None:
        kept = {} if self.modes else {k: v for k, v in self.obj.items() if k == "training"}
        self.obj.clear()
        self.obj.update({**self.saved, **kept})

    def describe(self) -> str:
        keys = self._differences()
        if not keys or not self.kind:
            return self.label
        if self.kind == "_buffers":
            return f"buffer {f'{self.label}.{keys[0]}'.lstrip('.')!r}"
        return f"attribute {keys[0]!r} of {self.label}"


class Items(Place):
    """A list, deque or set."""

    def read(self) -> list[Any]:
        return list(self.obj)

    def same(self) -> bool:
        now = self.read()
        if isinstance(self.obj, set):
            return set(map(id, now)) == set(map(id, self.saved)) or self.obj == set(self.saved)
        return _identical(now, self.saved)

    def write(self) -> None:
        self.obj.clear()
        (self.obj.update if isinstance(self.obj, set) else self.obj.extend)(self.saved)


class Numbers(Place):
    """A bytearray, an array.array or a numpy array, compared by content if it is not large."""

    def __init__(self, obj: Any, label: str):
        self.large = getattr(obj, "nbytes", len(obj)) > ARRAY_BYTES
        super().__init__(obj, label)

    def read(self) -> Any:
        if self.large:
            return None
        if isinstance(self.obj, np.ndarray) and self.obj.dtype == object:
            return self.obj.ravel().tolist()
        return bytes(self.obj) if isinstance(self.obj, bytearray) else self.obj.tobytes()

    def write(self) -> None:
        if isinstance(self.obj, np.ndarray):
            flat = (
                self.saved
                if self.obj.dtype == object
                else np.frombuffer(self.saved, self.obj.dtype)
            )
            self.obj[...] = np.reshape(flat, self.obj.shape)
        elif isinstance(self.obj, bytearray):
            self.obj[:] = self.saved
        else:
            self.obj[:] = array.array(self.obj.typecode, self.saved)


class Variable(Place):
    """A variable of a closure: a cell. It may be `stored` to by the function that has it."""

    def __init__(self, obj: Any, label: str, stored: bool):
        self.stored = stored
        super().__init__(obj, label)

    def read(self) -> list[Any]:
        try:
            return [self.obj.cell_contents]
        except ValueError:  # not bound yet
            return []

    def write(self) -> None:
        if self.saved:
            self.obj.cell_contents = self.saved[0]
        else:
            del self.obj.cell_contents


class Names(Place):
    """The global names that a function's code loads or stores."""

    def __init__(self, obj: dict[str, Any], label: str, names: tuple[str, ...]):
        self.names = names
        super().__init__(obj, label)

    def read(self) -> list[Any]:
        return [self.obj.get(name, MISSING) for name in self.names]

    def write(self) -> None:
        for name, value in zip(self.names, self.saved, strict=True):
            if value is MISSING:
                self.obj.pop(name, None)
            else:
                self.obj[name] = value

    def describe(self) -> str:
        pairs = zip(self.names, self.read(), self.saved, strict=True)
        name = next(name for name, a, b in pairs if not _equal(a, b))
        return f"global variable {name!r}, which {self.label} uses,"


class Slots(Place):
    """The slots of an object, or the attributes of a class."""

    def __init__(self, obj: Any, label: str, names: tuple[str, ...] | None = None):
        self.names = names
        super().__init__(obj, label)

    def read(self) -> dict[str, Any]:
        if self.names is None:
            return dict(vars(self.obj))
        return {name: getattr(self.obj, name, MISSING) for name in self.names}

    def same(self) -> bool:
        now = self.read()
        return now.keys() == self.saved.keys() and _identical(
            list(now.values()), list(self.saved.values())
        )

    def write(self) -> None:
        now = self.read()
        for name in {**now, **self.saved}:
            value = self.saved.get(name, MISSING)
            if _equal(now.get(name, MISSING), value):
                continue
            if value is MISSING:
                delattr(self.obj, name)
            else:
                setattr(self.obj, name, value)

    def describe(self) -> str:
        now = self.read()
        names = [
            n
            for n in {**now, **self.saved}
            if not _equal(now.get(n, MISSING), self.saved.get(n, MISSING))
        ]
        return f"attribute {names[0]!r} of {self.label}" if names else self.label


class Counted(Place):
    """A tensor: torch counts the changes in place. What is trained is compared elsewhere."""

    def __init__(self, obj: Tensor, label: str, trained: bool):
        self.trained = trained
        super().__init__(obj, label)

    def read(self) -> tuple[Any, ...]:
        counted = 0 if self.trained or self.obj.is_inference() else self.obj._version
        return counted, self.obj.is_leaf and self.obj.grad is not None

    def same(self) -> bool:
        now = self.read()
        self.quiet = now[0] == self.saved[0]  # a gradient alone is thrown away
        return bool(now == self.saved)

    def write(self) -> None:
        if self.obj.is_leaf:
            self.obj.grad = None


class Source:
    """A generator of random numbers, which is set for every example, or a cache of results."""

    def __init__(self, obj: Any, label: str):
        self.obj, self.label = obj, label

    def state(self) -> Any:
        """Return what tells whether the generator was used."""
        if isinstance(self.obj, torch.Generator):
            return self.obj.get_state().tolist()
        if isinstance(self.obj, random.Random):
            return self.obj.getstate()
        if isinstance(self.obj, np.random.RandomState):
            return repr(self.obj.get_state())
        if isinstance(self.obj, np.random.BitGenerator):
            return repr(self.obj.state)
        return None

    def set(self, number: int) -> None:
        """Set the generator by a number; empty the cache."""
        if isinstance(self.obj, torch.Generator):
            self.obj.manual_seed(number)
        elif isinstance(self.obj, random.Random | np.random.RandomState):
            self.obj.seed(number)
        elif isinstance(self.obj, np.random.BitGenerator):
            self.obj.state = type(self.obj)(number).state
        else:
            self.obj.cache_clear()


class Snapshot:
    """All mutable objects that can be reached from some roots, and what they held.

    Args:
        roots: models and losses, by the label that errors give them. The label of a model is "".
        skip: another snapshot, whose objects are left to it.
        trained: tensors that training changes.
        modes: whether `training` of modules is put back too.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        *,
        skip: Snapshot | None = None,
        trained: tuple[Tensor, ...] = (),
        modes: bool = True,
    ):
        self.places: list[Place] = []
        self.sources: list[Source] = []
        self.seen: dict[int, Any] = {}
        self.writes = False  # whether code of the user's own may write to what threads share
        self._skip = {} if skip is None else skip.seen
        self._trained, self._modes = set(map(id, trained)), modes
        waiting = [(obj, label, "") for label, obj in reversed(list(roots.items()))]
        while waiting:
            obj, label, layer = waiting.pop()
            if _immutable(obj) or id(obj) in self.seen or id(obj) in self._skip:
                continue
            self.seen[id(obj)] = obj
            waiting += reversed(list(self._parts(obj, label, layer)))

    def seed(self, number: int) -> None:
        """Set all generators by a number, each in another way."""
        for index, source in enumerate(self.sources):
            source.set((number + 0x9E3779B1 * (index + 1)) % 2**32)

    def put_back(self, *, strict: bool = False) -> None:
        """Leave everything as it was, but for generators.

        Raises Tainted, when all is put back, if a container, a buffer or a tensor was changed, and
        with `strict` for anything but a gradient.
        """
        touched = [place for place in self.places if not place.same()]
        if not touched:
            return
        labels = [place.describe() for place in touched]
        for place in touched:
            place.write()
        for place, label in zip(touched, labels, strict=True):
            if not place.quiet or (strict and not isinstance(place, Counted)):
                raise changed(label)

    def difference(self) -> str | None:
        """Name the first place that does not hold what it held; None if there is none."""
        return next((p.describe() for p in self.places if not p.same()), None)

    def only(self, others: Mapping[int, Any]) -> Snapshot:
        """Return the part of this snapshot whose objects are among `others`, by id."""
        part = object.__new__(Snapshot)
        part.places = [p for p in self.places if id(p.obj) in others]
        part.sources = [s for s in self.sources if id(s.obj) in others]
        part.seen = {key: obj for key, obj in self.seen.items() if key in others}
        part.writes = self.writes
        return part

    def draws(self) -> list[Any]:
        """Return the states of all generators."""
        return [source.state() for source in self.sources]

    def containers(self) -> bool:
        """Tell whether there is anything that the user's code could change and set back."""
        return bool(self.sources or self.writes) or any(
            isinstance(p, Items | Numbers)
            or (isinstance(p, Variable) and p.stored)
            or (isinstance(p, Table) and not p.kind)
            for p in self.places
        )

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield all tensors and large arrays that are not trained, with their labels."""
        for place in self.places:
            if (isinstance(place, Counted) and not place.trained) or (
                isinstance(place, Numbers) and place.large
            ):
                yield place.label, place.obj

    def _parts(self, obj: Any, label: str, layer: str) -> Iterator[tuple[Any, str, str]]:
        """Note how an object is put back, and yield what it holds."""
        for kinds, walk in WALKS:
            if isinstance(obj, kinds):
                yield from walk(self, obj, label)
                break
        else:
            kind: Any = type(obj)
            if not _transparent(kind):
                raise Opaque(
                    f"{label or 'the model'} holds a {type(obj).__module__}."
                    f"{type(obj).__qualname__}, which can change from call to call and cannot be "
                    "set back: private data could pass from one example to the next; keep it out "
                    "of the model and the loss, or compute what it gives beforehand"
                )
        if isinstance(obj, nn.Module):
            yield from self._module(obj, label, layer)
        elif type(obj) not in WITHOUT_ATTRIBUTES and not isinstance(obj, type):
            trained = id(obj) in self._trained
            for part, path, name in self._attributes(obj, label):
                # a tensor that wraps another is changed by training
                if not (trained and isinstance(part, Tensor)):
                    yield part, path, name
        if self._is_foreign(type(obj)):
            yield type(obj), f"class {type(obj).__qualname__}", ""

    def _attributes(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        table = getattr(obj, "__dict__", None)
        if isinstance(table, dict) and (table or not isinstance(obj, Tensor) or obj.requires_grad):
            self.places.append(Table(table, label, "attributes"))
            self.seen[id(table)] = table
            for key, value in table.items():
                yield value, f"attribute {key!r} of {label}", ""
        names = tuple(
            name
            for cls in type(obj).__mro__
            if not isinstance(obj, Tensor) and _is_heap(cls)
            for name, value in vars(cls).items()
            if isinstance(value, types.MemberDescriptorType) and not name.startswith("__")
        )
        if names:
            self.places.append(Slots(obj, label, names))
            for name in names:
                yield getattr(obj, name, None), f"attribute {name!r} of {label}", ""

    def _module(self, obj: nn.Module, label: str, layer: str) -> Iterator[tuple[Any, str, str]]:
        named = not label or label.startswith("layer ")
        own = f"layer {layer or 'model'!r}" if named else label
        self.places.append(Table(obj.__dict__, own, "module", self._modes))
        self.seen[id(obj.__dict__)] = obj.__dict__
        for key, value in obj.__dict__.items():
            if key not in MODULE_TABLES:
                yield value, f"attribute {key!r} of {own}", ""
                continue
            self.places.append(Table(value, layer if key == "_buffers" else own, key))
            self.seen[id(value)] = value
            for name, part in value.items():
                path = f"{layer}.{name}".lstrip(".")
                if key == "_modules":
                    yield part, f"layer {path!r}" if named else label, path
                elif named:
                    kind = "buffer" if key == "_buffers" else "frozen parameter"
                    kind = "parameter" if id(part) in self._trained else kind
                    yield part, f"{kind} {path!r}", ""
                else:
                    yield part, f"{name!r} of {label}", ""

    def _table(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        self.places.append(Table(obj, label))
        for key, value in list(obj.items()):
            yield key, label, ""
            yield value, label, ""
        yield getattr(obj, "default_factory", None), label, ""

    def _items(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        if not isinstance(obj, tuple | frozenset):
            self.places.append(Items(obj, label))
        for value in obj:
            yield value, label, ""

    def _numbers(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        self.places.append(Numbers(obj, label))
        if isinstance(obj, np.ndarray) and obj.dtype == object:
            for value in obj.ravel().tolist():
                yield value, label, ""

    def _tensor(self, obj: Tensor, label: str) -> Iterator[tuple[Any, str, str]]:
        self.places.append(Counted(obj, label, id(obj) in self._trained))
        yield from ()

    def _source(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        if isinstance(obj, np.random.Generator):
            yield obj.bit_generator, label, ""
        elif isinstance(obj, np.random.SeedSequence | random.SystemRandom) or (
            isinstance(obj, np.random.RandomState)
            and not isinstance(obj._bit_generator, np.random.MT19937)
        ):
            yield from self._refuse(obj, label)
        else:
            self.sources.append(Source(obj, label))
            yield getattr(obj, "__wrapped__", None), label, ""

    def _bound(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        for name in ("__self__", "__func__", "__wrapped__", "func", "args", "keywords", "fget",
                     "fset", "fdel", "obj"):  # fmt: skip
            yield getattr(obj, name, None), label, ""
        if isinstance(obj, weakref.ref):
            yield obj(), label, ""
        if isinstance(obj, types.MappingProxyType):
            yield dict(obj), label, ""

    def _function(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        called = f"function {obj.__qualname__}"
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
            if id(cell) not in self.seen and id(cell) not in self._skip:
                self.seen[id(cell)] = cell
                what = f"variable {name!r} of {called}"
                stored = name in names_of(obj.__code__, "STORE_DEREF", "DELETE_DEREF")
                self.places.append(variable := Variable(cell, what, stored))
                for value in variable.saved:
                    yield value, what, ""
        for value in (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values()):
            yield value, f"a default of {called}", ""
        if vars(obj):
            self.places.append(Table(vars(obj), called, "attributes"))
            for key, value in vars(obj).items():
                yield value, f"attribute {key!r} of {called}", ""
        if self._is_library(obj.__globals__.get("__name__")):
            return
        names = tuple(sorted(names_of(obj.__code__, *GLOBAL)))
        self.places.append(Names(obj.__globals__, called, names))
        self.seen[id(obj.__globals__)] = obj.__globals__
        attributes = names_of(obj.__code__, *ATTRIBUTE)
        self.writes |= changes(obj.__code__, attributes.union(names))
        for imported in sorted(names_of(obj.__code__, "IMPORT_NAME")):
            for module in modules_of(imported, obj.__globals__.get("__package__")):
                yield from self._imported(module, attributes, called, ())
        for name in names:
            value = obj.__globals__.get(name)
            yield value, f"global variable {name!r}", ""
            yield from self._imported(value, attributes, called, ())

    def _imported(
        self, module: Any, attributes: frozenset[str], called: str, above: tuple[Any, ...]
    ) -> Iterator[tuple[Any, str, str]]:
        """Walk what a function names of a module of the user's own."""
        own = isinstance(module, types.ModuleType) and module not in above
        if not own or self._is_library(module.__name__) or installed(module.__name__):
            return
        names = tuple(sorted(attributes))
        self.places.append(Names(vars(module), called, names))
        self.seen[id(vars(module))] = vars(module)
        for name in names:
            value = vars(module).get(name)
            yield value, f"{name!r} of module {module.__name__}", ""
            yield from self._imported(value, attributes, called, (*above, module))

    def _is_library(self, module: str | None) -> bool:
        """Tell whether the code of a module is taken as it is."""
        return is_library(module)

    def _is_foreign(self, cls: type) -> bool:
        """Tell whether a class is of the user's own, or of a library that is not known."""
        return _is_heap(cls) and not self._is_library(cls.__module__)

    def _class(self, obj: type, label: str) -> Iterator[tuple[Any, str, str]]:
        if not self._is_foreign(obj):
            return
        called = f"class {obj.__qualname__}"
        self.places.append(Slots(obj, called))
        for key, value in list(vars(obj).items()):
            if key not in ("__dict__", "__weakref__", "_abc_impl", "__annotations__"):
                yield value, f"attribute {key!r} of {called}", ""
        for base in obj.__bases__:
            yield base, called, ""

    def _refuse(self, obj: Any, label: str) -> Iterator[tuple[Any, str, str]]:
        raise Opaque(
            f"{label or 'the model'} holds a {type(obj).__name__}, which can change from call to "
            "call and cannot be set back: private data could pass from one example to the next; "
            "use a number, a list or a generator of random numbers"
        )
        yield


# of an OrderedDict too: hooks of modules are such, and nobody sets attributes on them
WITHOUT_ATTRIBUTES = (
    dict, OrderedDict, list, tuple, set, frozenset, deque, bytearray, array.array, np.ndarray,
    types.FunctionType, np.random.Generator, types.MethodType,
)  # fmt: skip
Walk = Callable[[Snapshot, Any, str], Iterator[tuple[Any, str, str]]]
WALKS: tuple[tuple[Any, Walk], ...] = (
    (Tensor, Snapshot._tensor),
    ((torch.Generator, random.Random, np.random.Generator, np.random.RandomState,
      np.random.BitGenerator, np.random.SeedSequence, functools._lru_cache_wrapper),
     Snapshot._source),
    (types.FunctionType, Snapshot._function),
    (type, Snapshot._class),
    ((types.MethodType, types.BuiltinMethodType, types.MethodWrapperType, functools.partial,
      property, staticmethod, classmethod, functools.cached_property, functools.partialmethod,
      weakref.ref, memoryview, types.MappingProxyType, types.GenericAlias), Snapshot._bound),
    ((dict, types.SimpleNamespace), lambda own, obj, label:
     own._table(obj, label) if isinstance(obj, dict) else iter(())),
    ((list, tuple, set, frozenset, deque), Snapshot._items),
    ((bytearray, array.array, np.ndarray), Snapshot._numbers),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), Snapshot._refuse),
)  # fmt: skip


def _immutable(obj: Any) -> bool:
    """Tell whether an object cannot change, or holds nothing of a call."""
    kind = type(obj)
    if kind is types.BuiltinFunctionType:  # a bound method of a list is one too
        return isinstance(obj.__self__, types.ModuleType | type | None)
    return (
        kind in EXACT
        or isinstance(obj, IMMUTABLE[len(PLAIN) :])
        or (
            kind.__module__ in IMMUTABLE_MODULES
            and kind is not threading.local
            and not isinstance(obj, type)  # a class of the user's own may have such a metaclass
        )
        or (kind.__module__.startswith(OPERATORS) and kind.__name__ != "CustomOpDef")
        or kind.__name__ in CALLABLES
        or isinstance(obj, typing.TypeVar)
    )


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, PLAIN) and repr(a) == repr(b))


def _identical(a: Any, b: Any) -> bool:
    if not isinstance(a, list):
        return bool(a == b)
    return len(a) == len(b) and all(map(_equal, a, b))


def _get(table: dict[Any, Any], key: Any) -> Any:
    return table.get(key, MISSING)


def _is_heap(cls: type) -> bool:
    return bool(cls.__flags__ & (1 << 9))


KNOWN = (object, dict, list, tuple, set, frozenset, deque, OrderedDict, bytearray, array.array,
         np.ndarray, Tensor, int, float, complex, str, bytes, BaseException, type,
         types.SimpleNamespace, functools.partial, property)  # fmt: skip


@functools.cache
def _transparent(cls: Hashable) -> bool:
    """Tell whether an object of a class holds nothing but its attributes.

    A class that is written in Python adds to an object its slots, a dictionary, and a list of weak
    references. An object that is larger holds something that only C code can see.
    """
    assert isinstance(cls, type)
    if cls in KNOWN:
        return True
    if not _is_heap(cls) or cls.__base__ is None:
        return False
    mine = vars(cls)
    slots = sum(isinstance(v, types.MemberDescriptorType) for v in mine.values())
    most = POINTER * (slots + ("__dict__" in mine) + ("__weakref__" in mine))
    return cls.__basicsize__ - cls.__base__.__basicsize__ <= most and _transparent(cls.__base__)
