"""Metric attacks: guess membership from what the model says of an example (Song & Mittal 2021).

Every attack is a score that is high for examples that the model seems to know, and a threshold for
it. There is one threshold for all, or one for each class. It is learnt on one half of the examples
and judged on the other.

These are attacks on *one* model. They say how well members can be told from others. They do not say
how large ε is: what a model says of its examples is not a set of independent trials (see
bounds.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, logsumexp

from dpdt.errors import InputError

TINY = 1e-12
LEAST = 20  # examples on each side


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a model says of some examples: probabilities of every class, and the true labels."""

    probabilities: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        p = self.probabilities
        if p.ndim != 2 or p.shape[1] < 2 or len(p) != len(self.labels):
            raise InputError(
                f"outputs: must be one row of class probabilities for each of "
                f"{len(self.labels)} examples, found an array of shape {p.shape}"
            )
        if not (
            np.isfinite(p).all() and (p >= -1e-6).all() and np.allclose(p.sum(1), 1, atol=1e-3)
        ):
            raise InputError(
                "outputs: are not probabilities (each row must be 0 or more and sum to 1); "
                "metric attacks need a classifier's softmax"
            )
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < p.shape[1]:
            raise InputError(
                f"labels: must be from 0 to {p.shape[1] - 1}, found "
                f"{self.labels.min()} to {self.labels.max()}"
            )

    @classmethod
    def from_logits(cls, logits: np.ndarray, labels: np.ndarray) -> Answers:
        if logits.ndim != 2 or not np.isfinite(logits).all():
            raise InputError(
                "outputs: the model's outputs are not finite scores of classes, so they cannot be "
                f"read as probabilities (shape {logits.shape})"
            )
        return cls(probabilities=np.exp(log_softmax(logits.astype(float), 1)), labels=labels)

    @property
    def own(self) -> np.ndarray:
        """The probability of the true class."""
        chosen: np.ndarray = self.probabilities[np.arange(len(self.labels)), self.labels]
        return chosen

    def __len__(self) -> int:
        return len(self.labels)


def correctness(a: Answers) -> np.ndarray:
    """1 if the true class is predicted, else 0."""
    return np.asarray(a.probabilities.argmax(1) == a.labels, dtype=float)


def confidence(a: Answers) -> np.ndarray:
    """The probability of the true class."""
    return a.own


def loss(a: Answers) -> np.ndarray:
    """Minus the cross-entropy. It orders examples as `confidence` does, on another scale."""
    return np.asarray(np.log(np.maximum(a.own, TINY)))


def entropy(a: Answers) -> np.ndarray:
    """Minus the entropy of the prediction, which needs no label."""
    p = np.maximum(a.probabilities, TINY)
    return np.asarray((p * np.log(p)).sum(1))


def modified_entropy(a: Answers) -> np.ndarray:
    """Minus Mentr = −(1−p_y) log p_y − Σ_{i≠y} p_i log(1−p_i)."""
    p = np.clip(a.probabilities, TINY, 1 - TINY)
    own = p[np.arange(len(p)), a.labels]
    others = (p * np.log(1 - p)).sum(1) - own * np.log(1 - own)
    return np.asarray((1 - own) * np.log(own) + others)


METRICS: dict[str, Callable[[Answers], np.ndarray]] = {
    "correctness": correctness,
    "confidence": confidence,
    "loss": loss,
    "entropy": entropy,
    "modified-entropy": modified_entropy,
}


