"""The table of guarantees as a notebook shows it."""

from __future__ import annotations

import re
from html import escape

LINE = re.compile(r"(ε .*?) +(proven|holds|so far|claimed|measured) +(.*)")  # as `table` writes it
CELL = '<td style="text-align:left">{}</td>'


def as_html(table: str) -> str:
    """The lines of a table: ε, what it is worth, and whose it is. Other lines stay as they are."""
    rows = []
    for line in table.splitlines():
        found = LINE.fullmatch(line)
        cells = [escape(cell) for cell in (found.groups() if found else ("", "", line.strip()))]
        rows.append("<tr>" + "".join(CELL.format(cell) for cell in cells) + "</tr>")
    return "<table>" + "".join(rows) + "</table>"
