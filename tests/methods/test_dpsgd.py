"""DP-SGD: the step that its definition says, and that Opacus takes."""

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm import ways
from dpdt.algorithm.batch import Batch
from dpdt.errors import InputError
from tests.numbers import prepare, train


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def drawn(x, y, step=0, keys=None):
    """A mini-batch of Poisson sampling that has drawn these examples."""
    keys = tuple(range(len(x))) if keys is None else tuple(keys)
    return Batch(step=step, epoch=0, data=(x, y), sizes=(1,) * len(x), keys=keys, fixed=False)


def take(step, batch):
    return step.engine.step(batch, step.plan.at(batch.step))


def sums(monkeypatch, step):
    """The sum of the contributions of every step, caught before noise."""
    caught, inner = [], step.engine.executor.total

    def spy(batch, **given):
        total, *rest = inner(batch, **given)
        caught.append(total.clone())
        return total, *rest

    monkeypatch.setattr(step.engine.executor, "total", spy)
    return caught


def found(step):
    """How the executor computes the model."""
    (how,) = step.engine.executor.found.values()
    return how


def examples(n=30):
    torch.manual_seed(1)
    return torch.randn(n, 4), torch.randint(0, 3, (n,))


def by_hand(net, x, y, clipping, clip, expected, stability=0.01):
    """The mean of clipped gradients, one example at a time."""
    parameters = list(net.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for i in range(len(x)):
        g = torch.autograd.grad(F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]), parameters)
        norm = torch.stack([t.norm() for t in g]).norm()
        for s, t in zip(total, g, strict=True):
            if clipping == "flat":
                s += t * min(1.0, clip / float(norm))
            elif clipping == "layer":
                s += t * min(1.0, clip / math.sqrt(len(g)) / float(t.norm()))
            else:
                s += t * clip / (float(norm) + stability)
    return [s / expected for s in total]


@pytest.mark.parametrize("value", [0.7, 1.115, 1.335])
@pytest.mark.parametrize(
    ("clipping", "own_loss"),
    [("flat", True), ("flat", False), ("layer", True), ("automatic", True)],
)
def test_norms_of_long_tensors_are_not_rounded_away(clipping, own_loss, value, monkeypatch):
    net, x, y = (
        nn.Linear(500_000, 2, bias=False),
        torch.full((1, 500_000), value),
        torch.tensor([1]),
    )
    nn.init.zeros_(net.weight)
    loss = {"loss": lambda m, b: F.cross_entropy(m(b[0]), b[1])} if own_loss else {}
    step, _ = prepare(
        net, (x, y), method="dpsgd", clipping=clipping, clip=0.3, noise=0.0, lr=1.0, momentum=0.0,
        batch_size=1, **loss,
    )  # fmt: skip
    caught = sums(monkeypatch, step)
    take(step, drawn(x, y))
    assert 0.299 < float(caught[0].norm()) <= 0.3
    assert float(net.weight.detach().double().norm()) == pytest.approx(float(caught[0].norm()))


@pytest.mark.parametrize("make", [model, linear])
@pytest.mark.parametrize("clipping", ["flat", "layer", "automatic"])
@pytest.mark.parametrize("own_loss", [True, False])
def test_a_step_without_noise_is_the_definition(clipping, own_loss, make):
    net, (x, y) = make(), examples()
    loss = {"loss": lambda m, b: F.cross_entropy(m(b[0]), b[1])} if own_loss else {}
    step, _ = prepare(
        net, (x, y), method="dpsgd", clipping=clipping, clip=0.3, noise=0.0, lr=0.5, momentum=0.0,
        batch_size=20, **loss,
    )  # fmt: skip
    before = [p.detach().clone() for p in net.parameters()]
    expected = by_hand(make(), x[:25], y[:25], clipping, 0.3, 20)
    take(step, drawn(x[:25], y[:25]))
    for p, b, g in zip(net.parameters(), before, expected, strict=True):
        torch.testing.assert_close(p.detach(), b - 0.5 * g, rtol=1e-4, atol=1e-6)


