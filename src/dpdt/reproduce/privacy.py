"""Figure 2: the claimed privacy loss over epochs. Nothing is trained."""

from __future__ import annotations

from pathlib import Path

from dpdt.report import privacy
from dpdt.reproduce.scale import Asked
from dpdt.reproduce.table import Head, Table
from dpdt.training.grid import Cell, Results

NAME, TITLE = "privacy-over-epochs", "Figure 2: the paper's bound over epochs"
EPOCHS = 60
HEADS = (
    Head(key="epochs", title="E", form="number"),
    Head(key="constant", title="claimed ε(α), constant noise", form="claimed"),
    Head(key="adaptive", title="claimed ε(α), growing noise", form="claimed"),
)
NOTES = (
    f"S_g = {privacy.SENSITIVITY:g}, b = {privacy.BATCH} of n = {privacy.EXAMPLES}, "
    f"L_F = {privacy.L_F:g}, L_T = 1, η̂ = {privacy.STEP:g}, α = {privacy.ALPHA:g}: the paper's.",
    f"The paper does not give the noise: σ = {privacy.SIGMA:g}, and growth by {privacy.GROWTH:g} "
    "an epoch, are ours.",
    "The bound does not hold for a run with resets (docs/what-epsilon-means.md).",
)


def cells(asked: Asked) -> list[Cell]:
    return []


def table(asked: Asked, results: Results, out: Path) -> Table:
    curves = [privacy.paper_losses(EPOCHS, adaptive) for adaptive in (False, True)]
    rows = [
        {"epochs": e, "constant": constant, "adaptive": adaptive}
        for e, (constant, adaptive) in enumerate(zip(*curves, strict=True), start=1)
    ]
    return Table(name=NAME, title=TITLE, heads=HEADS, rows=rows, notes=NOTES)


def draw(found: Table, path: Path) -> None:
    privacy.draw_paper(path, EPOCHS)
