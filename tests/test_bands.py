"""Correlated noise: numbers of the specification, and the algebra against written-out matrices."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdt import bands
from dpdt.bands import NONE, Smoothing
from dpdt.errors import InputError
from dpdt.noise import Correlated

TWO = (2 / math.sqrt(5), 1 / math.sqrt(5))
coefficients = st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda rest: (1.0, *rest))


def written_out(c, steps):
    """C, with columns of norm 1."""
    matrix = sum(np.diag(np.full(steps - i, x), -i) for i, x in enumerate(c) if i < steps)
    return matrix / np.linalg.norm(matrix, axis=0)


class Given(Correlated):
    """Draws what it is given."""

    def __init__(self, draws, **options):
        super().__init__(0, **options)
        self.draws = iter(draws)

    @property
    def _here(self):
        return self

    def standard_normal(self, size):
        return np.full(size, next(self.draws))


@pytest.mark.parametrize(
    ("z", "expected"),
    [
        ((1.0, 2.0, 3.0, 4.0), (1.1180339887, 1.6770509831, 2.5155764747, 2.875)),
        ((1.0, 0.0, 0.0, 0.0), (1.1180339887, -0.5590169944, 0.2795084972, -0.125)),
    ],
)
def test_the_stream_of_the_specification(z, expected):
    source = Given(z, coefficients=TWO, horizon=4)
    found = []
    for step in range(4):
        source.begin(step)
        found.append(float(source.gaussian(1)[0]))
    assert found == pytest.approx(expected, abs=1e-9)


@given(coefficients, st.integers(1, 9))
def test_the_stream_is_the_inverse_of_the_matrix(c, steps):
    z = np.random.default_rng(0).normal(size=steps)
    source = Given(z, coefficients=c, horizon=steps)
    found = []
    for step in range(steps):
        source.begin(step)
        found.append(float(source.gaussian(1)[0]))
    assert written_out(c, steps) @ found == pytest.approx(z, abs=1e-9)


@given(coefficients, st.integers(1, 9))
def test_products_of_columns(c, steps):
    matrix = written_out(c, steps)
    for lag in range(min(len(c), steps)):
        found = bands.gram(c, steps, np.arange(steps - lag), lag)
        assert found == pytest.approx(np.diag(matrix.T @ matrix, lag), abs=1e-12)


def test_the_best_four_bands_of_the_specification():
    """The optimum is flat: what counts is the error, to six digits."""
    c = bands.best(4, 800)
    unit = np.array(c) / np.linalg.norm(c)
    assert unit == pytest.approx((0.593857, 0.502711, 0.464904, 0.422469), abs=1e-4)
    moved = np.tril(np.ones((800, 800))) @ np.linalg.inv(written_out(c, 800))
    errors = np.sqrt((moved**2).sum(axis=1))
    assert math.sqrt((errors**2).mean()) == pytest.approx(10.2607, abs=1e-4)
    assert errors.max() == pytest.approx(14.3539, abs=1e-3)


def test_independent_noise_is_one_band():
    assert bands.best(1, 800) == (1.0,)
    assert bands.error((1.0,), 800) == pytest.approx(20.0125, abs=1e-4)
    assert bands.last_error((1.0,), 800) == pytest.approx(28.2843, abs=1e-4)


@pytest.mark.parametrize(
    "smoothing", [NONE, Smoothing(momentum=0.9), Smoothing(momentum=0.9, lead=0.5)]
)
def test_the_error_is_that_of_the_matrices(smoothing):
    """A sum of steps, each with its momentum, and an average of such sums."""
    smoothing = Smoothing(momentum=smoothing.momentum, lead=smoothing.lead, averaging=0.5)
    steps, c = 30, (1.0, 0.6, 0.3)
    late = np.eye(steps, k=-1)
    filters = np.linalg.inv(np.eye(steps) - smoothing.momentum * late)
    filters = filters @ (np.eye(steps) - smoothing.lead * late)
    filters *= (1 - smoothing.momentum) / (1 - smoothing.lead)
    average = np.linalg.inv(np.eye(steps) - 0.5 * late) * 0.5
    toeplitz = sum(np.diag(np.full(steps - i, x), -i) for i, x in enumerate(c))
    moved = average @ filters @ np.tril(np.ones((steps, steps))) @ np.linalg.inv(toeplitz)
    expected = np.linalg.norm(c) * math.sqrt((moved**2).sum() / steps)
    assert bands.error(c, steps, smoothing) == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.integers(2, 300), st.sampled_from([0.0, 0.9]), st.booleans())
def test_the_best_coefficients_never_grow_and_beat_independent_noise(number, steps, momentum, lead):
    smoothing = Smoothing(momentum=momentum, lead=0.5 if lead and momentum else 0.0)
    c = bands.best(number, steps, smoothing)
    assert len(c) == min(number, steps)
    assert c[0] == 1.0
    assert all(0.0 <= after <= before for before, after in pairwise(c))
    assert bands.error(c, steps, smoothing) <= bands.error((1.0,), steps, smoothing)
    for nudge in (0.9, 1.1):  # nothing near is better
        other = (1.0, *(min(1.0, x * nudge) for x in c[1:]))
        assert bands.error(c, steps, smoothing) <= bands.error(other, steps, smoothing) * (1 + 1e-4)


class TestOrder:
    """Steps follow each other, and each draws once."""

    @pytest.fixture
    def source(self):
        return Correlated(0, coefficients=(1.0, 0.5), horizon=8)

    def test_a_step_draws_once(self, source):
        source.begin(0)
        source.gaussian(3)
        with pytest.raises(InputError, match="drawn once in each step"):
            source.gaussian(3)

    def test_no_step_is_left_out_or_taken_again(self, source):
        source.begin(0)
        source.gaussian(3)
        for step in (0, 2):
            with pytest.raises(InputError, match=f"step {step} cannot follow"):
                source.begin(step)
        source.begin(1)

    def test_a_step_that_failed_before_its_noise_was_drawn(self, source):
        source.begin(0)
        with pytest.raises(InputError, match="step 0 cannot follow"):
            source.begin(0)
        source.restart(0)
        source.begin(0)

    def test_going_on_elsewhere_forgets_the_noise_before(self, source):
        source.begin(0)
        source.gaussian(3)
        source.restart(5)
        twin = Correlated(0, coefficients=(1.0, 0.5), horizon=8)
        twin.begin(0)
        twin.gaussian(3)
        z = np.random.Generator(twin._generator.bit_generator).standard_normal(3)
        source.begin(5)
        assert source.gaussian(3) == pytest.approx(z * math.hypot(1.0, 0.5))
