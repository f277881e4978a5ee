"""What an accountant says of a run: a number, and the conditions that the number rests on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context
from typing import Any, Protocol

from dpdt.accounting.notebook import as_html
from dpdt.ledger import Header, Ledger

RELATIONS = {
    "replace-one": "replace one",
    "zero-out": "blank out one",
    "add-remove": "add or remove one",
}
NOT_CLOSED = "not closed    the ledger has no end: later steps than these {steps} would cost more"
NOT_ENDED = "not closed    the tune has not ended; its ε is counted as a whole all the same"
INFINITE = "the bound is infinite, as it is without noise"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A sentence that a user understands, whether it holds for this run, and why."""

    text: str
    holds: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy as one accountant computes it. Unless `valid`, it is a claim."""

    accountant: str
    epsilon: float
    delta: float
    mu: float | None
    unit: str  # example | shard | user
    relation: str  # replace-one | zero-out | add-remove
    observer: str  # what the adversary sees: "last iterate" | "all iterates"
    conditions: tuple[Condition, ...] = ()

    @property
    def valid(self) -> bool:
        return all(condition.holds for condition in self.conditions)

    @property
    def failed(self) -> Condition | None:
        return next((c for c in self.conditions if not c.holds), None)

    @property
    def applies(self) -> bool:
        """Whether the accountant has a number for the run, be it valid or only claimed."""
        return math.isfinite(self.epsilon)

    @property
    def why_not(self) -> str:
        """Why the guarantee does not hold, or says nothing."""
        return self.failed.why if self.failed else INFINITE


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A lower bound on ε that an attack has proven, with some confidence."""

    epsilon: float
    confidence: float
    how: str

    def __str__(self) -> str:
        number = shown(self.epsilon, ROUND_FLOOR)
        return f"ε ≥ {number:9} measured  {self.how}, {self.confidence:.0%} confidence"


NOT_OF_A_TUNE = Condition(
    text="the run was not chosen among others",
    holds=False,
    why="it is the best of several runs on the same data, and the bound is about one",
)


class Accountant(Protocol):
    """One way to an ε.

    Guarantees: a guarantee is valid only where the accountant supports the run and every condition
    holds.
    """

    name: str

    def unsupported(self, header: Header) -> str | None:
        """Why the accountant has nothing to say of such a run, or None if it has.

        What kind of run it is decides: the method, the sampling, the memory. Numbers are for
        conditions. Without support the accountant's ε is infinite.
        """
        ...

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        """What must hold of the run, checked against its ledger."""
        ...

    def guarantee(self, ledger: Ledger, delta: float) -> Guarantee:
        """The accountant's number, with its conditions."""
        ...


def unless_algorithm_1(header: Header) -> str | None:
    """Why a bound on Algorithm 1 has nothing to say of a run."""
    if header.method != "dpdt":
        return f"the bound is about Algorithm 1; this run is {header.method}"
    if len(header.coefficients) > 1:
        return "the bound is for noise that is independent over steps; this run's is correlated"
    return None


def unless_partition(header: Header) -> str | None:
    """Why a bound for mini-batches that form a partition has nothing to say of a run."""
    if header.sampling != "partition":
        return "the bound is for mini-batches of a partition; this run samples by Poisson"
    if header.relation == "add-remove":
        return "examples are dealt by their number, which add-remove takes to be private"
    return None


def common_conditions(accountant: Accountant, ledger: Ledger) -> tuple[Condition, ...]:
    """What every accountant needs, whatever its bound."""
    unsupported = accountant.unsupported(ledger.header)
    return (
        check(
            "the bound is about such a run",
            unsupported is None,
            "method, sampling and memory are those of the bound",
            unsupported or "",
        ),
        check(
            "noise and sampling come from operating-system entropy",
            ledger.header.private,
            "drawn afresh for this run and never recorded",
            "a fixed seed was used, so anyone who knows it can subtract the noise",
        ),
        check(
            "nothing was found that voids the run",
            not ledger.voids,
            "the ledger has no such record",
            ledger.voids[0] if ledger.voids else "",
        ),
        *([] if ledger.tuned is None or accountant.name == "composition" else [NOT_OF_A_TUNE]),
    )


