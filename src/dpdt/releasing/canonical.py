"""One way to write a record as text. Whoever reads it refuses any other.

So two files that say the same are the same to the byte, and no change of a byte goes unnoticed.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

LIMIT = 100_000_000  # bytes of a file that is read as a whole


def dump(record: Any) -> bytes:
    """Keys in order, two spaces, UTF-8, and a newline at the end."""
    text = json.dumps(record, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def load(raw: bytes) -> dict[str, Any]:
    """The record that these bytes write. Raises a ValueError if it is not an object."""
    try:
        record = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    return record


def is_canonical(raw: bytes, record: dict[str, Any]) -> bool:
    """Whether these are the bytes that `dump` would write."""
    try:
        return dump(record) == raw
    except (ValueError, RecursionError):  # NaN, half a character
        return False


def read(path: Path) -> bytes:
    """The bytes of a file, which must be a plain one and not too large.

    Raises a ValueError otherwise. A pipe is not waited for, and a link is not followed.
    """
    try:
        with open(path, "rb", opener=_cautious) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ValueError("it is not a plain file")
            if facts.st_size > LIMIT:
                raise ValueError(f"it has {facts.st_size} bytes; at most {LIMIT} are read")
            return file.read(facts.st_size)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None


def _cautious(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
