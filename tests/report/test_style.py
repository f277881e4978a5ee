"""Every picture in one style: legends cover nothing, and the better side is marked."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpdt import config
from dpdt.cli.main import cli
from dpdt.report import audit, comparison, diagnostics, privacy, reproduction, style


def compared(path):
    comparison.draw(rows_of(("dpdt", 1.0), ("dpdt", 8.0), ("dpsgd", 3.0), ("plain", None)), path)


def rows_of(*cells):
    """The rows of a comparison, whose proven ε stay a little below their targets."""
    return [
        {"method": m, "target_epsilon": e, "proven_epsilon": e and e - 1.5e-4 + 1e-7 * i,
         "accuracy_mean": 0.8, "accuracy_spread": 0.01}
        for i, (m, e) in enumerate(cells)
    ]  # fmt: skip


def diagnosed(path):
    names = [name for _, _, curves in diagnostics.PANELS for name in curves]
    diagnostics.draw([{"step": t, **dict.fromkeys(names, 1.0 + t)} for t in range(3)], path)


def attacked(path):
    scores = np.linspace(0, 1, 50)
    audit.draw({f"attack {k}": (scores + 0.1 * k, scores) for k in range(5)}, path)


def swept(path):
    kinds = ("equal", "conv", "linear")
    reproduction.sweep(
        [{"mode": "a", "kind": k, "boost": 2.0, "accuracy": 0.5} for k in kinds], path
    )


def accounted(path):
    ledger = config.plan_of(config.load("cifar10-small")).ledger()
    privacy.draw_over_epochs(ledger, 1e-6, path)


DRAWN = [accounted, attacked, compared, diagnosed, privacy.draw_paper, swept]


@pytest.mark.parametrize("draw", DRAWN, ids=lambda draw: draw.__name__)
def test_legends_cover_no_panel_and_stay_in_the_picture(draw, tmp_path, monkeypatch):
    seen = []

    def look(figure, path):
        figure.savefig(path, dpi=50)
        renderer = figure.canvas.get_renderer()
        panels = [axes.get_window_extent(renderer) for axes in figure.axes]
        each = [axes.get_legend() for axes in figure.axes]
        legends = [one for one in (*figure.legends, *each) if one is not None]
        boxes = [one.get_window_extent(renderer) for one in legends]
        seen.append((panels, boxes, figure.bbox, " ".join(a.get_ylabel() for a in figure.axes)))

    for module in (audit, comparison, diagnostics, privacy, reproduction):
        monkeypatch.setattr(module, "save", look)
    draw(tmp_path / "picture.png")
    ((panels, boxes, whole, told),) = seen
    assert boxes
    for box in boxes:
        assert not any(box.overlaps(panel) for panel in panels)
        assert whole.x0 <= box.x0
        assert box.x1 <= whole.x1
        assert whole.y0 <= box.y0
    if draw is not diagnosed:
        assert style.LOWER in told or style.HIGHER in told


def test_an_accountant_has_one_colour_everywhere():
    names = [accountant.name for accountant in privacy.ACCOUNTANTS]
    assert len({style.colour_of(name) for name in names}) == len(names)


def test_a_picture_says_where_it_is(tmp_path):
    path = tmp_path / "epsilon.png"
    words = ["account", "cifar10-small", "--figure", str(path), "--json"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert json.loads(done.stdout)
    assert f"picture: {path}" in done.stderr
    assert Path(path).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("cells", [
    [("dpdt", 3.0), ("dpsgd", 3.0), ("plain", None)], [("dpsgd", 3.0)], [("plain", None)],
    [("dpdt", 1.0), ("dpsgd", 1.0), ("dpdt", 8.0), ("dpsgd", 8.0), ("plain", None)],
])  # fmt: skip
def test_no_two_numbers_below_a_comparison_are_the_same(cells, tmp_path, monkeypatch):
    """At one target ε methods stand side by side, since an axis of equal ε says nothing."""
    seen = []
    monkeypatch.setattr(comparison, "save", lambda figure, path: seen.append(figure))
    comparison.draw(rows_of(*cells), tmp_path / "picture.png")
    (figure,) = seen
    style.plain_numbers(figure)
    figure.canvas.draw()
    (axes,) = figure.axes
    ticks = axes.get_xticklabels() + axes.get_xticklabels(minor=True)
    said = [tick.get_text() for tick in ticks if tick.get_text()]
    assert len(set(said)) == len(said) > 0
    if len({e for _, e in cells} - {None}) < 2:
        bounds = {3.0: "ε ≤ 3", None: "ε ≤ ∞"}
        assert said == [f"{method}\n{bounds[e]}" for method, e in cells]


@pytest.mark.parametrize("last", [6, 200, 20_000])
def test_numbers_on_logarithmic_axes_are_plain(last):
    figure, axes = style.new_figure()
    axes.plot([1, last], [0.02, 800.0])
    axes.set(xscale="log", yscale="log")
    style.plain_numbers(figure)
    figure.canvas.draw()
    said = [t.get_text() for t in axes.get_xticklabels() + axes.get_xticklabels(minor=True)]
    said = {text for text in said if text}
    assert {"1", "10"} <= said
    assert ("2" in said) == (last < 10)  # where there are powers of ten enough, no others
    assert not [text for text in said if "^" in text or "×" in text]
