"""The paper's hidden-state bound, as published. It is here to reproduce the paper, and not valid.

The recursion is run for each block and each position m0 of the record. In it v stands for 1/c of
the log-Sobolev sequence, n = (η̂σ)² is the variance added to θ, L_F is 1 − η_θ, and L_T is the
Lipschitz constant of Prox:

    v = 0, a = 0
    each step:   a ← a + C²/(K²σ²)                     if the mini-batch is m0
                 a ← a · (1 + n/(L_F² v))^(−1/L_T²)     otherwise
                 v ← L_T² (L_F² v + n)
    ε_RDP(α) = 1/(α−1) · log( (1/M) Σ_{m0} exp((α−1) α Σ_g a_g(m0)) )

`paper-per-block` takes the mixture over m0 inside each block, and adds the blocks up. Its number is
smaller still. It is wrong for a further reason: all blocks share m0.

The recursion is what the paper's corollary says. The paper prints two closed forms. The one in the
proof has base 1/(L_F²L_T²). It agrees with the recursion once two slips of its last line are
mended: the exponent must be (M−1)(E−l) + M − m0, and the product over epochs starts at l+1. The Λ
of the theorem has the reciprocal base and agrees with neither. docs/what-epsilon-means.md argues
why the bound does not hold, and has a counterexample.

Here the recursion is unrolled. With d = log(1 + n/(L_F² v))/L_T² for each step,
a(m0) = Σ over steps t at m0 of C²/(K²σ²) · exp(−Σ of d over later steps that are not at m0).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from dpdt.accounting.guarantee import (
    Condition,
    Guarantee,
    check,
    common_conditions,
    unless_algorithm_1,
    unless_partition,
)
from dpdt.accounting.renyi import ORDERS, epsilon_of_rdp
from dpdt.ledger import Header, Ledger, Setting

DOCS = "docs/what-epsilon-means.md"
NEVER = 800.0  # exp(−800) is 0 in float64


class Paper:
    """The bound with one mixture over m0 for all blocks."""

    name = "paper"
    per_block = False

    def unsupported(self, header: Header) -> str | None:
        return unless_algorithm_1(header) or unless_partition(header)

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        h = ledger.header
        return (
            *common_conditions(self, ledger),
            check(
                "mini-batches are fixed",
                not h.reshuffle,
                "they are the same in every epoch",
                "they are dealt anew in every epoch",
            ),
            Condition(
                text="the step on θ contracts by 1 − η_θ",
                holds=False,
                why=f"auxiliaries reset to θ, so the step does not contract ({DOCS})",
            ),
            check(
                "a record influences only the steps of its own mini-batch",
                h.memory == "none",
                "nothing is remembered between steps",
                "multipliers and preconditioners carry it into later steps",
            ),
        )

    def guarantee(self, ledger: Ledger, delta: float) -> Guarantee:
        epsilon = math.inf
        if self.unsupported(ledger.header) is None:
            epsilon = 0.0
            if ledger.runs:
                divergences = rdp(ledger, ORDERS, per_block=self.per_block)
                epsilon = epsilon_of_rdp(ORDERS, divergences, delta)
        return Guarantee(
            accountant=self.name,
            epsilon=epsilon,
            delta=delta,
            mu=None,
            unit=ledger.header.unit,
            relation="replace-one",
            observer="last iterate",
            conditions=self.conditions(ledger),
        )


class PaperPerBlock(Paper):
    """The smaller number, with a mixture inside each block."""

    name = "paper-per-block"
    per_block = True

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        return (
            *super().conditions(ledger),
            Condition(
                text="blocks can be mixed over positions one by one",
                holds=False,
                why="a record has one position, which all blocks share",
            ),
        )


def rdp(ledger: Ledger, orders: np.ndarray, *, per_block: bool = False) -> np.ndarray:
    """ε_RDP(α) of the paper's theorem for every order."""
    settings = [run.setting for run in ledger.runs]
    counts = [run.steps for run in ledger.runs]
    groups = Counter(
        tuple((s.clip[b], s.noise[b]) for s in settings) for b in range(len(ledger.header.blocks))
    )
    leaks = [
        (number, leak(settings, counts, values, ledger.header.auxiliaries, ledger.header.batches))
        for values, number in groups.items()
    ]
    if per_block:
        return np.asarray(sum(n * mixture(a, orders) for n, a in leaks))
    return mixture(np.asarray(sum(n * a for n, a in leaks)), orders)


def mixture(a: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """1/(α−1) · log mean_{m0} exp((α−1) α a(m0)), for every order."""
    values, weights = np.unique(a, return_counts=True)
    if not np.isfinite(values[-1]):
        return np.full(len(orders), np.inf)
    scaled = np.outer(orders * (orders - 1), values - values[-1])
    mean = np.log(np.exp(scaled) @ (weights / weights.sum()))
    return np.asarray(orders * values[-1] + mean / (orders - 1))


def leak(
    settings: list[Setting],
    counts: list[int],
    values: tuple[tuple[float, float], ...],
    auxiliaries: int,
    batches: int,
) -> np.ndarray:
    """a(m0) of a block for every position, from its (C, σ) in each run of equal steps."""
    if any(noise == 0 and clip > 0 for clip, noise in values):
        return np.full(batches, np.inf)
    steps = sum(counts)
    epochs = -(-steps // batches)
    added, decay = np.zeros((epochs, batches)), np.zeros((epochs, batches))
    added.reshape(-1)[:steps] = np.repeat(
        [0.0 if c == 0 else (c / (auxiliaries * s)) ** 2 for c, s in values], counts
    )
    decay.reshape(-1)[:steps] = np.concatenate(list(_decays(settings, counts, values)))
    # Sums over all later steps, less those at the same position.
    later = decay.reshape(-1)[::-1].cumsum()[::-1].reshape(epochs, batches) - decay
    same = decay[::-1].cumsum(axis=0)[::-1] - decay
    return np.asarray((added * np.exp(-(later - same))).sum(axis=0))


def _decays(
    settings: list[Setting], counts: list[int], values: tuple[tuple[float, float], ...]
) -> Iterator[np.ndarray]:
    """d of every step, run by run. Within a run v has a closed form."""
    v = 0.0
    for setting, count, (_, noise) in zip(settings, counts, values, strict=True):
        n = (setting.step_size * noise) ** 2
        f2, t2 = (1.0 - setting.global_lr) ** 2, setting.contraction**2
        q, powers = f2 * t2, np.arange(count + 1)
        if q == 1.0:
            sequence = v + powers * n
        else:
            limit = t2 * n / (1.0 - q)
            sequence = limit + (v - limit) * q**powers
            sequence[0] = v
        before = sequence[:-1]
        with np.errstate(divide="ignore", over="ignore"):
            d = np.log1p(n / (f2 * before)) / t2 if f2 > 0 else np.full(count, np.inf)
        d = np.minimum(d, NEVER)
        d[before == 0] = 0.0  # v is 0 only before any noise, when there is nothing to decay
        yield d
        v = float(sequence[-1])
