"""What ranks hold, read, draw and add up."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from dpdt.distributed.share import share
from dpdt.distributed.world import CHECKSUMS, World, checksum
from tests.distributed.cases import contributions, examples, held_and_read, noise_of


@pytest.mark.parametrize("number", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shares_are_even_and_cover_everything_once(number, size):
    shares = [share(number, rank, size) for rank in range(size)]
    assert [i for one in shares for i in one] == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("name", ["auxiliary", "auxiliary rmsprop", "auxiliary per example"])
def test_a_rank_remembers_its_own_auxiliaries_and_reads_its_own_examples(group, name):
    alone, ranks = held_and_read(name), group.each(held_and_read, name)
    whole = alone["kept"]["multiplier"][0]
    for rank, found in enumerate(ranks):
        mine = share(whole, rank, len(ranks))
        assert found["kept"].keys() == alone["kept"].keys()
        for kept, shape in found["kept"].items():
            assert shape == [len(mine), *alone["kept"][kept][1:]]
        assert all(numbers == tuple(mine) for numbers in found["numbers"])
    assert not set.intersection(*(found["read"] for found in ranks))  # in the whole run
    assert set.union(*(found["read"] for found in ranks)) == alone["read"]


@pytest.mark.parametrize("name", ["none poisson", "shared per example"])
def test_sampled_examples_are_read_by_the_rank_of_their_number(group, name):
    """So nobody's rank depends on who else was drawn."""
    alone, ranks = held_and_read(name), group.each(held_and_read, name)
    for rank, found in enumerate(ranks):
        mine = share(40, rank, len(ranks))
        expected = [tuple(n for n in numbers if n in mine) for numbers in alone["numbers"]]
        assert found["numbers"] == expected
        assert found["read"] <= set(mine)


MEMORIES = [
    {"memory": "none", "auxiliaries": 4},
    {"memory": "auxiliary", "auxiliaries": 4},
    {"memory": "none", "sampling": "poisson"},
    {"method": "dpsgd", "lr": 1.0, "momentum": 0.0},
]


@pytest.mark.parametrize("options", MEMORIES, ids=str)
def test_the_noise_has_the_variance_that_is_accounted_whatever_the_number_of_ranks(group, options):
    """Noise of every rank would have as many times the variance as there are ranks."""
    for runs in ([noise_of(options)], group.each(noise_of, options)):
        for found in runs:
            assert found["secrets"] == runs[0]["secrets"]
            for step, moved in enumerate(found["moved"]):
                assert np.array_equal(moved, runs[0]["moved"][step])
                # 20,000 draws: the standard deviation of the estimate is half a percent
                assert abs(moved.std() / found["sigma"] - 1.0) < 0.03
            first, second = found["moved"][:2]
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_every_run_has_noise_of_its_own(group):
    first, second = (group.each(noise_of, MEMORIES[0])[0] for _ in range(2))
    assert abs(np.corrcoef(first["moved"][0], second["moved"][0])[0, 1]) < 0.05


@pytest.mark.parametrize("name", ["auxiliary", "none partition", "shared partition"])
@pytest.mark.parametrize("scale", [1.0, 1e20, torch.nan])
def test_one_record_moves_the_mean_of_all_ranks_by_no_more_than_is_accounted(group, name, scale):
    x, y = examples()
    for target in (0, 17, 39):
        changed = x.clone()
        changed[target] = scale * torch.randn(6)
        both = [group.each(contributions, name, data) for data in ((x, y), (changed, y))]
        for one, other in zip(*both, strict=True):
            ends = np.cumsum([0, *one["sizes"]])
            first = one["means"][0], other["means"][0]  # θ is the same in the first step alone
            for (a, b), limit in zip(pairwise(ends), one["limits"][0], strict=True):
                moved = first[0][a:b].astype(np.longdouble) - first[1][a:b]
                assert np.sqrt((moved**2).sum()) <= limit


def differ(rank_that_differs):
    world = World.join()
    same = torch.ones(700) + (world.rank == rank_that_differs) * 1e-6
    with world.telling():
        return world.sum(torch.ones(3, dtype=torch.float64), (2.0,), same)


def test_ranks_that_hold_other_parameters_void_the_run(group):
    size = len(group.pipes)
    for total, numbers in group.each(differ, None):
        assert total.tolist() == [size] * 3
        assert numbers == [2.0 * size]
    for kind, text in group.errors(differ, size - 1):
        assert kind == "Tainted"
        assert "no longer hold the same parameters" in text


def test_a_checksum_depends_on_every_bit_and_place():
    t = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = {checksum(t)}
    for i in range(0, 1000, 37):
        other = t.clone()
        other[i] = torch.nextafter(other[i], torch.tensor(9.0))
        found.add(checksum(other))
    found.add(checksum(t.roll(1)))
    assert len(found) == 2 + len(range(0, 1000, 37))
    assert all(0 <= c < CHECKSUMS for c in found)
    assert checksum(t.double()) == checksum(t.double().clone())
