"""How a table becomes examples: by what is declared of its columns (encoding.py).

So shapes, scales and the number of classes are public.

Guarantees: what becomes of a row depends on that row alone. Whether it is held out depends on a
hash of it, and on how many equal rows are before it. So to add or remove a row adds or removes one
example, of one part, and leaves all others as they are but for their numbers.

To replace a row is more: it may go to the other part, or be left out, and then every row behind it
has another number, by which a partition deals. So under replace-one a table must have a file of
held-out rows, and leave out none (config/sections.py). Then row i is example i.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdt.data.encoding import DROP, HOW, OPEN, REFUSE, Encoding, Values, declared, is_range
from dpdt.data.sheets import sheet
from dpdt.errors import InputError, meant
from dpdt.reading import opened

if TYPE_CHECKING:
    from dpdt.data.formats import Arrays

DIGEST = 16  # bytes of a row's digest
LOOKED_AT = 64  # rows of a table that it is recognised by

Example = tuple[list[float], float]  # inputs, and a class or a number


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a configuration says of a table."""

    encoding: Encoding
    target: str
    values: Values  # of the target
    held_out: float = 0.2  # the share of rows that are held out, if there is no file of them
    test: str | None = None

    @classmethod
    def of(
        cls,
        *,
        target: str | None,
        columns: Mapping[str, Any] | None,
        held_out: float,
        test: str | None,
        missing: str,
    ) -> Table:
        """From the section [data]; the messages name its keys."""
        if target is None or target == OPEN:
            raise InputError("data.target: fill in the name of the column that is to be predicted")
        if not columns:
            raise InputError(f"data.columns: missing; declare each column that is used: {HOW}")
        found = {name: declared(name, value) for name, value in columns.items()}
        if target not in found:
            raise InputError(
                f"data.columns.{target}: missing; declare the target too: {HOW}"
                + meant(target, found)
            )
        values = found.pop(target)
        if not found:
            raise InputError("data.columns: must have a column beside the target, to predict it by")
        if len(values) < 2:
            raise InputError(f"data.columns.{target}: must have at least two categories")
        encoding = Encoding(
            columns=tuple(found.items()),
            missing=missing,
            answers=values if is_range(values) else None,
        )
        return cls(encoding=encoding, target=target, values=values, held_out=held_out, test=test)

    @property
    def task(self) -> str:
        """What a model is trained for: a range is a number to predict, categories are classes."""
        return "regression" if is_range(self.values) else "classification"

    @property
    def classes(self) -> int:
        """The number of classes, or one number."""
        return 1 if is_range(self.values) else len(self.values)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """What the classes are called."""
        return None if is_range(self.values) else tuple(map(str, self.values))


def examples(path: Path, table: Table) -> int:
    """How many training examples there are. They are read, and none is kept."""
    with opened(path) as file:
        found = os.fstat(file.fileno())
    return _counted(path, table, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=8)
def _counted(path: Path, table: Table, version: tuple[int, ...]) -> int:
    return sum(example is not None and not held for _, held, example in _rows(path, table))


def parts(path: Path, table: Table) -> tuple[tuple[Arrays, Arrays], str]:
    """The training and the held-out part, and what the table is recognised by.

    That depends on the file alone, all of its rows and columns: not on what is declared, nor on
    which rows are held out. So runs that read one file in different ways belong together.
    """
    from dpdt.data.formats import refuse_large

    refuse_large(path, 2 * examples(path, table) * (4 * table.encoding.width + 8))
    train, rest, digests = _Part(table), _Part(table), bytearray()
    for digest, held_out, example in _rows(path, table):
        digests += digest
        if example is not None:
            (rest if held_out else train).add(*example)
    if table.test is not None:
        if Path(table.test).resolve() == path.resolve():
            raise InputError(f"data.test: {table.test} is the training file itself")
        for _, _, example in _rows(Path(table.test), table):
            if example is not None:
                rest.add(*example)
    if not rest.y:
        raise InputError(
            f"{table.test or path}: has no row that is held out; raise data.held_out, or let "
            "data.test name a file of rows to judge by"
        )
    return (train.arrays(), rest.arrays()), _recognised(bytes(digests))


class _Part:
    """Examples as they come."""

    def __init__(self, table: Table):
        self.width = table.encoding.width
        self.kind = "f" if table.task == "regression" else "q"
        self.x, self.y = array("f"), array(self.kind)

    def add(self, x: list[float], y: Any) -> None:
        self.x.extend(x)
        self.y.append(y)

    def arrays(self) -> Arrays:
        import numpy as np

        return (
            np.frombuffer(self.x, np.float32).reshape(-1, self.width),
            np.frombuffer(self.y, self.kind),
        )


def _rows(path: Path, table: Table) -> Iterator[tuple[bytes, bool, Example | None]]:
    """Of every row its digest, whether it is held out, and the example, unless it is left out."""
    found, rule = sheet(path), table.encoding.missing
    read = table.encoding.reader(found)
    # a target is never made up
    target = Encoding(
        columns=((table.target, table.values),), missing=DROP if rule == DROP else REFUSE
    ).reader(found)
    share = 0 if table.test is not None else int(table.held_out * 2**64)
    seen: dict[bytes, int] = {}
    for row in found.rows:
        digest = _digest("\0".join(row.cells))
        seen[digest] = seen.get(digest, 0) + 1
        coin = _digest(f"{digest.hex()} {seen[digest]}")  # equal rows are not all in one part
        x, y = read(row), target(row)
        example = None
        if x is not None and y is not None:
            example = x, y[0] if table.task == "regression" else y.index(1.0)
        yield digest, int.from_bytes(coin[:8]) < share, example


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()


def _recognised(digests: bytes) -> str:
    """A hash of the number of rows, and of some of them, evenly spaced."""
    number = len(digests) // DIGEST
    found = hashlib.sha256(str(number).encode())
    for i in range(min(LOOKED_AT, number)):
        start = i * number // min(LOOKED_AT, number) * DIGEST
        found.update(digests[start : start + DIGEST])
    return found.hexdigest()
