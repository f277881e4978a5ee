"""Tables in files: .csv and .parquet, read as rows of texts below the names of their columns.

Guarantees: what a table holds in its cells is in no message, only where it is and what kind of
thing it is. Messages go to logs, and cells are private. Names of columns and their types are taken
to be public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpdt.data.lines import Lines
from dpdt.errors import InputError, meant
from dpdt.ram import available, gigabytes
from dpdt.reading import opened, size

SUFFIXES = (".csv", ".parquet")
LONGEST = 131_072  # characters of a cell, as Python's csv has it
ROWS = 1024  # of a Parquet file, that are read at once


@dataclass(frozen=True, kw_only=True)
class Row:
    """The cells of a row, where it is, and how far the reading is."""

    place: str
    cells: list[str]
    done: int


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table that can be read once from its beginning."""

    path: Path
    names: tuple[str, ...]
    rows: Iterator[Row]
    what: str  # is counted while it is read: bytes or rows
    total: int
    types: tuple[str, ...] = ()  # of the columns; none in a .csv, which does not say
    others: dict[str, str] = field(default_factory=dict)  # columns of types that have no cells

    def place(self, column: str) -> int:
        """Which of a row's cells belongs to a column."""
        if column in self.others:
            raise InputError(
                f"{self.path}: column {column} is {self.others[column]:.50}, and must be numbers, "
                "texts or true and false"
            )
        if column not in self.names:
            close = meant(column, self.names)  # if line 1 is no header, its cells are private
            raise InputError(f"{self.path}: has no column {column!r:.50}{close}")
        return self.names.index(column)


def is_table(name: str) -> bool:
    """Whether a file is a table, by its name."""
    return Path(name).suffix.lower() in SUFFIXES


def sheet(path: Path) -> Sheet:
    """The table in a file."""
    return _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)


def _csv(path: Path) -> Sheet:
    lines = Lines(path)
    rows = lines.fields()
    names = tuple(name.strip() for name in next(rows, []))
    if not any(names):
        raise InputError(f"{path}: line 1 is empty; it must name the columns")
    other = [s for s in (";", "\t", "|") if s in names[0]] if len(names) == 1 else []
    if other:
        raise InputError(f"{path}: line 1 must separate the columns by commas, found {other[0]!r}")
    for i, name in enumerate(names):
        if _is_number(name):
            raise InputError(
                f"{path}: line 1 must name the columns, and column {i + 1} is a number"
            )
        if name and name in names[:i]:
            raise InputError(f"{path}: line 1 has two columns of one name, {i + 1} is the second")
    with opened(path) as file:
        total = size(file)
    return Sheet(
        path=path, names=names, rows=_lines(lines, rows, len(names)), what="bytes", total=total
    )


def _lines(lines: Lines, rows: Iterator[list[str]], width: int) -> Iterator[Row]:
    empty = 0
    for cells in rows:
        if not cells:
            empty = empty or lines.number
            continue
        if empty:  # at the end of a file it would do no harm
            raise InputError(f"{lines.path}: line {empty} is empty")
        if len(cells) != width:
            lines.refuse(f"has {len(cells)} columns, and line 1 has {width}")
        if any("\0" in cell for cell in cells):
            lines.refuse("has a zero byte")
        stripped = [cell.strip() for cell in cells]
        yield Row(place=f"line {lines.number}", cells=stripped, done=lines.done)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> Sheet:
    from dpdt.data.formats import reading

    try:
        from pyarrow import types
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(
            f"{path}: Parquet is read by pyarrow, which is not here; pip install 'dpdt[tables]'"
        ) from None

    def has_cells(kind: Any) -> bool:
        inner = kind.value_type if types.is_dictionary(kind) else kind
        return _is_text(inner) or any(
            test(inner)
            for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
        )

    with reading(path):
        schema = ParquetFile(opened(path)).schema_arrow
        flat = [f for f in schema if has_cells(f.type)]
        names = tuple(f.name for f in flat)
        if len(set(schema.names)) < len(schema.names):
            raise ValueError("two columns have one name")
        # A text that is there once stays so: written out for each row it could fill the memory.
        once = [f.name for f in flat if _is_text(f.type)]
        file = ParquetFile(opened(path), read_dictionary=once)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=0)
    free = available()
    if free is not None and largest > free:
        raise InputError(
            f"{path}: says that it takes {gigabytes(largest)} of memory, and {gigabytes(free)} are "
            "free"
        )
    return Sheet(
        path=path,
        names=names,
        types=tuple(str(f.type) for f in flat),
        others={f.name: str(f.type) for f in schema if f not in flat},
        rows=_batches(path, file, names),
        what="rows",
        total=file.metadata.num_rows,
    )


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _batches(path: Path, file: Any, names: tuple[str, ...]) -> Iterator[Row]:
    from dpdt.data.formats import reading

    number = 0
    with reading(path):
        for batch in file.iter_batches(ROWS, columns=list(names), use_threads=False):
            columns = [_cells(name, batch.column(name)) for name in names]
            for cells in zip(*columns, strict=True):
                number += 1
                yield Row(place=f"row {number}", cells=list(cells), done=number)


def _cells(name: str, column: Any) -> list[str]:
    """What a column has in each row, as a .csv would have it."""
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        words = column.dictionary
        if (
            _is_text(words.type)
            and (compute.max(compute.binary_length(words)).as_py() or 0) > LONGEST
        ):
            raise ValueError(f"a text of more than {LONGEST} bytes in column {name}")
        column = column.dictionary_decode()
    found = [_cell(value) for value in column.to_pylist()]
    if any("\0" in cell for cell in found):
        raise ValueError(f"a zero byte in a text of column {name}")
    return found


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
