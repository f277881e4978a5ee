"""Data that stays on its rank: every rank is given its own users, and nobody else's."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from dpdt.algorithm.batch import Batch
from dpdt.errors import InputError
from tests.distributed.cases import deep, examples
from tests.numbers import prepare

OPTIONS = {
    "unit": "user", "auxiliaries": 5, "epochs": 2, "batch_size": 4, "noise": 0.5, "noise_seed": 7,
}  # fmt: skip


def own(world_size, rank, n=60):
    """The examples of a rank's own users; ranks have different numbers."""
    x, y = examples(n)
    users = [f"user {i % 13}" for i in range(n)]
    mine = [i for i in range(n) if (i % 13) % world_size == rank]
    return x[mine], y[mine], [users[i] for i in mine]


def started(memory="auxiliary", change=None):
    size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    x, y, users = own(size, rank)
    match change:
        case "shared user" if rank == 1:
            users[0] = "user 0"
        case "no data" if rank == 1:
            x, y, users = x[:0], y[:0], []
        case "replaced" if rank == 1:  # all that one user has
            x[[u == users[0] for u in users]] *= 1e20
    model = deep()
    return model, *prepare(model, (x, y), users=users, local=True, memory=memory, **OPTIONS)


def one_step(memory, change=None):
    model, step, loader = started(memory, change)
    batch = next(iter(loader))
    found = []
    inner = step.engine.memory.publish
    step.engine.memory.publish = lambda noisy, now: found.append(noisy.clone()) or inner(noisy, now)
    step(batch)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {
        "data": [t.numpy() for t in batch.data], "sizes": batch.sizes, "fixed": batch.fixed,
        "first": batch.first, "weights": weights.numpy(), "noisy": found[0].numpy(),
        "examples": step.plan.header.examples, "batches": loader.batches,
        "columns": step.engine.layout.columns.sizes, "setting": step.plan.at(0),
    }  # fmt: skip


@pytest.mark.parametrize("memory", ["auxiliary", "shared"])
def test_a_step_is_that_of_one_process_with_all_the_batches(group, memory):
    found = group.each(one_step, memory)
    sizes = tuple(size for one in found for size in one["sizes"])
    assert len(sizes) == 5
    assert [one["first"] for one in found] == [0, *np.cumsum([len(f["sizes"]) for f in found])[:-1]]
    assert {one["examples"] for one in found} == {13}  # users: what they hold is not public
    assert {one["batches"] for one in found} == {3}
    assert not any(one["fixed"] for one in found)
    x, y = examples(60)
    model = deep()
    step, _ = prepare(model, (x, y), users=[i % 13 for i in range(60)], memory=memory, **OPTIONS)
    data = tuple(torch.cat([torch.from_numpy(f["data"][i]) for f in found]) for i in (0, 1))
    step.engine.step(Batch(step=0, epoch=0, data=data, sizes=sizes, fixed=False), step.plan.at(0))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    for one in found:
        assert np.allclose(one["weights"], weights.numpy(), rtol=1e-5, atol=1e-6)


def test_a_users_examples_move_the_mean_by_no_more_than_two_contributions(group):
    one, other = (group.each(one_step, "auxiliary", c)[0] for c in (None, "replaced"))
    ends = np.cumsum([0, *one["columns"]])
    moved = one["noisy"].astype(np.longdouble) - other["noisy"]  # the noise is the same
    assert np.abs(moved).max() > 0
    for (a, b), clip in zip(pairwise(ends), one["setting"].clip, strict=True):
        assert np.sqrt((moved[a:b] ** 2).sum()) <= 2 * clip / 5 * (1 + 1e-5)


def test_users_stay_on_their_rank_and_with_their_auxiliary(group):
    found = group.each(everything)
    homes = {}
    for rank, batches in enumerate(found):
        for numbers, sizes, rows in batches:
            at = np.repeat(numbers, sizes)
            for k, row in zip(at, rows, strict=True):
                homes.setdefault(row, set()).add((rank, int(k)))
    x, _ = examples(60)
    by_user = {}
    for i in range(60):
        by_user.setdefault(i % 13, set()).update(homes[x[i].numpy().tobytes()])
    assert len(by_user) == 13
    assert all(len(home) == 1 for home in by_user.values())
    assert len({k for home in by_user.values() for _, k in home}) == 5


def everything():
    _, step, loader = started()
    found = []
    for batch in loader:
        step(batch)
        rows = [row.numpy().tobytes() for row in batch.data[0]]
        found.append((batch.numbers.tolist(), batch.sizes, rows))
    step.finish()
    return found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("shared user", "users: the same user has examples on rank 0 and rank 1"),
        ("no data", "data: rank 1 has no examples; give every rank some users"),
    ],
)
def test_what_is_refused(group, change, text):
    for kind, found in group.errors(started, "none", change):
        assert kind == "InputError"
        assert found.startswith(text)


def test_one_rank_alone_has_no_data_of_its_own():
    x, y, users = own(1, 0)
    with pytest.raises(InputError, match="local: is for several ranks, found one"):
        prepare(deep(), (x, y), users=users, local=True, **OPTIONS)
