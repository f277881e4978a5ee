"""Taps give what written-out gradients give, and are bounded alike."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpdt.algorithm import ways
from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.gradients import vectorised
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.taps import Taps
from dpdt.errors import InputError
from dpdt.models.loss import default_loss
from dpdt.models.networks import ResNet18
from tests.numbers import prepare

X = torch.randn(90, 7, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (90,), generator=torch.Generator().manual_seed(1))


def run(model, fast, x=X, **options):
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setattr(ways, "tapped", lambda *_: None)
        step, loader = prepare(
            model, (x, Y), noise=0.01, noise_seed=3, batch_size=30, epochs=3, **options
        )
        results = [step(batch) for batch in loader]
        hows = step.engine.executor.found.values()
        if not fast or options["sampling"] == "partition":  # else it depends on the machine
            assert {how.taps is not None for how in hows} == {fast}
    return torch.cat([p.detach().flatten() for p in model.parameters()]), results


def summed(layer, x, y, *, clip, scale, fixed=True):
    """The sum of the bounded contributions of single examples, by taps."""
    layout = Layout(layer, "model")
    executor = Executor(layer, default_loss, layout, auxiliaries=len(x), scales=True)
    batch = Batch(
        step=0, epoch=0, data=(x, y), sizes=(1,) * len(x), keys=tuple(range(len(x))), fixed=fixed
    )

    def contribute(rows, gradient, scratch):
        return gradient * scale, Tally()

    total, _, tally = executor.total(
        batch, columns=layout.columns, clip=(clip,), contribute=contribute,
        scaled=Scaled(factor=scale),
    )  # fmt: skip
    if fixed:  # else it depends on the machine whether examples can be taken together
        assert [how.taps is not None for how in executor.found.values()] == [True]
    return total, tally


def linear(bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 4, bias=bias))


def deep():
    return nn.Sequential(
        nn.Linear(7, 6), nn.LayerNorm(6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 4)
    )


@pytest.mark.parametrize("memory", ["shared", "none"])
@pytest.mark.parametrize("sampling", ["partition", "poisson"])
@pytest.mark.parametrize("make", [linear, lambda: linear(bias=False), deep])
@pytest.mark.parametrize("clip", [0.05, 100.0])
@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_the_same_steps_as_the_general_way(memory, sampling, make, clip, granularity):
    options = {
        "memory": memory, "sampling": sampling, "clip": clip, "lr": 0.4, "penalty": 0.5,
        "granularity": granularity,
    }  # fmt: skip
    fast, slow = (run(make(), f, **options) for f in (True, False))
    torch.testing.assert_close(fast[0], slow[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(fast[1], slow[1], strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)


@pytest.mark.parametrize("make", [linear, deep])
@pytest.mark.parametrize("auxiliaries", ["per-example", 10])
def test_the_same_preconditioned_steps_as_the_general_way(make, auxiliaries):
    options = {
        "memory": "shared", "sampling": "partition", "clip": 0.5, "lr": 0.01, "penalty": 0.5,
        "preconditioner": "rmsprop", "floor": 0.1, "auxiliaries": auxiliaries,
    }  # fmt: skip
    fast, slow = (run(make(), f, **options) for f in (True, False))
    torch.testing.assert_close(fast[0], slow[0], rtol=1e-4, atol=1e-5)


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
        (nn.Linear(7, 4), {"memory": "auxiliary", "auxiliaries": 30}),  # gradients are remembered
        (nn.Linear(7, 4), {"memory": "none", "auxiliary_weight_decay": 0.1}),  # not a multiple
        (nn.Linear(7, 4), {"memory": "none", "sampling": "poisson", "auxiliaries": 5}),  # sizes
    ],
)
def test_they_are_used_only_where_they_are_right(model, options):
    chosen = {"sampling": "partition", "granularity": "model", **options}
    step, loader = prepare(model, (X, Y), noise=1.0, batch_size=30, lr=0.1, **chosen)
    step(next(iter(loader)))
    assert [how.taps for how in step.engine.executor.found.values()] == [None]


def test_a_model_that_calls_other_layers_later_is_refused():
    step, loader = prepare(deep(), (X, Y), noise=1.0, batch_size=30, lr=0.1, sampling="partition")
    batches = iter(loader)
    step(next(batches))
    (how,) = step.engine.executor.found.values()
    how.taps.names = how.taps.names[:-1]  # as if one had not been called on made-up inputs
    how.taps.shapes = how.taps.shapes[:-1]
    with pytest.raises(InputError, match="calls other layers than it did on made-up inputs"):
        step(next(batches))
    assert step.privacy().epsilon == float("inf")


def test_the_way_is_told_in_words():
    step, loader = prepare(deep(), (X, Y), noise=1.0, batch_size=30, lr=0.1, sampling="partition")
    step(next(iter(loader)))
    (told,) = step.engine.executor.words()
    assert told == "30 micro-batches at once, by taps on 2 affine, 1 normalised"


def test_a_model_that_draws_which_layers_it_calls_is_not_tapped():
    """By numpy's generator, which vmap does not notice."""

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(7, 7), nn.Linear(7, 4)

        def forward(self, x):
            return self.b(self.a(x) if np.random.rand() < 0.5 else x)

    step, loader = prepare(
        Skips(), (X, Y), noise=1.0, batch_size=30, epochs=4, lr=0.1, sampling="partition"
    )
    for batch in loader:
        step(batch)
    assert {how.taps for how in step.engine.executor.found.values()} == {None}


