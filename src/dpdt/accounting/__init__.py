"""From a ledger to guarantees. Pure functions of the ledger; no torch."""

from __future__ import annotations

import math

from dpdt.accounting.composition import Composition
from dpdt.accounting.guarantee import Accountant, Condition, Guarantee, Measurement, Privacy
from dpdt.accounting.hidden_state import HiddenStateContraction, HiddenStateConvex
from dpdt.accounting.paper import Paper, PaperPerBlock
from dpdt.errors import InputError
from dpdt.ledger import Ledger

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Condition",
    "Guarantee",
    "Measurement",
    "Privacy",
    "account",
    "by_name",
]

ACCOUNTANTS: tuple[Accountant, ...] = (
    Composition(),
    HiddenStateConvex(),
    HiddenStateContraction(),
    Paper(),
    PaperPerBlock(),
)


def by_name(name: str) -> Accountant:
    """The accountant of that name."""
    for accountant in ACCOUNTANTS:
        if accountant.name == name:
            return accountant
    known = ", ".join(a.name for a in ACCOUNTANTS)
    raise InputError(f"privacy.accountant: must be one of {known}, found {name!r}")


def judges(ledger: Ledger) -> tuple[Accountant, ...]:
    """The accountants that speak of a run.

    What is known of the last iterate, and the paper's claim, are about Algorithm 1 alone.
    """
    return ACCOUNTANTS if ledger.header.method == "dpdt" else (by_name("composition"),)


def account(ledger: Ledger, delta: float) -> Privacy:
    """What a run guarantees, according to every accountant.

    Guarantees: `proven` of the result is an upper bound on the privacy loss of the run that the
    ledger describes, for its unit and relation.
    """
    if not (isinstance(delta, float) and 0.0 < delta < 1.0):
        raise InputError(f"privacy.delta: must be a number between 0 and 1, found {delta!r}")
    for run in ledger.runs:
        for name in ("clip", "noise"):
            for value in getattr(run.setting, name):
                if not (value >= 0 and math.isfinite(value)):
                    raise InputError(f"the ledger has a {name} of {value}; it must be 0 or more")
    guarantees = tuple(accountant.guarantee(ledger, delta) for accountant in judges(ledger))
    return Privacy(
        delta=delta,
        unit=ledger.header.unit,
        relation=ledger.header.relation,
        steps=ledger.steps,
        epochs=ledger.epochs,
        guarantees=guarantees,
    )
