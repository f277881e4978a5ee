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

Here the recursion is unrolled, and goes on in closed form once v has settled. With
d = log(1 + n/(L_F² v))/L_T² for each step,
a(m0) = Σ over steps t at m0 of C²/(K²σ²) · exp(−Σ of d over later steps that are not at m0).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from dpdt.accounting.gaussian import squared
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
WRITTEN = 1_000_000  # steps that are written out at once
LONGEST = 20_000_000  # steps that are written out at all, and positions
SETTLED = 760.0  # what float64 holds, times e^−760, has vanished beside what stays


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
                "the recursion can be computed",
                _is_short(ledger),
                "v settles, or there are few steps",
                f"v takes more than {LONGEST:,} steps to settle; use a larger global_lr or fewer "
                "epochs",
            ),
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
        if self.unsupported(ledger.header) is None and _is_short(ledger):
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


def _is_short(ledger: Ledger) -> bool:
    """Whether the steps that must be written out, before v has settled, are few enough."""
    written = 0.0
    for run in ledger.runs:
        s = run.setting
        q = squared(1.0 - s.global_lr) * s.contraction**2
        slowest = settles(q, max(s.noise, default=0.0))
        steady = run.steps > max(WRITTEN, slowest + ledger.header.batches)
        written += slowest + ledger.header.batches if steady else run.steps
    return max(written, ledger.header.batches) <= LONGEST


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
    added = [0.0 if c == 0 else squared(c / (auxiliaries * s)) for c, s in values]
    pieces = _pieces(list(zip(added, _decays(settings, counts, values, batches), strict=True)))
    a, position = np.zeros(batches), 0
    for plus, decay, epochs in pieces:
        kept, more = (
            _written_out(plus, decay, position, batches)
            if epochs is None
            else _steady(float(plus[0]), float(decay[0]), epochs, position, batches)
        )
        a = a * kept + more
        if epochs is None:
            position = (position + len(plus)) % batches
    return a


# A stretch of steps: d of those that are written out, then of whole epochs in which d is constant,
# and of the steps that are left.
Decays = tuple[np.ndarray, float, int, int]
Piece = tuple[np.ndarray, np.ndarray, int | None]  # what is added, d, and for how many epochs


def _pieces(runs: list[tuple[float, Decays]]) -> Iterator[Piece]:
    """Steps that are written out, as many at once as may be, and steady epochs between them."""
    plus: list[np.ndarray] = []
    decay: list[np.ndarray] = []
    for added, (first, constant, epochs, left) in runs:
        plus.append(np.full(len(first), added))
        decay.append(first)
        if epochs:
            yield np.concatenate(plus), np.concatenate(decay), None
            yield np.array([added]), np.array([constant]), epochs
            plus, decay = [np.full(left, added)], [np.full(left, constant)]
        elif sum(map(len, plus)) >= WRITTEN:
            yield np.concatenate(plus), np.concatenate(decay), None
            plus, decay = [], []
    if plus:
        yield np.concatenate(plus), np.concatenate(decay), None


def _written_out(
    plus: np.ndarray, decay: np.ndarray, position: int, batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """What steps from a position on keep of a(m0), and what they add to it."""
    steps = position + len(plus)
    epochs = -(-steps // batches)
    added, d = np.zeros((epochs, batches)), np.zeros((epochs, batches))
    added.reshape(-1)[position:steps] = plus
    d.reshape(-1)[position:steps] = decay
    # Sums over all later steps, less those at the same position.
    later = d.reshape(-1)[::-1].cumsum()[::-1].reshape(epochs, batches) - d
    same = d[::-1].cumsum(axis=0)[::-1] - d
    kept = np.exp(-(d.sum() - d.sum(axis=0)))
    return kept, np.asarray((added * np.exp(-(later - same))).sum(axis=0))


def _steady(
    added: float, d: float, epochs: int, position: int, batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same of whole epochs in which every step adds and decays alike: a geometric series."""
    after = batches - 1 - (np.arange(batches) - position) % batches  # steps after that at m0
    once = (batches - 1) * d
    times = epochs if once == 0.0 else math.expm1(-epochs * once) / math.expm1(-once)
    return np.full(batches, math.exp(-epochs * once)), added * times * np.exp(-d * after)


def _decays(
    settings: list[Setting],
    counts: list[int],
    values: tuple[tuple[float, float], ...],
    batches: int,
) -> Iterator[Decays]:
    """d of every step, run by run. Within a run v has a closed form."""
    v = 0.0
    for setting, count, (_, noise) in zip(settings, counts, values, strict=True):
        n = squared(setting.step_size * noise)
        f2, t2 = squared(1.0 - setting.global_lr), setting.contraction**2
        q = f2 * t2
        settled, epochs, left = settles(q, n), 0, 0
        if count > max(WRITTEN, settled + batches):
            epochs, left = divmod(count - int(settled), batches)
        written = count - epochs * batches - left
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            sequence = _variances(v, n, q, t2, np.arange(written + 1))
            d = _decay(n, f2, t2, sequence[:-1])
            constant = float(_decay(n, f2, t2, sequence[-1:])[0])
            v = float(_variances(v, n, q, t2, np.array([0, count]))[-1])
        yield d, constant, epochs, left


def settles(q: float, n: float) -> float:
    """The number of steps after which v, and so d, hardly changes in a run; it may be infinite."""
    if n == 0.0 or q == 0.0:
        return 1
    return math.inf if q == 1.0 else math.ceil(SETTLED / abs(math.log(q))) + 1


def _variances(v: float, n: float, q: float, t2: float, powers: np.ndarray) -> np.ndarray:
    """v after so many steps. The first must be none."""
    if q == 1.0:
        return np.asarray(v + powers * n)
    limit = t2 * n / (1.0 - q)
    sequence = limit + (v - limit) * q ** powers.astype(float)
    sequence[0] = v
    return np.asarray(sequence)


def _decay(n: float, f2: float, t2: float, before: np.ndarray) -> np.ndarray:
    d = np.log1p(n / (f2 * before)) / t2 if f2 > 0 else np.full(len(before), np.inf)
    d = np.minimum(d, NEVER)
    d[before == 0] = 0.0  # v is 0 only before any noise, when there is nothing to decay
    return d
