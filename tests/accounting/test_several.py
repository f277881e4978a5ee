"""What several runs cost together, against formulas and libraries of others."""

import math
import os
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdt import account
from dpdt.accounting import account_together, cost
from dpdt.accounting.composition import composed_mu
from dpdt.accounting.gaussian import epsilon_of

from .test_composition import ledger
from .test_poisson import poisson

DELTA = 1e-5
GRID = 1e-3


@pytest.fixture(autouse=True, scope="module")
def coarse():
    """The coarser grid, which is ten times as fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "FEW", 0)
        cost._epsilon.cache_clear()
        yield
    cost._epsilon.cache_clear()


def closed(run):
    return replace(run, closed=True)


def one_contribution(noise, steps, **options):
    """Poisson sampling of single examples, with this noise multiplier."""
    return closed(poisson([(1.0, noise / 4, steps)], per_example=True, **options))


def test_partitions_add_up_in_squares():
    runs = [closed(ledger([(1.0, noise, 20)])) for noise in (1.0, 2.0, 3.0)]
    found = account_together(runs, DELTA)
    mu = math.sqrt(sum((2 / 4 / noise) ** 2 * 20 for noise in (1.0, 2.0, 3.0)))
    assert found.epsilon == pytest.approx(epsilon_of(mu, DELTA), rel=1e-12)
    assert found.cost.mu == pytest.approx(mu, rel=1e-12)
    assert (found.unit, found.relation) == ("example", "replace-one")


def test_a_run_by_itself_costs_what_its_account_says():
    for run in (
        closed(ledger([(1.0, 1.0, 20)], memory="none")),
        one_contribution(1.0, 100),
        one_contribution(1.0, 100, relation="replace-one"),
        one_contribution(5.0, 100, rate=1.0, relation="replace-one"),
        closed(poisson([(1.0, 1.0, 100), (1.0, 2.0, 10)])),
    ):
        found = account_together([run], DELTA)
        own = account(run, DELTA).epsilon
        assert found.each == (found.epsilon,) == (own,)
        assert found.relation == run.header.relation


def test_equal_poisson_runs_are_one_long_run():
    together = account_together([one_contribution(1.5, 250)] * 9, DELTA)
    assert together.epsilon == account(one_contribution(1.5, 2250), DELTA).epsilon
    assert together.epsilon == pytest.approx(6.769, abs=1e-2)  # docs: noise 1.5, q 0.04, T 2250


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_partitions_and_poisson_sampling_are_one_distribution(relation):
    runs = [one_contribution(1.5, 300, relation=relation), one_contribution(1.0, 80, rate=0.01)]
    gaussian = one_contribution(9.0, 4, rate=1.0)  # μ = 2/9, twice that if one is replaced
    names = {"zero-out": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}
    expected = PLDAccountant(NeighboringRelation[names[relation]], GRID)
    expected.compose(PoissonSampledDpEvent(0.04, GaussianDpEvent(1.5)), 300)
    expected.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 80)
    expected.compose(GaussianDpEvent(9.0), 4)
    found = account_together([*runs, gaussian], DELTA)
    assert found.relation == relation
    assert found.epsilon == pytest.approx(expected.get_epsilon(DELTA), rel=1e-4)
    assert found.epsilon >= expected.get_epsilon(DELTA)  # δ pays for rounding


def test_one_run_that_replaces_makes_all_replace():
    """A fixed partition says nothing of adding; what is added and removed can be replaced."""
    partition, sampled = closed(ledger([(1.0, 2.0, 20)])), one_contribution(1.5, 300)
    expected = PLDAccountant(NeighboringRelation.REPLACE_ONE, GRID)
    expected.compose(PoissonSampledDpEvent(0.04, GaussianDpEvent(1.5)), 300)
    expected.compose(GaussianDpEvent(2.0 / composed_mu(partition)))  # it moves by 2 there
    found = account_together([sampled, partition], DELTA)
    assert found.relation == "replace-one"
    assert found.epsilon == pytest.approx(expected.get_epsilon(DELTA), rel=1e-4)
    assert found.each[0] == account(sampled, DELTA).epsilon  # its own relation


def test_shared_auxiliaries_are_replaced_without_sampling():
    """Their absent example does not contribute 0, as dp-accounting's relation takes it to."""
    shared, partition = closed(poisson([(1.0, 5.0, 50)])), closed(ledger([(1.0, 5.0, 50)]))
    mu = math.sqrt(50) * 2 / 4 / 5.0
    assert account_together([shared], DELTA).relation == "zero-out"
    found = account_together([shared, partition], DELTA)
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(2) * mu, DELTA), rel=1e-12)


