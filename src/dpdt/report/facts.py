"""What a page says of a run. Without `private`, nothing is read but public files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpdt.accounting import Measurement, Privacy, account
from dpdt.algorithm.diagnostics import conditions, summary
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.releasing import canonical
from dpdt.releasing import certificate as certificates
from dpdt.report.attacker import Pairs, pairs_of, slow
from dpdt.report.audit import LEARNT, verdict_of
from dpdt.report.privacy import over_epochs
from dpdt.runs import Run
from dpdt.tasks import METRICS

POINTS = 8  # epochs at which ε is computed where each takes about a second


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the blocks of one kind cost."""

    name: str
    blocks: int
    parameters: int
    share: float  # of the sum of (C/σ)² over blocks and steps


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What attacks found."""

    verdict: str
    attacks: list[list[str]]  # name, AUC, accuracy, true positives at 1 % false ones
    learnt: str
    measured: Measurement | None


@dataclass(frozen=True, kw_only=True)
class Private:
    """What depends on the training data and is covered by no ε."""

    epochs: list[dict[str, Any]]  # with loss and every metric
    steps: list[dict[str, Any]]  # diagnostics, if there are any
    accuracy: float | None  # on held-out examples, in the end
    audit: Audit | None
    diagnostics: list[str]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One run."""

    name: str
    ledger: Ledger
    privacy: Privacy  # `measured` only with `private`
    settings: dict[str, dict[str, Any]]
    curves: dict[str, Any] | None  # ε over epochs; None: the run has no such course
    pairs: Pairs
    kinds: list[Kind]
    released: dict[str, Any] | None
    private: Private | None


def facts(path: str | Path, *, private: bool = False) -> Facts:
    """Everything that a page says of a run."""
    run = Run.open(path)
    ledger, asked = run.ledger(), run.config.privacy
    delta = asked.delta
    privacy = account(ledger, delta, allow_large_delta=asked.allow_large_delta)
    curves = None
    if ledger.runs and ledger.tuned is None:
        points = {"points": POINTS} if slow(ledger.header) else {}
        curves = over_epochs(ledger, delta, **points)
    seen = _private(run, ledger) if private else None
    if seen and seen.audit:
        privacy = replace(privacy, measured=seen.audit.measured)
    return Facts(
        name=run.path.resolve().name,
        ledger=ledger,
        privacy=privacy,
        settings=run.config.as_tables(),
        curves=curves,
        pairs=pairs_of(ledger, privacy.proven),
        kinds=kinds_of(ledger),
        released=_released(run),
        private=seen,
    )


def several(paths: Sequence[str | Path], *, private: bool = False) -> list[Facts]:
    """The facts of all runs, in order. Runs of the same name are numbered."""
    known: set[Path] = set()
    found: list[Facts] = []
    for path in paths:
        if (place := Path(path).resolve()) in known:
            raise InputError(f"{path}: is given twice")
        known.add(place)
        each, names = facts(path, private=private), {other.name for other in found}
        name, number = each.name, 1
        while name in names:
            number += 1
            name = f"{each.name} ({number})"
        found.append(replace(each, name=name))
    return found


def kinds_of(ledger: Ledger) -> list[Kind]:
    """What each kind of block costs. Empty if all are of one kind, or one has no noise."""
    blocks, costs = ledger.header.blocks, dict[str, float]()
    for run in ledger.runs:
        for block, clip, noise in zip(blocks, run.setting.clip, run.setting.noise, strict=True):
            more = run.steps * (clip / noise) ** 2 if noise else math.inf
            costs[block.kind] = costs.get(block.kind, 0.0) + more
    total = sum(costs.values())
    if len(costs) < 2 or not 0.0 < total < math.inf:
        return []
    mine = {kind: [b for b in blocks if b.kind == kind] for kind in costs}
    return [
        Kind(
            name=kind,
            blocks=len(mine[kind]),
            parameters=sum(b.size for b in mine[kind]),
            share=cost / total,
        )
        for kind, cost in costs.items()
    ]


def _released(run: Run) -> dict[str, Any] | None:
    """Which model was released, and what its certificate says if it is beside the run."""
    record = run.released()
    if record is None:
        return None
    names = ("to", "created", "digest", "weights")
    if not isinstance(record, dict) or not all(isinstance(record.get(n), str) for n in names[2:]):
        raise InputError(f"{run.path}: its record of a release is damaged")
    found = {n: record.get(n) for n in names}
    path = run.path / Path(str(found["to"])).name / certificates.CERTIFICATE
    try:
        body = canonical.load(canonical.read(path))
        named = certificates.misshapen(body) is None and body["digest"] == found["digest"]
        if named and certificates.digest(body) == body["digest"]:
            said = ("description", "license", "accuracy", "audit")
            found |= {"certificate": {n: body[n] for n in said}, "signed": bool(body["signature"])}
    except (ValueError, RecursionError):
        pass  # it was moved, or is another: the run's own record stands
    return found


def _private(run: Run, ledger: Ledger) -> Private:
    audit, records = run.audit(), run.diagnostics()
    try:
        epochs = [
            {"epoch": r["epoch"], "loss": r.get("loss")} | {name: r.get(name) for name in METRICS}
            for r in run.private_metrics()
        ]
        told = []
        if records:
            settings = [stretch.setting for stretch in ledger.runs]
            told = [summary(records).words(), conditions(records, settings, ledger.header.memory)]
        found = None if audit is None else _audit(audit)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run.private_path}: a record is damaged ({error!r})") from None
    known = [r["accuracy"] for r in epochs if is_number(r["accuracy"])]
    return Private(
        epochs=epochs,
        steps=records,
        accuracy=known[-1] if known else None,
        audit=found,
        diagnostics=told,
    )


def _audit(record: dict[str, Any]) -> Audit:
    one, measured = record["one_run"], record["privacy"]["measured"]
    guesses = (one["right"], one["guesses"]) if one else None
    keys = ("auc", "accuracy", "tpr_at_1e-2_fpr")
    return Audit(
        verdict=verdict_of(guesses, record["refuted"], record["claims_refuted"]),
        attacks=[[str(a["attack"]), *(f"{a[key]:.4f}" for key in keys)] for a in record["attacks"]],
        learnt=LEARNT[record["thresholds"]],
        measured=Measurement(**measured) if measured else None,
    )


def is_number(value: Any) -> bool:
    """Whether a chart has a place for it."""
    return isinstance(value, int | float) and math.isfinite(value)
