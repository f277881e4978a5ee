import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf, ncdf
from scipy.special import log_ndtr as scipy_log_ndtr

from dpdt.accounting.gaussian import FAR, epsilon_of, log_delta, log_ndtr


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.5, 1.99309), (1, 4.37718), (10, 91.8173), (100, 5425.51)]
)
def test_published_values(mu, epsilon):
    assert epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=2e-6)


@pytest.mark.parametrize("mu", [1e-3, 1e-2, 0.3, 3.0, 50.0, 1e3, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_result_is_a_tight_upper_bound_in_high_precision(mu, delta):
    epsilon = epsilon_of(mu, delta)
    mp.prec = 400

    def exact(e):
        e, m = mpf(e), mpf(mu)
        return ncdf(-e / m + m / 2) - mp.exp(e) * ncdf(-e / m - m / 2)

    assert exact(epsilon) <= mpf(delta) * (1 + mpf(10) ** -6)
    if epsilon > 0:
        assert exact(epsilon * (1 - 1e-6)) > delta


@settings(max_examples=200)
@given(st.floats(1e-3, 1e4), st.floats(1e-12, 0.5))
def test_monotone(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert epsilon_of(mu * 1.01, delta) >= epsilon
    assert epsilon_of(mu, delta / 2) >= epsilon


def test_edges():
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(1e-9, 1e-5) == 0.0
    assert log_delta(1e6, 1.0) == -math.inf or log_delta(1e6, 1.0) < -1e9


def test_log_ndtr_is_that_of_scipy():
    """Also far out, where Φ leaves the range of float64, and where the formulas change."""
    places = [*np.linspace(-60.0, 9.0, 700), *-np.logspace(1.5, 150.0, 50), FAR, FAR + 1e-12, 0.0]
    for x in map(float, places):
        assert log_ndtr(x) == pytest.approx(float(scipy_log_ndtr(x)), rel=2e-14, abs=0.0)
    assert log_ndtr(math.inf) == 0.0
    assert log_ndtr(-math.inf) == -math.inf