def test_runs_of_other_units_are_counted_for_one_example():
    example = closed(ledger([(1.0, 1.0, 20)], memory="none", K=8))
    user = closed(ledger([(1.0, 1.0, 20)], memory="none", unit="user"))
    found = account_together([example, user], DELTA)
    assert (found.unit, found.units) == ("example", ("example", "user"))
    mu = math.hypot(composed_mu(example), composed_mu(user))
    assert found.epsilon == pytest.approx(epsilon_of(mu, DELTA), rel=1e-12)
    assert account_together([user, user], DELTA).unit == "user"


def contracting(**options):
    run = ledger([(1.0, 6.0, 400)], **options)
    shorter = replace(run.runs[0].setting, contraction=0.5)
    return replace(run, runs=[replace(run.runs[0], setting=shorter)], closed=True)


def test_a_bound_on_the_last_iterate_counts_where_it_holds_and_is_smaller():
    hidden, seen = contracting(), contracting(release="all")
    bound = 2.0 / 6.0 * math.sqrt(1.5 / 0.5)  # √(Σ(2C/σ)²·(1+c)/(1−c)) after many steps
    found = account_together([hidden, hidden], DELTA)
    assert found.cost.mu == pytest.approx(math.sqrt(2) * bound, rel=1e-9)
    assert found.epsilon < account_together([seen, seen], DELTA).epsilon
    assert account_together([seen], DELTA).cost.mu == pytest.approx(composed_mu(seen))


def test_a_run_without_an_end_counts_with_all_its_iterates():
    found = account_together([replace(contracting(), closed=False)], DELTA)
    assert found.cost.mu == pytest.approx(composed_mu(contracting()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: replace(r, voids=["something was found"]), "something was found"),
        (lambda r: replace(r, header=replace(r.header, private=False)), "a fixed seed"),
        (lambda r: closed(ledger([(1.0, 0.0, 5)])), "as it is without noise"),
    ],
)
def test_a_run_that_guarantees_nothing_makes_the_total_infinite(change, why):
    good = one_contribution(1.5, 100)
    found = account_together([good, change(closed(ledger([(1.0, 9.0, 5)])))], DELTA)
    assert found.epsilon == math.inf
    assert found.bounded == account(good, DELTA).epsilon  # in its own relation
    assert found.reasons[0] == ""
    assert why in found.reasons[1]


def test_steps_that_were_taken_again_count_again():
    run = ledger([(1.0, 3.0, 10)])
    again = replace(run, runs=[*run.runs, replace(run.runs[0], steps=4)], closed=True)
    found = account_together([again], DELTA)
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(14) / 6, DELTA), rel=1e-12)


def test_nothing_costs_nothing():
    assert account_together([], DELTA).epsilon == 0.0
    assert account_together([ledger([])], DELTA).epsilon == 0.0


def test_many_runs_of_few_settings_are_few_distributions():
    runs = [one_contribution(20.0 + i % 3, 50) for i in range(500)]
    assert len(account_together(runs, DELTA).cost.steps) == 3


RUNS = st.one_of(
    st.builds(
        lambda noise, memory, unit: closed(ledger([(1.0, noise, 10)], memory=memory, unit=unit)),
        st.sampled_from([0.5, 2.0, 10.0]),
        st.sampled_from(["auxiliary", "none"]),
        st.sampled_from(["example", "shard", "user"]),
    ),
    st.builds(
        lambda noise, rate, relation: one_contribution(noise, 20, rate=rate, relation=relation),
        st.sampled_from([1.0, 4.0]),
        st.sampled_from([0.04, 1.0]),
        st.sampled_from(["zero-out", "replace-one"]),
    ),
    st.builds(lambda noise: closed(poisson([(1.0, noise, 20)])), st.sampled_from([1.0, 4.0])),
)


@settings(max_examples=int(os.environ.get("DPDT_EXAMPLES", "20")))
@given(st.lists(RUNS, min_size=1, max_size=3), st.data())
def test_a_total_is_never_below_a_part_and_does_not_depend_on_order(runs, data):
    found = account_together(runs, DELTA).epsilon
    assert found >= max(account(run, DELTA).epsilon for run in runs) * (1 - 1e-9)
    assert account_together(data.draw(st.permutations(runs)), DELTA).epsilon == found
    fewer = account_together(runs[:-1], DELTA).epsilon
    assert fewer <= found * (1 + 1e-9)
    more = account_together([*runs, data.draw(RUNS)], DELTA).epsilon
    assert more >= found * (1 - 1e-9)
