"""The ledger of a run, if it is not shorter than others know it to be.

A ledger that was cut behind any line has a chain of hashes that is whole. So the hash of its last
line is also kept in private/tail.json, at every checkpoint and at the end, and metrics.jsonl says
which steps were taken. Both are written after the ledger. They are read before it, so that a run
which goes on meanwhile is never taken for one that was cut.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from dpdt.errors import InputError
from dpdt.files import write_atomically
from dpdt.ledger import Ledger
from dpdt.runs.records import content, lines, read


def keep(path: Path, digest: str) -> None:
    """Keep the hash of the last line of a ledger, which is on the disk already."""
    write_atomically(path, json.dumps({"hash": digest}).encode())


def checked(ledger: Path, metrics: Path, tail: Path) -> Ledger:
    """A ledger that has every step of the metrics, and the line that was last when it was kept."""
    steps = [record["step"] for _, record in lines(metrics)]
    digest = _kept(tail)
    found = Ledger.read(ledger)
    if found.tuned and not found.closed:  # costs the whole tune, whatever else it says
        return found
    taken = max((step for step in steps if type(step) is int), default=0)  # others are none
    if found.reached < taken:
        raise InputError(
            f"{ledger}: ends at step {found.reached}, and {metrics} says that step {taken} was "
            "taken; it was cut, so restore it"
        )
    if digest is not None and f'"hash": "{digest}"}}\n'.encode() not in content(ledger):
        raise InputError(
            f"{ledger}: does not have the line whose hash is in {tail}; it was cut or changed, so "
            "restore it"
        )
    return found


def _kept(path: Path) -> str | None:
    """The hash that was kept; None if there is none, or only the run's owner may know."""
    if not (os.access(path.parent, os.X_OK) and os.path.lexists(path)):
        return None
    digest = read(path).get("hash")
    if not isinstance(digest, str):
        raise InputError(f"{path}: must hold the hash of a ledger's line, found {digest!r:.50}")
    return digest
