"""Poisson sampling, against other libraries."""

import math
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpdt import account
from dpdt.accounting import cost
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.accounting.composition import Composition, squared_mu
from dpdt.accounting.cost import Cost
from dpdt.accounting.gaussian import epsilon_of
from dpdt.accounting.hidden_state import HiddenStateContraction
from dpdt.errors import InputError

from .test_composition import ledger


def poisson(runs, **options):
    defaults = {"memory": "none", "sampling": "poisson", "relation": "zero-out", "rate": 0.04}
    return ledger(runs, **{**defaults, **options})


def by_distributions(run, delta, *, coarse=False):
    """ε by privacy-loss distributions, also where the rate is 1 and they are not needed."""
    steps = [(run.header.rate, squared_mu(r.setting, run.header) ** 0.5, r.steps) for r in run.runs]
    return Cost(steps=tuple(steps)).epsilon(run.header.relation, delta, coarse=coarse)


def test_tighter_than_the_rdp_of_opacus():
    from opacus.accountants import RDPAccountant

    rival = RDPAccountant()
    rival.history = [(1.5, 0.04, 2250)]
    theirs = rival.get_epsilon(1e-5)
    assert theirs == pytest.approx(7.329, abs=1e-3)
    ours = account(poisson([(1.0, 1.5 / 4, 2250)], per_example=True), 1e-5).epsilon
    assert ours == pytest.approx(6.769, abs=1e-3)
    assert ours < theirs


def test_steps_that_differ_are_composed_exactly():
    runs = [(1.0, 0.5, 100), (2.0, 0.75, 50), (1.0, 1.0, 20)]
    expected = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    for clip, noise, steps in runs:
        multiplier = 4 * noise / (2 * clip)
        expected.compose(PoissonSampledDpEvent(0.04, GaussianDpEvent(multiplier)), steps)
    assert account(poisson(runs), 1e-5).epsilon == pytest.approx(expected.get_epsilon(1e-5))


def test_replacing_an_example_that_is_its_own_contribution():
    run = poisson([(1.0, 0.7 / 4, 120)], rate=0.01, per_example=True, relation="replace-one")
    expected = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    expected.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.7)), 120)
    found = account(run, 1e-5).proven
    assert found.epsilon == pytest.approx(expected.get_epsilon(1e-5))
    assert found.relation == "replace-one"


def test_many_different_steps_stay_an_upper_bound():
    """Beyond a few settings a coarser grid is used, which may only round up."""
    few = poisson([(1.0, 0.6, 240)])
    setting = few.runs[0].setting
    many = replace(few, runs=[])
    for i in range(12):
        many.append(replace(setting, lr=setting.lr + i), 20)  # the same privacy, told apart
    fine, coarse = account(few, 1e-5).epsilon, account(many, 1e-5).epsilon
    assert fine <= coarse <= fine * 1.02


def test_the_paper_and_hidden_state_do_not_speak_of_poisson():
    found = {g.accountant: g for g in account(poisson([(1.0, 1.0, 10)]), 1e-5).guarantees}
    assert not found["paper"].valid
    assert found["paper"].epsilon == math.inf
    assert not found["hidden-state-convex"].valid
    per_example = poisson([(1.0, 1.0, 10)], per_example=True)
    setting = replace(per_example.runs[0].setting, contraction=0.9)
    per_example = replace(per_example, runs=[])
    per_example.append(setting, 10)
    guarantee = HiddenStateContraction().guarantee(per_example, 1e-5)
    assert "no bound" in guarantee.failed.why


def test_calibration():
    run = poisson([(1.0, 1.0, 100)], per_example=True)
    factor = calibrate(run, 2.0, 1e-5)
    assert 2.0 * (1 - 1e-3) <= account(scaled(run, factor), 1e-5).epsilon <= 2.0


