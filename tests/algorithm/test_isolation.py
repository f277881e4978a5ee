"""An auxiliary's contribution depends on its own examples and on θ, on nothing else."""

import pytest
import torch
from torch import nn

from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.ways import How
from tests.numbers import prepare

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


class Product(nn.Module):
    """The slope of a product asks whether any number of the whole tensor is 0."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        with torch.no_grad():
            self.inner.weight.copy_(torch.eye(4))
            self.inner.bias.zero_()

    def forward(self, x):
        found = self.inner(x).prod(1)
        return torch.stack([found, -found], 1)


class Packed(nn.Module):
    """What is kept for the backward pass is scaled by its largest number, if that is large."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    @staticmethod
    def pack(t):
        largest = t.abs().max()
        scale = 1.0 if largest < 60000 else float(largest) / 60000
        return (t / scale).half(), scale

    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda p: p[0].float() * p[1]):
            x = self.first(x)
            x = x * x
        return 100.0 * self.second(x.clamp(max=1e6))


@pytest.mark.parametrize(
    ("make", "x", "other"),
    [(Product, [1e-30, 1e-30, 1e20, 1e10], 0.0), (Packed, [0.1, 0.2, 0.3, 0.4], 1e12)],
)
@pytest.mark.parametrize("sampling", ["poisson", "partition"])
def test_backward_passes_do_not_meet(make, x, other, sampling):
    """One example is replaced: the sum moves by no more than two contributions."""
    number, found = 64, []
    for replaced in (False, True):
        torch.manual_seed(0)
        model, data = make(), torch.tensor(x).repeat(number, 1)
        data[0] = other if replaced else data[0]
        step, loader = prepare(
            model, (data, torch.zeros(number, dtype=torch.long)), method="dpsgd", lr=1.0,
            epochs=1, batch_size=number, clip=1.0, noise=1e-9, momentum=0.0, sampling=sampling,
        )  # fmt: skip
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        for batch in loader:
            step(batch)
        after = torch.cat([p.detach().flatten() for p in model.parameters()])
        found.append(number * (after - before).double())
    assert float((found[0] - found[1]).norm()) <= 2.001
