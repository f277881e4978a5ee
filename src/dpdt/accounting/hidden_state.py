"""Guarantees against an observer who sees only the last iterate, where such guarantees are true.

`hidden-state-convex` is about noisy gradient descent on a smooth convex loss, where clipping is
impossible a priori. M is the number of steps an epoch, E that of epochs, Δ the sensitivity of the
mean contribution, c = c_F·c_T the Lipschitz constant of a step (Bok, Su and Altschuler 2024):

    μ = (Δ/σ) √( 1 + c^{2M−2} (1−c²)/(1−c^M)² · (1−c^{M(E−1)})/(1+c^{M(E−1)}) )     for c < 1
    μ = (Δ/σ) √( 1 + (E−1)/M )                                                      for c = 1

`hidden-state-contraction` needs no smoothness at all. Every auxiliary may react to a shifted θ, so
the displacement is 2C a step. Only weight decay (c = 1/(1+λη̂) < 1) forgets:

    μ = √(Σ_g (2C_g/σ_g)²) · √( (1+c)/(1−c) · (1−c^T)/(1+c^T) )

What rounding can add to the mean (Setting.rounding) is added to Δ and to 2C_g. The argument allows
displacements that depend on the whole past, so auxiliaries may remember. With memory `shared` and
V = I the direction has the further part (2ρη−1)π̂ with ‖π̂‖ ≤ C, which makes the displacement
(1 + |2ρη−1|) times as large. With another V it has no bound, and the run is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from dpdt.accounting.gaussian import epsilon_of, squared
from dpdt.accounting.guarantee import (
    Condition,
    Guarantee,
    check,
    common_conditions,
    unless_algorithm_1,
    unless_partition,
)
from dpdt.ledger import Header, Ledger, Setting

# The engine rescales what comes within rounding of C; clipping is impossible below that.
ROOM = 1.0 - 1e-4


def convex_mu(ratio: float, batches: int, epochs: int, log_c: float) -> float:
    """μ of the convex bound from Δ/σ, M, E and log c ≤ 0."""
    if epochs == 0:
        return 0.0
    if log_c == 0.0:
        return ratio * math.sqrt(1.0 + (epochs - 1) / batches)
    one_minus_c2 = -math.expm1(2 * log_c)
    one_minus_cm = -math.expm1(batches * log_c)
    grown = math.tanh(-batches * (epochs - 1) * log_c / 2)  # (1−x)/(1+x) of x = c^{M(E−1)}
    factor = math.exp((2 * batches - 2) * log_c) * one_minus_c2 / one_minus_cm**2 * grown
    return ratio * math.sqrt(1.0 + factor)


def contraction_mu(ratio: float, steps: int, log_c: float) -> float:
    """μ of the contraction bound from √Σ(2C/σ)², T and log c < 0."""
    # (1+c)/(1−c) = 1/tanh(−log c/2), and likewise with c^T
    return ratio * math.sqrt(math.tanh(-steps * log_c / 2) / math.tanh(-log_c / 2))


class _HiddenState(ABC):
    """What the two accountants share: conditions come first, and a number only if all hold."""

    name = ""

    @abstractmethod
    def unsupported(self, header: Header) -> str | None:
        """Why the bound has nothing to say of such a run."""

    @abstractmethod
    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        """What must hold of the run."""

    @abstractmethod
    def mu(self, ledger: Ledger) -> float:
        """μ of a run for which everything holds."""

    def guarantee(self, ledger: Ledger, delta: float) -> Guarantee:
        conditions = self.conditions(ledger)
        mu = None
        if all(c.holds for c in conditions):
            mu = self.mu(ledger) if ledger.runs else 0.0
        return Guarantee(
            accountant=self.name,
            epsilon=math.inf if mu is None else epsilon_of(mu, delta),
            delta=delta,
            mu=mu,
            unit=ledger.header.unit,
            relation=ledger.header.relation,
            observer="last iterate",
            conditions=conditions,
        )


def _hidden(ledger: Ledger) -> tuple[Condition, ...]:
    """That all iterates but the last are hidden."""
    seen = [*ledger.exports, *(["an average of all iterates"] if ledger.header.averaging else [])]
    return (
        check(
            "only the last iterate leaves",
            ledger.header.release == "last" and not seen,
            "nothing else was exported",
            f"also exported: {', '.join(seen)}"
            if seen
            else "nobody said that only the last iterate leaves; set privacy.release = "
            '"last" if that is so',
        ),
        check(
            "every step was taken once",
            not ledger.repeats,
            "the steps follow each other as planned",
            "an earlier state was loaded, and steps were taken again from there",
        ),
    )


def _rounding(setting: Setting) -> float:
    """What rounding can add to the sensitivity of the mean, over all blocks."""
    return math.sqrt(sum(squared(r) for r in setting.rounding))


class HiddenStateConvex(_HiddenState):
    """The convex bound."""

    name = "hidden-state-convex"

    def unsupported(self, header: Header) -> str | None:
        remembers = None
        if header.memory != "none":
            remembers = (
                "the bound is for auxiliaries that remember nothing; this run's memory is "
                f"{header.memory}"
            )
        return unless_algorithm_1(header) or unless_partition(header) or remembers

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        return (
            *common_conditions(self, ledger),
            *_smooth(ledger),
            *_plain(ledger),
            *_hidden(ledger),
        )

    def mu(self, ledger: Ledger) -> float:
        h, setting = ledger.header, ledger.runs[0].setting
        # The smallest micro-batch; where some are empty, an example is alone in its own.
        least = max(1, h.examples // (h.batches * h.auxiliaries))
        moved = 2.0 * _reach(setting, h.gradient_bound or 0.0) / (h.auxiliaries * least)
        sensitivity = moved + _rounding(setting)
        sigma = min(setting.noise)
        if sigma == 0:
            return math.inf
        # no strong convexity: c_F = 1, so only weight decay contracts
        return convex_mu(
            sensitivity / sigma,
            h.batches,
            ledger.steps // h.batches,
            math.log(setting.contraction),
        )


def _smooth(ledger: Ledger) -> tuple[Condition, ...]:
    """That the loss is convex, clipping is impossible, and no step is too long."""
    h = ledger.header
    settings = [run.setting for run in ledger.runs]
    known = h.gradient_bound is not None and h.smoothness is not None
    step = max((_step(s) for s in settings), default=0.0)
    limit = 2.0 / h.smoothness if h.smoothness else math.inf
    reach = max((_reach(s, h.gradient_bound or 0.0) for s in settings), default=0.0)
    least = min((min(s.clip) for s in settings), default=math.inf)
    return (
        check(
            "the loss is convex and smooth, with gradients bounded by construction",
            known,
            "a linear head on inputs of bounded norm",
            "the model gives no such bound; use a linear model with model.radius",
        ),
        check(
            "clipping is impossible",
            known and least * ROOM >= reach,
            f"contributions have norm at most {reach:.4g}, clip is {least:.4g}",
            f"contributions can have norm {reach:.4g}, so clip must be {reach / ROOM:.4g} or "
            f"more, found {least:.4g}",
        ),
        check(
            "the step size is at most 2/β",
            known and step <= limit,
            f"it is {step:.4g}, and 2/β = {limit:.4g}",
            f"it is {step:.4g} but 2/β = {limit:.4g}; lower lr or global_lr",
        ),
    )


def _plain(ledger: Ledger) -> tuple[Condition, ...]:
    """That the run is noisy gradient descent, the same at every step, in whole epochs."""
    h = ledger.header
    constant = len({run.setting for run in ledger.runs}) <= 1
    whole = ledger.steps % h.batches == 0
    return (
        check(
            "auxiliaries do not precondition",
            h.preconditioner == "identity",
            "there is no preconditioner",
            f"the preconditioner is {h.preconditioner}",
        ),
        check(
            "all auxiliaries have one penalty",
            h.one_penalty,
            "ρ is a single number",
            "method.penalty or its schedule is a list; contributions scale with each ρ, and "
            "only their mean is bounded here",
        ),
        check(
            "no weight decay on auxiliaries",
            h.auxiliary_weight_decay == 0,
            "there is none",
            f"it is {h.auxiliary_weight_decay:g}",
        ),
        check(
            "an example takes part once an epoch, and the unit is an example",
            h.unit == "example" and whole,
            "mini-batches are a partition and epochs are whole",
            "the run ended within an epoch" if h.unit == "example" else f"the unit is {h.unit}",
        ),
        check(
            "every step has the same settings",
            constant,
            "no schedule",
            "clip, noise or penalty follow a schedule",
        ),
    )


def _reach(setting: Setting, gradient_bound: float) -> float:
    """The largest norm an unclipped contribution 2ρη·g can have."""
    return 2.0 * setting.penalty * setting.lr * gradient_bound


def _step(setting: Setting) -> float:
    """The step on θ that a contribution amounts to: 2·η_θ·η."""
    return 2.0 * setting.global_lr * setting.lr


def _displacements(setting: Setting) -> tuple[float, ...]:
    """How far each block's mean can move if every auxiliary reacts to another θ."""
    rounding = setting.rounding or (0.0,) * len(setting.clip)
    return tuple(2.0 * c + r for c, r in zip(setting.clip, rounding, strict=True))


