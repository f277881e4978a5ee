"""Whether noise drowns what a run could learn: a sentence for its owner, before anything is spent.

In T steps the mean contributions add up to at most Σ_t C_t, if all examples pull the same way in
every step. The noise in that sum has the length √(Σ_t Σ_b σ_tb² d_b), over blocks b of d_b numbers.
Of its d = Σ d_b directions, n examples span at most n. The ratio of noise to contributions,

    √(Σ_t Σ_b σ_tb² d_b) · √(min(d, n)/d) / Σ_t C_t,

depends on the plan alone, so it says nothing about the data. It is about √min(d, n)/(n·μ), for a
run that is μ-GDP. Real examples pull the same way only in part. Above 1/8, linear models on made-up
data of 64 inputs and 10 classes got at most a quarter of new examples right.
"""

from __future__ import annotations

import math

from dpdt.methods import bands
from dpdt.methods.plan import Plan

TOO_MUCH = 1 / 8


def drowned(plan: Plan) -> float:
    """The length of a whole run's noise, as a share of the most that can be contributed to it."""
    sizes = [block.size for block in plan.header.blocks]
    noise = most = 0.0
    for setting, number in plan.runs:
        noise += number * sum(s * s * d for s, d in zip(setting.noise, sizes, strict=True))
        most += number * math.hypot(*setting.clip)
    spanned = min(sum(sizes), plan.header.examples) / sum(sizes)
    return bands.relief(plan) * math.sqrt(noise * spanned) / most


def too_few(plan: Plan) -> str | None:
    """What to say of a run that can learn little; None if there is nothing to say.

    Only of runs where each example contributes by itself: auxiliaries that many examples share are
    few by choice, and so are teachers.
    """
    method = plan.training.method
    if not (method.private and method.takes_pulls and plan.header.per_example):
        return None
    ratio = drowned(plan)
    if not ratio >= TOO_MUCH:
        return None
    return (
        f"{plan.header.examples} examples are too few for this ε: the noise of the whole run is "
        f"{ratio:.0%} of what they would contribute if all of them agreed in every step, so the "
        "model will be little better than guessing; it takes more examples, a larger ε or a "
        "smaller model"
    )
