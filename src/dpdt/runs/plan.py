"""What a run will have paid when it ends, for as long as it may go on.

A run says so before its first step, in private/plan.jsonl, a ledger of its own. A limit on what
data pay counts by it. A run writes its plan before it looks at those of others: of two that begin
at the same time, and look at each other, at least one sees the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from dpdt.errors import InputError
from dpdt.files import write_atomically
from dpdt.ledger import Ledger, text_of
from dpdt.runs import CHECKPOINT, PLAN, Run


def announce(run: Run, ledger: Ledger) -> None:
    """Let others know the ledger that a run will have at its end."""
    write_atomically(run.private_path / PLAN, text_of(ledger).encode())


@contextmanager
def announced(run: Run, ledger: Ledger) -> Iterator[None]:
    """Announce how a run goes on. If what follows refuses it, the plan is the one before."""
    path = run.private_path / PLAN
    before = path.read_bytes() if path.is_file() else b""
    announce(run, ledger)
    try:
        yield
    except BaseException:
        write_atomically(path, before)
        raise


@contextmanager
def undone(run: Run, *within: Path) -> Iterator[None]:
    """Remove a new folder, in which nothing was spent, if what follows fails.

    Its files and those in private/ go, and what is in the folders `within`. What others have put
    into folders of their own stays.
    """
    try:
        yield
    except BaseException:
        for folder in (*within, run.private_path, run.path):
            with suppress(OSError):
                for path in folder.iterdir():
                    if not path.is_dir():
                        path.unlink()
                folder.rmdir()
        raise


def at_its_end(run: Run) -> tuple[Ledger, bool]:
    """The ledger of a run with all steps that it may still take, and whether there are any.

    A run without a checkpoint cannot go on, unless it is just beginning. The order below is that
    of a run which goes on meanwhile: a checkpoint comes before the first step, and is removed after
    the end. Nobody knows whether the run will end, so its ledger does not.
    """
    before = run.ledger()
    if before.tuned:  # costs all that it will cost from its beginning
        return before, False
    path = run.private_path / PLAN
    try:
        goes_on = _there(run.private_path / CHECKPOINT)
        plan = Ledger.read(path) if _there(path) else None
    except PermissionError:
        goes_on, plan = True, None
    now = run.ledger()
    if now.closed or not (goes_on or (plan and not before.runs)):
        return now, False
    if plan is None:
        raise InputError(
            f"{path}: cannot be read, and the run may go on; what it will have paid is not known, "
            "so wait until it has ended, or restore the file"
        )
    if not _goes_on_from(now, plan):
        raise InputError(
            f"{path}: is not the whole plan of this run, and the run may go on; what it will have "
            "paid is not known, so wait until it has ended, or restore the file"
        )
    # what nobody plans is as it is now
    return replace(plan, closed=False, exports=now.exports, voids=now.voids), True


def _goes_on_from(now: Ledger, plan: Ledger) -> bool:
    """Whether a plan has its end, is of the very run, and begins with what was done."""
    if not plan.closed or (plan.header, plan.data) != (now.header, now.data):
        return False
    if not now.runs:
        return True
    *before, last = now.runs
    first = plan.runs[: len(now.runs)]
    if len(first) < len(now.runs) or first[:-1] != before:
        return False
    return replace(first[-1], steps=last.steps) == last and first[-1].steps >= last.steps


def _there(path: Path) -> bool:
    """Whether there is such a file. PermissionError if nobody may know."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