class Small(nn.Module):
    """A convolution and a normalisation, as Opacus knows them too."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = (
            nn.Conv2d(2, 4, (1, 2)),
            nn.GroupNorm(1, 4),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        return self.out(self.norm(self.conv(x.view(-1, 2, 1, 2))).tanh().flatten(1))


@pytest.mark.parametrize("make", [linear, model, Small])
@pytest.mark.parametrize("clipping", ["flat", "layer"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_opacus_takes_the_same_steps(make, clipping, optimizer):
    """The same gradients, clip, batch and optimizer, and no noise."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    net, (x, y), steps = make(), examples(20), 5
    rival = copy.deepcopy(net)
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    tensors = len(list(net.parameters()))
    step, _ = prepare(
        net, (x, y), method="dpsgd", clipping=clipping, clip=0.3, noise=0.0, lr=0.1, momentum=0.9,
        batch_size=20, epochs=steps, optimizer=optimizer, weight_decay=0.01,
    )  # fmt: skip
    own = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01),
    }
    layered = {"clipping": "per_layer", "max_grad_norm": [0.3 / tensors**0.5] * tensors}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private, theirs, _ = PrivacyEngine().make_private(
            module=rival, optimizer=own[optimizer](rival.parameters()),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=20), poisson_sampling=False,
            noise_multiplier=0.0, **(layered if clipping == "layer" else {"max_grad_norm": 0.3}),
        )  # fmt: skip
        for i in range(steps):
            take(step, drawn(x, y, step=i))
            theirs.zero_grad()
            F.cross_entropy(private(x), y).backward()
            theirs.step()
    for ours, other in zip(net.parameters(), rival.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), other.detach(), rtol=0.0, atol=1e-5)
    moved = torch.cat([p.detach().flatten() for p in net.parameters()]) - start
    assert float(moved.norm()) > 0.01


@pytest.mark.parametrize("clipping", ["flat", "layer", "automatic"])
def test_an_empty_batch_still_gets_its_noise(clipping):
    """And the noise has the scale that was accounted: multiplier × clip over the expected size."""
    torch.manual_seed(0)
    net = nn.Linear(100, 100)
    x, y = torch.randn(30, 100), torch.randint(0, 100, (30,))
    step, _ = prepare(
        net, (x, y), method="dpsgd", clipping=clipping, clip=0.5, noise=3.0, lr=1.0, momentum=0.0,
        batch_size=10,
    )  # fmt: skip
    before = net.weight.detach().clone()
    take(step, drawn(x[:0], y[:0]))
    moved = (net.weight.detach() - before).std()
    assert float(moved) == pytest.approx(3.0 * 0.5 / 10, rel=0.05)


