"""The paper's budget allocation for a planned run (accounting/allocate.py has what it means).

plan = config.plan_of(chosen)
found = allocated(plan, mode="noise", kind="conv", boost=1.5)
values.told(chosen, found.clip, found.noise)    # the configuration that trains so
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdt.accounting import by_name
from dpdt.accounting.allocate import allocate, held
from dpdt.errors import InputError
from dpdt.methods.plan import Plan
from dpdt.methods.values import by_kind, recipe_of, with_values


@dataclass(frozen=True, kw_only=True)
class Allocated:
    """A run with its budget split. `clip` and `noise` are for [method]; `shares` are per cents."""

    mode: str
    kind: str | None  # the boosted kind; None for the equal baseline
    boost: float
    clip: dict[str, float]
    noise: dict[str, float]
    shares: dict[str, int]
    plan: Plan


def allocated(
    plan: Plan,
    *,
    mode: str,
    kind: str | None = None,
    boost: float = 1.0,
    hold: str | None = None,
) -> Allocated:
    """The plan with the equal baseline, or with one kind boosted.

    Args:
        plan: a run of Algorithm 1.
        mode: "noise" changes noise alone to boost a kind, "joint" changes clip too.
        kind: the kind that is boosted; None for the equal baseline.
        boost: r, what its cost is multiplied by.
        hold: an accountant. A common factor on all noise then brings its ε back to the plan's own.
    """
    recipe, blocks = recipe_of(plan, "allocate"), plan.header.blocks
    found = allocate(blocks, recipe.clip, recipe.noise, mode=mode, kind=kind, boost=boost)
    shifted = with_values(plan, found.clip, found.noise)
    factor = 1.0 if hold is None else _factor(shifted, plan, hold)
    return Allocated(
        mode=mode,
        kind=kind,
        boost=boost,
        clip=by_kind(blocks, found.clip),
        noise=by_kind(blocks, [sigma * factor for sigma in found.noise]),
        shares=found.shares,
        plan=shifted.scaled(factor),
    )


def _factor(shifted: Plan, plan: Plan, accountant: str) -> float:
    """The factor on all noise at which the accountant says the same as of the plan."""
    judge, delta = by_name(accountant), plan.training.privacy.delta
    target = judge.guarantee(plan.ledger(), delta).epsilon
    if not math.isfinite(target):
        raise InputError(f"accountant {accountant!r} gives no ε for this run to hold")
    return held(
        lambda factor: judge.guarantee(shifted.scaled(factor).ledger(), delta).epsilon, target
    )
