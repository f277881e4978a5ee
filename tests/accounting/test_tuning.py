"""The best of a random number of runs: the bound, against what such a choice does exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from dpdt.accounting import account, account_together, tuning
from dpdt.accounting.calibrate import scaled
from dpdt.accounting.cost import Cost, Tune
from dpdt.config import load, plan_of
from dpdt.errors import InputError
from dpdt.ledger import Planned, Tuned

DELTA = 1e-5


def bound(cost, runs, relation="zero-out", delta=DELTA):
    return Cost(tunes=(Tune(runs=runs, costs=(cost,)),)).epsilon(relation, delta)


def exact(mu, runs, better, delta=DELTA):
    """ε of the best of K draws from N(0, 1) against N(μ, 1), by numbers on a grid.

    `better(x, mean)` is the probability that a draw from N(mean, 1) is better than x. K is Poisson
    and not 0, summed term by term.
    """
    x = np.linspace(-12.0, 12.0 + mu, 100_001)
    numbers = np.arange(1, 300)
    weights = np.exp(-runs + numbers * math.log(runs) - gammaln(numbers + 1))
    weights /= weights.sum()

    def density(mean):
        worse = 1.0 - better(x, mean)
        return norm.pdf(x, mean) * sum(
            w * k * worse ** (k - 1.0) for k, w in zip(numbers, weights, strict=True) if w > 1e-14
        )

    one, other = density(0.0), density(mu)
    step = x[1] - x[0]
    assert one.sum() * step == pytest.approx(1.0, abs=1e-6)

    def delta_of(epsilon):
        both = ((one, other), (other, one))
        return max(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * step for p, q in both)

    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


ORDERS = {  # what is best: the largest, the smallest, what is near a number
    "largest": lambda x, mean: norm.sf(x, mean),
    "smallest": lambda x, mean: norm.cdf(x, mean),
    "near 3": lambda x, mean: norm.cdf(3 + abs(x - 3), mean) - norm.cdf(3 - abs(x - 3), mean),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.5])
@pytest.mark.parametrize("runs", [0.5, 3.0, 10.0])
def test_the_bound_covers_the_exact_choice_and_is_not_far_from_it(order, mu, runs):
    truth, found = exact(mu, runs, ORDERS[order]), bound(Cost(mu=mu), runs)
    assert truth <= found
    if order != "near 3":  # which is not the worst
        assert found <= (1.2 + 0.08 * runs) * truth


@pytest.mark.parametrize("runs", [0.5, 3.0, 10.0])
def test_a_rare_result_that_is_always_kept_is_as_dear_as_the_bound_says(runs):
    rare, rarer, order = 1e-3, 1e-6, tuning.ORDERS

    def divergence(p, q):
        terms = [order * np.log(a) + (1 - order) * np.log(b) for a, b in ((p, q), (1 - p, 1 - q))]
        return np.logaddexp(*terms) / (order - 1)

    def kept(p):  # the probability that any of the runs has it
        return math.expm1(-runs * p) / math.expm1(-runs)

    relief = np.exp(tuning.RELIEF)
    deltas = np.maximum(0.0, np.maximum(rare - relief * rarer, 1 - rarer - relief * (1 - rare)))
    truth = divergence(kept(rare), kept(rarer))
    found = tuning.chosen(divergence(rare, rarer), deltas, runs)
    assert np.all(truth <= found)
    high = order > 3
    assert np.all(found[high] < 1.02 * truth[high])


def test_more_runs_cost_more_and_one_costs_what_it_does_by_itself():
    found = [bound(Cost(mu=0.5), runs) for runs in (1e-6, 1.0, 3.0, 10.0, 30.0)]
    assert found == sorted(found)
    alone = Cost(mu=0.5).epsilon("zero-out", DELTA)
    assert alone <= found[0] <= 1.15 * alone


@pytest.mark.parametrize(("rate", "mu"), [(0.01, 0.5), (0.1, 1.0), (0.9, 0.3), (0.2, 4.0)])
def test_divergences_under_sampling_are_those_of_the_sum_over_binomials(rate, mu):
    for order in (2, 5, 40):
        k = np.arange(order + 1)
        terms = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms += k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) * mu**2 / 2
        wanted = logsumexp(terms) / (order - 1)
        assert tuning._divergence(order, rate, mu, False) == pytest.approx(wanted, rel=1e-8)


@pytest.mark.parametrize("order", [1.5, 2.5, 7.0])
def test_divergences_where_one_is_replaced(order):
    def mixed(x, mean):
        return 0.7 * norm.pdf(x) + 0.3 * norm.pdf(x, mean)

    area, _ = quad(lambda x: mixed(x, 1.0) ** order * mixed(x, -1.0) ** (1 - order), -12, 12)
    wanted = math.log(area) / (order - 1)
    assert tuning._divergence(order, 0.3, 1.0, True) == pytest.approx(wanted, rel=1e-6)


def test_sampling_never_counts_more_than_none_and_is_left_out_where_it_is_hopeless():
    for mu in (0.1, 1.0, 25.0):
        for replaced in (False, True):
            all_take_part = tuning.ORDERS * (mu * (1 + replaced)) ** 2 / 2
            assert np.all(tuning.sampled(0.5, mu, replaced) <= all_take_part)
    assert np.array_equal(tuning.sampled(0.5, 25.0, False), tuning.ORDERS * 25.0**2 / 2)


def test_the_dearest_setting_counts():
    dear, cheap = Cost(mu=1.0), Cost(steps=((0.1, 0.1, 10),), everyone=math.sqrt(0.1))
    both = Tune(runs=5.0, costs=(cheap, dear))
    assert Cost(tunes=(both,)).epsilon("zero-out", DELTA) == bound(dear, 5.0)
    assert bound(cheap, 5.0) < bound(dear, 5.0)


def test_costs_without_noise_are_infinite():
    assert bound(Cost(mu=math.inf), 3.0) == math.inf
    assert bound(Cost(steps=((0.1, math.inf, 1),), everyone=math.inf), 3.0) == math.inf
    assert bound(Cost(), 3.0) < 0.2  # nothing was done


def test_a_tune_and_other_runs_add_up():
    tune, run = Cost(tunes=(Tune(runs=5.0, costs=(Cost(mu=0.5),)),)), Cost(mu=0.5)
    one = tune.epsilon("zero-out", DELTA)
    together = Cost.sum([tune, run]).epsilon("zero-out", DELTA)
    twice = Cost.sum([tune, tune]).epsilon("zero-out", DELTA)
    assert one < together < one + 1.2 * run.epsilon("zero-out", DELTA)
    assert together < twice < 2 * one


# Ledgers


@pytest.fixture(scope="module")
def plain():
    """A planned run with a bound on its last iterate, and a claim of the paper's."""
    sets = ("method.sampling=partition", "method.memory=none", "method.auxiliaries=20",
            "method.lr=0.1", "method.penalty=1.0", "method.averaging=0.0",
            "method.preconditioner=identity", "train.epochs=5", "train.batch_size=100",
            "model.radius=1.0", "privacy.release=last", "method.weight_decay=0.01")  # fmt: skip
    return plan_of(load("digits", sets)).ledger()


