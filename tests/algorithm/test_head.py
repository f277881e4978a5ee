"""Linear heads: outer products give what written-out gradients give, and are bounded alike."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpdt.algorithm.auxiliary import contribute_outer_products
from dpdt.algorithm.gradients import Head
from dpdt.algorithm.layout import Layout
from dpdt.methods.loop import prepare

X = torch.randn(90, 7, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (90,), generator=torch.Generator().manual_seed(1))


def run(model, fast, x=X, **options):
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p)
    step, loader = prepare(
        model, (x, Y), noise=0.01, noise_seed=3, batch_size=30, epochs=3, granularity="model",
        **options,
    )  # fmt: skip
    assert step.engine._head is not None
    if not fast:
        step.engine._head = None
    results = [step(batch) for batch in loader]
    return torch.cat([p.detach().flatten() for p in model.parameters()]), results


@pytest.mark.parametrize("memory", ["shared", "none"])
@pytest.mark.parametrize("sampling", ["partition", "poisson"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_the_same_steps_as_the_general_way(memory, sampling, bias, clip):
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 4, bias=bias))  # noqa: E731
    options = {"memory": memory, "sampling": sampling, "clip": clip, "lr": 0.4, "penalty": 0.5}
    fast, slow = (run(make(), f, **options) for f in (True, False))
    torch.testing.assert_close(fast[0], slow[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(fast[1], slow[1], strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)


@settings(max_examples=60)
@given(
    st.floats(1e-6, 1e6), st.floats(1e-4, 1e4), st.floats(1e-3, 1e3), st.integers(0, 1000),
    st.sampled_from([1.0, 1e-18, 1e12, float("inf"), float("nan")]),
)  # fmt: skip
def test_one_contribution_never_exceeds_the_bound(clip, penalty, lr, seed, factor):
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(9, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(3, 9, generator=generator) * 3)
    layout = Layout(layer, "model")
    x = torch.randn(1, 9, generator=generator) * factor
    total, _, tally = contribute_outer_products(
        layout, Head(layer), x, torch.tensor([1]), clip=clip, penalty=penalty, lr=lr
    )
    assert torch.isfinite(total).all()
    assert float(total.double().norm()) <= clip
    assert tally.nonfinite == (0 if torch.isfinite(x).all() else 1)


@pytest.mark.parametrize("value", [0.7, 1.115, 1.335])
def test_norms_of_long_rows_are_not_rounded_away(value):
    """A float32 sum of 150,528 equal squares would be off by 1e-4, ten times the slack."""
    layer = nn.Linear(150_528, 3)
    total, _, _ = contribute_outer_products(
        Layout(layer, "model"), Head(layer), torch.full((1, 150_528), value), torch.tensor([1]),
        clip=0.1, penalty=1.0, lr=1.0,
    )  # fmt: skip
    assert 0.0999 < float(total.double().norm()) <= 0.1


def test_one_broken_example_costs_the_others_nothing():
    layer = nn.Linear(7, 4)
    layout, head = Layout(layer, "model"), Head(layer)
    x = X.clone()
    x[5, 2] = torch.nan
    given = {"clip": 0.1, "penalty": 1.0, "lr": 0.1}
    with_it, _, tally = contribute_outer_products(layout, head, x, Y, **given)
    rest = [i for i in range(90) if i != 5]
    without, _, _ = contribute_outer_products(layout, head, X[rest], Y[rest], **given)
    torch.testing.assert_close(with_it, without)
    assert tally.nonfinite == 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 4)), {}),  # not a linear layer alone
        (nn.Linear(7, 4), {"granularity": "tensor"}),  # weights and bias bounded apart
        (nn.Linear(7, 4), {"memory": "auxiliary"}),  # gradients are remembered one by one
        (nn.Linear(7, 4), {"memory": "shared", "preconditioner": "rmsprop"}),
        (nn.Linear(7, 4), {"loss": lambda m, b: m(b[0]).square().mean()}),  # a loss of one's own
    ],
)
def test_it_is_used_only_where_it_is_right(model, options):
    chosen = {"granularity": "model", **options}
    step, _ = prepare(model, (X, Y), noise=1.0, batch_size=30, **chosen)
    assert step.engine._head is None


def test_the_average_is_of_published_iterates_and_is_what_is_released():
    model = nn.Linear(7, 4)
    step, loader = prepare(
        model, (X, Y), noise=0.1, batch_size=30, epochs=3, averaging=0.8, memory="none"
    )
    seen = []
    for batch in loader:
        step(batch)
        seen.append(model.weight.detach().clone())
    step.finish()
    weights = [0.2 * 0.8 ** (len(seen) - 1 - i) for i in range(len(seen))]
    expected = sum(w * t for w, t in zip(weights, seen, strict=True)) / sum(weights)
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_an_average_shows_more_than_the_last_iterate():
    step, _ = prepare(
        nn.Linear(7, 4), (X, Y), noise=0.1, batch_size=30, averaging=0.8, weight_decay=0.1
    )
    by_name = {g.accountant: g for g in step.privacy().guarantees}
    for name in ("hidden-state-contraction", "hidden-state-convex"):
        assert not by_name[name].valid
        assert any("average" in c.why for c in by_name[name].conditions if not c.holds)
    assert by_name["composition"].valid
