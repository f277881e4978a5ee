"""What is left of a run in its private/ folder: why it is dangerous, and how it is forgotten."""

from __future__ import annotations

import shutil

from dpdt.errors import InputError
from dpdt.files import sync_folder
from dpdt.runs import (
    AUDIT,
    CANARIES,
    CHECKPOINT,
    CURVES,
    DIAGNOSTICS,
    DIAGRAM,
    FINDINGS,
    LOCK,
    METRICS,
    MODEL,
    PLAN,
    REPORT,
    SHADOWS,
    TAIL,
    Run,
)
from dpdt.runs.tune import CANDIDATES, COINS, RUNS

WHY = {
    CHECKPOINT: "multipliers without noise, and the state from which noise can be drawn again and "
    "taken off",
    PLAN: "what an interrupted run was to do",
    METRICS: "losses and counts of the training data, without noise",
    DIAGNOSTICS: "what training data did to each step, without noise",
    DIAGRAM: "what training data did to each step, without noise",
    CANARIES: "which canaries were in the data: the secret coins of the audit",
    AUDIT: "what attacks found out about training examples",
    CURVES: "what attacks found out about training examples",
    SHADOWS: "models that were trained on the same data, and are covered by no guarantee",
    FINDINGS: "how teachers voted on training data, without noise",
    REPORT: "losses, and what attacks found out about training examples",
    MODEL: "a second copy of the released model",
    COINS: "how many runs a tune had, and the noise on their scores",
    CANDIDATES: "the settings of a tune",
    RUNS: "runs of a tune that were not chosen, and are covered by no guarantee",
}
HARMLESS = (LOCK, TAIL)  # the lock of whoever releases, and the hash of the ledger's last line
UNKNOWN = "not known to this version, and private like everything in this folder"


def left(run: Run) -> dict[str, str]:
    """Everything in private/, and why it is dangerous."""
    if not run.private_path.is_dir():
        return {}
    names = sorted(path.name for path in run.private_path.iterdir() if path.name not in HARMLESS)
    return {name: WHY.get(name, UNKNOWN) for name in names}


def forget(run: Run) -> None:
    """Delete what is dangerous in private/. What a disk keeps of deleted files is beyond reach.

    The model goes last: as long as it is there, a kill leaves a run that can be told to forget.
    """
    if run.private_path.is_symlink():
        raise InputError(f"{run.private_path}: is a link; delete what it leads to by hand")
    try:
        for path in sorted(run.private_path.iterdir(), key=lambda path: path.name == MODEL):
            if path.name in HARMLESS:
                continue
            if path.name == MODEL:
                sync_folder(run.private_path)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        sync_folder(run.private_path)
    except OSError as error:
        raise InputError(
            f"{run.private_path}: the release is complete, but not everything could be deleted "
            f"({error.strerror})"
        ) from None
