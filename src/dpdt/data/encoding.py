"""How the columns of a table become numbers: by what is declared of them, never by what they hold.

A column is declared as a range, [0, 120], or as a list of categories, ["f", "m"]. A number of a
range goes from 0 to 1, and what lies outside of the range counts as its nearer end. Categories
become one number each, which is 1 for the one that is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from dpdt.data.sheets import Row, Sheet
from dpdt.errors import InputError
from dpdt.fields import is_number

OPEN = "?"  # stands in a configuration for what is to be filled in
MISSING = ("", "?", "NA", "N/A", "NULL", "null", "None")  # in the place of a number, beside NaN
RULES = REFUSE, DROP, ZERO = (
    "refuse",
    "drop",
    "zero",
)  # what becomes of a row where a value is missing
HOW = 'a range of numbers such as [0, 120], or a list of categories such as ["f", "m"]'

WAYS = 'data.missing = "drop" leaves such rows out, and "zero" takes 0'

Values = tuple[float, float] | tuple[str, ...]


def declared(name: str, value: Any) -> Values:
    """What a configuration says of a column: a range, or categories."""
    key = f"data.columns.{name}"
    if value == OPEN:
        raise InputError(
            f"{key}: fill in {HOW}, from what is known without the data; or remove the line, and "
            "the column is not used"
        )
    given = list(value) if isinstance(value, list | tuple) else []
    if given and all(isinstance(v, str) for v in given):
        if len(set(given)) < len(given) or any(v != v.strip() or not v for v in given):
            raise InputError(f"{key}: categories must differ, and neither be empty nor padded")
        return tuple(given)
    if len(given) != 2 or not all(is_number(v) for v in given):
        raise InputError(f"{key}: must be {HOW}, found {value!r:.80}")
    low, high = float(given[0]), float(given[1])
    if not (low < high and math.isfinite(high - low)):
        raise InputError(f"{key}: the range must go up, from low to high, found {value!r:.80}")
    return low, high


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How columns become numbers, and what is done where a value is missing.

    A value that is in none of the categories counts as missing.
    """

    columns: tuple[tuple[str, Values], ...]
    missing: str = REFUSE
    answers: tuple[float, float] | None = None  # the range of the number that is predicted

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(1 if is_range(values) else len(values) for _, values in self.columns)

    def as_json(self) -> dict[str, Any]:
        return {
            "columns": [[name, list(v)] for name, v in self.columns],
            "missing": self.missing,
            "answers": None if self.answers is None else list(self.answers),
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Encoding:
        """What `as_json` wrote, checked. Columns are a list: the keys of a table have no order."""
        columns, missing, range_ = (found.get(k) for k in ("columns", "missing", "answers"))
        pairs = [c for c in columns if _is_pair(c)] if isinstance(columns, list) else []
        if not pairs or len(dict(pairs)) != len(columns or ()) or missing not in RULES:
            raise InputError(
                f"inputs: must have a list columns, [name, values] each, and missing, one of "
                f"{', '.join(RULES)}"
            )
        answers = None if range_ is None else declared("answers", range_)
        if answers is not None and not is_range(answers):
            raise InputError("inputs: answers must be a range of numbers, or null")
        return cls(
            columns=tuple((n, declared(n, v)) for n, v in pairs),
            missing=missing,
            answers=answers,
        )

    def said(self, value: Any) -> Any:
        """The model's answers, on the scale of the table if they are a number of it."""
        low, high = self.answers or (0.0, 1.0)
        return low + value * (high - low)

    def reader(self, table: Sheet) -> Callable[[Row], list[float] | None]:
        """What makes numbers of a table's rows; None where a row is left out."""
        places = [(name, table.place(name), _coder(values)) for name, values in self.columns]

        def read(row: Row) -> list[float] | None:
            numbers: list[float] = []
            for name, place, (code, absent) in places:
                found = code(row.cells[place], f"{table.path}: {row.place}, column {name}")
                if found is None and self.missing == DROP:
                    return None
                if found is None and self.missing == REFUSE:
                    raise _missing(table, row, name, len(absent), WAYS)
                numbers += absent if found is None else found
            return numbers

        return read


Code = Callable[[str, str], "list[float] | None"]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def is_range(values: Values) -> TypeGuard[tuple[float, float]]:
    return not isinstance(values[0], str)


def _coder(values: Values) -> tuple[Code, list[float]]:
    """What makes numbers of a cell, and the numbers of a missing one."""
    if isinstance(values[0], str):
        hot = {v: [float(i == j) for j in range(len(values))] for i, v in enumerate(values)}
        return lambda cell, where: hot.get(cell), [0.0] * len(values)
    low, high = float(values[0]), float(values[1])

    def code(cell: str, where: str) -> list[float] | None:
        if cell in MISSING:
            return None
        try:
            number = float(cell)
        except ValueError:
            number = None
        if number is None or "_" in cell:  # which only Python reads
            raise InputError(f"{where}: is a text, and a number is declared")
        return None if math.isnan(number) else [(min(max(number, low), high) - low) / (high - low)]

    return code, [0.0]


def _missing(table: Sheet, row: Row, name: str, number: int, advice: str) -> InputError:
    others = "" if number == 1 else f", or none of the {number} categories that are listed"
    return InputError(f"{table.path}: {row.place}, column {name}: is missing{others}; {advice}")
