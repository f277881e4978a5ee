"""Noise on a lattice: the right distribution, and no low bits that give the sum away."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpdt.lattice import grid, spacing
from dpdt.mechanism import perturbed
from dpdt.noise import Randomness

DRAWS = 200_000
SIGMA = 1.3


def release(total, *, divisor=1, noise=SIGMA, lattice=0.5, coarse=None, source=None):
    total = torch.as_tensor(total, dtype=torch.float64)
    source = source or Randomness(0)
    given = {"divisor": divisor, "noise": noise, "spacing": lattice, "source": source}
    return perturbed(total, grid=coarse or lattice, **given).numpy()


def p_value(released, mean, noise, lattice):
    """χ² of what was released against exact probabilities of ⌊mean⌉ + ⌊z⌉."""
    units = np.rint(released / lattice) - np.rint(mean / lattice)
    far = int(np.ceil(4 * noise / lattice))
    edges = (np.arange(-far, far + 2) - 0.5) * lattice / noise
    edges[0], edges[-1] = -np.inf, np.inf
    expected = np.diff(stats.norm.cdf(edges)) * len(released)
    found = np.bincount((np.clip(units, -far, far) + far).astype(int), minlength=2 * far + 1)
    return stats.chisquare(found, expected).pvalue


@pytest.mark.parametrize("mean", [0.0, 0.2, 0.3, -7.9, 1e6 + 0.1])
def test_what_is_released_has_the_exact_probabilities_of_a_rounded_gaussian(mean):
    released = release(np.full(DRAWS, 3 * mean), divisor=3)
    assert p_value(released, mean, SIGMA, 0.5) > 1e-6
    # the test has teeth
    assert p_value(released, mean, SIGMA * 1.02, 0.5) < 1e-6
    assert p_value(released + 0.5, mean, SIGMA, 0.5) < 1e-6


@given(
    clip=st.floats(1e-12, 1e12),
    size=st.integers(1, 10_000),
    divisor=st.integers(1, 10**6),
    ratio=st.floats(1e-3, 1e3),
    blocks=st.integers(1, 3),
)
def test_every_release_lies_on_the_lattice(clip, size, divisor, ratio, blocks):
    """However large or small clip, noise, divisor and block are, and with blocks side by side."""
    number = 24 * blocks
    s = np.repeat([spacing(clip, size + i, divisor) for i in range(blocks)], 24)
    total = np.random.default_rng(0).normal(size=number) * clip
    released = release(
        total, divisor=divisor, noise=torch.full((number,), clip * ratio), lattice=torch.tensor(s)
    )
    assert np.array_equal(released / s, np.rint(released / s))  # s is a power of two: exact
    assert len(np.unique(released)) > number // 2


def finer_than(released, grid):
    """Among releases near 0: the share that lies between the multiples of a grid."""
    near = released[np.abs(released) < 0.25]
    return np.mean(near / grid != np.rint(near / grid))


def test_low_bits_tell_nothing():
    """Of sums 0 and 1: a float near 0 has bits that 1 + z, which was rounded at 1, cannot have.

    One release near 0 with such bits tells that the sum was 0, whatever ε is. On the lattice both
    sums leave the same values behind.
    """
    s = spacing(1.0, 1, 1)
    zeros, ones = np.zeros(DRAWS), np.ones(DRAWS)
    floats = [
        total + SIGMA * Randomness(i).gaussian(DRAWS) for i, total in enumerate((zeros, ones))
    ]
    assert finer_than(floats[0], 2.0**-53) > 0.5
    assert finer_than(floats[1], 2.0**-53) == 0.0

    rounded = [
        release(total, lattice=s, source=Randomness(i)) for i, total in enumerate((zeros, ones))
    ]
    for released in rounded:
        assert finer_than(released, s) == 0.0
    # What is left of the low bits is alike for both: where on the lattice, modulo a few bits.
    low = [np.bincount((released / s).astype(int) % 16, minlength=16) for released in rounded]
    assert stats.chi2_contingency(low).pvalue > 1e-6


def test_nearby_sums_leave_the_same_values():
    """Sums that differ by less than the spacing, and round alike, cannot be told apart at all."""
    first = release(np.full(1000, 0.1), source=Randomness(1))
    assert np.array_equal(first, release(np.full(1000, 0.2), source=Randomness(1)))
    assert not np.array_equal(first, release(np.full(1000, 0.3), source=Randomness(1)))


def parities(lattice, coarse):
    """How often a release is an odd multiple of its own spacing, for an even and an odd sum."""
    shares = []
    for units in (0.0, 1.0):
        total = np.full(DRAWS, units * lattice)
        released = release(total, noise=1.0, lattice=lattice, coarse=coarse, source=Randomness(7))
        shares.append(np.mean(np.rint(released / coarse) % 2))
    return shares


@pytest.mark.parametrize("bits", [40, 48, 52, 60])
def test_parity_tells_nothing_where_noise_is_large(bits):
    """σ/s = 2⁴⁰ and more: z/s has few bits behind the point, or none, and then it is even.

    So the parity of what was released told the parity of the sum: on a model in float64 ε = 1.27
    was printed where this alone gave 49. On the grid that is published both sums look alike.
    """
    s = 2.0**-bits
    if bits == 52:  # without the grid: multiples of 2 wherever |z| is large
        plain = parities(s, s)
        assert plain[1] - plain[0] > 0.1
    coarse = grid(1.0, s)
    assert coarse == 2.0**-20
    even, odd = parities(s, coarse)
    assert abs(even - 0.5) < 0.01
    assert abs(odd - even) < 1e-4


def test_the_grid_is_never_finer_than_the_lattice():
    assert grid(1.3, 0.5) == 0.5
    assert grid(0.0, 0.25) == 0.25  # no noise, as tests have it
    assert grid(3.0, 0.0) == 0.0