def tuned(ledger, *others, runs=5.0, noise=10.0, chosen=True):
    plans = [Planned(header=one.header, runs=tuple(one.runs)) for one in (ledger, *others)]
    record = Tuned(runs=runs, noise=noise, candidates=tuple(plans), chosen=chosen)
    return replace(ledger, tuned=record)


def test_no_accountant_says_less_than_the_tune(plain):
    alone, chosen = account(plain, DELTA), account(tuned(plain), DELTA)
    assert chosen.proven.accountant == "composition"
    assert chosen.epsilon > 1.2 * alone.guarantees[0].epsilon
    assert [g.accountant for g in chosen.guarantees if g.valid] == ["composition"]
    assert sum(g.valid for g in alone.guarantees) > 1  # a bound on the last iterate held
    assert chosen.proven.mu is None
    assert "the best of a random number of runs" in str(chosen)


def test_the_score_is_part_of_what_is_counted(plain):
    found = [account(tuned(plain, noise=noise), DELTA).epsilon for noise in (0.0, 20.0, 0.5)]
    assert found[0] == found[1]  # an example is trained on or scored on, never both
    assert found[2] > 1.2 * found[0]
    dear = Cost(tunes=(Tune(runs=5.0, costs=(Cost(mu=2.0),)),))
    assert found[2] == dear.epsilon("replace-one", DELTA)


def test_a_dearer_candidate_counts_although_another_was_chosen(plain):
    dearer = scaled(plain, 0.5)
    assert account(tuned(plain, dearer), DELTA).epsilon == account(tuned(dearer), DELTA).epsilon


def test_steps_that_cost_more_than_planned_count(plain):
    whole = replace(tuned(plain), runs=scaled(plain, 0.5).runs)
    assert account(whole, DELTA).epsilon > 1.5 * account(tuned(plain), DELTA).epsilon


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda g: replace(g, tuned=replace(g.tuned, chosen=False)), "not the one that leaves"),
        (lambda g: replace(g, forks=["0" * 32]), "steps were taken again"),
        (lambda g: replace(g, runs=[*g.runs, g.runs[0]]), "steps were taken again"),
        (lambda g: tuned(replace(g, header=replace(g.header, unit="user"))), "covers one example"),
        (lambda g: tuned(g, replace(g, header=replace(g.header, private=False))), "fixed seed"),
    ],
)
def test_what_is_not_a_tune_proves_nothing(plain, change, why):
    found = account(change(tuned(plain)), DELTA)
    assert found.proven is None
    assert why in str(found)
    assert account_together([change(tuned(plain))], DELTA).epsilon == math.inf


def test_a_tune_that_has_begun_costs_all_of_it(plain):
    begun = replace(tuned(plain, chosen=False), runs=[], closed=False)
    whole = account_together([tuned(plain)], DELTA)
    assert account_together([begun], DELTA).epsilon == whole.epsilon
    assert whole.epsilon == account(tuned(plain), DELTA).epsilon
    assert "a tune" in whole.how
    assert account_together([tuned(plain), plain], DELTA).epsilon > whole.epsilon


def test_other_relations_of_the_total_count_the_candidates_under_it():
    sampled = plan_of(load("digits", ("train.epochs=1", "train.batch_size=300"), "dpsgd")).ledger()
    partition = plan_of(
        load("digits", ("method.sampling=partition", "method.memory=none", "method.lr=0.1",
                        "method.penalty=1.0", "method.averaging=0.0", "train.epochs=2",
                        "train.batch_size=300"))
    ).ledger()  # fmt: skip
    own = account_together([tuned(sampled)], DELTA)
    both = account_together([tuned(sampled), scaled(partition, 1e6)], DELTA)
    assert (own.relation, both.relation) == ("zero-out", "replace-one")
    assert both.epsilon > 1.1 * own.epsilon  # and the other run costs next to nothing


def test_candidates_that_no_run_has_are_refused(plain):
    odd = replace(plain, header=replace(plain.header, batches=0))
    with pytest.raises(InputError, match="batches"):
        account(tuned(plain, odd), DELTA)