SMALLEST = {1: 3.2e-14, 100: 3.9e-13, 300: 1.1e-12, 1000: 3.6e-12, 100_000: 3.6e-10}


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0, 6.0])
@pytest.mark.parametrize(("steps", "delta"), SMALLEST.items())
def test_the_smallest_delta_is_accounted_from_above(steps, delta, coarse, mu):
    """Without sampling ε is known exactly. dp-accounting alone is below it in some of these."""
    run = poisson([(1.0, math.sqrt(steps) / (4 * mu), steps)], rate=1.0, per_example=True)
    found = by_distributions(run, delta, coarse=coarse)
    assert found >= epsilon_of(mu, delta)
    if not coarse:
        assert found <= epsilon_of(mu, delta) * 1.05


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("mu", [0.3, 3.0])
def test_where_all_take_part_a_step_is_a_gaussian_mechanism(mu, relation):
    """Exactly: as a partition of one batch, and just below what distributions say."""
    runs = [(1.0, math.sqrt(20) / (4 * mu), 10), (2.0, math.sqrt(20) / (2 * mu), 10)]
    run = poisson(runs, rate=1.0, per_example=True, relation=relation)
    found = account(run, 1e-5).epsilon
    factor = 2.0 if relation == "replace-one" else 1.0  # one is removed and another added
    assert found == pytest.approx(epsilon_of(factor * mu, 1e-5), rel=1e-12)
    above = by_distributions(run, 1e-5)
    assert found <= above <= found * 1.01
    shared = poisson(runs, rate=1.0)  # a contribution is another, not absent
    assert account(shared, 1e-5).epsilon == pytest.approx(epsilon_of(2.0 * mu, 1e-5), rel=1e-12)


@pytest.mark.parametrize(("steps", "delta"), SMALLEST.items())
def test_a_smaller_delta_is_refused(steps, delta):
    """At δ = 1e-30 calibration came to a noise multiplier of 131,755 and ε ≤ 0.0014 for 8."""
    run = poisson([(1.0, 1.0, steps)])
    message = rf"privacy.delta: must be at least {delta:g} for {steps} steps of poisson sampling"
    for small in (delta / 1.1, 1e-15, 1e-30):
        with pytest.raises(InputError, match=message):
            account(run, small)
        with pytest.raises(InputError, match=message):
            calibrate(run, 8.0, small)
    account(run, delta)


@pytest.mark.parametrize("steps", [1000, 100_000])
def test_calibration_at_the_smallest_delta(steps):
    """The noise is what Rényi accounting says, or a little less."""
    run = poisson([(1.0, 0.25, steps)], per_example=True, rate=0.01)  # noise multiplier 1
    delta = SMALLEST[steps]
    factor = calibrate(run, 8.0, delta)
    assert 8.0 * (1 - 1e-3) <= account(scaled(run, factor), delta).epsilon <= 8.0
    rival = RdpAccountant()
    rival.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(factor)), steps)
    assert 8.0 < rival.get_epsilon(delta) < 8.0 * 1.2


def test_hardly_any_noise_is_accounted_at_once_and_from_above():
    """A grid for an ε in the thousands would take hours; composition without sampling does."""
    hopeless = poisson([(1.0, 0.01 / 4, 2250)], per_example=True, relation="replace-one")
    whole = replace(hopeless, header=replace(hopeless.header, sampling="partition", batches=1))
    assert account(hopeless, 1e-5).epsilon > 1e5
    assert account(hopeless, 1e-5).epsilon >= account(whole, 1e-5).epsilon * 0.999
    tight = poisson(
        [(1.0, 0.8 / 4, 40_000)], per_example=True, rate=0.01
    )  # noise 0.8: not hopeless
    assert account(tight, 1e-5).epsilon < 100.0


def test_a_run_of_many_million_steps_is_accounted_at_once():
    """dp-accounting alone would take the size of a distribution to the power of the steps."""
    parts = [poisson([(1.0, 25.0, steps)], per_example=True, rate=0.01) for steps in (10**5, 10**7)]
    short, long = (Composition().guarantee(run, 1e-5).epsilon for run in parts)
    assert 7.0 * short < long < 20.0 * short
    with pytest.raises(InputError, match=r"at least .* for 100000000000 steps of poisson"):
        account(poisson([(1.0, 25.0, 10**11)], per_example=True, rate=0.01), 1e-5)


def test_a_schedule_of_many_values_is_rounded_up_to_fewer():
    values = [1.0 + 0.01 * i for i in range(150)]
    run = poisson([(1.0, noise, 1) for noise in values], per_example=True, rate=0.1)
    found = Composition(coarse=True).guarantee(run, 1e-5).epsilon
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "MANY", 150)
        cost._epsilon.cache_clear()
        exact = Composition(coarse=True).guarantee(run, 1e-5).epsilon
    assert exact <= found <= exact * 1.1
