"""Records in a run's files: one as JSON, or one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpdt.errors import InputError
from dpdt.files import append
from dpdt.reading import opened

MOST = 1 << 30  # bytes of a file of records


def read(path: Path) -> dict[str, Any]:
    """The record in a file, which somebody else may have made."""
    text = content(path)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    if not isinstance(record, dict):
        raise InputError(f"{path}: cannot be read (it holds no table)")
    return record


def append_line(path: Path, record: dict[str, Any]) -> None:
    append(path, (json.dumps(record) + "\n").encode())


def lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Every line with its record. A line that a crash has torn is left out."""
    if not path.is_file():
        return
    for line in content(path).splitlines(keepends=True):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(record, dict) and "step" in record:
            yield line, record


def content(path: Path) -> bytes:
    """The bytes of a plain file that is not too large for what runs write."""
    with opened(path) as file:
        try:
            found = file.read(MOST + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if len(found) > MOST:
        raise InputError(f"{path}: is larger than {MOST:,} bytes, too large for what it should be")
    return found
