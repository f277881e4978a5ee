"""Gradient embedding perturbation, against its definition."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Batch
from dpdt.errors import InputError
from tests.numbers import prepare, train

generator = torch.Generator().manual_seed(0)
X = torch.randn(40, 5, generator=generator)
Y = torch.randint(0, 3, (40,), generator=generator)
PUBLIC = torch.randn(50, 5, generator=generator)


def linear():
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def wrong(net, x):
    """The least likely label: that of a likely one has a gradient of almost 0."""
    return net(x).argmin(1)


def gep(net, **options):
    defaults = {"noise": 0.0, "lr": 0.5, "momentum": 0.0, "batch_size": 40, "directions": 6}
    return prepare(net, (X, Y), method="gep", public=PUBLIC, **{**defaults, **options})[0]


def drawn(x, y, keys=None):
    """A mini-batch of Poisson sampling that has drawn these examples."""
    keys = tuple(range(len(x))) if keys is None else tuple(keys)
    return Batch(step=0, epoch=0, data=(x, y), sizes=(1,) * len(x), keys=keys, fixed=False)


def take(step, batch):
    return step.engine.step(batch, step.plan.at(batch.step))


def sums(monkeypatch, step):
    """The sums of a step, embeddings and residuals, caught before noise."""
    caught, inner = [], step.engine.executor.total

    def spy(batch, **given):
        total, *rest = inner(batch, **given)
        caught.extend(torch.split(total.clone(), given["columns"].sizes))
        return total, *rest

    monkeypatch.setattr(step.engine.executor, "total", spy)
    return caught


def clipped_mean(net, clip):
    total = [torch.zeros_like(p) for p in net.parameters()]
    for i in range(len(X)):
        g = torch.autograd.grad(F.cross_entropy(net(X[i : i + 1]), Y[i : i + 1]), net.parameters())
        factor = min(1.0, clip / float(torch.stack([t.norm() for t in g]).norm()))
        for s, t in zip(total, g, strict=True):
            s += t * factor
    return [s / len(X) for s in total]


def moved(net, step):
    before = [p.detach().clone() for p in net.parameters()]
    take(step, drawn(X, Y))
    return [(b - p.detach()) / 0.5 for p, b in zip(net.parameters(), before, strict=True)]


def test_with_a_full_basis_and_no_noise_it_is_the_mean_of_clipped_gradients():
    """18 parameters, of which softmax leaves 12 free: 18 directions hold every gradient."""
    net = linear()
    expected = clipped_mean(linear(), 0.4)
    for ours, theirs in zip(moved(net, gep(net, clip=0.4, directions=18)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_embedding_and_residual_add_up_to_the_gradient():
    net = linear()
    expected = clipped_mean(linear(), 100.0)
    step = gep(net, clip=100.0, residual_clip=100.0, directions=4, groups=2)
    for ours, theirs in zip(moved(net, step), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_one_example_adds_no_more_than_its_two_clips(monkeypatch):
    """Its gradient is far larger than both, so both bounds are met, and not exceeded."""
    net = linear()
    step = gep(net, clip=0.3, residual_clip=0.07)
    (basis,) = step.engine.basis()
    before = step.engine.layout.gather().clone()
    x = 100.0 * X[:1]
    caught = sums(monkeypatch, step)
    take(step, drawn(x, wrong(net, x)))
    added = (before - step.engine.layout.gather()) / 0.5 * 40
    embedding = basis @ added
    assert float(embedding.norm()) == pytest.approx(0.3, rel=1e-3)
    assert float((added - embedding @ basis).norm()) == pytest.approx(0.07, rel=1e-3)
    for total, clip in zip(caught, (0.3, 0.07), strict=True):
        assert 0.999 * clip < float(total.norm()) <= clip


@pytest.mark.parametrize("value", [0.7, 1.115, 1.335])
def test_norms_of_long_rows_are_not_rounded_away(value, monkeypatch):
    net = nn.Linear(500_001, 2, bias=False)
    nn.init.zeros_(net.weight)
    x, y = torch.full((1, 500_001), value), torch.tensor([1])
    public = torch.randn(4, 500_001, generator=generator)
    step, _ = prepare(
        net, (x, y), method="gep", public=public, noise=0.0, batch_size=1, directions=2,
        clip=1e-4, residual_clip=0.2,
    )  # fmt: skip
    caught = sums(monkeypatch, step)
    take(step, drawn(x, y))
    assert 0.999e-4 < float(caught[0].norm()) <= 1e-4
    assert 0.1999 < float(caught[1].norm()) <= 0.2


def test_the_basis_is_orthonormal_and_public():
    net = linear()
    step = gep(net, groups=2)
    for b in step.engine.basis():
        torch.testing.assert_close(b @ b.t(), torch.eye(len(b)), rtol=1e-4, atol=1e-5)
    before = step.engine.basis()
    other = prepare(
        linear(), (X + 5.0, Y), method="gep", public=PUBLIC, noise=0.0, batch_size=40,
        directions=6, groups=2,
    )[0]  # fmt: skip
    for a, b in zip(before, other.engine.basis(), strict=True):
        assert torch.equal(a, b)


def test_each_contribution_is_bounded_in_both_parts():
    net = linear()
    step = gep(net, clip=0.01, residual_clip=0.002, directions=3)
    total = torch.cat([t.flatten() for t in moved(net, step)])
    basis = step.engine.basis()  # at the new θ: recompute the old one
    assert len(basis[0]) == 3
    assert float(total.norm()) <= 0.01 + 0.002


def test_noise_has_the_scale_that_is_accounted():
    torch.manual_seed(0)
    net = nn.Linear(200, 50)
    public, x = torch.randn(20, 200), torch.randn(10, 200)
    step, _ = prepare(
        net, (x, torch.zeros(10, dtype=torch.long)), method="gep", public=public, noise=2.0,
        clip=1.0, residual_clip=0.3, lr=1.0, momentum=0.0, batch_size=10, directions=5,
    )  # fmt: skip
    before = net.weight.detach().clone()
    take(step, drawn(x[:0], torch.zeros(0, dtype=torch.long)))
    # the residual's noise fills all 10,000 directions, the embedding's only five
    assert float((net.weight.detach() - before).std()) == pytest.approx(2.0 * 0.3 / 10, rel=0.1)
    setting = step.plan.at(0)
    assert setting.noise == pytest.approx((0.2, 0.06))


def test_both_parts_are_accounted_jointly():
    """Two mechanisms with multiplier m are one with m/√2."""
    gep_step = gep(linear(), noise=2.0, batch_size=10, epochs=5)
    sgd, _ = prepare(linear(), (X, Y), method="dpsgd", noise=2.0 / 2**0.5, batch_size=10, epochs=5)
    from dpdt.accounting import account

    ours, theirs = (account(s.plan.ledger(), 1e-5).epsilon for s in (gep_step, sgd))
    assert ours == pytest.approx(theirs, rel=1e-6)


def with_one(net, value):
    """All examples, one of them of these values and with a label that has a gradient."""
    x, y = X.clone(), Y.clone()
    x[3] = value
    y[3:4] = wrong(net, torch.ones(1, 5))
    return x, y


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_counts_as_nothing(value, monkeypatch):
    net, without = linear(), linear()
    step, other = gep(net), gep(without)
    caught, rest = sums(monkeypatch, step), sums(monkeypatch, other)
    x, y = with_one(net, value)
    result = take(step, drawn(x, y))
    assert result.nonfinite == 1
    assert all(torch.isfinite(p).all() for p in net.parameters())
    others = [i for i in range(40) if i != 3]
    take(other, drawn(x[others], y[others], others))
    for a, b in zip(caught, rest, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_gradient_whose_square_overflows_in_float32_is_clipped(monkeypatch):
    """Norms are taken in float64, where 1e30 has a square."""
    net, without = linear(), linear()
    step, other = gep(net, clip=0.3, residual_clip=0.07), gep(without, clip=0.3, residual_clip=0.07)
    caught, rest = sums(monkeypatch, step), sums(monkeypatch, other)
    x, y = with_one(net, 1e30)
    result = take(step, drawn(x, y))
    assert result.nonfinite == 0
    assert all(torch.isfinite(p).all() for p in net.parameters())
    others = [i for i in range(40) if i != 3]
    take(other, drawn(x[others], y[others], others))
    for a, b, clip in zip(caught, rest, (0.3, 0.07), strict=True):
        assert float((a - b).norm()) == pytest.approx(clip, rel=1e-6)


def test_more_directions_or_groups_than_there_are_are_refused():
    with pytest.raises(InputError, match=r"method.directions: 50 public examples span at most 18"):
        gep(linear(), directions=60)
    with pytest.raises(InputError, match=r"method.groups: the model has 2 tensors"):
        gep(linear(), groups=3)


def test_a_model_that_torch_func_cannot_take_is_refused():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) * max(1, int(x.sum()))

    with pytest.raises(InputError, match=r"method.name: gep writes out"):
        train(Branching(5, 3), (X, Y), method="gep", noise=1.0, batch_size=10, public=-X[:20],
              directions=5)  # fmt: skip
