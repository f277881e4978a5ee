"""What a run will have paid when it ends, for as long as it may go on.

A run says so before its first step, in private/plan.jsonl, a ledger of its own. A limit on what
data pay counts by it. A run writes its plan before it looks at those of others: of two that begin
at the same time, at least one sees the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dpdt.errors import InputError
from dpdt.files import write_atomically
from dpdt.ledger import Ledger, text_of
from dpdt.runs import PLAN, Run


def announce(run: Run, ledger: Ledger) -> None:
    """Let others know the ledger that a run will have at its end."""
    write_atomically(run.private_path / PLAN, text_of(ledger).encode())


@contextmanager
def undone(run: Run) -> Iterator[None]:
    """Remove a new folder, in which nothing was spent, if what follows fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise


def at_its_end(run: Run) -> Ledger:
    """The ledger that a run has or, if it may still go on, will have at its end.

    A run without a checkpoint cannot go on, unless it is just beginning. The order below is that
    of a run which goes on meanwhile: a checkpoint comes before the first step, and is removed after
    the end.
    """
    before = run.ledger()
    if before.tuned:  # costs all that it will cost from its beginning
        return before
    path = run.private_path / PLAN
    try:
        goes_on = run.has_checkpoint
        plan = Ledger.read(path) if path.is_file() else None
    except PermissionError:
        goes_on, plan = True, None
    now = run.ledger()
    if now.closed or not (goes_on or (plan and not before.runs)):
        return now
    if plan is None:
        raise InputError(
            f"{path}: cannot be read, and the run may go on; what it will have paid is not known, "
            "so wait until it has ended, or restore the file"
        )
    # what nobody plans is as it is now
    return replace(plan, exports=now.exports, voids=now.voids, forks=now.forks)
