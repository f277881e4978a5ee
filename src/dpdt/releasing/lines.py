"""Rows of text files: .csv with numbers or texts, .txt with a text on each line.

A first line of a .csv without any number is a header, and its column `label` is passed over. Texts
are in the column `text` or `sentence`. Nothing is skipped or guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpdt.data.lines import Lines
from dpdt.errors import InputError

LABEL, TEXTS = "label", ("text", "sentence")

Row = tuple[Any, int]  # numbers or a text, and how many bytes were read


def texts(path: Path) -> Iterator[Row]:
    """One text a line."""
    lines = Lines(path)
    for line in lines:
        text = line.rstrip("\r\n")
        if not text.strip():
            lines.refuse("is empty; each line is a text")
        yield text, lines.done


def table(path: Path, width: int | None) -> Iterator[Row]:
    """Rows of so many numbers; without a width, texts."""
    lines, empty = Lines(path), 0
    columns: list[int] | None = None
    for fields in lines.fields():
        if not fields:
            empty = empty or lines.number
            continue
        if empty:  # at the end of a file it would do no harm
            raise InputError(f"{path}: line {empty} is empty")
        if columns is None:
            columns, count = _columns(lines, fields, width), len(fields)
            if width is None or not any(map(_is_number, fields)):
                continue
        if len(fields) != count:
            lines.refuse(f"has {len(fields)} columns, and the first line has {count}")
        yield (_text if width is None else _numbers)(lines, fields, columns), lines.done


def _columns(lines: Lines, fields: list[str], width: int | None) -> list[int]:
    """Which columns a model reads, by the first line."""
    names = [field.strip().lower() for field in fields]
    if width is None:
        found = [names.index(name) for name in TEXTS if name in names]
        if not found:
            wanted = " or ".join(TEXTS)
            lines.refuse(
                f"must be a header with a column {wanted}, found {', '.join(fields)!r:.80}"
            )
        return found[:1]
    chosen = [i for i, name in enumerate(names) if name != LABEL]
    if len(chosen) != width:
        lines.refuse(
            f"has {len(chosen)} columns, and the model reads {width} numbers (a column of labels "
            f"is passed over if a header calls it {LABEL})"
        )
    return chosen


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which only Python reads


def _numbers(lines: Lines, fields: list[str], columns: list[int]) -> list[float]:
    for i in columns:
        if not _is_number(fields[i]):
            lines.refuse(f"has {fields[i]!r:.50} in column {i + 1}, which is no number")
    return [float(fields[i]) for i in columns]


def _text(lines: Lines, fields: list[str], columns: list[int]) -> str:
    text = fields[columns[0]]
    if not text.strip():
        lines.refuse(f"has no text in column {columns[0] + 1}")
    return text
