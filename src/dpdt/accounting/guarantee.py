"""What an accountant says of a run: a number, and the conditions it rests on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context
from typing import Any, Protocol

from dpdt.ledger import Ledger

RELATIONS = {"replace-one": "replace one", "add-remove": "add or remove one"}
NOT_CLOSED = "not closed    the ledger has no end: steps after its last line are not counted"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A sentence a user understands, whether it holds for this run, and why."""

    text: str
    holds: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy as computed by one accountant; a claim unless `valid`."""

    accountant: str
    epsilon: float
    delta: float
    mu: float | None
    unit: str  # example | shard | user
    relation: str  # replace-one | add-remove
    observer: str  # what the adversary sees: "last iterate" | "all iterates"
    conditions: tuple[Condition, ...] = ()

    @property
    def valid(self) -> bool:
        return all(condition.holds for condition in self.conditions)

    @property
    def failed(self) -> Condition | None:
        return next((c for c in self.conditions if not c.holds), None)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A lower bound on ε that an attack has proven, with some confidence."""

    epsilon: float
    confidence: float
    how: str

    def __str__(self) -> str:
        number = shown(self.epsilon, ROUND_FLOOR)
        return f"ε ≥ {number:9} measured  {self.how}, {self.confidence:.0%} confidence"


class Accountant(Protocol):
    name: str

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        """What must hold of the run, checked against its ledger."""
        ...

    def guarantee(self, ledger: Ledger, delta: float) -> Guarantee:
        """The accountant's number, with its conditions."""
        ...


def common_conditions(ledger: Ledger) -> tuple[Condition, ...]:
    """What every accountant needs, whatever its bound."""
    return (
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
    )


def check(text: str, holds: bool, yes: str, no: str) -> Condition:
    """A condition with the reason why it holds, or why not."""
    return Condition(text=text, holds=holds, why=yes if holds else no)


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """All guarantees of a run.

    `proven` is the smallest valid one of one unit, relation, δ and observer. `closed` is False for
    a ledger without an end, which may lack steps.
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

    @property
    def proven(self) -> Guarantee | None:
        """The headline. A guarantee against who sees all iterates also holds for the last one."""
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
            "guarantees": [
                {
                    "accountant": g.accountant,
                    "epsilon": _finite(g.epsilon),
                    "mu": _finite(g.mu),
                    "valid": g.valid,
                    "unit": g.unit,
                    "relation": g.relation,
                    "observer": g.observer,
                    "conditions": [
                        {"text": c.text, "holds": c.holds, "why": c.why} for c in g.conditions
                    ],
                }
                for g in self.guarantees
            ],
            "proven": proven
            and {"accountant": proven.accountant, "epsilon": _finite(proven.epsilon)},
            "measured": self.measured and asdict(self.measured),
        }

    def __str__(self) -> str:
        lines = [_line(g, headline=g is self.proven) for g in self._ordered()]
        if self.measured:
            lines.append(str(self.measured))
        if not self.closed:
            lines.append(NOT_CLOSED)
        return "\n".join(lines)

    def _ordered(self) -> list[Guarantee]:
        return sorted(self.guarantees, key=lambda g: (g is not self.proven, not g.valid))


def _line(g: Guarantee, *, headline: bool) -> str:
    neighbour = f"{RELATIONS[g.relation]} {g.unit}"
    if g.valid:
        status = "proven  " if headline else "holds   "
        return (
            f"ε ≤ {shown(g.epsilon, ROUND_CEILING):9} {status}  {g.accountant} · {neighbour} · "
            f"δ = {_short(g.delta)} · {g.observer}"
        )
    why = g.failed.why if g.failed else ""
    if g.epsilon == float("inf"):
        return f"    {'':9} {'no bound':9} {g.accountant} · {why}"
    return f"ε = {shown(g.epsilon):9} claimed   {g.accountant} · not valid here: {why}"


def _short(x: float) -> str:
    """1e-05 as 1e-5."""
    return f"{x:g}".replace("e-0", "e-")


def shown(x: float, rounding: str = ROUND_HALF_EVEN) -> str:
    """Four digits. An upper bound is rounded up, a lower one down, so that both stay true."""
    if math.isinf(x):
        return "∞"
    x = float(Context(prec=4, rounding=rounding).create_decimal_from_float(x))
    return f"{x:.4g}" if x < 1e5 else f"{x:.3e}"


def _finite(x: float | None) -> float | None:
    """JSON has no infinity: null stands for "no bound"."""
    return None if x is None or x == float("inf") else x
