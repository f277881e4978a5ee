"""Records in a run's files: one as JSON, or one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpdt.errors import InputError
from dpdt.files import append


def read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
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
        except ValueError:
            continue
        if line.endswith(b"\n") and isinstance(record, dict) and "step" in record:
            yield line, record


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
