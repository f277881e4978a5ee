"""What the explorer says of a position: facts of its plan, and what each choice costs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dpdt.accounting import Privacy, account
from dpdt.config import Config, plan_of
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.report.attacker import pairs_of, sentences, slow
from dpdt.report.charts import up
from dpdt.report.choices import Control, Source, changes, controls
from dpdt.report.privacy import over_epochs

FEW, MANY = 8, 30  # epochs at which ε is computed: where each takes long, and where none does


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where all controls stand."""

    source: Source
    places: tuple[tuple[str, str], ...]  # control and text, of those that were moved
    noise: str  # found for a target ε, or given

    def moved(self, name: str, text: str) -> Position:
        """The position with one control elsewhere."""
        return replace(self, places=tuple({**dict(self.places), name: text}.items()))

    @property
    def changes(self) -> tuple[str, ...]:
        """What differs from the source, as overrides."""
        return changes(self.source, dict(self.places), self.noise)[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken along."""
        return changes(self.source, dict(self.places), self.noise)[1]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What `dpdt account` says of a position."""

    config: Config
    ledger: Ledger
    privacy: Privacy
    warnings: tuple[str, ...]

    @property
    def slow(self) -> bool:
        return slow(self.ledger.header)

    @property
    def share(self) -> float:
        """The noise of the first step, as a share of the clip."""
        first = self.ledger.runs[0].setting
        return math.hypot(*first.noise) / math.hypot(*first.clip)


def found(position: Position) -> Found:
    """The plan of a position and its guarantees. A position that cannot be is an InputError."""
    return _found(position.source, position.changes)


@lru_cache(maxsize=256)
def _found(source: Source, overrides: tuple[str, ...]) -> Found:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config = source.load(overrides)
        ledger, asked = plan_of(config).ledger(), config.privacy
        privacy = account(ledger, asked.delta, allow_large_delta=asked.allow_large_delta)
    told = tuple(dict.fromkeys(str(each.message) for each in said))
    return Found(config=config, ledger=ledger, privacy=privacy, warnings=told)


@lru_cache(maxsize=256)
def curves(source: Source, overrides: tuple[str, ...]) -> dict[str, Any]:
    """ε over epochs, for each accountant that has a number."""
    here = _found(source, overrides)
    return over_epochs(here.ledger, here.privacy.delta, FEW if here.slow else MANY)


def headline(privacy: Privacy) -> tuple[str, str]:
    """The proven ε, and whose it is."""
    proven = privacy.proven
    if proven is None or not proven.applies:
        return "No ε is proven", privacy.guarantees[0].why_not
    return f"ε ≤ {up(proven.epsilon)}", f"proven by {proven.accountant}"


def meaning(here: Found) -> list[str]:
    """What the proven ε means for one person. At one δ alone where others take long."""
    proven = here.privacy.proven
    if proven is None or not proven.applies:
        return sentences(here.privacy, ())
    pairs = ((proven.epsilon, proven.delta),)
    return sentences(here.privacy, pairs if here.slow else pairs_of(here.ledger, proven))


def needed(here: Found) -> str:
    """The noise of the first step, in words."""
    setting, header = here.ledger.runs[0].setting, here.ledger.header
    steps = f"{here.ledger.steps:,} steps".replace(",", " ")
    return (
        f"{steps}, each with noise σ = {_digits(setting.noise[0])} on the mean of "
        f"{header.auxiliaries} contributions: {_digits(here.share)} times the clip."
    )


def costs(position: Position) -> list[str]:
    """What each choice costs, in a sentence each: what was moved, and some steps further."""
    here, known = found(position), {c.name: c for c in controls(position.source)}
    told = []
    for name, text in position.places:
        control = known[name]
        kept = {"epsilon": "target", "noise": "given"}.get(name, position.noise)
        if text.strip() != control.text and kept == position.noise:
            was = "by kind" if control.text.startswith("{") else control.text
            words = f"{control.label} {text}, not {was} as in {position.source.name}"
            told.append(f"{words}: {_compared(_try(position.moved(name, control.text)), here)}")
    for name, factor, words in FURTHER:
        if name in known and (more := _times(position, known[name], factor)) is not None:
            told.append(f"{words} would mean {_compared(here, _try(more))}")
    return told


FURTHER = (
    ("epochs", 2.0, "Twice the epochs"),
    ("batch", 0.5, "Half the mini-batch"),
    ("n", 0.5, "Half the examples"),
)


def _times(position: Position, control: Control, factor: float) -> Position | None:
    """The position with a number times a factor, if it stays one."""
    text = dict(position.places).get(control.name, control.text)
    if not text.strip().isdecimal() or int(text) * factor < 1 or len(text) > 15:
        return None
    return position.moved(control.name, str(int(int(text) * factor)))


def _try(position: Position) -> Found | InputError:
    try:
        return found(position)
    except InputError as error:
        return error


def _compared(before: Found | InputError, after: Found | InputError) -> str:
    """What changes from one to the other."""
    if isinstance(after, InputError):
        return f"a run that is refused ({after})."
    if isinstance(before, InputError):
        return f"without it the run is refused ({before})."
    old, new = before.privacy.epsilon, after.privacy.epsilon
    if math.isinf(new) or math.isinf(old):
        if math.isinf(new):
            return "no proven ε." if math.isfinite(old) else "still no proven ε."
        return f"ε ≤ {up(new)}, where nothing was proven."
    if abs(math.log(new / old)) > 1e-3:
        return f"ε ≤ {up(new)} in place of {up(old)}{_beside(before, after)}."
    ratio = after.share / before.share
    if abs(math.log(ratio)) < 1e-3:
        return f"the same, ε ≤ {up(new)} with as much noise."
    return f"{_digits(ratio)} times the noise for the same ε."


def _beside(before: Found, after: Found) -> str:
    ratio = after.share / before.share
    return "" if abs(math.log(ratio)) < 1e-3 else f", with {_digits(ratio)} times the noise"


def _digits(x: float) -> str:
    return f"{x:.3g}"


def position(source: Source, places: Mapping[str, str], noise: str) -> Position:
    """A position, of whatever a browser sent."""
    known = {control.name: control for control in controls(source)}
    moved = [(n, str(t)) for n, t in places.items() if n in known and t != known[n].text]
    return Position(source=source, places=tuple(moved), noise=noise)
