"""What any attack on a run can do at most: numbers from its guarantees, and sentences of them.

An attack is a test: it says "in" or "out" of a record. By (ε, δ)-differential privacy its rates of
true and false positives keep to

    TPR ≤ e^ε FPR + δ    and    1 − FPR ≤ e^ε (1 − TPR) + δ.

An accountant has an ε for every δ, and all of these hold at once. So the smallest bound counts.
"""

from __future__ import annotations

import math

import numpy as np

from dpdt.accounting import Guarantee, Privacy, by_name
from dpdt.ledger import Header, Ledger

Pairs = tuple[tuple[float, float], ...]  # (ε, δ) that hold at once

FEW = (1e-3, 1e-2, 0.1)  # further δ where each takes about a second
MANY = tuple(float(1.0 / (1.0 + np.exp(-t))) for t in np.linspace(-14.0, 7.0, 85))
WHO = {
    "example": "one training example",
    "shard": "the data of one shard",
    "user": "the data of one user",
}
RATE = 0.01  # the false positives of the sentence
LITTLE = 0.95  # a bound from here on says little


def slow(header: Header) -> bool:
    """Whether an ε takes about a second: privacy-loss distributions of sampled mini-batches."""
    return header.sampling == "poisson" and header.rate < 1.0


def pairs_of(ledger: Ledger, proven: Guarantee | None) -> Pairs:
    """The proven guarantee, and what its accountant proves at other δ. None: nothing is proven."""
    if proven is None or not proven.applies:
        return ()
    further: tuple[float, ...] = FEW if slow(ledger.header) else MANY
    if ledger.tuned is not None:
        further = ()
    accountant = by_name(proven.accountant)
    found = [(accountant.guarantee(ledger, delta).epsilon, delta) for delta in further]
    return ((proven.epsilon, proven.delta), *(pair for pair in found if math.isfinite(pair[0])))


def most_found(pairs: Pairs, rate: float) -> float:
    """The largest rate of true positives of any attack with this rate of false positives."""
    bounds = [1.0]
    for epsilon, delta in pairs:
        bounds.append(math.exp(min(epsilon, 700.0)) * rate + delta)
        bounds.append(1.0 - math.exp(-epsilon) * (1.0 - delta - rate))
    return min(bounds)


def most_right(pairs: Pairs) -> float:
    """The largest probability to be right about a record that a fair coin put in or left out."""
    bounds = (1.0 - (1.0 - d) * math.exp(-e) / (1.0 + math.exp(-e)) for e, d in pairs)
    return min(bounds, default=1.0)


def percent(share: float) -> str:
    """An upper bound in per cent, rounded up."""
    return f"{min(math.ceil(share * 1e4) / 100.0, 100.0):.2f}".rstrip("0").rstrip(".")


def sentences(privacy: Privacy, pairs: Pairs) -> list[str]:
    """What the proven guarantee means for one person, in plain words."""
    proven = privacy.proven
    if proven is None or not pairs:
        return [
            "An attacker who knows everyone else's records and sees this model may be able to tell "
            "with certainty whose data it was trained on: no ε is proven for this run."
        ]
    who, found, right = WHO[proven.unit], most_found(pairs, RATE), most_right(pairs)
    seen = "sees this model"
    if proven.observer == "all iterates":
        seen += ", and the model after every step too,"
    if proven.relation != "replace-one":
        told = [
            f"An attacker who knows everyone else's records and {seen} can tell only so well "
            f"whether {who} was among the training data.",
            "If they wrongly accuse 1 of 100 that were not in the data, they find at most "
            f"{percent(found)} of 100 that were. Blind guessing finds 1.",
            f"If a fair coin decides whether it is in, they are right with at most {percent(right)}"
            " % probability. Blind guessing has 50 %.",
        ]
    else:
        told = [
            f"An attacker who knows everyone else's records and {seen} can tell only so well which "
            f"of two candidates was used in the place of {who}, even if they know both.",
            "If they mistake the first for the second in 1 of 100 cases, they recognise the second "
            f"in at most {percent(found)} of 100. Blind guessing does in 1.",
            f"If a fair coin decides between the two, they are right with at most {percent(right)} "
            "% probability. Blind guessing has 50 %.",
        ]
    told.append("No attack does better, however long it computes.")
    if right >= LITTLE:
        told.append("These limits say little: ε is too large for a strong promise.")
    if privacy.chosen:
        told.append("What it cost to choose this run among others is counted.")
    if not privacy.closed:
        told.append("The run has not ended: the numbers are those of its steps so far.")
    return told
