"""What several runs on the same data cost one record together.

One number needs one unit and one relation, in which every run guarantees something:

    unit       that of the runs if they agree, else an example. A shard or a user covers the
               examples in it, so its μ bounds theirs. The reverse does not hold. Shards of two
               runs are not the same shards.
    relation   that of the runs if they agree. What holds where the number of examples is private
               holds where it is public, so zero-out if some runs have the one and some the other.
               Else replace-one (`composition.cost_of`).

A run counts with all of its iterates (composition). If its ledger is closed and a bound on the last
iterate holds, the smaller of the two counts: that bound is a μ too, and μ² add up. Later runs may
be chosen in the light of earlier results: composition is adaptive.

A run that guarantees nothing makes the total infinite. What the others cost is still said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dpdt.accounting.composition import Composition, cost_of
from dpdt.accounting.cost import Cost
from dpdt.accounting.guarantee import INFINITE
from dpdt.accounting.hidden_state import HiddenStateContraction, HiddenStateConvex
from dpdt.ledger import Ledger

LAST_ITERATE = (HiddenStateConvex(), HiddenStateContraction())


RELATIONS = ("add-remove", "zero-out", "replace-one")  # what holds in one is known in those after
COPIED = "a copy of the tune ended otherwise, and both have the same secret coins"


@dataclass(frozen=True, kw_only=True)
class Total:
    """What runs cost together.

    `bounded` is the ε of the runs that guarantee something. `each` has the ε of every run by
    itself, in its own unit and relation. `reasons` has why a run guarantees nothing, else nothing.
    """

    delta: float
    unit: str
    relation: str
    bounded: float
    each: tuple[float, ...]
    reasons: tuple[str, ...]
    units: tuple[str, ...]  # that the runs have themselves
    cost: Cost

    @property
    def epsilon(self) -> float:
        """The ε of all runs."""
        return math.inf if any(self.reasons) else self.bounded

    @property
    def how(self) -> str:
        """How the total was composed, in words."""
        if number := len(self.cost.tunes):
            tunes = "a tune" if number == 1 else f"{number} tunes"
            rest = self.cost.mu > 0 or self.cost.steps
            return f"Rényi divergences of {tunes}{' and of the other runs' if rest else ''} add up"
        if not self.cost.steps:
            return f"μ² add up to {self.cost.mu:.4g}²"
        kinds = len(self.cost.steps)
        said = f"privacy-loss distributions of {kinds} kind{'s' * (kinds > 1)} of step are composed"
        return said + (f", with a Gaussian of μ = {self.cost.mu:.4g}" if self.cost.mu else "")


def together(ledgers: Sequence[Ledger], delta: float) -> Total:
    """What runs on the same data cost one record together.

    Guarantees: whoever sees what left these runs learns no more about one record, of the unit and
    under the relation of the result, than `epsilon` and δ allow. The order does not matter.
    """
    copied = _copies_of_tunes(ledgers)
    each = tuple(
        math.inf if ledger.data in copied else _epsilon(ledger, delta) for ledger in ledgers
    )
    kept = [ledger for ledger, epsilon in zip(ledgers, each, strict=True) if epsilon < math.inf]
    headers = [ledger.header for ledger in kept or ledgers]
    units = tuple(sorted({header.unit for header in headers}))
    relations = (header.relation for header in headers)
    relation = max(relations, key=RELATIONS.index, default="zero-out")
    costs = (_cheapest(ledger, relation, delta) for ledger in kept)
    cost = Cost.sum(found for found in costs if found is not None)
    return Total(
        delta=delta,
        unit=units[0] if _alike(units, len(headers)) else "example",
        relation=relation,
        bounded=cost.epsilon(relation, delta),
        each=each,
        reasons=tuple(
            "" if epsilon < math.inf else COPIED if ledger.data in copied else _why_not(ledger)
            for ledger, epsilon in zip(ledgers, each, strict=True)
        ),
        units=units,
        cost=cost,
    )


def _copies_of_tunes(ledgers: Sequence[Ledger]) -> set[str]:
    """The seals of tunes that have ended in more than one way."""
    found = Counter(ledger.data for ledger in ledgers if ledger.tuned and ledger.data)
    return {seal for seal, number in found.items() if number > 1}


def _alike(units: Sequence[str], runs: int) -> bool:
    """Whether what one run protects is what the others protect."""
    return len(units) == 1 and (runs == 1 or units[0] != "shard")


def _epsilon(ledger: Ledger, delta: float) -> float:
    """The ε of a run by itself."""
    found = _cheapest(ledger, ledger.header.relation, delta)
    return math.inf if found is None else found.epsilon(ledger.header.relation, delta)


def _cheapest(ledger: Ledger, relation: str, delta: float) -> Cost | None:
    """The smallest cost that is proven for a run."""
    found = []
    if all(condition.holds for condition in Composition().conditions(ledger)):
        found.append(cost_of(ledger, relation))
    if ledger.closed:
        bounds = (accountant.guarantee(ledger, delta) for accountant in LAST_ITERATE)
        found += [Cost(mu=g.mu) for g in bounds if g.valid and g.mu is not None]
    if len(found) < 2:
        return found[0] if found else None
    return min(found, key=lambda cost: cost.epsilon(relation, delta))


def _why_not(ledger: Ledger) -> str:
    """Why a run guarantees nothing."""
    failed = (c.why for c in Composition().conditions(ledger) if not c.holds)
    return next(failed, INFINITE)
