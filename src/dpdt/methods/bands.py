"""Noise that is correlated over steps, as a method's settings: what they stand for, and "auto".

What such noise is, and why, is in dpdt/bands.py. What it costs a record is in accounting/matrix.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpdt.bands import (
    LONG,
    LONGEST,
    MOST,
    NONE,
    WORTHWHILE,
    Smoothing,
    best,
    error,
    last_error,
)
from dpdt.errors import InputError
from dpdt.fields import AUTO, is_integer, or_auto

if TYPE_CHECKING:
    from dpdt.methods.plan import Plan

CYCLIC = "cyclic-poisson"
SAMPLINGS = ("partition", "poisson", CYCLIC)
FLOAT = 8  # bytes of a number of noise
ROOM = 2_000_000_000  # bytes that "auto" lets the noise of earlier steps take


def noise_bands() -> Any:
    """The key method.noise_bands."""
    return or_auto(
        1, f"a whole number from 1 to {MOST}", lambda v: is_integer(v) and 1 <= v <= MOST
    )


def refusals(sampling: str, bands: int | str, epsilon: float | None) -> list[tuple[bool, str]]:
    """What the number of bands does not go with, each with its sentence."""
    return [
        (
            sampling == "poisson" and bands != 1,
            f"method.noise_bands: with sampling 'poisson' it must be 1, found {bands!r}; "
            "correlated noise needs examples that take turns, so use sampling = "
            f'"{CYCLIC}" or "partition"',
        ),
        (
            bands == AUTO and epsilon is None,
            "method.noise_bands: 'auto' needs a target privacy.epsilon; give it, or a number",
        ),
    ]


def kind_of(sampling: str) -> str:
    """How examples get into mini-batches, as a header says it; groups are added by `banded`."""
    return "poisson" if sampling == CYCLIC else sampling


def banded(plan: Plan, bands: int) -> Plan:
    """A plan whose noise is correlated over so many steps."""
    header = plan.header
    if bands == 1:
        return plan
    if plan.steps > LONGEST:
        raise InputError(
            f"method.noise_bands: correlated noise is accounted step by step, for at most "
            f"{LONGEST:,} steps, found {plan.steps:,}; give 1"
        )
    coefficients = best(bands, plan.steps, plan.smoothing)
    noise: dict[str, Any] = {"coefficients": coefficients, "horizon": plan.steps}
    if header.sampling == "poisson":
        if header.rate * bands > 1.0:
            raise InputError(
                f"method.noise_bands: {bands} groups of examples that take turns have fewer than "
                f"a mini-batch each; give at most {_most(plan)}"
            )
        noise |= {"groups": bands, "rate": header.rate * bands}
    # A step's noise alone is longer than C here. What is made of releases needs no bound.
    recipe = None if plan.recipe is None else replace(plan.recipe, bounded=False)
    return replace(plan, header=replace(header, **noise), recipe=recipe)


def memory(plan: Plan) -> int:
    """Bytes of the noise of earlier steps that a run keeps."""
    return (len(plan.header.coefficients) - 1) * plan.problem.size * FLOAT


def _most(plan: Plan) -> int:
    """A record's columns then have no row in common: the bands that cost nothing."""
    header = plan.header
    if header.sampling == "poisson":
        return int(1.0 / header.rate)
    return header.batches


def chosen(plan: Plan, noise: Callable[[Plan], float]) -> int:
    """The number of bands with the least noise in the model that leaves.

    `noise` is the σ that a plan needs for the target ε, in units of its own. The search ends where
    two numbers in a row are no better.
    """
    room = 1 + ROOM // (FLOAT * plan.problem.size)
    found, least, worse = 1, math.inf, 0
    for bands in _candidates(min(_most(plan), WORTHWHILE, plan.steps, room)):
        tried = banded(plan, bands)
        moved = error(tried.header.coefficients, plan.steps, plan.smoothing)
        spread = noise(tried) * moved
        if spread < least * (1.0 - 1e-6):
            found, least, worse = bands, spread, 0
        else:
            worse += 1
        if worse == 2:
            break
    return found


def relief(plan: Plan, smoothing: Smoothing = NONE) -> float:
    """By how much less all steps, smoothed, move than the sum of steps under independent noise."""
    coefficients, steps = plan.header.coefficients, min(plan.steps, LONG)
    if len(coefficients) == 1:
        return 1.0
    return last_error(coefficients, steps, smoothing) / math.sqrt(steps)


def _candidates(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 … up to `most`, which is among them."""
    halves = {k << i for i in range(7) for k in (2, 3)}
    return sorted({1, most, *(b for b in halves if b <= most)})
