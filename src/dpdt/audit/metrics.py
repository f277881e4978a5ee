"""Metric attacks: guess membership from what the model says of an example (Song & Mittal 2021).

Every attack is a score that is high for examples that the model seems to know, and a threshold for
it. There is one threshold for all, or one for each class. It is learnt in one of two ways:

own      on one half of the examples of the model that is attacked, and judged on the other half
shadow   on the examples of a shadow model, of which the attacker knows who was in; it is judged on
         examples that the shadow model and the thresholds have never met (membership.py)

These are attacks on *one* model. They say how well members can be told from others. They do not say
how large ε is: what a model says of its examples is not a set of independent trials (see
bounds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, logsumexp, stdtrit

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
Sides = Sequence[Scored]  # of members, and of others


def evaluate(
    name: str,
    members: Scored,
    others: Scored,
    *,
    repeats: int,
    seed: int,
    per_class: bool = False,
    shadow: Sides | None = None,
) -> Attack:
    """Judge scores in `repeats` evaluations; the intervals span 95% of the evaluations."""
    values = evaluations((members, others), repeats, seed, per_class=per_class, shadow=shadow)
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


def evaluations(
    sides: Sides, repeats: int, seed: int, *, per_class: bool = False, shadow: Sides | None = None
) -> np.ndarray:
    """AUC, accuracy and TPR at 1% FPR of every evaluation, [repeats, 3].

    Each evaluation draws examples with replacement. Without a `shadow` they are dealt into two
    halves, thresholds are learnt on the first and judged on the second. With a shadow's members and
    outsiders, thresholds are learnt on those alone, which are drawn anew as well.
    """
    generator = np.random.default_rng((seed, 5))
    rows = []
    for _ in range(repeats):
        if shadow is None:
            learn, judged = zip(*(_deal(side, generator) for side in sides), strict=True)
        else:
            learn, judged = (tuple(_all(s, generator) for s in pair) for pair in (shadow, sides))
        rows.append(judge(learn, judged, per_class=per_class))
    return np.array(rows)


def judge(learn: Sides, judged: Sides, *, per_class: bool) -> tuple[float, float, float]:
    """Learn thresholds on some examples; the AUC, accuracy and TPR at 1% FPR on others."""
    shift = _thresholds(learn[0], learn[1], per_class)
    inside, outside = (scores - shift(classes) for scores, classes in judged)
    right = ((inside > 0).mean() + (outside <= 0).mean()) / 2
    return auc(inside, outside), float(right), tpr_at(inside, outside, 0.01)


def _deal(scored: Scored, generator: np.random.Generator) -> tuple[Scored, Scored]:
    """Two halves without a common example, each drawn anew with replacement."""
    order = generator.permutation(len(scored[0]))
    half = len(order) // 2
    return _among(scored, order[:half], generator), _among(scored, order[half:], generator)


def _all(scored: Scored, generator: np.random.Generator) -> Scored:
    return _among(scored, np.arange(len(scored[0])), generator)


def _among(scored: Scored, places: np.ndarray, generator: np.random.Generator) -> Scored:
    """As many examples as there are places, drawn from these with replacement."""
    chosen = generator.choice(places, len(places))
    return scored[0][chosen], scored[1][chosen]


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
    members: Answers,
    others: Answers,
    *,
    repeats: int = 100,
    seed: int = 0,
    shadow: tuple[Answers, Answers] | None = None,
) -> list[Attack]:
    """Every metric, with one threshold and with one for each class (correctness has no need)."""
    check_enough(len(members), len(others))
    result = []
    for name, metric in METRICS.items():
        for per_class in (False,) if name == "correctness" else (False, True):
            result.append(
                evaluate(
                    name,
                    *scored(metric, members, others),
                    repeats=repeats,
                    seed=seed,
                    per_class=per_class,
                    shadow=None if shadow is None else scored(metric, *shadow),
                )
            )
    return result


def scored(metric: Callable[[Answers], np.ndarray], *sides: Answers) -> list[Scored]:
    """What a metric makes of answers, with the class of each."""
    return [(metric(side), side.labels) for side in sides]


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95% confidence interval by Student's t."""
    number = len(values)
    if number < 2:
        raise InputError(f"values: an interval needs at least 2 of them, found {number}")
    deviation = float(np.std(values, ddof=1))
    return float(np.mean(values)), float(stdtrit(number - 1, 0.975)) * deviation / number**0.5


def check_enough(members: int, others: int, least: int = LEAST) -> None:
    if min(members, others) < least:
        raise InputError(
            f"held-out examples: attacks need at least {least} members and {least} examples that "
            f"were not trained on, found {members} and {others}"
        )
