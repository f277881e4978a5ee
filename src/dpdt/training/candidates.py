"""The settings of a tune: all combinations of what is tried, with the noise that ε allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from dpdt import config
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.accounting.composition import Composition, cost_of
from dpdt.accounting.cost import Cost
from dpdt.config import Config
from dpdt.errors import ArgumentError, InputError
from dpdt.ledger import Ledger, Planned, Tuned

MOST = 1000  # settings
TRIED = ("method", "model", "train")  # sections; the others say what data are protected, and how
ROUNDS = 20  # of coming closer to ε


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One setting: its configuration, and how it differs from others, as `--set` would say it."""

    config: Config
    changes: tuple[str, ...]


def candidates(
    source: str,
    overrides: tuple[str, ...],
    method: str | None,
    tries: Sequence[str],
    epsilon: float,
) -> list[Candidate]:
    """All combinations of the values that are tried, each a whole configuration."""
    choices = [_choices(text) for text in tries]
    number = 1
    for choice in choices:
        number *= len(choice)
    if not 2 <= number <= MOST:
        raise ArgumentError("try", f"must give 2 to {MOST} settings, found {number}")
    found = []
    for changes in product(*choices):
        made = config.load(source, (*overrides, *changes), method, epsilon)
        privacy = replace(made.privacy, epsilon=epsilon)
        found.append(Candidate(config=replace(made, privacy=privacy), changes=changes))
        if [one.config for one in found].count(found[-1].config) > 1:
            raise ArgumentError("try", f"gives {', '.join(changes)} twice; give each setting once")
    first = found[0].config
    if first.audit.canaries:
        raise InputError("audit.canaries: are for a single run; leave them out of a tune")
    if first.privacy.accountant != Composition.name:
        raise InputError(
            f"privacy.accountant: must be {Composition.name} in a tune, found "
            f"{first.privacy.accountant!r}"
        )
    return found


def _choices(text: str) -> list[str]:
    """`a.b=1,2` as `a.b=1` and `a.b=2`. Commas inside brackets or quotes are part of a value."""
    key, separator, values = text.partition("=")
    if not separator or key.strip().split(".")[0] not in TRIED:
        raise ArgumentError(
            "try", f"must look like method.lr=0.1,0.3 (of {', '.join(TRIED)}), found {text!r}"
        )
    parts, depth, quote, lowest = [""], 0, "", 0
    for sign in values:
        if sign in "\"'":
            quote = "" if quote == sign else quote or sign
        elif not quote:
            depth += (sign in "[{") - (sign in "]}")
            lowest = min(lowest, depth)
        if sign == "," and not (depth or quote):
            parts.append("")
        else:
            parts[-1] += sign
    if lowest or depth or quote or not all(part.strip() for part in parts):
        raise ArgumentError("try", f"must give values between commas, found {text!r}")
    return [f"{key.strip()}={part.strip()}" for part in parts]


def planned(
    found: Sequence[Candidate], runs: float, noise: float
) -> tuple[list[Candidate], Tuned, float]:
    """The candidates with their share of ε, the tune that they make, and its ε.

    Guarantees: the ε of the tune is at most the one that every candidate names.
    """
    privacy = found[0].config.privacy
    target, delta = privacy.epsilon or 0.0, privacy.delta
    shares = _shares(found, runs, noise, target, delta)
    factor = 1.0
    for _ in range(ROUNDS):
        ready = [_with_share(one, factor * share) for one, share in zip(found, shares, strict=True)]
        ledgers = [config.plan_of(one.config).ledger() for one in ready]
        _refuse_different(ledgers)
        plans = tuple(Planned(header=one.header, runs=tuple(one.runs)) for one in ledgers)
        tuned = Tuned(runs=runs, noise=noise, candidates=plans)
        whole = Composition().guarantee(Ledger(ledgers[0].header, tuned=tuned), delta)
        if not whole.valid:
            raise InputError(f"the tune would guarantee nothing: {whole.why_not}")
        if whole.epsilon <= target:
            return ready, tuned, whole.epsilon
        factor *= 0.999 * target / whole.epsilon
    raise InputError(
        f"privacy.epsilon: no share of {target:g} was found at which all settings together meet "
        "it; try settings that cost alike"
    )


def _shares(
    found: Sequence[Candidate], runs: float, noise: float, target: float, delta: float
) -> list[float]:
    """The ε of one run by itself for which a tune of such runs meets the target."""
    tuned = Tuned(runs=runs, noise=noise, candidates=())
    known: dict[Cost, float] = {}  # settings often differ in what costs nothing
    shares = []
    for one in found:
        ledger = config.plan_of(one.config).ledger()
        header = ledger.header
        if noise and header.unit != "example":
            raise ArgumentError(
                "score-noise",
                f"covers one example, and privacy.unit is {header.unit}; score on public examples",
            )
        empty = Composition().guarantee(Ledger(header, tuned=tuned), delta)
        if not (empty.valid and header.method != "plain"):
            why = empty.why_not if not empty.valid else "plain training has no noise"
            raise InputError(f"{', '.join(one.changes)}: would guarantee nothing: {why}")
        if empty.epsilon >= target:
            raise ArgumentError(
                "score-noise",
                f"must be larger: at {noise:g} the scores of {runs:g} runs alone cost ε = "
                f"{empty.epsilon:.3g}",
            )
        cost = cost_of(ledger, header.relation)
        if cost not in known:
            alone = replace(ledger, closed=False, tuned=tuned)
            factor = calibrate(alone, target, delta)
            known[cost] = Composition().guarantee(scaled(ledger, factor), delta).epsilon
        shares.append(known[cost])
    return shares


def _with_share(one: Candidate, share: float) -> Candidate:
    privacy = replace(one.config.privacy, epsilon=share)
    return replace(one, config=replace(one.config, privacy=privacy))


def _refuse_different(ledgers: Sequence[Ledger]) -> None:
    """Refuse settings that protect different things: no one ε would be that of the tune."""
    for name in ("unit", "relation", "examples"):
        values = {str(getattr(ledger.header, name)) for ledger in ledgers}
        if len(values) > 1:
            raise ArgumentError(
                "try",
                f"settings must protect the same, found {name} {' and '.join(sorted(values))}",
            )
