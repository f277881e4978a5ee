"""Draw README's picture: accuracy at the same proven ε, by method.

    python docs/make_picture.py

The numbers are those of the tables in docs/results.md, each with its spread over seeds. PATE, which
is far below the others, is left out. The file is the same whenever the numbers are.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
PICTURE = DOCS / "images" / "accuracy.svg"
PANELS = {
    "digits, 1,437 examples": "dpdt compare digits --epsilon 1,3,8 --seeds 20",
    "CIFAR-10, linear head, 50,000 examples": "dpdt compare cifar10-scatter --methods",
}
STYLES = {
    "dpdt": ("DP-DT", "#1f4fbf", "o"),
    "dpsgd": ("DP-SGD", "#b3540a", "s"),
    "gep": ("GEP", "#2d7a3a", "^"),
}
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
    plt.rcParams.update({"svg.hashsalt": "dpdt", "svg.fonttype": "path", "font.size": 10})
    figure, axes = plt.subplots(1, len(PANELS), figsize=(9, 3.2), layout="constrained")
    for axis, (title, command) in zip(axes, PANELS.items(), strict=True):
        points = table(results, command)
        for method, (label, colour, marker) in STYLES.items():
            epsilons, means, spreads = zip(*points[method], strict=True)
            axis.errorbar(
                epsilons, means, spreads, color=colour, marker=marker, capsize=3, label=label
            )
        axis.set_xscale("log")
        axis.set_xticks([1, 3, 8], ["1", "3", "8"], minor=False)
        axis.minorticks_off()
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("proven ε (less is more private)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out accuracy (more is better)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw((DOCS / "results.md").read_text("utf-8"), PICTURE)
    print(f"written to {PICTURE}")