@pytest.mark.parametrize("sampling", ["partition", "poisson"])
@pytest.mark.parametrize("tapped", [True, False])
def test_nothing_is_kept_for_a_second_derivative(sampling, tapped, monkeypatch):
    """A backward pass that is recorded holds on to all that it used, until its end."""
    recorded = set()
    if not tapped:
        monkeypatch.setattr(ways, "tapped", lambda *_: None)

    def loss(model, batch):
        out = model(batch[0])
        out.register_hook(lambda slope: recorded.add(torch.is_grad_enabled()))
        return default_loss(lambda x: out, batch)

    step, loader = prepare(
        nn.Linear(7, 4),
        (X, Y),
        loss=loss,
        batch_size=30,
        sampling=sampling,
        epochs=1,
        noise=0.1,
    )
    step(next(iter(loader)))
    assert recorded == {False}


def test_what_layers_saw_is_let_go_while_it_is_used():
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 4))
    taps = Taps(model, Layout(model, "model"), 1, weighted=False)
    assert taps.probe(model, default_loss, (X, Y), None)
    found = taps.run(model, default_loss, (X, Y), len(X))
    calls = {name: list(calls) for name, calls in found.calls.items()}
    compared = list(taps.every(replace(found, calls=dict(found.calls)), Scaled()))
    for call in (*calls["0"], *calls["2"]):  # what is compared, where places are
        assert any(t is call.input for t in compared)
        assert any(t is call.slope for t in compared)
    seen = []
    for name, _ in taps.parts(found, Scaled()):
        seen.append((name, list(found.calls)))
    assert seen == [
        ("0.bias", ["2"]), ("0.weight", ["2"]), ("2.bias", []), ("2.weight", []),
    ]  # fmt: skip


def test_a_loss_of_several_numbers_is_not_mapped():
    layout = Layout(model := nn.Linear(7, 4), "model")
    with pytest.raises(RuntimeError, match="must be a single number, found 1 dimensions"):
        vectorised(
            model, lambda m, batch: m(batch[0])[0], layout, (X, Y), torch.empty(90, layout.size), 1
        )


class Images(nn.Module):
    def __init__(self, channels, groups, view):
        super().__init__()
        self.first, self.pool = nn.Conv2d(channels, 4, 3), nn.MaxPool2d(2)
        self.norm = nn.GroupNorm(groups, 4) if groups else nn.Identity()
        self.second = nn.Conv2d(4, 5, 3, 2, padding=(1, 0))
        self.head, self.view = nn.Linear(10, 4), view

    def forward(self, x):
        x = self.second(self.pool(self.norm(self.first(x))).tanh())
        return self.head(x.view(len(x), -1) if self.view else x.flatten(1))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("groups", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 5, 90])
@pytest.mark.parametrize("weighted", [True, False])
def test_images_have_the_channels_of_a_pixel_side_by_side(channels, view, groups, size, weighted):
    """Unless they are normalised by several groups, or viewed in the other order.

    Micro-batches of one example, of several, and of more than fit into windows.
    """
    torch.manual_seed(0)
    model = Images(channels, groups, view)
    layout = Layout(model, "model")
    x, y = torch.randn(3 * size, channels, 8, 8), torch.randint(0, 4, (3 * size,))
    scale = torch.rand(layout.size) if weighted else None
    scaled = Scaled(factor=2.0, weights=scale)
    executor = Executor(
        model, default_loss, layout, auxiliaries=3, expected=size, scales=True
    )  # fmt: skip
    batch = Batch(step=0, epoch=0, data=(x, y), sizes=(size,) * 3)
    total, _, _ = executor.total(
        batch, columns=layout.columns, clip=(1e9,), contribute=None, scaled=scaled
    )
    rows = torch.empty(3, layout.size)
    vectorised(model, default_loss, layout, (x, y), rows, size)
    rows = rows.double() if scale is None else rows.double() * scale
    torch.testing.assert_close(total, 2.0 * rows.sum(0), rtol=1e-5, atol=1e-5)
    (how,) = executor.found.values()
    assert how.taps.channels_last == (not view and groups < 2)
    assert how.taps.homes.keys() == set(layout.names)


def test_an_edge_between_two_slopes_is_not_taken_for_a_wrong_tap():
    """Of many rectified numbers one may be 0 but for rounding. Two kernels see two slopes there."""
    model = ResNet18(width=0.25)
    layout = Layout(model, "layer")
    executor = Executor(model, default_loss, layout, auxiliaries=2, expected=6, scales=True)
    data = torch.randn(12, 3, 32, 32), torch.randint(0, 10, (12,))
    batch = Batch(step=0, epoch=0, data=data, sizes=(6, 6))
    with torch.no_grad():
        how = ways.tapped(executor, batch, Scaled(), layout.columns)
    assert how.taps.homes.keys() == set(layout.names)


@pytest.mark.parametrize("keys", [(4, 5, 22, 23, 40), (15,), (0, 1, 2)])
def test_a_pass_is_repeated_whoever_was_drawn(keys, monkeypatch):
    """Where places go by the examples' numbers, the first ones of a chunk may be empty."""
    model = nn.Linear(13, 3)
    layout, scaled = Layout(model, "model"), Scaled()
    executor = Executor(model, default_loss, layout, auxiliaries=64, scales=True)
    data = torch.randn(len(keys), 13), torch.randint(0, 3, (len(keys),))
    batch = Batch(step=0, epoch=0, data=data, sizes=(1,) * len(keys), keys=keys, fixed=False)
    tapped = ways.tapped
    monkeypatch.setattr(ways, "tapped", lambda *given: replace(tapped(*given), classes=16))
    total, _, _ = executor.total(
        batch, columns=layout.columns, clip=(1e9,), contribute=None, scaled=scaled
    )
    rows = torch.empty(len(keys), layout.size)
    vectorised(model, default_loss, layout, data, rows, 1)
    torch.testing.assert_close(total, rows.double().sum(0), rtol=1e-5, atol=1e-5)
