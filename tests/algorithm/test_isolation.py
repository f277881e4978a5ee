"""An auxiliary's contribution depends on its own examples and on θ, on nothing else."""

import pytest
import torch
from torch import nn

from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.ways import How

from .problems import batch_of, classification, cross_entropy, engine_for, take_step


def contributions(engine: Decoupled, batch):
    """The contributions of a step, caught on their way to the sum."""
    caught = {}
    inner = engine.memory.contribute_

    def spy(rows, gradient, scratch, step):
        tally = inner(rows, gradient, scratch, step)
        for i, k in enumerate(range(rows.start, rows.stop)):
            caught[k] = gradient[i].clone()
        return tally

    engine.memory.contribute_ = spy
    take_step(engine, batch)
    engine.memory.contribute_ = inner
    return [caught[k] for k in sorted(caught)]


class Odd(nn.Module):
    """Standardises over the batch: it mixes whatever it is given together."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (4, 2, 5, 1)])  # vectorised, looped
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Odd])
def test_perturbing_one_shard_changes_only_its_contribution(memory, sizes, make):
    x, y = classification(12)
    changed = x.clone()
    first = sum(sizes[:2])
    changed[first : first + sizes[2]] += 5.0 * torch.randn(sizes[2], 6)
    results = []
    for inputs in (x, changed):
        torch.manual_seed(0)
        engine = engine_for(make(), memory=memory, noise=0.1)
        # a first step on the same data, so that there is something to remember
        take_step(engine, batch_of((x, y), sizes))
        results.append(contributions(engine, batch_of((inputs, y), sizes, step=1)))
    for k, (a, b) in enumerate(zip(*results, strict=True)):
        assert torch.equal(a, b) == (k != 2)


def test_dropout_of_one_auxiliary_does_not_depend_on_the_others():
    """With Poisson sampling sizes depend on the data, so draws must not run on across shards."""
    x, y = classification(9)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    caught = []
    for sizes in ((2, 3, 4), (4, 1, 4)):
        engine = engine_for(model, auxiliaries=3, lr=1e-9)
        caught.append(contributions(engine, batch_of((x, y), sizes))[2])
    assert torch.equal(*caught)


def test_a_step_has_the_same_result_on_one_and_on_several_lanes(monkeypatch):
    x, y = classification(12, dtype=torch.float64)
    results = []
    for random in (True, False):  # True keeps it on one lane
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        engine = engine_for(model, cross_entropy, memory="auxiliary")
        how = How(lanes=not random)
        monkeypatch.setattr(engine.executor, "_settle", lambda *_, how=how: how)
        for step in range(3):
            take_step(engine, batch_of((x, y), (3, 3, 3, 3), step))
        results.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
