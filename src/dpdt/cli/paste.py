"""Clip and noise as they can be pasted into [method]: base values, before any schedule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Context

from dpdt import config
from dpdt.algorithm.recipe import Recipe
from dpdt.errors import InputError
from dpdt.ledger import Block
from dpdt.methods.plan import Plan


def recipe_of(chosen: config.Config, command: str) -> tuple[Plan, Recipe]:
    """What a run of Algorithm 1 would do, with the base values of every block."""
    decided = config.plan_of(chosen)
    if decided.recipe is None:
        raise InputError(
            f"method.name: {command} is for dpdt, found {chosen.method.name!r}; give it a target "
            "privacy.epsilon, from which its noise follows"
        )
    return decided, decided.recipe


def with_values(decided: Plan, clip: Sequence[float], noise: Sequence[float]) -> Plan:
    """The plan with other base values."""
    assert decided.recipe is not None
    return replace(decided, recipe=replace(decided.recipe, clip=tuple(clip), noise=tuple(noise)))


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


def lines(**tables: tuple[Mapping[str, float], str]) -> list[str]:
    """`key = { kind = value, … }` to six digits, each rounded as told, so that ε stays below."""
    result = []
    for key, (values, rounding) in tables.items():
        rounded = Context(prec=6, rounding=rounding).create_decimal
        inside = ", ".join(f"{_key(k)} = {float(rounded(repr(v)))}" for k, v in values.items())
        result.append(f"{key} = {{ {inside} }}")
    return result


def _key(name: str) -> str:
    """A TOML key: names such as 0.weight need quotes."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
