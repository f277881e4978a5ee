"""A table as text, CSV and JSON. The text is a table of Markdown, so that it can be pasted."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from decimal import ROUND_CEILING
from pathlib import Path
from typing import Any

from dpdt.accounting.guarantee import shown


@dataclass(frozen=True, kw_only=True)
class Head:
    """A column: its key in a row, its heading, and how its numbers are written."""

    key: str
    title: str
    form: str = "text"  # text | percent | claimed | proven | number


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of one reproduction. Shares are fractions of 1, also those that the paper prints."""

    name: str
    title: str
    heads: tuple[Head, ...]
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # command, scale, seeds, seconds, …

    def text(self) -> str:
        head = [h.title for h in self.heads]
        body = [[_shown(h, row.get(h.key)) for h in self.heads] for row in self.rows]
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        lines = [head, ["-" * width for width in widths], *body]
        drawn = [
            "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
            for line in lines
        ]
        facts = ", ".join(f"{key}: {value}" for key, value in self.facts.items())
        return "\n".join([self.title, facts, "", *drawn, "", *(f"- {n}" for n in self.notes)])

    def csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, [h.key for h in self.heads], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self.rows)
        return buffer.getvalue()

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            **self.facts,
            "rows": self.rows,
            "notes": list(self.notes),
        }

    def write(self, folder: Path) -> None:
        """table.txt, table.csv and table.json."""
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, content in (
            ("txt", self.text() + "\n"),
            ("csv", self.csv()),
            ("json", json.dumps(self.as_json(), indent=2)),
        ):
            (folder / f"table.{suffix}").write_text(content, "utf-8")


def _shown(head: Head, value: Any) -> str:
    if head.form == "proven":
        return "∞" if value is None else shown(value, ROUND_CEILING)
    if value is None:
        return "–"
    match head.form:
        case "percent":
            return f"{100 * value:.2f}"
        case "claimed":
            return shown(value)
        case "number":
            return f"{value:g}"
    return str(value)