@pytest.mark.parametrize("clipping", ["flat", "layer", "automatic"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_example_that_is_not_finite_counts_as_nothing(clipping, value):
    """Otherwise a single example could make the model NaN, which everybody would see."""
    x, y = examples()
    x[3, 1] = value
    rest = [i for i in range(30) if i != 3]
    results = []
    for chosen in (list(range(30)), rest):
        net = model()
        step, _ = prepare(net, (x, y), method="dpsgd", clipping=clipping, noise=0.0, batch_size=20)
        seen = take(step, drawn(x[chosen], y[chosen], keys=chosen))
        assert seen.nonfinite == (3 in chosen)
        results.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.isfinite(results[0]).all()
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("make", [model, linear])
@pytest.mark.parametrize(("limit", "few"), [("EXAMPLES", 7), ("HELD", 500)])
@pytest.mark.parametrize("fixed", [True, False])
def test_large_batches_are_taken_in_parts(monkeypatch, make, limit, few, fixed):
    results, rows = [], []
    for size in (few, 10**6):
        monkeypatch.setattr(ways, limit, size)
        net, (x, y) = make(), examples(60)
        step, _ = prepare(net, (x, y), method="dpsgd", clip=0.3, noise=0.0, batch_size=50)
        take(step, replace(drawn(x, y), fixed=fixed))
        results.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        rows.append(found(step).rows)
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)
    if fixed:  # else it depends on the machine whether parts can be taken together
        assert 0 < rows[0] < 50 <= rows[1]


def test_it_is_accounted_by_privacy_loss_distributions():
    """A run of 30 steps at q = 0.1 and multiplier 1.2, against dp-accounting itself."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    net, data = model(), examples(200)
    step, loader = prepare(
        net, data, method="dpsgd", clip=0.7, noise=1.2, batch_size=20, epochs=3, lr=0.1
    )
    for batch in loader:
        step(batch)
    reference = PLDAccountant().compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.2)), 30)
    privacy = step.privacy()
    assert privacy.epsilon == pytest.approx(reference.get_epsilon(1e-5), rel=1e-3)
    assert (privacy.relation, privacy.unit) == ("zero-out", "example")
    assert [g.accountant for g in privacy.guarantees if g.applies] == ["composition"]


def test_a_target_is_met():
    result = train(model(), examples(100), method="dpsgd", epsilon=2.0, batch_size=50, epochs=2)
    assert 1.99 < result.privacy.epsilon <= 2.0


@pytest.mark.parametrize("make", [model, linear, lambda seed=0: Small()])
@pytest.mark.parametrize("number", [30, 0])
def test_state_continues_bit_for_bit(make, number, monkeypatch):
    """Also where images lie in another order, and the next mini-batch is an empty one."""
    monkeypatch.setattr(ways, "CHUNK", 1)  # a large model: one by one
    x, y = examples()
    batches = [drawn(x, y), drawn(x[:number], y[:number], step=1)]
    options = {"method": "dpsgd", "noise": 1.0, "batch_size": 15, "momentum": 0.9, "epochs": 2}
    net = make()
    step, _ = prepare(net, (x, y), **options)
    take(step, batches[0])
    state, secrets = step.engine.state_dict(), step.secrets()
    take(step, batches[1])
    other = make(seed=5)
    second, _ = prepare(other, (x, y), **options)
    second.engine.load_state_dict(state)
    second.noise.resume(secrets["noise"])
    take(second, batches[1])
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_to_replace_an_example_is_refused():
    options = {"noise": 1.0, "relation": "replace-one", "batch_size": 10}
    with pytest.raises(InputError, match=r"privacy.relation: dpsgd is accounted under zero-out"):
        train(model(), examples(), method="dpsgd", **options)


def test_batch_norm_is_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(InputError, match="BatchNorm"):
        train(net, examples(), method="dpsgd", noise=1.0, batch_size=10)


class Folded(nn.Module):
    """Treats positions as if they were examples, so that hooks of layers would clip each one."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(self.norm(x.reshape(-1, 4))).reshape(len(x), -1, 3).sum(1)


class Centred(nn.Linear):
    """Mixes the examples of a batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize("clipping", ["flat", "layer", "automatic"])
@pytest.mark.parametrize(
    "make", [Folded, lambda: Centred(32, 3), lambda: nn.Sequential(Centred(32, 6), nn.Linear(6, 3))]
)
def test_one_example_moves_the_sum_by_no_more_than_the_clip(make, clipping, monkeypatch):
    """Whatever the model does with a batch: its gradient is computed from it alone."""
    torch.manual_seed(0)
    x, y = torch.randn(20, 32) * 5, torch.arange(20) % 3
    moved, totals = [], []
    for number in (20, 19):
        torch.manual_seed(1)
        net = make()
        step, _ = prepare(
            net, (x, y), method="dpsgd", clipping=clipping, clip=0.01, noise=0.0, lr=20.0,
            momentum=0.0, batch_size=20,
        )  # fmt: skip
        before = torch.cat([p.detach().clone().flatten() for p in net.parameters()])
        caught = sums(monkeypatch, step)
        take(step, drawn(x[:number], y[:number]))
        moved.append(before - torch.cat([p.detach().flatten() for p in net.parameters()]))
        totals += caught
    assert float((moved[0] - moved[1]).norm()) <= 0.01 * (1 + 1e-3)
    assert float(moved[0].norm()) > 0.001
    assert float((totals[0] - totals[1]).norm()) <= 0.01 * (1 + 1e-14)


def test_a_buffer_that_changes_stops_the_step():
    class Running(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            return super().forward(x)

    x, y = examples()
    with pytest.raises(InputError, match="mean"):
        train(Running(), (x, y), method="dpsgd", noise=1.0, batch_size=10, epochs=1)


def test_the_model_can_be_used_and_trained_again():
    """Only that the second run guarantees nothing: its start depends on the same data."""
    net, (x, y) = model(), examples()
    told = []
    for _ in range(2):
        fitted = train(net, (x, y), method="dpsgd", noise=1.0, batch_size=10, epochs=1)
        told.append(fitted.privacy)
        F.cross_entropy(net(x), y).backward()
    assert math.isfinite(told[0].epsilon)
    assert told[1].epsilon == math.inf
    assert not any(g.valid for g in told[1].guarantees)
    assert "trained on these data before" in told[1].guarantees[0].failed.why


def test_a_layer_that_is_used_twice():
    layer, (x, y) = nn.Linear(4, 4), examples()
    net = nn.Sequential(layer, nn.Tanh(), layer)
    train(net, (x, y), method="dpsgd", noise=1.0, batch_size=10, epochs=1)
