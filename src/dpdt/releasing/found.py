"""Every run and release below some folders, each once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpdt.accounting import check_ledger
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.reading import opened
from dpdt.releasing import canonical
from dpdt.runs import PLAN, Run
from dpdt.runs.place import LEDGER, is_private, is_run
from dpdt.runs.plan import at_its_end
from dpdt.runs.tune import RUNS

CERTIFICATE = "certificate.json"
HEADER = b'{"kind": "header"'  # how a ledger's file begins
PAUSES = (0.05, 0.2)  # seconds before all is looked at again


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run, or what is left of one in a release."""

    path: Path
    ledger: Ledger
    released: bool = False
    delta: float | None = None  # that its ε was meant for, if that is known
    name: str = ""  # what its configuration calls the data
    copies: tuple[Path, ...] = ()  # where else it is
    goes_on: bool = False  # the ledger has steps that are still to be taken

    def at_the_end(self) -> list[Found]:
        """The run with all steps that it may still take. Copies may go on by themselves."""
        if self.ledger.closed:
            return [self]
        places = (self.path, *self.copies)
        ends = [(path, *at_its_end(Run(path))) for path in places if is_run(path)]
        found = [replace(self, path=p, ledger=end, goes_on=more) for p, end, more in ends]
        return found if is_run(self.path) else [self, *found]


def found_below(folders: Sequence[Path]) -> list[Found]:
    """Every run and release below the folders, by its path. Links to folders are not followed.

    What cannot be read is refused, since a total without it would be false. It may have changed
    while it was looked at, as a run that is refused does: so all is looked at again.
    """
    for pause in PAUSES:
        with suppress(InputError):
            return _found_below(folders)
        time.sleep(pause)
    return _found_below(folders)


def _found_below(folders: Sequence[Path]) -> list[Found]:
    seen: set[str] = set()
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
        for path in _folders(folder):
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                found += _in(path)
    return distinct(found)


def _folders(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError) and is_private(Path(error.filename)):
            return  # of somebody else's run, and no run may be begun there
        raise InputError(
            f"{error.filename}: cannot be looked into ({error.strerror}), and a total without it "
            "could be false"
        )

    for path, below, _ in os.walk(folder, onerror=refuse):
        below[:] = [name for name in below if not _is_paid(Path(path).absolute(), name)]
        yield Path(path)


def _in(folder: Path) -> list[Found]:
    """What is in a folder: a run or release, and ledgers of runs that were made in Python."""
    _refuse_lost(folder)
    found = [_python(path) for path in _ledgers(folder)]
    if is_private(folder):  # the run's own plan is counted with it
        own = Run(folder.parent).ledger().data
        found = [one for one in found if one.path.name != PLAN or one.ledger.data != own]
    if is_run(folder):
        found.append(_run(Run(folder)))
    if (folder / CERTIFICATE).is_file():
        found.append(_released(folder))
    for one in found:
        try:
            check_ledger(one.ledger)
        except InputError as error:
            raise InputError(f"{folder}: {error}") from None
    return found


def _is_paid(folder: Path, name: str) -> bool:
    """Whether a run is one of the tune in whose private folder it is, and costs nothing more.

    What is left of such a run that was deleted costs nothing either.
    """
    if folder.name != RUNS or not is_private(folder.parent) or not name.isdigit():
        return False
    tune, run = Run(folder.parents[1]).ledger().tuned, Run(folder / name)
    if tune is None:
        return False
    if is_run(run.path):
        return run.ledger().tuned == tune
    return not any(next(run.path.rglob(file), None) for file in (LEDGER, CERTIFICATE))


def _refuse_lost(folder: Path) -> None:
    """Refuse the folder of a run that has lost its ledger."""
    try:
        Run.refuse_lost(folder)
    except InputError as error:
        raise InputError(f"{error}; a total without it could be false") from None


def _ledgers(folder: Path) -> list[Path]:
    """Files that begin as a ledger does, under whatever name."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        if path.name != LEDGER and path.is_file():
            with opened(path) as file:
                if file.read(len(HEADER)) == HEADER:
                    found.append(path)
    return found


def _python(path: Path) -> Found:
    return Found(path=path, ledger=Ledger.read(path))


def _run(run: Run) -> Found:
    found = Found(path=run.path, ledger=run.ledger(), released=run.released() is not None)
    try:
        chosen = run.config
    except InputError:  # all that costs is in the ledger
        return found
    return replace(found, delta=chosen.privacy.delta, name=chosen.data.name)


def _released(folder: Path) -> Found:
    """What a release's certificate says of its run. Nothing but the ledger counts."""
    path = folder / CERTIFICATE
    try:
        record: Any = canonical.load(canonical.read(path))
        text = "".join(f"{line}\n" for line in record["ledger"]["lines"])
        delta = record["privacy"]["delta"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot be read as a certificate ({error})") from None
    return Found(
        path=folder,
        ledger=Ledger.parse(text, path),
        released=True,
        delta=delta if isinstance(delta, float) else None,
    )


def distinct(found: Sequence[Found]) -> list[Found]:
    """Each run once. A copy has the same seal, and says no more than the run itself.

    Two ledgers with one seal of which neither goes on from the other both count.
    """
    kept: list[Found] = []
    by_seal: dict[str, list[int]] = {}
    for one in sorted(found, key=lambda f: (-f.ledger.steps, not f.ledger.closed, str(f.path))):
        copies = by_seal.setdefault(one.ledger.data, []) if one.ledger.data else []
        whole = next((i for i in copies if _goes_on_from(kept[i].ledger, one.ledger)), None)
        if whole is None:
            copies.append(len(kept))
            kept.append(one)
        else:
            kept[whole] = _joined(kept[whole], one)
    return sorted(kept, key=lambda f: str(f.path))


def _joined(one: Found, copy: Found) -> Found:
    return replace(
        one,
        released=one.released or copy.released,
        delta=copy.delta if one.delta is None else one.delta,
        name=one.name or copy.name,
        copies=(*one.copies, copy.path, *copy.copies),
    )


def _goes_on_from(ledger: Ledger, earlier: Ledger) -> bool:
    """Whether a ledger is another, or its continuation: whatever counts there counts here.

    A tune that has not ended has cost what the whole tune costs, and nothing has left it.
    """
    if earlier.tuned is not None and not (earlier.closed or earlier.runs) and ledger.tuned:
        return replace(ledger.tuned, chosen=False) == earlier.tuned
    if ledger.header != earlier.header or ledger.forks != earlier.forks:
        return False
    told = ((earlier.exports, ledger.exports), (earlier.voids, ledger.voids))
    if not all(set(there) <= set(here) for there, here in told):
        return False
    if earlier.closed:
        models = {ledger.model, earlier.model} - {None}  # one that is planned names none
        return ledger.closed and ledger.runs == earlier.runs and len(models) < 2
    if not earlier.runs:
        return True
    *before, last = earlier.runs
    if len(ledger.runs) < len(earlier.runs) or ledger.runs[: len(before)] != before:
        return False
    mine = ledger.runs[len(before)]
    return (mine.setting, mine.start) == (last.setting, last.start) and mine.steps >= last.steps
