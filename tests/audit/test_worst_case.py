"""The worst case through the real engine: true bounds survive, false ones and sabotage do not."""

from dataclasses import replace

import numpy as np
import pytest

from dpdt.algorithm import publish
from dpdt.audit import worst_case
from dpdt.audit.worst_case import AUXILIARIES, Instance, audit, iterates, judge
from dpdt.errors import ArgumentError
from dpdt.mechanism import BoundedSum
from dpdt.noise import Randomness
from tests.accounting.worst_case import exact_mu

# One mini-batch, two auxiliaries: the record is heard at every step, so composition is tight.
SMALL = Instance(
    memory="none", epochs=(8,), batches=1, clip=1.0, noise=2.0, lr=0.1, penalty=1.0,
    weight_decay=0.0,
)  # fmt: skip
BETA = 1e-6


def found(instance, trials=4000):
    return iterates(instance, trials, noise=Randomness(0))


def case(instance, trials=4000):
    return judge(instance, found(instance, trials), delta=1e-5, beta=BETA)[-1]


@pytest.mark.parametrize("memory", ["auxiliary", "none"])
def test_the_engine_has_the_exact_mu(memory):
    """The affine recursion of the specification, against 4000 trials on each side."""
    instance = replace(SMALL, memory=memory, epochs=(5,), batches=4, weight_decay=0.01)
    theta = found(instance)[5]
    measured = (theta[1].mean() - theta[0].mean()) / theta.std(axis=1).mean()
    setting = instance.recipe(1).at(0)
    exact = exact_mu(
        instance.size,
        steps=20,
        takes_part=lambda t: t % 4 == 3,
        K=instance.auxiliaries,
        C=lambda t: 1.0,
        sigma=lambda t: 2.0,
        rho=lambda t: 1.0,
        eta=0.1,
        eta_hat=lambda t: setting.step_size,
        c=lambda t: setting.contraction,
        memory=memory,
    )
    assert measured == pytest.approx(exact, abs=5 * np.sqrt(2 / 4000) * max(1.0, exact / 2))


def test_composition_and_the_convex_bound_survive_where_they_are_tight():
    result = case(SMALL)
    names = {g.accountant: g for g in result.privacy.guarantees if g.valid}
    assert {"composition", "hidden-state-convex"} <= set(names)
    for name, guarantee in names.items():
        assert not result.refutes(name)
        assert result.measured.mu > 0.8 * guarantee.mu


@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
def test_the_papers_bound_is_refuted(memory):
    """It does not grow with the epochs; what leaks does."""
    noise = 4.0 / AUXILIARIES[memory]
    instance = replace(SMALL, memory=memory, epochs=(1, 60), batches=4, noise=noise)
    first, last = judge(instance, found(instance, 2000), delta=1e-5, beta=BETA)
    claimed = [
        next(g.epsilon for g in c.privacy.guarantees if g.accountant == "paper")
        for c in (first, last)
    ]
    assert last.measured.epsilon > first.measured.epsilon
    assert claimed[1] == pytest.approx(claimed[0], rel=0.2)
    assert last.refutes("paper")
    assert not last.refutes("composition")


def tampered(monkeypatch, change):
    """Have every release made from other arguments; `change` gets them and returns what differs."""
    honest = publish.perturbed

    def perturbed(total, **given):
        return honest(total, **{**given, **change(given)})

    monkeypatch.setattr(publish, "perturbed", perturbed)


def test_what_is_not_tampered_with_is_not_noticed(monkeypatch):
    """The sabotage below is noticed for what it does, not for how it is done."""
    tampered(monkeypatch, lambda given: {})
    assert not case(SMALL).refutes("composition")
    assert not case(replace(SMALL, memory="shared", noise=4.0, epochs=(40,))).refutes("composition")


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_noise_that_is_missing_or_halved_is_noticed(monkeypatch, factor):
    tampered(monkeypatch, lambda given: {"noise": factor * given["noise"]})
    assert case(SMALL).refutes("composition")


def test_a_doubled_sensitivity_is_noticed(monkeypatch):
    """Contributions that are twice as long as the clip."""
    honest = BoundedSum.__init__

    def twice(self, blocks, clip):
        honest(self, blocks, clip)
        self.limit *= 2.0

    monkeypatch.setattr(BoundedSum, "__init__", twice)
    assert case(replace(SMALL, memory="shared", noise=4.0, epochs=(40,))).refutes("composition")


def test_a_divisor_that_forgets_the_empty_auxiliaries_is_noticed(monkeypatch):
    tampered(monkeypatch, lambda given: {"divisor": 1})
    assert case(SMALL).refutes("composition")


def test_beta_is_divided_among_all_cases(monkeypatch):
    shares = []

    def listen(instance, theta, *, delta, beta):
        shares.append(beta)
        return []

    monkeypatch.setattr(worst_case, "judge", listen)
    audit(["none", "shared"], instance=replace(SMALL, epochs=(1, 2)), trials=100, beta=0.04)
    assert shares == [0.01, 0.01]


def test_too_few_trials():
    with pytest.raises(ArgumentError, match=r"^trials: must be at least 100, found 99"):
        audit(["none"], instance=SMALL, trials=99)
