"""Draw README's picture: accuracy at the same proven ε, by method, on digits.

    python docs/make_picture.py

The numbers are those of the table in docs/results.md, each with its spread over seeds. PATE, which
is far below the others, is left out. The file is the same whenever the numbers are.
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib import pyplot

from dpdt.report import style

DOCS = Path(__file__).parent
PICTURE = DOCS / "images" / "accuracy.svg"
HEADING = "\n## digits\n"
EPSILONS = (1, 3, 8)
ROWS = {  # the first cell of a row: its label and marker
    "**DP-DT**": ("DP-DT, not tuned", "o"),
    "DP-SGD, tuned": ("DP-SGD, tuned on what is shown", "s"),
    "DP-DT, no public inputs": ("DP-DT without public inputs", "v"),
    "GEP": ("GEP", "^"),
}
NUMBER = re.compile(r"([\d.]+) ± ([\d.]+)")


def table(results: str) -> dict[str, list[tuple[float, float]]]:
    """Mean and spread of every row that has one for each ε."""
    section = results[results.index(HEADING) :].split("\n## ")[1]
    found = {}
    for line in section.splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        numbers = [NUMBER.fullmatch(cell) for cell in cells[: len(EPSILONS)]]
        if len(numbers) == len(EPSILONS) and all(numbers):
            found[name] = [(float(n[1]), float(n[2])) for n in numbers if n]
    return found


def draw(results: str, path: Path) -> None:
    """Draw the rows to an SVG file."""
    figure, axes = style.new_figure()
    figure.set_size_inches(7.2, 3.9)
    points = table(results)
    for row, (label, marker) in ROWS.items():
        means, spreads = zip(*points[row], strict=True)
        axes.errorbar(EPSILONS, means, spreads, marker=marker, capsize=3, label=label)
    axes.set_xscale("log")
    axes.set_xticks(EPSILONS, map(str, EPSILONS))
    axes.minorticks_off()
    axes.set_title("digits: a linear model, 1,437 examples")
    axes.set_xlabel(f"{style.SMALLER}     proven ε")
    axes.set_ylabel(f"accuracy ({style.HIGHER})")
    figure.legend(loc="outside right center", **style.BELOW)
    with pyplot.rc_context({"svg.hashsalt": "dpdt"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    draw((DOCS / "results.md").read_text("utf-8"), PICTURE)
    print(f"written to {PICTURE}")
