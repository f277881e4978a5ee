"""What PRESET, FILE and RUN stand for."""

from __future__ import annotations

from pathlib import Path

from dpdt import config
from dpdt.accounting import Measurement
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.runs import Run
from dpdt.runs.place import is_run


def measured_of(source: str) -> Measurement | None:
    """What an audit of a run folder measured, if there was one."""
    found = Run(source).audit() if is_run(source) else None
    record = found and found["privacy"]["measured"]
    return Measurement(**record) if record else None


def ledger_of(
    source: str, overrides: tuple[str, ...], method: str | None
) -> tuple[Ledger, config.Config]:
    """The ledger of a run folder as it was, or of a preset or file as it would be."""
    if not is_run(source):
        beside = Path(source).parent
        if Path(source).is_file() and is_run(beside) and Run(beside).ledger().tuned:
            raise InputError(
                f"{source}: belongs to a run that a tune has chosen, and says what one run would "
                f"cost; dpdt account {beside} says what the tune has cost"
            )
        chosen = config.load(source, overrides, method)
        return config.plan_of(chosen).ledger(), chosen
    if overrides or method:
        asked = f"--set {overrides[0]}" if overrides else f"--method {method}"
        raise InputError(f"{asked}: {source} has been run and cannot be changed")
    run = Run.open(source)
    return run.ledger(), run.config