def check(text: str, holds: bool, yes: str, no: str) -> Condition:
    """A condition with the reason why it holds, or why not."""
    return Condition(text=text, holds=holds, why=yes if holds else no)


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What every accountant says of a run.

    `proven` is the smallest valid guarantee of one unit, relation, δ and observer. `closed` is
    False for a ledger without an end, which may lack steps.
    """

    delta: float
    unit: str
    relation: str
    steps: int
    epochs: float
    guarantees: tuple[Guarantee, ...] = field(default=())
    observer: str = "last iterate"
    measured: Measurement | None = None
    closed: bool = True
    chosen: str = ""  # how the run was chosen, if it is the best of several

    @property
    def proven(self) -> Guarantee | None:
        """The headline.

        A guarantee that allows an observer to see all iterates also holds if only the last is seen.
        """
        seen = {"last iterate": ("last iterate", "all iterates")}.get(
            self.observer, (self.observer,)
        )
        candidates = [
            g
            for g in self.guarantees
            if g.valid
            and (g.unit, g.relation, g.delta) == (self.unit, self.relation, self.delta)
            and g.observer in seen
        ]
        return min(candidates, key=lambda g: g.epsilon, default=None)

    @property
    def epsilon(self) -> float:
        """The proven ε; infinite if nothing is proven."""
        return self.proven.epsilon if self.proven else float("inf")

    @property
    def claimed(self) -> float | None:
        """What the paper's accountant says, if it says anything. Never the headline."""
        found = (g.epsilon for g in self.guarantees if g.accountant == "paper")
        return next((epsilon for epsilon in found if math.isfinite(epsilon)), None)

    def as_json(self) -> dict[str, Any]:
        proven = self.proven
        return {
            "delta": self.delta,
            "unit": self.unit,
            "relation": self.relation,
            "observer": self.observer,
            "steps": self.steps,
            "epochs": self.epochs,
            "closed": self.closed,
            **({"tuned": self.chosen} if self.chosen else {}),
            "guarantees": [
                {
                    "accountant": g.accountant,
                    "epsilon": _finite(g.epsilon),
                    "mu": _finite(g.mu),
                    "valid": g.valid,
                    "unit": g.unit,
                    "relation": g.relation,
                    "observer": g.observer,
                    "conditions": [asdict(c) for c in g.conditions],
                }
                for g in self.guarantees
            ],
            "proven": proven
            and {"accountant": proven.accountant, "epsilon": _finite(proven.epsilon)},
            "measured": self.measured and asdict(self.measured),
        }

    @property
    def hidden(self) -> int:
        """How many accountants the table leaves out, since they have no number for the run."""
        return sum(not g.applies for g in self.guarantees)

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return as_html(self.table())

    def table(self, *, all: bool = False) -> str:
        """The headline, what else holds, what is claimed, and what was measured.

        Nothing of a ledger that is not closed is called proven: its bounds hold "so far".
        Accountants without a number are left out. With `all` they follow the claims, each with its
        reason.
        """
        proven = self.proven if math.isfinite(self.epsilon) else None
        others = [g for g in self.guarantees if g.applies and g is not proven]
        first, further = ("proven", "holds") if self.closed else ("so far", "so far")
        lines = [self._unproven() if proven is None else _bound(proven, first)]
        lines += [_bound(g, further) for g in others if g.valid]
        lines += [_claim(g) for g in others if not g.valid]
        if all:
            lines += [_nothing(g) for g in self.guarantees if not g.applies]
        if self.chosen:
            lines.append(f"tuned         ε is that of the whole tune: {self.chosen}")
        if self.measured:
            lines.append(str(self.measured))
        if not self.closed:
            lines.append(NOT_ENDED if self.chosen else NOT_CLOSED.format(steps=self.steps))
        return "\n".join(lines)

    def _unproven(self) -> str:
        """The headline of a run without one. The first accountant's bound needs the least."""
        why = self.guarantees[0].why_not if self.guarantees else "no accountant was asked"
        return f"no ε is proven: {why}"


def _bound(g: Guarantee, status: str) -> str:
    return (
        f"ε ≤ {shown(g.epsilon, ROUND_CEILING):9} {status:9} {g.accountant} · "
        f"{RELATIONS[g.relation]} {g.unit} · δ = {short(g.delta)} · {g.observer}"
    )


def _claim(g: Guarantee) -> str:
    return f"ε = {shown(g.epsilon):9} claimed   {g.accountant} · not valid here: {g.why_not}"


def _nothing(g: Guarantee) -> str:
    return f"    {'':9} no bound  {g.accountant} · {g.why_not}"


def short(x: float) -> str:
    """1e-05 as 1e-5."""
    return f"{x:g}".replace("e-0", "e-")


def shown(x: float, rounding: str = ROUND_HALF_EVEN) -> str:
    """Four digits. To stay true, an upper bound must be rounded up and a lower bound down."""
    if math.isinf(x):
        return "∞"
    x = float(Context(prec=4, rounding=rounding).create_decimal_from_float(x))
    return f"{x:.4g}" if x < 1e5 else f"{x:.3e}"


def _finite(x: float | None) -> float | None:
    """JSON has no infinity: null stands for "no bound"."""
    return None if x is None or x == float("inf") else x
