"""From a ledger to guarantees. All functions are pure. None needs torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict

from dpdt.accounting.composition import Composition, cost_of, words
from dpdt.accounting.guarantee import Accountant, Condition, Guarantee, Measurement, Privacy
from dpdt.accounting.hidden_state import HiddenStateContraction, HiddenStateConvex
from dpdt.accounting.paper import Paper, PaperPerBlock
from dpdt.accounting.several import Total, together
from dpdt.bands import LONGEST, MOST
from dpdt.errors import InputError, one_of
from dpdt.ledger import Header, Ledger, Setting

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Condition",
    "Guarantee",
    "Measurement",
    "Privacy",
    "Total",
    "account",
    "account_together",
    "by_name",
    "check_delta",
    "check_ledger",
]

SQUARABLE = (1e-100, 1e100)  # numbers whose squares float64 can hold
# Composition is first: if nothing is proven, the table begins with why composition does not hold.
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
    raise InputError(f"privacy.accountant: {one_of(name, [a.name for a in ACCOUNTANTS])}")


def account(ledger: Ledger, delta: float, *, allow_large_delta: bool = False) -> Privacy:
    """What a run guarantees, according to every accountant.

    Guarantees: `proven` of the result is an upper bound on the privacy loss of the run that the
    ledger describes, for its unit and relation.
    """
    check_ledger(ledger)
    header = ledger.header
    check_delta(delta, header.examples, header.counted, allow_large=allow_large_delta)
    guarantees = tuple(accountant.guarantee(ledger, delta) for accountant in ACCOUNTANTS)
    return Privacy(
        delta=delta,
        unit=ledger.header.unit,
        relation=ledger.header.relation,
        steps=ledger.steps,
        epochs=ledger.epochs,
        guarantees=guarantees,
        closed=ledger.closed,
        chosen=words(ledger.tuned) if ledger.tuned else "",
    )


def account_together(ledgers: Sequence[Ledger], delta: float) -> Total:
    """What several runs on the same data cost one record together (several.py)."""
    for each in ledgers:
        check_ledger(each)
    return together(ledgers, delta)


def check_delta(
    delta: float, number: int, what: str = "examples", *, allow_large: bool = False
) -> None:
    """Refuse a δ that guarantees nothing, unless `allow_large`. Warn of one that says little.

    With probability δ anything may happen. Publishing one example of n as it is, drawn at random,
    has ε = 0 at δ = 1/n. So has publishing all of one of n users.
    """
    if not (isinstance(delta, float) and 0.0 < delta < 1.0):
        raise InputError(f"privacy.delta: must be a number between 0 and 1, found {delta!r}")
    if delta >= 1.0 / number and not allow_large:
        raise InputError(
            f"privacy.delta: must be below 1/n = {1.0 / number:.2g} for n = {number} {what}, "
            f"found {delta:g}, at which a run that publishes whole examples would pass; set "
            "privacy.allow_large_delta = true if that is meant"
        )
    if delta > 0.1 / number:
        warnings.warn(
            f"privacy.delta: {delta:g} is large for {number} {what}; usual is a tenth of 1/n, "
            f"{0.1 / number:.2g}, or less",
            stacklevel=1,  # one place, so that a run that looks at ε again and again warns once
        )


def check_ledger(ledger: Ledger) -> None:
    """Refuse numbers that no run can have, from which an accountant might make a small ε."""
    header = ledger.header
    for name in ("examples", "auxiliaries", "batches"):
        if not getattr(header, name) >= 1:
            raise InputError(f"the ledger has {name} {getattr(header, name)}; it must be 1 or more")
    if not 0.0 < header.rate <= 1.0:
        raise InputError(f"the ledger has a rate of {header.rate}; it must be above 0, up to 1")
    _check_noise(ledger)
    for name in ("gradient_bound", "smoothness", "weight_decay", "auxiliary_weight_decay"):
        _check_number(name, getattr(header, name) or 0.0)
    for setting in {run.setting for run in ledger.runs}:
        _check_setting(setting, header)
    if ledger.tuned is not None:
        plans = [Ledger(plan.header, list(plan.runs)) for plan in ledger.tuned.candidates]
        for plan in plans:
            check_ledger(plan)
        if sum(plan.steps for plan in plans if _by_steps(plan.header)) > LONGEST:
            raise InputError(
                f"the ledger's tune has more than {LONGEST:,} steps with correlated noise or groups"
            )
        cost_of(ledger, header.relation)  # refused if it would take for ever


def _by_steps(header: Header) -> bool:
    """Whether every step is accounted by itself."""
    return len(header.coefficients) > 1 or header.groups > 1


def _check_noise(ledger: Ledger) -> None:
    """Refuse coefficients of correlated noise, and groups of examples, that no run can have."""
    header = ledger.header
    first, *rest = header.coefficients or (0.0,)
    least, most = SQUARABLE
    if not (first >= least and all(0 <= c <= most for c in header.coefficients)):
        raise InputError(
            f"the ledger has the coefficients {list(header.coefficients)}; the first must be "
            f"{least:g} or more, none below 0, and none above {most:g}"
        )
    if rest and not ledger.reached <= header.horizon:
        raise InputError(
            f"the ledger has {ledger.reached} steps; its correlated noise was made for "
            f"{header.horizon}"
        )
    if max(header.groups, len(header.coefficients)) > MOST:
        raise InputError(
            f"the ledger has more than {MOST} bands or groups, the most that are known"
        )
    if _by_steps(header) and ledger.steps > LONGEST:
        raise InputError(
            f"the ledger has {ledger.steps:,} steps with correlated noise or groups; at most "
            f"{LONGEST:,} can be accounted"
        )
    if header.groups < 1 or (header.groups > 1 and header.sampling != "poisson"):
        raise InputError(
            f"the ledger has {header.groups} groups with sampling {header.sampling}; groups are "
            "1 or more, and take turns under poisson alone"
        )


def _check_lattice(setting: Setting, header: Header) -> None:
    """Refuse a lattice that would swallow the noise, or that moves more than is accounted."""
    grids, rounding = setting.grid or setting.spacing, setting.rounding
    if not setting.spacing:
        return
    if not rounding:
        raise InputError("the ledger has a lattice, and no rounding to it")
    for s, grid, moved, block in zip(setting.spacing, grids, rounding, header.blocks, strict=True):
        if s and (math.frexp(s)[0] != 0.5 or grid < s or moved < s * math.sqrt(block.size)):
            raise InputError(
                f"the ledger has a lattice of spacing {s:g} that is published on a grid of "
                f"{grid:g}, and {moved:g} as what rounding can add; the spacing must be a power of "
                "two, the grid no finer, and rounding at least the spacing times the root of the "
                "number of parameters"
            )


def _check_setting(setting: Setting, header: Header) -> None:
    least, most = SQUARABLE
    for name, value in asdict(setting).items():
        if not isinstance(value, tuple):
            _check_number(name, value)
            continue
        wanted, what = len(header.blocks), "blocks"
        if name == "penalties":
            wanted, what = header.auxiliaries, "auxiliaries"
        empty = not value and name in ("spacing", "grid", "rounding", "penalties")
        if len(value) != wanted and not empty:
            raise InputError(f"the ledger has {len(value)} values of {name} for {wanted} {what}")
        for number in value:
            _check_number(name, number)
            if name in ("clip", "noise") and number and not least <= number <= most:
                raise InputError(
                    f"the ledger has a {name} of {number}; it must be 0, or from {least:g} to "
                    f"{most:g}"
                )
    _check_lattice(setting, header)
    if not all(setting.penalties):
        raise InputError("the ledger has a penalty of 0 among its penalties; it must be above 0")
    if not 0.0 < setting.contraction <= 1.0:
        raise InputError(
            f"the ledger has a contraction of {setting.contraction}; it must be above 0, up to 1"
        )


def _check_number(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InputError(f"the ledger has a {name} of {value}; it must be finite and 0 or more")
