"""What can be released: a finished run, or what `dpdt.train` returned; and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dpdt import models
from dpdt.accounting import account
from dpdt.errors import InputError
from dpdt.ledger import Ledger, text_of
from dpdt.models.metrics import Judge
from dpdt.releasing import certificate as certificates
from dpdt.releasing.description import describe
from dpdt.runs import Run
from dpdt.training.fitted import Fitted


@dataclass(frozen=True, kw_only=True)
class Source:
    """A trained model, with all that a release says of it."""

    name: str  # for messages
    model: nn.Module
    learner: nn.Module
    config: dict[str, Any]  # config.json
    text: str  # the ledger's file
    ledger: Ledger
    delta: float
    save: Callable[[Path], None]  # writes the weights to a file
    judge: Judge  # what the model is judged by
    audit: dict[str, Any] | None = None
    run: Run | None = None


def certifiable(name: str, ledger: Ledger, delta: float, audit: dict[str, Any] | None) -> None:
    """Refuse what must not be released. The one place that says no."""
    if not ledger.closed:
        raise InputError(
            f"{name}: was interrupted and has no end, so it cannot be released; finish it with "
            f"dpdt {'tune' if ledger.tuned else 'train'} --resume {name}"
        )
    found = certificates.derived(ledger, delta)
    if found["guarantee"] is None:
        why = account(ledger, delta).guarantees[0].why_not
        raise InputError(f"{name}: nothing is proven, so there is nothing to certify ({why})")
    if ledger.model is None:
        raise InputError(f"{name}: the ledger does not say which model the run left")
    if audit and (
        audit["ever_refuted"] or (audit["measured_epsilon"] or 0.0) > found["guarantee"]["epsilon"]
    ):
        raise InputError(
            f"{name}: an audit has refuted the proven ε, so something is wrong with the run or "
            "with dpdt, and nothing is certified"
        )


def of_run(run: Run, own: nn.Module | None, labels: list[str] | None) -> Source:
    """A finished run, as its folder has it; a model that was given in Python is its caller's own.

    `labels` are then what its classes are called.
    """
    ledger, chosen, found = run.ledger(), run.config, run.audit()
    certifiable(str(run.path), ledger, chosen.privacy.delta, found)
    before = run.released()
    if before is not None and before.get("weights") != ledger.model:
        raise InputError(f"{run.path}: has released another model before, and a run has only one")
    if not run.model_path.is_file():
        raise InputError(
            f"{run.path}: has no model any more, since it was forgotten; copy its release"
        )
    if own is None:
        facts = chosen.data.facts()
        model = models.build(chosen.model, facts, chosen.train.seed)
        learner = models.learner(model, chosen.model, chosen.train.augment)
        judge = Judge.of_task(models.task(chosen.model, facts))
    else:
        model, learner, judge = own, own, Judge.of_own(chosen.model.task)
    run.load_model(model)
    return Source(
        name=str(run.path),
        model=model.eval(),
        learner=learner.eval(),
        config=describe(model, chosen) if own is None else describe(model, labels=labels),
        text=run.ledger_path.read_bytes().decode(),
        ledger=ledger,
        delta=chosen.privacy.delta,
        save=lambda path: _copied(run.model_path, path),
        judge=judge,
        audit=found and _verdict(found),
        run=run,
    )


def of_fitted(result: Fitted, labels: list[str] | None) -> Source:
    """What `dpdt.train` returned."""
    from safetensors.torch import save_model

    ledger = result.ledger
    certifiable("the run", ledger, result.privacy.delta, None)
    if account(ledger, result.privacy.delta).as_json() != result.privacy.as_json():
        raise InputError("the run: its ledger is not the one that its privacy was computed from")
    return Source(
        name="the model",
        model=result.model,
        learner=result.model,
        config=describe(result.model, labels=labels),
        text=text_of(ledger),
        ledger=ledger,
        delta=result.privacy.delta,
        save=lambda path: save_model(result.model, str(path)),
        judge=result.judge,
    )


def _copied(source: Path, path: Path) -> None:
    shutil.copyfile(source, path)


def _verdict(audit: dict[str, Any]) -> dict[str, Any]:
    """What may be said of an audit that the run has survived: never a score."""
    bounds = audit["one_run"] is not None
    return {
        "verdict": certificates.SURVIVED,
        "attacks": [a["attack"] for a in audit["attacks"]] + ["canaries"] * bounds,
        "confidence": float(audit["confidence"]),
        "bounds": bounds,
    }
