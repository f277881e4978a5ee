"""What correlated noise, and groups that take turns, cost a record."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdt import account
from dpdt.accounting.composition import cost_of
from dpdt.errors import InputError
from dpdt.ledger import Ledger, Stretch
from tests.test_bands import TWO, written_out

from .test_composition import ledger
from .test_poisson import poisson


def run(moves, c, *, M, horizon=None, **options):
    """A run in which a record moves step t by moves[t], in units of its noise (K = 4)."""
    options = {"memory": "none", **options}
    return ledger(
        [(2.0 * r, 1.0, 1) for r in moves], M=M, coefficients=c,
        horizon=len(moves) if horizon is None else horizon, **options,
    )  # fmt: skip


def squared(found):
    return account(found, 1e-5).guarantees[0].mu ** 2


def test_the_numbers_of_the_specification():
    three = (1.0, 0.5, 0.25)
    assert squared(run([1.0] * 6, three, M=2)) == pytest.approx(3.8173881614, abs=1e-9)
    assert squared(run([1.0] * 9, three, M=3)) == pytest.approx(3.0, abs=1e-12)
    moves = (0.2, 0.2, 0.1, 0.1, 0.1, 0.1)
    assert squared(run(moves, TWO, M=2)) == pytest.approx(0.06, abs=1e-12)
    for options in ({"memory": "auxiliary"}, {"unit": "shard"}, {"reshuffle": True}):
        found = squared(run(moves, TWO, M=2, **options))
        assert found == pytest.approx(0.1929442719, abs=1e-9)


def test_the_paper_setting_of_the_specification():
    """K = 40, C = 0.1, σ = 0.02, ten epochs; as many bands as mini-batches."""
    found = ledger(
        [(0.1, 0.02, 200)], K=40, M=20, memory="none", coefficients=(1.0,) + (0.5,) * 19,
        horizon=200,
    )  # fmt: skip
    proven = account(found, 1e-5).proven
    assert proven.mu == pytest.approx(0.790569415, abs=1e-9)
    assert proven.epsilon == pytest.approx(3.34140947, abs=1e-7)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    st.integers(1, 5),
)
def test_against_the_written_out_matrix(moves, rest, M):
    c, steps = (1.0, *rest), len(moves)
    products = np.outer(moves, moves) * (written_out(c, steps).T @ written_out(c, steps))
    worst = max(
        products[np.ix_(p, p)].sum() for p in (range(m, steps, M) for m in range(min(M, steps)))
    )
    assert squared(run(moves, c, M=M)) == pytest.approx(worst, rel=1e-9)
    assert squared(run(moves, c, M=M, reshuffle=True)) == pytest.approx(products.sum(), rel=1e-9)


def test_a_run_that_stopped_early_costs_no_more_than_it_would_have():
    c = (1.0, 0.8, 0.6)
    whole = run([1.0] * 12, c, M=2)
    early = run([1.0] * 7, c, M=2, horizon=12)
    matrix = written_out(c, 12)[:7, :7]  # what was released so far
    exact = max((matrix[:, m::2] @ np.ones(len(range(m, 7, 2)))) @ (matrix[:, m::2] @ np.ones(
        len(range(m, 7, 2)))) for m in range(2))  # fmt: skip
    assert exact <= squared(early) < squared(whole)


def test_steps_that_are_taken_again_add_up():
    c = (1.0, 0.5, 0.25)
    once = run([1.0] * 8, c, M=2)
    twice = replace(
        once, runs=[*once.runs, Stretch(setting=once.runs[0].setting, steps=4, start=4)]
    )
    again = run([1.0] * 4, c, M=2)  # from step 4 to the end, with columns as there
    assert squared(twice) == pytest.approx(squared(once) + squared(again))


def test_without_noise_nothing_is_proven():
    found = ledger([(1.0, 0.0, 4)], memory="none", coefficients=(1.0, 0.5), horizon=4)
    assert math.isinf(account(found, 1e-5).guarantees[0].epsilon)


@pytest.mark.parametrize("memory", ["none", "auxiliary"])
def test_only_composition_speaks_of_correlated_noise(memory):
    found = ledger(
        [(1.0, 5.0, 10)], memory=memory, coefficients=(1.0, 0.5), horizon=10, weight_decay=0.1
    )
    spoken = [g for g in account(found, 1e-5).guarantees if math.isfinite(g.epsilon)]
    assert [g.accountant for g in spoken] == ["composition"]
    for other in account(found, 1e-5).guarantees[1:]:
        assert "independent over steps" in next(c.why for c in other.conditions if not c.holds)


class TestGroups:
    """Cyclic Poisson sampling: the record of a group joins every G-th step by a coin."""

    def grouped(self, runs, *, groups=5, bands=5, **options):
        c = (1.0,) * bands
        steps = sum(number for _, _, number in runs)
        return poisson(
            runs, groups=groups, coefficients=c, horizon=steps, rate=0.2, per_example=True,
            **options,
        )  # fmt: skip

    def test_is_as_many_sampled_steps_as_a_group_has_turns(self):
        expected = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
        expected.compose(PoissonSampledDpEvent(0.2, GaussianDpEvent(1.5)), 11)
        found = account(self.grouped([(1.0, 1.5 / 4, 52)]), 1e-5)
        assert found.epsilon == pytest.approx(expected.get_epsilon(1e-5))
        assert found.proven.accountant == "composition"

    def test_the_dearest_group_counts(self):
        """Step 7, of group 2, has hardly any noise."""
        runs = [(1.0, 0.375, 7), (1.0, 0.2, 1), (1.0, 0.375, 2)]
        expected = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
        for multiplier in (1.5, 0.8):
            expected.compose(PoissonSampledDpEvent(0.2, GaussianDpEvent(multiplier)), 1)
        found = account(self.grouped(runs), 1e-5).epsilon
        assert found == pytest.approx(expected.get_epsilon(1e-5))

    def test_steps_taken_again_count_again(self):
        once = self.grouped([(1.0, 0.375, 10)])
        again = Stretch(setting=once.runs[0].setting, steps=6, start=4)
        expected = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
        expected.compose(PoissonSampledDpEvent(0.2, GaussianDpEvent(1.5)), 4)  # 4, 9, 4, 9
        found = account(replace(once, runs=[*once.runs, again]), 1e-5).epsilon
        assert found == pytest.approx(expected.get_epsilon(1e-5))

    def test_more_bands_than_groups_are_not_accounted(self):
        first = account(self.grouped([(1.0, 0.375, 50)], groups=4), 1e-5).guarantees[0]
        assert math.isinf(first.epsilon)
        assert not first.valid
        alone = account(self.grouped([(1.0, 0.375, 50)], groups=1), 1e-5).guarantees[0]
        assert not alone.valid

    def test_replacing_is_not_accounted_but_in_sums_over_runs(self):
        replaced = self.grouped([(1.0, 0.375, 50)], relation="replace-one")
        assert math.isinf(account(replaced, 1e-5).guarantees[0].epsilon)
        mu = cost_of(self.grouped([(1.0, 0.375, 50)]), "replace-one").mu
        assert mu == pytest.approx(2 * math.sqrt(10) / 1.5)  # without sampling

    def test_at_rate_one_it_is_a_gaussian_mechanism(self):
        found = replace(self.grouped([(1.0, 0.375, 50)]).header, rate=1.0)
        sure = Ledger(found, self.grouped([(1.0, 0.375, 50)]).runs)
        assert cost_of(sure, "zero-out").mu == pytest.approx(math.sqrt(10) / 1.5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"coefficients": ()}, "coefficients"),
        ({"coefficients": (0.0, 1.0)}, "coefficients"),
        ({"coefficients": (1.0, -0.5)}, "coefficients"),
        ({"coefficients": (1.0, 0.5), "horizon": 9}, "made for 9"),
        ({"coefficients": (1.0,) * 2000, "horizon": 10}, "more than"),
        ({"coefficients": (1.0, 0.5), "horizon": 10**9, "steps": 10**8}, "at most 10,000,000"),
        ({"groups": 0}, "groups"),
        ({"groups": 2}, "groups"),
    ],
)
def test_a_ledger_that_no_run_writes_is_refused(options, why):
    steps = options.pop("steps", 10)
    with pytest.raises(InputError, match=why):
        account(ledger([(1.0, 1.0, steps)], memory="none", **options), 1e-5)
