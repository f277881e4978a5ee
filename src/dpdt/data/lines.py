"""The lines of a text file, and the fields of a CSV, read a line at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from dpdt.errors import InputError
from dpdt.reading import opened

LONGEST = 10_000_000  # characters of a line


class Lines:
    """The lines of a text file, with their line ends, and how far the reading is."""

    def __init__(self, path: Path):
        self.path, self.number, self.done = path, 0, 0

    def __iter__(self) -> Iterator[str]:
        try:
            with opened(self.path) as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as file:
                while line := file.readline(LONGEST):
                    self.number += 1
                    self.done = raw.tell()
                    if len(line) == LONGEST:
                        self.refuse(f"has {LONGEST} characters or more")
                    yield line
        except UnicodeDecodeError:
            self.number = _first_broken(self.path)
            raise InputError(f"{self.path}: line {self.number} is not text in UTF-8") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from None

    def refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self.path}: line {self.number} {why}")

    def fields(self) -> Iterator[list[str]]:
        """What a CSV has on each line; nothing for an empty line."""
        try:
            yield from csv.reader(self, strict=True)
        except csv.Error as error:
            raise InputError(f"{self.path}: line {self.number} is no CSV ({error})") from None


def _first_broken(path: Path) -> int:
    """The number of the first line that is not UTF-8; text is decoded well ahead of it."""
    number = 1
    with opened(path) as file:
        while line := file.readline(LONGEST):
            try:
                line.decode()
            except UnicodeDecodeError:
                break
            number += 1
    return number
