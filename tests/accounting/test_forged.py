"""Ledgers whose fields no run can have: none counts for little, and none hides others."""

import math
from dataclasses import replace

import pytest

from dpdt.accounting import account, check_ledger
from dpdt.accounting.gaussian import epsilon_of
from dpdt.accounting.several import together
from dpdt.errors import InputError

from .test_composition import ledger

DELTA = 1e-5


def closed(found):
    found.closed = True
    return found


def changed(found, **fields):
    (run,) = found.runs
    found.runs[0] = replace(run, setting=replace(run.setting, **fields))
    return found


def test_what_is_no_number_bounds_nothing():
    """A μ that is NaN counted as ε = 0, and wiped out the total of every honest run beside it."""
    assert epsilon_of(math.nan, DELTA) == math.inf
    honest = closed(ledger([(1.0, 5.0, 5)]))
    broken = closed(ledger([(1.0, math.nan, 5)]))
    assert together([honest, broken], DELTA).epsilon == math.inf


@pytest.mark.parametrize("c", [1e200, 1.1e154, 1e-170])
def test_coefficients_whose_squares_are_no_numbers_are_refused(c):
    """ε ≤ 6.706 was verified where the same noise, written as (1, 1), gives 9.582."""
    found = ledger([(1.0, 5.0, 5)], coefficients=(c, c), horizon=5, memory="none")
    with pytest.raises(InputError, match="the ledger has the coefficients"):
        account(closed(found), DELTA)


@pytest.mark.parametrize("name", ["clip", "noise"])
@pytest.mark.parametrize("value", [5e-324, 1e-101, 1e101])
def test_clips_and_noise_that_float64_cannot_square_are_refused(name, value):
    """Clip and noise of 5e-324 gave ε ≤ 0."""
    with pytest.raises(InputError, match=f"the ledger has a {name} of"):
        account(closed(changed(ledger([(1.0, 5.0, 5)]), **{name: (value,)})), DELTA)


@pytest.mark.parametrize(
    "fields",
    [
        {"spacing": (2.0**40,)},
        {"spacing": (2.0**40,), "rounding": (0.0,)},
        {"spacing": (3.0,), "rounding": (100.0,)},
        {"spacing": (0.5,), "rounding": (1.0,), "grid": (0.25,)},
        {"spacing": (0.5,), "rounding": (1.0,), "grid": (0.0,)},
    ],
)
def test_a_lattice_that_swallows_the_noise_is_refused(fields):
    with pytest.raises(InputError, match="the ledger has a lattice"):
        account(closed(changed(ledger([(1.0, 5.0, 5)]), **fields)), DELTA)


def test_a_lattice_that_is_accounted_is_taken():
    found = changed(ledger([(1.0, 5.0, 5)]), spacing=(0.5,), grid=(0.5,), rounding=(1.0,))
    check_ledger(closed(found))


def test_no_memory_is_taken_for_mini_batches_that_were_never_reached():
    options = {"coefficients": (1.0, 0.5), "horizon": 5, "memory": "none"}
    few = account(closed(ledger([(1.0, 5.0, 5)], M=5, **options)), DELTA).epsilon
    assert account(closed(ledger([(1.0, 5.0, 5)], M=2**62, **options)), DELTA).epsilon == few


def test_a_partition_proves_nothing_where_the_number_of_examples_is_private():
    found = closed(ledger([(1.0, 5.0, 5)], relation="add-remove", memory="none"))
    privacy = account(found, DELTA)
    assert privacy.proven is None
    assert "dealt by their number" in privacy.table()
