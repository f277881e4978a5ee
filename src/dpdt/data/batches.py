"""CIFAR's batches, which are pickles, read without unpickling them.

A pickle is a small program. Here its instructions are read one by one. They may make numbers,
texts, lists, tuples, dicts and arrays of bytes or whole numbers, and nothing else: no function is
called, whatever the file asks for.
"""

from __future__ import annotations

import math
import pickletools
from typing import Any

import numpy as np

PLAIN = {
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TEXTS = ("BINSTRING", "SHORT_BINSTRING")  # of Python 2: bytes
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
PUT, GET = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
KINDS = {"u1": "|u1", "i4": "<i4", "i8": "<i8"}


class _Name:
    """A function that the file names."""

    def __init__(self, name: str):
        self.name = name


class _Kind:
    """The type of an array's entries."""

    def __init__(self, code: Any):
        if code not in KINDS:
            raise ValueError(f"an array of {code!r}, expected bytes or whole numbers")
        self.code = KINDS[code]


class _Array:
    """An array, once it has its content."""

    def __init__(self) -> None:
        self.found: np.ndarray | None = None

    def fill(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        entries = np.frombuffer(raw, kind.code)
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(entries):
            raise ValueError(f"{len(entries)} entries for an array of shape {shape}")
        self.found = entries.reshape(shape, order="F" if fortran else "C")


def plain(raw: bytes) -> dict[Any, Any]:
    """The dict that a pickle holds."""
    machine = _Machine()
    for operation, argument, _ in pickletools.genops(raw):
        if operation.name == "STOP":
            break
        machine.do(operation.name, argument)
    (found,) = machine.stack
    if not isinstance(found, dict):
        raise ValueError("it holds no dict")
    return {k: v.found if isinstance(v, _Array) else v for k, v in found.items()}


class _Machine:
    """The stack of a pickle, for the instructions that arrays and lists need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in PLAIN:
            stack.append(CONSTANTS.get(name, argument))
        elif name in TEXTS:
            stack.append(argument.encode("latin-1"))
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in PUT:
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in GET:
            stack.append(self.memo[argument])
        elif name in TUPLES:
            stack.append(tuple(self._from(len(stack) - TUPLES[name])))
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("APPEND", "APPENDS"):
            more = self._marked() if name == "APPENDS" else [stack.pop()]
            list.extend(stack[-1], more)
        elif name in ("SETITEM", "SETITEMS"):
            more = self._marked() if name == "SETITEMS" else self._from(len(stack) - 2)
            dict.update(stack[-1], zip(more[::2], more[1::2], strict=True))
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        """What arrays are made with."""
        stack = self.stack
        if name == "GLOBAL":
            stack.append(_Name(argument))
        elif name == "STACK_GLOBAL":
            stack.append(_Name(" ".join(map(str, self._from(len(stack) - 2)))))
        elif name == "REDUCE":
            function, arguments = self._from(len(stack) - 2)
            stack.append(_called(function, arguments))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], _Array):
                stack[-1].fill(state)
            elif not isinstance(stack[-1], _Kind) or state[1] not in ("|", "<", b"|", b"<"):
                raise ValueError("it asks for what is not an array")
        else:
            raise ValueError(f"it has an instruction {name}, which no array needs")

    def _marked(self) -> list[Any]:
        return self._from(self.marks.pop())

    def _from(self, place: int) -> list[Any]:
        """Take what lies on the stack from a place on."""
        if place < 0:
            raise ValueError("it takes more from its stack than there is")
        found, self.stack[place:] = self.stack[place:], []
        return found


def _called(function: Any, arguments: Any) -> Any:
    """What stands for the result of a call."""
    match getattr(function, "name", None), arguments:
        case ("numpy.core.multiarray _reconstruct" | "numpy._core.multiarray _reconstruct", _):
            return _Array()
        case ("numpy dtype", (str() | bytes() as code, *_)):
            return _Kind(code.decode("latin-1") if isinstance(code, bytes) else code)
        case ("_codecs encode", (str() as text, "latin1" | "latin-1")):
            return text.encode("latin-1")
        case (str() as name, _):
            raise ValueError(f"it asks for {name.replace(' ', '.')}, which is not an array")
    raise ValueError("it asks for what is not an array")