def logit(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """log p_y/(1−p_y), computed from logits so that it does not saturate."""
    rows = np.arange(len(labels))
    others = logits.astype(float).copy()
    others[rows, labels] = -np.inf
    return np.asarray(logits[rows, labels] - logsumexp(others, axis=1))


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """P[a member scores higher than another], ties counting half."""
    ordered = np.sort(others)
    below, to = (np.searchsorted(ordered, members, side) for side in ("left", "right"))
    return float((below + to).mean() / (2 * len(others)))


def tpr_at(members: np.ndarray, others: np.ndarray, fpr: float) -> float:
    """The share of members found while at most a share `fpr` of the others is."""
    allowed = int(fpr * len(others))
    threshold = np.sort(others)[len(others) - 1 - allowed]
    return float((members > threshold).mean())


def best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """Where balanced accuracy is greatest; "member" is guessed above it."""
    values = np.unique(np.concatenate([members, others]))
    found = (len(members) - np.searchsorted(np.sort(members), values, "right")) / len(members)
    wrong = (len(others) - np.searchsorted(np.sort(others), values, "right")) / len(others)
    return float(values[np.argmax(found - wrong)])


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How well one attack tells members from others; intervals of 95% over the evaluations."""

    attack: str
    auc: float
    auc_interval: tuple[float, float]
    accuracy: float
    accuracy_interval: tuple[float, float]
    tpr_at_1e_2_fpr: float

    def as_json(self) -> dict[str, Any]:
        return {
            "attack": self.attack,
            "auc": self.auc,
            "auc_interval": list(self.auc_interval),
            "accuracy": self.accuracy,
            "accuracy_interval": list(self.accuracy_interval),
            "tpr_at_1e-2_fpr": self.tpr_at_1e_2_fpr,
        }


Scored = tuple[np.ndarray, np.ndarray]  # scores and classes


def evaluate(
    name: str, members: Scored, others: Scored, *, repeats: int, seed: int, per_class: bool = False
) -> Attack:
    """Judge scores in `repeats` evaluations.

    Each evaluation draws examples with replacement, deals them into two halves, learns thresholds
    on the first and judges them on the second; the intervals span 95% of the evaluations.
    """
    generator = np.random.default_rng((seed, 5))
    rows = []
    for _ in range(repeats):
        learn_m, judge_m = _deal(members, generator)
        learn_o, judge_o = _deal(others, generator)
        shift = _thresholds(learn_m, learn_o, per_class)
        in_scores, out_scores = (s - shift(c) for s, c in (judge_m, judge_o))
        right = ((in_scores > 0).mean() + (out_scores <= 0).mean()) / 2
        rows.append((auc(in_scores, out_scores), right, tpr_at(in_scores, out_scores, 0.01)))
    values = np.array(rows)
    low, high = np.quantile(values, [0.025, 0.975], axis=0)
    mean = values.mean(0)
    return Attack(
        attack=name + (", per class" if per_class else ""),
        auc=float(mean[0]),
        auc_interval=(float(low[0]), float(high[0])),
        accuracy=float(mean[1]),
        accuracy_interval=(float(low[1]), float(high[1])),
        tpr_at_1e_2_fpr=float(mean[2]),
    )


def _deal(scored: Scored, generator: np.random.Generator) -> tuple[Scored, Scored]:
    """Two halves without a common example, each drawn anew with replacement."""
    scores, classes = scored
    order = generator.permutation(len(scores))
    halves = (order[: len(order) // 2], order[len(order) // 2 :])
    first, second = (generator.choice(h, len(h)) for h in halves)
    return (scores[first], classes[first]), (scores[second], classes[second])


def _thresholds(
    members: Scored, others: Scored, per_class: bool
) -> Callable[[np.ndarray], np.ndarray]:
    """From classes to thresholds; a class that either side lacks has the one for all."""
    everyone = best_threshold(members[0], others[0])
    if not per_class:
        return lambda classes: np.full(len(classes), everyone)
    table = {}
    for c in np.intersect1d(members[1], others[1]):
        table[int(c)] = best_threshold(members[0][members[1] == c], others[0][others[1] == c])
    return lambda classes: np.array([table.get(int(c), everyone) for c in classes])


def attack_all(
    members: Answers, others: Answers, *, repeats: int = 100, seed: int = 0
) -> list[Attack]:
    """Every metric, with one threshold and with one for each class (correctness has no need)."""
    check_enough(len(members), len(others))
    result = []
    for name, metric in METRICS.items():
        for per_class in (False,) if name == "correctness" else (False, True):
            result.append(
                evaluate(
                    name,
                    (metric(members), members.labels),
                    (metric(others), others.labels),
                    repeats=repeats,
                    seed=seed,
                    per_class=per_class,
                )
            )
    return result


def check_enough(members: int, others: int) -> None:
    if min(members, others) < LEAST:
        raise InputError(
            f"held-out examples: attacks need at least {LEAST} members and {LEAST} examples that "
            f"were not trained on, found {members} and {others}"
        )
