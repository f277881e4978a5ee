"""From an attack's success to a lower bound on ε or μ that holds with confidence 1 − β.

Two kinds of evidence, which must not be confused:

- **Independent runs**: every trial is a run of its own, or a part of one that provably does not
  influence the others. Rates of right and wrong guesses then have Clopper–Pearson intervals.
- **One run, many canaries**: guesses about one model depend on each other. Only the one-run bound
  of Steinke, Nasr and Jagielski (2023) holds.

Guarantees: a bound exceeds the truth with probability at most β. Thresholds are chosen on trials
that are not evaluated. Where several numbers of guesses are tried, β is divided among them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, betainc, betaincinv, ndtri

from dpdt.accounting.gaussian import bisect
from dpdt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Guesses "it was D": right ones among runs on D, wrong ones among runs on D′."""

    true_positives: int
    positives: int
    false_positives: int
    negatives: int

    def worst_rates(self, beta: float) -> tuple[float, float]:
        """The least TPR and the greatest FPR that fit the counts; both hold with 1 − β."""
        tp, p, fp, n = self.true_positives, self.positives, self.false_positives, self.negatives
        if min(p, n) < 1 or not (0 <= tp <= p and 0 <= fp <= n):
            raise InputError(f"counts: {tp} of {p} and {fp} of {n} are not rates of anything")
        tpr = float(betaincinv(tp, p - tp + 1, beta / 2)) if tp else 0.0
        fpr = float(betaincinv(fp + 1, n - fp, 1 - beta / 2)) if fp < n else 1.0
        return tpr, fpr

    def epsilon(self, delta: float, beta: float) -> float:
        """ε is at least this, by the definition of (ε, δ): TPR ≤ e^ε FPR + δ, and its mirror."""
        tpr, fpr = self.worst_rates(beta)
        return max(0.0, _log_ratio(tpr - delta, fpr), _log_ratio(1 - fpr - delta, 1 - tpr))

    def mu(self, beta: float) -> float:
        """μ is at least this: a μ-GDP mechanism has Φ⁻¹(TPR) − Φ⁻¹(FPR) ≤ μ for every test."""
        tpr, fpr = self.worst_rates(beta)
        if tpr <= fpr:
            return 0.0
        return float(ndtri(tpr) - ndtri(fpr))


def _log_ratio(over: float, under: float) -> float:
    return math.log(over / under) if over > 0 else -math.inf


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What independent trials prove, both at once with confidence 1 − β.

    `epsilon` rests on the definition of differential privacy alone; `mu` refutes claims of μ-GDP.
    """

    epsilon: float
    mu: float
    trials: int  # evaluated, on both sides together
    confidence: float


def measure(positive: np.ndarray, negative: np.ndarray, *, delta: float, beta: float) -> Measured:
    """The bounds that scores of independent runs on D and on D′ prove.

    High scores speak for D. Thresholds are chosen on every fourth trial and judged on the others. ε
    and μ have a threshold each, and half of β each.
    """
    if min(len(positive), len(negative)) < 8:
        raise InputError(
            f"trials: at least 8 on each side are needed, to choose a threshold on some and judge "
            f"it on others, found {len(positive)} and {len(negative)}"
        )
    pilot = (positive[::4], negative[::4])
    judged = (np.delete(positive, np.s_[::4]), np.delete(negative, np.s_[::4]))
    best: dict[str, tuple[float, float]] = {}
    for threshold in _candidates(*pilot):
        counts = _counts(*pilot, threshold)
        for name, value in (
            ("epsilon", counts.epsilon(delta, beta / 2)),
            ("mu", counts.mu(beta / 2)),
        ):
            if name not in best or value > best[name][0]:
                best[name] = (value, threshold)
    counted = {name: _counts(*judged, threshold) for name, (_, threshold) in best.items()}
    return Measured(
        epsilon=counted["epsilon"].epsilon(delta, beta / 2),
        mu=counted["mu"].mu(beta / 2),
        trials=sum(len(scores) for scores in judged),
        confidence=1 - beta,
    )


def _candidates(positive: np.ndarray, negative: np.ndarray, most: int = 400) -> np.ndarray:
    """Thresholds worth trying: quantiles of all scores."""
    return np.unique(np.quantile(np.concatenate([positive, negative]), np.linspace(0, 1, most)))


def _counts(positive: np.ndarray, negative: np.ndarray, threshold: float) -> Counts:
    return Counts(
        true_positives=int((positive > threshold).sum()),
        positives=len(positive),
        false_positives=int((negative > threshold).sum()),
        negatives=len(negative),
    )


def one_run_epsilon(*, canaries: int, guesses: int, right: int, delta: float, beta: float) -> float:
    """ε is at least this if `right` of `guesses` guesses about `canaries` fair coins are right.

    p(ε) = P[Bin(r, q) ≥ v] + 2mδ·max_{1≤i≤v} (1/i)·P[v−i ≤ Bin(r, q) < v] with q = e^ε/(1+e^ε);
    the bound is the largest ε with p(ε) < β.
    """
    if not 0 <= right <= guesses <= canaries:
        raise InputError(f"one run: {right} right of {guesses} guesses about {canaries} canaries")
    if right == 0:
        return 0.0
    steps = np.arange(1, right + 1)

    def plausible(epsilon: float) -> bool:
        q = 1.0 / (1.0 + math.exp(-epsilon))
        tail = float(betainc(right, guesses - right + 1, q))
        below = bdtr(right - 1, guesses, q)
        least = np.where(steps < right, bdtr(np.maximum(right - steps - 1, 0), guesses, q), 0.0)
        slack = float(np.max((below - least) / steps))
        return tail + 2 * canaries * delta * slack >= beta

    if plausible(0.0):
        return 0.0
    return bisect(plausible, 0.0, 100.0) if plausible(100.0) else 100.0


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The best of several fixed numbers of guesses; β was divided among them."""

    epsilon: float
    canaries: int
    guesses: int
    right: int
    confidence: float


def one_run(scores: np.ndarray, included: np.ndarray, *, delta: float, beta: float) -> OneRun:
    """The bound that the scores of canaries prove; high scores speak for "was included".

    With r guesses, the r/2 canaries of highest score are guessed in and the r/2 of lowest score
    out. For the rest no guess is made. r runs over m, m/2, m/4, … down to 8, which is fixed before
    any score is seen.
    """
    canaries = len(scores)
    if canaries < 8:
        raise InputError(
            f"canaries: at least 8 are needed for a bound of any use, found {canaries}; "
            "set audit.canaries to some hundreds"
        )
    order = np.argsort(scores, kind="stable")
    tried = []
    guesses = canaries
    while guesses >= 8:
        tried.append(guesses - guesses % 2)
        guesses //= 2
    results = []
    for guesses in tried:
        half = guesses // 2
        right = int(included[order[canaries - half :]].sum() + (~included[order[:half]]).sum())
        bound = one_run_epsilon(
            canaries=canaries, guesses=guesses, right=right, delta=delta, beta=beta / len(tried)
        )
        results.append((bound, guesses, right))
    best = max(results)
    return OneRun(
        epsilon=best[0], canaries=canaries, guesses=best[1], right=best[2], confidence=1 - beta
    )
