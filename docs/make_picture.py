"""Draw README's picture: accuracy at the same proven ε, by method.

    python docs/make_picture.py

The numbers are those of the tables in docs/results.md, each with its spread over seeds. PATE, which
is far below the others, is left out. The file is the same whenever the numbers are.
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib import pyplot

from dpdt.report import style

DOCS = Path(__file__).parent
PICTURE = DOCS / "images" / "accuracy.svg"
PANELS = {
    "digits, 1,437 examples": "dpdt compare digits --epsilon 1,3,8 --seeds 20",
    "CIFAR-10, linear head, 50,000 examples": "dpdt compare cifar10-scatter --methods",
}
METHODS = {"dpdt": ("DP-DT", "o"), "dpsgd": ("DP-SGD", "s"), "gep": ("GEP", "^")}
ROW = re.compile(r"^\| (\w+) \| (\d+) \| ([\d.]+) ± ([\d.]+) \|", re.MULTILINE)
Points = dict[str, list[tuple[float, float, float]]]


def table(results: str, command: str) -> Points:
    """ε, mean and spread of every method, from the table below a command."""
    after = results[results.index(command) :]
    rows = after[after.index("\n|") :].split("\n\n")[0]
    found: Points = {}
    for method, epsilon, mean, spread in ROW.findall(rows):
        found.setdefault(method, []).append((float(epsilon), float(mean), float(spread)))
    return found


def draw(results: str, path: Path) -> None:
    """Draw the panels to an SVG file."""
    figure, panels = style.new_figure(len(PANELS))
    figure.set_size_inches(9.6, 3.7)
    for axes, (title, command) in zip(panels, PANELS.items(), strict=True):
        points = table(results, command)
        for method, (label, marker) in METHODS.items():
            epsilons, means, spreads = zip(*points[method], strict=True)
            axes.errorbar(epsilons, means, spreads, marker=marker, capsize=3, label=label)
        axes.set_xscale("log")
        axes.set_xticks([1, 3, 8], ["1", "3", "8"])
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel(f"{style.SMALLER}     proven ε")
        axes.set_ylabel(f"accuracy ({style.HIGHER})")
    style.legend_of_all(figure, panels)
    with pyplot.rc_context({"svg.hashsalt": "dpdt"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    draw((DOCS / "results.md").read_text("utf-8"), PICTURE)
    print(f"written to {PICTURE}")
