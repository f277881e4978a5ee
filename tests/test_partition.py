import math
from enum import StrEnum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpdt.errors import InputError
from dpdt.noise import Randomness
from dpdt.partition import Partition, PartitionOfUsers, PoissonSampler
from dpdt.users import Users


@given(st.integers(1, 200), st.integers(1, 7), st.integers(1, 12), st.booleans(), st.integers(0, 5))
def test_every_example_is_used_once_an_epoch_and_stays_with_its_auxiliary(n, M, K, reshuffle, seed):
    partition = Partition(examples=n, batches=M, auxiliaries=K, seed=seed, reshuffle=reshuffle)
    home = {}
    for epoch in range(3):
        seen = []
        for m in range(M):
            indices, sizes = partition.batch(epoch * M + m)
            assert len(sizes) == K
            assert sum(sizes) == len(indices)
            assert max(sizes) - min(sizes) <= 1
            for k, part in enumerate(np.split(indices, np.cumsum(sizes)[:-1])):
                for i in part:
                    assert home.setdefault(int(i), k) == k
            seen += indices.tolist()
        assert sorted(seen) == list(range(n))


def test_reshuffling_changes_the_mini_batch_and_fixed_does_not():
    def first(reshuffle, epoch):
        partition = Partition(examples=100, batches=5, auxiliaries=4, reshuffle=reshuffle)
        return partition.batch(5 * epoch)[0].tolist()

    assert first(False, 0) == first(False, 1)
    assert set(first(True, 0)) != set(first(True, 1))


def test_the_partition_is_seeded():
    def order(seed):
        return Partition(examples=50, batches=2, auxiliaries=5, seed=seed).batch(0)[0].tolist()

    assert order(0) == order(0)
    assert order(0) != order(1)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_all_of_a_users_examples_share_an_auxiliary(users, K, M):
    partition = PartitionOfUsers(batches=M, auxiliaries=K, users=Users.of(users, len(users)))
    home, seen = {}, []
    for m in range(M):
        indices, sizes = partition.batch(m)
        for k, part in enumerate(np.split(indices, np.cumsum(sizes)[:-1])):
            for i in part:
                assert home.setdefault(users[i], k) == k
        seen += indices.tolist()
    assert sorted(seen) == list(range(len(users)))


def test_users_are_dealt_by_rank_not_by_how_much_they_hold():
    """Where a user goes must not depend on how many examples anyone has."""

    def homes(users):
        partition = PartitionOfUsers(batches=1, auxiliaries=3, users=Users.of(users, len(users)))
        indices, sizes = partition.batch(0)
        owner = np.repeat(np.arange(3), sizes)
        return {users[i]: int(k) for i, k in zip(indices, owner, strict=True)}

    assert homes(list("abcdef")) == homes(list("aaaaaaaabcdefff"))


def test_users_need_one_owner_each():
    with pytest.raises(InputError, match="2 owners for 5 examples"):
        Users.of(["a", "b"], 5)


def poisson(n=400, rate=0.1, K=7, per_example=False, seed=0):
    return PoissonSampler(
        examples=n, rate=rate, auxiliaries=K, per_example=per_example, source=Randomness(seed)
    )


def test_poisson_batch_sizes_are_binomial_and_examples_independent():
    """Shuffling, equal dealing, truncation or skipped batches would all change this."""
    sampler, rounds = poisson(), 3000
    masks = np.zeros((rounds, 400), dtype=bool)
    for t in range(rounds):
        masks[t, sampler.batch(t)[0]] = True
    sizes = masks.sum(1)
    variance = 400 * 0.1 * 0.9
    assert abs(sizes.mean() - 40) < 5 * math.sqrt(variance / rounds)
    assert stats.chi2.cdf(((sizes - 40) ** 2).sum() / variance, rounds) == pytest.approx(
        0.5, abs=0.49999
    )
    assert sizes.min() < 30
    assert sizes.max() > 50
    # each example by its own coin: every frequency is Binomial, and pairs are uncorrelated
    counts = masks.sum(0)
    assert stats.chisquare(counts).pvalue > 1e-6
    assert abs(np.corrcoef(masks[:, 0], masks[:, 1])[0, 1]) < 5 / math.sqrt(rounds)


def test_poisson_auxiliaries_are_drawn_not_dealt():
    sampler = poisson(K=4)
    table = np.array([sampler.batch(t)[1] for t in range(2000)])
    assert stats.chisquare(table.sum(0)).pvalue > 1e-6
    spread = table.max(1) - table.min(1)
    assert (spread > 1).mean() > 0.9  # dealing into equal groups would give at most 1


def test_poisson_empty_batches_and_auxiliaries_happen():
    sampler = poisson(n=3, rate=0.2, K=5)
    sizes = [sampler.batch(t)[1] for t in range(200)]
    assert any(sum(s) == 0 for s in sizes)
    assert all(len(s) == 5 for s in sizes)
    single = poisson(n=3, rate=0.2, per_example=True)
    assert any(single.batch(t)[1] == () for t in range(200))


def test_owners_that_are_equal_are_one_user_whatever_their_types():
    class Name(StrEnum):
        ANN = "ann"

    same = ["ann", np.str_("ann"), Name.ANN]
    assert Users.of(same, 3).number == 1
    assert Users.of([("h", 1), (np.str_("h"), 1), (np.str_("h"), 1.0)], 3).number == 1
    assert Users.of([(b"a",), (np.bytes_(b"a"),)], 2).number == 1
    assert Users.of([frozenset(["h"]), frozenset([np.str_("h")])], 2).number == 1
