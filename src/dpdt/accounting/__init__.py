"""From a ledger to guarantees. Pure functions of the ledger; no torch."""

from __future__ import annotations

import math

from dpdt.accounting.composition import Composition
from dpdt.accounting.guarantee import Accountant, Condition, Guarantee, Privacy
from dpdt.errors import InputError
from dpdt.ledger import Ledger

__all__ = ["ACCOUNTANTS", "Accountant", "Condition", "Guarantee", "Privacy", "account"]

ACCOUNTANTS: tuple[Accountant, ...] = (Composition(),)


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
    guarantees = tuple(accountant.guarantee(ledger, delta) for accountant in ACCOUNTANTS)
    return Privacy(
        delta=delta,
        unit=ledger.header.unit,
        relation=guarantees[0].relation,
        steps=ledger.steps,
        epochs=ledger.epochs,
        guarantees=guarantees,
    )
