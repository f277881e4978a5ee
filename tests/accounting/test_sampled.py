"""A sampled step's distribution: dp-accounting's, to the bit, all places at once."""

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import example, given
from hypothesis import strategies as st

from dpdt.accounting.sampled import distribution


def masses(found):
    for one in (found._pmf_remove, found._pmf_add):
        one = one.to_dense_pmf()
        yield one._lower_loss, one._infinity_mass, np.asarray(one._probs)


@given(st.floats(1e-6, 0.999999), st.floats(1e-3, 6.0), st.sampled_from([1e-2, 1e-3, 5e-3]))
@example(1e-17, 1.0, 1e-3)
@example(0.5, 0.02, 1e-4)
@example(1.0 - 2.0**-53, 1.0, 1e-3)
@example(float(-np.expm1(-0.01)), 1.0, 1e-3)  # the largest loss is a place of the grid
@example(float(-np.expm1(-0.693)), 3.0, 1e-3)
def test_it_is_the_one_of_dp_accounting(rate, mu, interval):
    theirs = from_gaussian_mechanism(
        1.0 / mu, sampling_prob=rate, value_discretization_interval=interval
    )
    ours = distribution(rate, mu, interval)
    for mine, other in zip(masses(ours), masses(theirs), strict=True):
        assert mine[:2] == other[:2]
        assert np.array_equal(mine[2], other[2])


def test_places_are_not_looked_for_one_by_one(monkeypatch):
    def alone(*_):
        raise AssertionError("one place at a time takes most of the time")

    monkeypatch.setattr(GaussianPrivacyLoss, "inverse_privacy_loss", alone)
    with pytest.raises(AssertionError):
        from_gaussian_mechanism(0.5, sampling_prob=0.01, value_discretization_interval=1e-2)
    assert distribution(0.01, 2.0, 1e-2).get_epsilon_for_delta(1e-5) > 0.0
