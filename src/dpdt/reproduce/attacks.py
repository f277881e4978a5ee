"""Membership inference against the runs of a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dpdt.audit.membership import Membership, membership
from dpdt.audit.metrics import mean_and_interval
from dpdt.errors import ArgumentError
from dpdt.reproduce.scale import Asked, Column
from dpdt.reproduce.table import Head
from dpdt.training import pool
from dpdt.training.grid import Cell

ATTACK_HEADS = (
    Head(key="auc", title="AUC %", form="percent"),
    Head(key="auc_half_width", title="±", form="percent"),
    Head(key="attack", title="attack %", form="percent"),
)


def check(asked: Asked, columns: Iterable[Column]) -> None:
    """Refuse, before anything is trained, what would leave an interval of one attack."""
    if len(asked.numbers) * min(column.attacks for column in columns) < 2:
        raise ArgumentError("seeds", "must be at least 2: the interval of an attack needs two runs")


def attacked(
    rows: Sequence[tuple[Column, Sequence[Cell]]], out: Path, *, thresholds: str
) -> list[dict[str, Any]]:
    """How well the members of each row's runs are told from others, on all cores.

    Each run is attacked as often as its column says. The mean and its interval are over all
    attacks on the runs of a row.
    """
    todo = {
        str(out / cell.folder): (str(out / cell.folder), column.attacks, thresholds)
        for column, runs in rows
        for cell in runs
    }
    found: dict[str, Membership] = dict(pool.each(_attack, list(todo.values())))
    result = []
    for _, runs in rows:
        mine = [found[str(out / cell.folder)] for cell in runs]
        auc, width = mean_and_interval([a for m in mine for a in m.aucs])
        accuracy, around = mean_and_interval([a for m in mine for a in m.accuracies])
        result.append(
            {
                "auc": auc,
                "auc_half_width": width,
                "attack": accuracy,
                "attack_half_width": around,
                "evaluations": sum(len(m.aucs) for m in mine),
                "thresholds": thresholds,
            }
        )
    return result


def _attack(path: str, evaluations: int, thresholds: str) -> tuple[str, Membership]:
    return path, membership(path, evaluations=evaluations, thresholds=thresholds)
