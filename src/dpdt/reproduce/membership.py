"""Table 5: membership inference against plain training, DP-SGD and DP-DT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpdt.reproduce.attacks import ATTACK_HEADS, attacked, check
from dpdt.reproduce.main_results import groups
from dpdt.reproduce.printed import printed
from dpdt.reproduce.rows import RUN_HEADS, of_runs
from dpdt.reproduce.scale import Asked, Column
from dpdt.reproduce.table import Head, Table
from dpdt.training.grid import Cell, Results

NAME, TITLE = "membership-inference", "Table 5: membership inference"
HEADS = (
    Head(key="data", title="data"),
    Head(key="row", title="method"),
    Head(key="paper_auc", title="paper AUC %", form="percent"),
    Head(key="paper_interval", title="±", form="percent"),
    Head(key="paper_attack", title="paper attack %", form="percent"),
    *ATTACK_HEADS,
    *RUN_HEADS,
)
NAMES = {
    "plain": "without privacy",
    "dpsgd": "DP-SGD",
    "dpdt": "DP-DT, the paper's noise",
    "dpdt-without_noise": "DP-DT, no noise",
}
NOTES = (
    "An attack guesses who was in the training set from the modified entropy of the model's "
    "answer, with a threshold for each class.",
    "Thresholds are learnt on a shadow model and examples that are not judged. AUC needs none.",
    "The interval covers 95% for the mean, by Student's t over all evaluations.",
)


def _rows(asked: Asked) -> list[tuple[Column, str, list[Cell]]]:
    """The runs of Table 1 that Table 5 attacks, and those of DP-DT without noise."""
    found = []
    for column, name, runs, others in groups(asked):
        if printed(NAME, column.paper) and name in NAMES:
            found.append((column, name, runs))
            if name == "dpdt":
                found.append((column, "dpdt-without_noise", others["without_noise"]))
    return found


def cells(asked: Asked) -> list[Cell]:
    found = _rows(asked)
    check(asked, [column for column, _, _ in found])
    return [cell for _, _, runs in found for cell in runs]


def table(asked: Asked, results: Results, out: Path) -> Table:
    found = _rows(asked)
    attacks = attacked([(c, runs) for c, _, runs in found], out, thresholds="shadow")
    rows: list[dict[str, Any]] = []
    for (column, name, runs), attack in zip(found, attacks, strict=True):
        numbers = printed(NAME, column.paper).get(name, {})
        rows.append(
            {
                "data": column.title,
                "row": NAMES[name],
                "method": name,
                "paper_auc": numbers.get("auc") and numbers["auc"] / 100,
                "paper_interval": numbers.get("interval") and numbers["interval"] / 100,
                "paper_attack": numbers.get("attack") and numbers["attack"] / 100,
                "paper_accuracy": numbers.get("accuracy") and numbers["accuracy"] / 100,
                "paper_epsilon": numbers.get("epsilon"),
                **attack,
                **of_runs(results, runs),
            }
        )
    return Table(name=NAME, title=TITLE, heads=HEADS, rows=rows, notes=NOTES)


def draw(found: Table, path: Path) -> None:
    from dpdt.report.reproduction import bars

    bars(
        found.rows, path, ours="auc", spread="auc_half_width", paper="paper_auc",
        label="AUC of membership inference", better="lower",
    )  # fmt: skip
