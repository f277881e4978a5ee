"""All attacks on a finished run, and what they say of its guarantees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpdt.accounting import Measurement, Privacy, account
from dpdt.audit import likelihood
from dpdt.audit.bounds import OneRun, one_run
from dpdt.audit.canaries import scores
from dpdt.audit.membership import OWN, SHADOW, THRESHOLDS, Split, check_word, shadow_answers
from dpdt.audit.metrics import Answers, Attack, attack_all, auc, check_enough, evaluate, logit, loss
from dpdt.audit.shadows import Targets
from dpdt.audit.target import Said, Target, minus_loss
from dpdt.errors import InputError

Curves = dict[str, tuple[np.ndarray, np.ndarray]]  # attack → scores of members, of others


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the attacks on one run came to."""

    run: str
    attacks: list[Attack]
    thresholds: str  # what those of the metric attacks were learnt on: "own" or "shadow"
    confidence: float
    privacy: Privacy
    one_run: OneRun | None  # None: the run has no canaries, so no bound on ε
    canary: str | None
    canary_auc: float | None
    curves: Curves  # for the figure

    @property
    def refuted(self) -> list[str]:
        """Accountants that call themselves valid and whose ε was exceeded."""
        return self._above(valid=True)

    @property
    def claims_refuted(self) -> list[str]:
        """Claims whose conditions do not hold anyway, and whose ε was exceeded."""
        return self._above(valid=False)

    def _above(self, valid: bool) -> list[str]:
        measured = self.one_run.epsilon if self.one_run else 0.0
        found = self.privacy.guarantees
        return [g.accountant for g in found if g.valid == valid and measured > g.epsilon]

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "attacks": [a.as_json() for a in self.attacks],
            "thresholds": self.thresholds,
            "measured_epsilon": self.one_run.epsilon if self.one_run else None,
            "confidence": self.confidence,
            "one_run": self.one_run
            and {**asdict(self.one_run), "canary": self.canary, "auc": self.canary_auc},
            "refuted": self.refuted,
            "claims_refuted": self.claims_refuted,
            "privacy": self.privacy.as_json(),
        }


def audit(
    path: str,
    *,
    repeats: int = 100,
    confidence: float = 0.95,
    shadows: int = 0,
    targets: int = 500,
    thresholds: str = OWN,
    on_shadow: Callable[[int], None] = lambda _: None,
) -> Report:
    """Attack a run's released model; the results are also kept in its private/audit.json.

    Metric attacks compare training examples with held-out ones. Their thresholds are learnt on half
    of these, or on the examples of a shadow model, which is trained in this process. Canaries, if
    the run has any, give a lower bound on ε. With `shadows`, that many models are trained for LiRA,
    on all cores.
    """
    check_word("thresholds", thresholds, THRESHOLDS)
    target = Target.read(path)
    asked, seed = target.folder.config.privacy, target.folder.config.train.seed
    if shadows or thresholds == SHADOW:
        _refuse_without_classes(target)
    members, others = target.said()
    found = _metric_attacks(target, members, others, repeats, thresholds)
    first = int(thresholds == SHADOW)  # shadow model, before those of LiRA
    on_shadow(first)
    curves: Curves = {"loss": _losses(target, members, others)}
    if shadows:
        likelihoods = _likelihoods(
            target, members, others, shadows, targets, lambda done: on_shadow(first + done)
        )
        for name, pair in likelihoods.items():
            scored = [(s, np.zeros(len(s), dtype=int)) for s in pair]  # one threshold for all
            found.append(evaluate(name, *scored, repeats=repeats, seed=seed))
        curves |= likelihoods
    privacy = account(target.ledger, asked.delta, allow_large_delta=asked.allow_large_delta)
    bound, area = None, None
    if target.planted is not None:
        marks = scores(target, target.planted)
        chosen = target.planted.included
        bound = one_run(marks, chosen, delta=privacy.delta, beta=1 - confidence)
        if 0 < chosen.sum() < len(chosen):
            curves["canaries"] = (marks[chosen], marks[~chosen])
            area = auc(*curves["canaries"])
        how = f"one-run audit, {len(chosen)} {target.planted.kind} canaries"
        measured = Measurement(epsilon=bound.epsilon, confidence=confidence, how=how)
        privacy = replace(privacy, measured=measured)
    report = Report(
        run=path,
        attacks=found,
        thresholds=thresholds,
        confidence=confidence,
        privacy=privacy,
        one_run=bound,
        canary=target.planted.kind if target.planted else None,
        canary_auc=area,
        curves=curves,
    )
    target.folder.write_audit(report.as_json())
    return report


def _refuse_without_classes(target: Target) -> None:
    if not target.task.classes:
        raise InputError(
            f"{target.folder.path}: the task is {target.task.name}; attacks by shadow models "
            "compare probabilities of classes, so only the attack by loss applies; leave --shadows "
            "and --thresholds out"
        )


def _metric_attacks(
    target: Target, members: Said, others: Said, repeats: int, thresholds: str
) -> list[Attack]:
    """Every metric attack, on all examples or on those that a shadow model has never met.

    Without classes there is one, by the loss.
    """
    seed = target.folder.config.train.seed
    if not target.task.classes:
        sides = _losses(target, members, others)
        scored = [(side, np.zeros(len(side), dtype=int)) for side in sides]
        return [evaluate("loss", *scored, repeats=repeats, seed=seed)]
    if thresholds == SHADOW:
        split = Split.of(target, 0)
        judged, _ = split.apart(target, members, others)
        shadow = shadow_answers(target, split, 0)
        return attack_all(*judged, repeats=repeats, seed=seed, shadow=shadow)
    everyone = (Answers.from_logits(*side) for side in (members, others))
    return attack_all(*everyone, repeats=repeats, seed=seed)


def _losses(target: Target, members: Said, others: Said) -> tuple[np.ndarray, np.ndarray]:
    """Minus the losses of members and of others."""
    if target.task.classes:
        first, second = (loss(Answers.from_logits(*side)) for side in (members, others))
    else:
        first, second = (minus_loss(side, target.task) for side in (members, others))
    return first, second


def _likelihoods(
    target: Target,
    members: Said,
    others: Said,
    shadows: int,
    most: int,
    on_shadow: Callable[[int], None],
) -> Curves:
    """LiRA scores, online and offline, of members and others."""
    config = target.folder.config
    generator = np.random.default_rng((config.train.seed, 6))
    chosen = Targets.draw(target.members, len(others[1]), most, generator)
    check_enough(len(chosen.members), len(chosen.others))
    said, inside = likelihood.train_shadows(
        config,
        chosen,
        target.folder.shadows,
        shadows,
        on_done=on_shadow,
    )
    places = np.searchsorted(target.members, chosen.members)
    own = np.concatenate([logit(*members)[places], logit(*others)[chosen.others]])
    number = len(chosen.members)
    result: Curves = {}
    for name, online in (("lira-online", True), ("lira-offline", False)):
        likely = likelihood.scores(own, said, inside, online=online)
        result[name] = (likely[:number], likely[number:])
    return result
