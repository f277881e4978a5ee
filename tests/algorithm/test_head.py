"""Linear heads: outer products give what written-out gradients give, and are bounded alike."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.layout import Layout
from dpdt.models.loss import default_loss
from tests.numbers import prepare

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
    executor = step.engine.executor
    assert executor.head is not None
    if not fast:
        executor.head = None
    results = [step(batch) for batch in loader]
    if not fast or options["sampling"] == "partition":  # else it depends on the machine
        assert {how.head for how in executor.found.values()} == {fast}
    return torch.cat([p.detach().flatten() for p in model.parameters()]), results


def summed(layer, x, y, *, clip, scale, fixed=True):
    """The sum of the bounded contributions of single examples, as outer products."""
    layout = Layout(layer, "model")
    executor = Executor(layer, default_loss, layout, auxiliaries=len(x), head=True)
    batch = Batch(
        step=0, epoch=0, data=(x, y), sizes=(1,) * len(x), keys=tuple(range(len(x))), fixed=fixed
    )

    def contribute(rows, gradient, scratch):
        return gradient * scale, Tally()

    total, _, tally = executor.total(
        batch, columns=layout.columns, clip=(clip,), contribute=contribute, scale=scale
    )
    assert executor.head is not None
    if fixed:  # else it depends on the machine whether products can be taken together
        assert [how.head for how in executor.found.values()] == [True]
    return total, tally


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
    x = torch.randn(1, 9, generator=generator) * factor
    total, tally = summed(layer, x, torch.tensor([1]), clip=clip, scale=2 * penalty * lr)
    assert torch.isfinite(total).all()
    assert sum(Fraction(v) ** 2 for v in total.tolist()) <= Fraction(clip) ** 2
    assert tally.nonfinite == (0 if torch.isfinite(x).all() else 1)


@pytest.mark.parametrize("value", [0.7, 1.115, 1.335])
def test_norms_of_long_rows_are_not_rounded_away(value):
    """A float32 sum of 150,528 equal squares would be off by 1e-4, ten times the slack."""
    layer = nn.Linear(150_528, 3)
    x = torch.full((1, 150_528), value)
    total, _ = summed(layer, x, torch.tensor([1]), clip=0.1, scale=2.0)
    assert 0.0999 < float(total.norm()) <= 0.1


@pytest.mark.parametrize("fixed", [True, False])
def test_one_broken_example_costs_the_others_nothing(fixed):
    layer = nn.Linear(7, 4)
    x = X.clone()
    x[5, 2] = torch.nan
    given = {"clip": 0.1, "scale": 0.2, "fixed": fixed}
    with_it, tally = summed(layer, x, Y, **given)
    rest = [i for i in range(90) if i != 5]
    without, _ = summed(layer, X[rest], Y[rest], **given)
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
    step, loader = prepare(model, (X, Y), noise=1.0, batch_size=30, **chosen)
    step(next(iter(loader)))
    assert [how.head for how in step.engine.executor.found.values()] == [False]


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
        nn.Linear(7, 4), (X, Y), noise=0.1, batch_size=30, averaging=0.8, weight_decay=0.1,
        release="last",
    )  # fmt: skip
    by_name = {g.accountant: g for g in step.privacy().guarantees}
    for name in ("hidden-state-contraction", "hidden-state-convex"):
        assert not by_name[name].valid
        assert any("average" in c.why for c in by_name[name].conditions if not c.holds)
    assert by_name["composition"].valid