class HiddenStateContraction(_HiddenState):
    """The contraction bound."""

    name = "hidden-state-contraction"

    def unsupported(self, header: Header) -> str | None:
        return unless_algorithm_1(header)

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        h = ledger.header
        settings = [run.setting for run in ledger.runs]
        constant = len({(s.noise, s.step_size, s.contraction) for s in settings}) <= 1
        contracts = all(s.contraction < 1 for s in settings)
        bounded = h.memory != "shared" or (
            h.preconditioner == "identity" and h.auxiliary_weight_decay == 0
        )
        return (
            *common_conditions(self, ledger),
            check(
                "weight decay contracts every step",
                contracts,
                "the proximal step is L2 with λ > 0",
                "there is no L2 weight decay on θ, so nothing is forgotten",
            ),
            check(
                "noise and step size are constant",
                constant,
                "no schedule",
                "noise or penalty follow a schedule",
            ),
            check(
                "a step moves θ by a bounded amount",
                bounded and not (h.sampling == "poisson" and h.per_example),
                "K contributions of norm at most C",
                "the number of sampled examples has no bound"
                if bounded
                else "the shared preconditioner or weight decay scales the step without bound",
            ),
            *_hidden(ledger),
        )

    def mu(self, ledger: Ledger) -> float:
        h, first = ledger.header, ledger.runs[0].setting
        if min(first.noise) == 0:
            return math.inf
        # Clip may follow a schedule: each block at its largest displacement.
        steps = [_displacements(run.setting) for run in ledger.runs]
        moved = [max(block) for block in zip(*steps, strict=True)]
        ratio = math.sqrt(sum(squared(m / s) for m, s in zip(moved, first.noise, strict=True)))
        if h.memory == "shared":
            ratio *= 1.0 + max(abs(2 * r.setting.penalty * r.setting.lr - 1) for r in ledger.runs)
        return contraction_mu(ratio, ledger.steps, math.log(first.contraction))
