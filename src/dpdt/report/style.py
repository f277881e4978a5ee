"""How figures look: their colours, fonts, legends, and which way is better. The one place for it.

Pages take the colours from here (page.css has the same, by number), and so do pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdt.accounting import ACCOUNTANTS
from dpdt.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Each is at least 3:1 against the light and the dark ground.
COLOURS = ("#2f7ed8", "#c2571a", "#2a8f5a", "#a259c4", "#8a7a1f", "#1f8a99")
GREY = "#7d7d7d"
SMALLER = "← more private"  # along an axis of ε
LOWER = "lower is more private"
HIGHER = "higher is better"
DPI = 150
WIDE = 88  # characters of a legend in a line
LOOK: dict[Any, Any] = {  # of panels, as they are made
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
BELOW: dict[str, Any] = {"frameon": False, "fontsize": 9}


def number_of(accountant: str) -> int:
    """Which of the colours an accountant has, wherever it appears."""
    return [each.name for each in ACCOUNTANTS].index(accountant)


def colour_of(accountant: str) -> str:
    return COLOURS[number_of(accountant)]


def new_figure(columns: int = 1) -> tuple[Figure, Any]:
    """A picture of some panels in a row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.rcsetup import cycler

    with pyplot.rc_context({**LOOK, "axes.prop_cycle": cycler(color=COLOURS)}):
        return pyplot.subplots(1, columns, figsize=(6.4 * columns, 4.6), layout="constrained")


def legend(axes: Any) -> None:
    """What the curves of a panel are, below it, where nothing is covered."""
    names = axes.get_legend_handles_labels()[1]
    if names:
        columns = max(1, min(len(names), 3, WIDE // (6 + max(map(len, names)))))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, **BELOW)


def legend_of_all(figure: Figure, axes: Any) -> None:
    """One legend for panels of the same curves."""
    found = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*found, loc="outside lower center", ncols=3, **BELOW)


def plain_numbers(figure: Figure) -> None:
    """Numbers on logarithmic axes as one writes them: 2 and 0.1, not powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    chosen = LogFormatter(minor_thresholds=(1.0, 0.4))  # which of the small ticks have a number
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log":
            chosen.set_axis(axis)
            chosen.set_locs()
            shown = {v for v in axis.get_minorticklocs() if chosen(v)}
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            axis.set_minor_formatter(
                FuncFormatter(lambda v, _, shown=shown: f"{v:g}" if v in shown else "")
            )


def save(figure: Figure, path: Path) -> None:
    """Write the picture, in the format that its name says."""
    from matplotlib import pyplot

    try:
        plain_numbers(figure)
        figure.savefig(path, dpi=DPI)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be written ({error})") from None
    finally:
        pyplot.close(figure)
