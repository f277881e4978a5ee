"""Clip and noise of a run of Algorithm 1 as [method] takes them: base values, before any schedule.

A plan holds a value for each block. A configuration holds them by kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from dpdt.algorithm.recipe import Recipe
from dpdt.errors import InputError
from dpdt.ledger import Block
from dpdt.methods.method import Training
from dpdt.methods.plan import Plan

Told = TypeVar("Told", bound=Training)


def recipe_of(plan: Plan, command: str) -> Recipe:
    """The recipe of a run, which has the base values of every block."""
    if plan.recipe is None:
        raise InputError(
            f"method.name: {command} is for dpdt, found {plan.training.method.name!r}; give it a "
            "target privacy.epsilon, from which its noise follows"
        )
    return plan.recipe


def with_values(plan: Plan, clip: Sequence[float], noise: Sequence[float]) -> Plan:
    """The plan with other base values."""
    assert plan.recipe is not None
    return replace(plan, recipe=replace(plan.recipe, clip=tuple(clip), noise=tuple(noise)))


def by_kind(blocks: Sequence[Block], values: Sequence[float]) -> dict[str, float]:
    """One value for each kind whose blocks agree; for other kinds one for each block."""
    pairs = list(zip(blocks, values, strict=True))
    found: dict[str, set[float]] = {}
    for block, value in pairs:
        found.setdefault(block.kind, set()).add(value)
    table = {b.kind if len(found[b.kind]) == 1 else b.name: v for b, v in pairs}
    if all(table.get(b.name, table.get(b.kind)) == v for b, v in pairs):
        return table
    return {b.name: v for b, v in pairs}  # a block bears the name of another kind


def told(settings: Told, clip: dict[str, float], noise: dict[str, float]) -> Told:
    """The settings with these values, and without a target ε, which would scale the noise again."""
    method = replace(settings.method, clip=clip, noise=noise)  # type: ignore[type-var]
    return replace(settings, method=method, privacy=replace(settings.privacy, epsilon=None))
