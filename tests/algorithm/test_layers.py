"""Norms and sums by taps are those of gradients that are computed from one micro-batch alone.

For every kind of layer, the sum of bounded contributions is compared with the one that isolated
gradients give, computed in float64 by plain automatic differentiation.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm import ways
from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.layers import Affine
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.scaled import Scaled

CLASSES = 3


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(1), batch[1])


def isolated(model, x, y, size, layout):
    """The gradient of every micro-batch in float64, block by block, each from its examples."""
    exact = _double(model)
    named = dict(exact.named_parameters())
    rows = []
    for first in range(0, len(x), size):
        some = slice(first, first + size)
        inputs = x[some].double() if x.is_floating_point() else x[some]
        found = torch.autograd.grad(
            loss_of(exact, (inputs, y[some])), [named[n] for n in layout.names], allow_unused=True
        )
        filled = [
            torch.zeros_like(named[n]) if g is None else g
            for n, g in zip(layout.names, found, strict=True)
        ]
        rows.append(layout.join([g.unsqueeze(0) for g in filled])[0])
    return torch.stack(rows)


def _double(model):
    import copy

    return copy.deepcopy(model).double()


def bounded(rows, columns, clip, factor, weights):
    """What the sum should be: every row times the numbers, clipped in every block."""
    total, scaled = torch.zeros(rows.shape[1], dtype=torch.float64), rows * factor
    if weights is not None:
        scaled = scaled * weights.double()
    of = columns.block_of.repeat_interleave(columns.piece)
    for row in scaled:
        for block, c in enumerate(clip):
            part = torch.where(of == block, row, 0.0)
            total += part * min(1.0, c / max(float(part.norm()), 1e-300))
    return total


def compare(model, x, *, size=1, granularity="model", clip=0.05, factor=0.7, weighted=False,
            tapped=True):  # fmt: skip
    """Compare the two, and whether taps were used."""
    y = torch.arange(len(x)) % CLASSES
    layout = Layout(model, granularity)
    number = len(x) // size
    executor = Executor(model, loss_of, layout, auxiliaries=number, scales=True)
    weights = torch.rand(layout.size).to(layout.dtype) + 0.5 if weighted else None
    batch = Batch(step=0, epoch=0, data=(x, y), sizes=(size,) * number)
    clips = tuple(clip * (1 + block) for block in range(layout.count))

    def contribute(rows, gradient, scratch):
        return gradient * factor * (1.0 if weights is None else weights), Tally()

    total, _, _ = executor.total(
        batch, columns=layout.columns, clip=clips, contribute=contribute,
        scaled=Scaled(factor=factor, weights=weights),
    )  # fmt: skip
    (how,) = executor.found.values()
    assert (how.taps is not None) == tapped
    expected = bounded(isolated(model, x, y, size, layout), layout.columns, clips, factor, weights)
    close = 1e-12 if layout.dtype == torch.float64 else 2e-5
    torch.testing.assert_close(total, expected, rtol=0, atol=close * float(expected.norm()))
    return how.taps


def behind(*layers):
    """A network whose answer passes through every output of the layers."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Tanh(), nn.LazyLinear(CLASSES))


def ready(model, x):
    model(x)  # lazy layers take their shape
    return model


@settings(max_examples=60)
@given(
    st.sampled_from([1, 2, 3]), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from(["zeros", "reflect", "circular", "replicate"]), st.sampled_from([0, 1, "same"]),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 4)]), st.booleans(), st.sampled_from([1, 2, 4]),
    st.sampled_from([torch.float32, torch.float64]), st.sampled_from(["model", "layer", "tensor"]),
)  # fmt: skip
def test_any_convolution(dims, kernel, stride, dilation, mode, padding, groups, bias, size, dtype,
                         granularity):  # fmt: skip
    torch.manual_seed(0)
    if padding == "same":
        stride = 1
    make = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    side = {1: 11, 2: 9, 3: 7}[dims]
    if dilation * (kernel - 1) >= side:
        return
    conv = make(4, 4, kernel, stride, padding, dilation, groups[0], bias, mode)
    x = torch.randn(8, 4, *[side] * dims).to(dtype)
    model = ready(behind(conv).to(dtype), x)
    taps = compare(model, x, size=size, granularity=granularity)
    assert {"0", "3"} <= set(taps.layers)


@pytest.mark.parametrize("channels", [(16, 80), (64, 64)])
@pytest.mark.parametrize("side", [3, 9])
@pytest.mark.parametrize("weighted", [False, True])
def test_wide_convolutions_are_products_of_windows(channels, side, weighted):
    x = torch.randn(8, channels[0], side, side)
    model = ready(behind(nn.Conv2d(*channels, 3, padding=1, bias=False)), x)
    taps = compare(model, x, weighted=weighted)
    assert taps.layers["0"].windows


@settings(max_examples=40)
@given(
    st.sampled_from([(), (1,), (5,), (40,), (2, 3)]), st.integers(1, 30), st.integers(1, 30),
    st.booleans(), st.sampled_from([1, 2]), st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_any_linear_layer(positions, inputs, outputs, bias, size, weighted, dtype):
    x = torch.randn(6, *positions, inputs).to(dtype)
    model = ready(behind(nn.Linear(inputs, outputs, bias)).to(dtype), x)
    compare(model, x, size=size, weighted=weighted, granularity="tensor")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "layer",
    [nn.GroupNorm(2, 6), nn.GroupNorm(6, 6), nn.LayerNorm((6, 5)), nn.LayerNorm(5),
     nn.LayerNorm(5, bias=False), nn.RMSNorm(5), nn.RMSNorm((6, 5)), nn.GroupNorm(1, 6, eps=0.1)],
)  # fmt: skip
def test_any_norm(layer, size, weighted):
    for p in layer.parameters():
        nn.init.normal_(p)
    x = 3.0 * torch.randn(6, 6, 5) + 1.0
    taps = compare(ready(behind(layer), x), x, size=size, weighted=weighted)
    assert "0" in taps.layers


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_embeddings(padding, size, weighted):
    x = torch.randint(0, 7, (6, 9))
    x[0] = 2  # one token alone, again and again
    model = nn.Sequential(nn.Embedding(7, 4, padding), nn.Flatten(), nn.Linear(36, CLASSES))
    taps = compare(model, x, size=size, weighted=weighted)
    assert ("0" in taps.layers) != weighted  # with weights its gradients are written out


class Twice(nn.Module):
    """A layer that is called several times, on inputs of several lengths."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        x = torch.tanh(self.layer(x))
        return self.last(torch.tanh(self.layer(x[:, :2])).sum(1) + x.mean(1))


class Tied(nn.Module):
    """The same weights in two layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight, self.last = self.a.weight, nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.last(self.b(torch.tanh(self.a(x))).mean(1))


class Elsewhere(nn.Module):
    """Weights that are also used past their layer, and a parameter of no layer."""

    def __init__(self):
        super().__init__()
        self.a, self.shift = nn.Linear(5, 5), nn.Parameter(torch.ones(5))
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.last((self.a(x) + self.shift * F.linear(x, self.a.weight.t())).mean(1))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("make", "tapped"),
    [(Twice, {"layer", "last"}), (Tied, {"a", "b", "last"}), (Elsewhere, {"last"})],
)
def test_what_taps_do_not_account_for_is_written_out(make, tapped, size):
    taps = compare(make(), torch.randn(6, 4, 5), size=size)
    assert set(taps.layers) == tapped


def test_a_layer_that_is_taken_apart_wrongly_is_written_out(monkeypatch):
    inner = Affine.parts

    def parts(self, calls, weights):
        if self.module.out_features == 4:
            calls = [replace(call, slope=2.0 * call.slope) for call in calls]
        return inner(self, calls, weights)

    monkeypatch.setattr(Affine, "parts", parts)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    assert list(compare(model, torch.randn(6, 5)).layers) == ["2"]


def test_attention_through_its_own_parameters():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.last = nn.Linear(8, CLASSES)

        def forward(self, x):
            return self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))

    assert set(compare(Attends(), torch.randn(6, 4, 8)).layers) == {"last"}


def test_a_frozen_half_of_a_layer_is_left_alone():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    compare(model, torch.randn(6, 5))


def test_large_terms_that_cancel_do_not_pass_the_bound(monkeypatch):
    """The slopes of two positions cancel: the norm is small, the terms of the sum are huge."""

    class Cancels(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16, bias=False)

        def forward(self, x):
            y = self.layer(x)
            return (y[:, 0] - y[:, 1])[:, :CLASSES] * 1e6

    monkeypatch.setattr("dpdt.algorithm.layer.as_product", lambda *a: True)
    torch.manual_seed(0)
    x = 1e6 * torch.randn(4, 1, 16).repeat(1, 2, 1)
    x[:, 1] += 1e-3 * torch.randn(4, 16)
    y, model = torch.arange(4) % CLASSES, Cancels()
    layout = Layout(model, "model")
    for one in range(4):
        executor = Executor(model, loss_of, layout, auxiliaries=1, scales=True)
        batch = Batch(step=0, epoch=0, data=(x[one : one + 1], y[one : one + 1]), sizes=(1,))
        total, _, _ = executor.total(
            batch, columns=layout.columns, clip=(1.0,), contribute=None, scaled=Scaled()
        )
        (how,) = executor.found.values()
        assert how.taps is not None
        assert 0.0 < float(total.norm()) <= 1.0


def test_taps_are_chosen_once_and_say_how(monkeypatch):
    tries = []
    original = ways.tapped
    monkeypatch.setattr(ways, "tapped", lambda *a: tries.append(1) or original(*a))
    model, x = nn.Linear(5, CLASSES), torch.randn(6, 5)
    layout = Layout(model, "model")
    executor = Executor(model, loss_of, layout, auxiliaries=6, scales=True)
    batch = Batch(step=0, epoch=0, data=(x, torch.zeros(6, dtype=int)), sizes=(1,) * 6)
    for _ in range(3):
        executor.total(batch, columns=layout.columns, clip=(1.0,), contribute=None, scaled=Scaled())
    assert len(tries) == 1


class Gained(nn.Module):
    """A layer with one parameter more than its kind has."""

    def __init__(self, layer):
        super().__init__()
        self.a, self.layer, self.b = nn.Linear(6, 6), layer, nn.Linear(6, CLASSES)
        self.layer.register_parameter("gain", nn.Parameter(torch.ones(6)))

    def forward(self, x):
        return self.b(self.layer(self.a(x)) * self.layer.gain)


@pytest.mark.parametrize("layer", [nn.Linear(6, 6), nn.LayerNorm(6), nn.GroupNorm(2, 6)])
def test_what_a_layer_has_besides_is_written_out(layer):
    taps = compare(Gained(layer), torch.randn(6, 6))
    assert "layer.gain" not in taps.homes


class Penalised(nn.Module):
    """Its parameters reach the loss by a path that is small beside the layers' own."""

    def __init__(self, share):
        super().__init__()
        self.a, self.b, self.share = nn.Linear(6, 6), nn.Linear(6, CLASSES), share

    def forward(self, x):
        small = self.share * self.a.weight.square().sum()
        return self.b(torch.tanh(self.a(x))) + torch.stack([small, 0 * small, -small])


@pytest.mark.parametrize("share", [1.0, 1e-6])
def test_a_second_path_to_the_loss_is_found_however_small(share):
    assert set(compare(Penalised(share), torch.randn(6, 6)).layers) == {"b"}


class Hidden(nn.Module):
    """Keeps a parameter in a list, where nobody who gives it other weights finds it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.kept = [self.a.weight]

    def forward(self, x):
        return self.b(torch.tanh(F.linear(self.a(x), self.kept[0])))


def test_what_cannot_be_mapped_rightly_is_computed_one_by_one():
    assert compare(Hidden(), torch.randn(6, 6), tapped=False) is None


def test_parameters_of_no_size_and_of_no_dimension():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, CLASSES)
            self.none, self.one = nn.Parameter(torch.empty(0)), nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.b(torch.tanh(self.a(x))) * self.one + self.none.sum()

    compare(Odd(), torch.randn(6, 6))


def test_norms_of_embeddings_are_exact_however_many_tokens():
    x = torch.stack([torch.randperm(1000) for _ in range(64)])
    model = nn.Sequential(nn.Embedding(1000, 2), nn.Flatten(), nn.Linear(2000, CLASSES))
    compare(model, x, clip=0.01)


def test_micro_batches_that_hold_much_are_taken_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(ways, "HELD", 2000)
    model, x = (
        nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, CLASSES)),
        torch.randn(40, 6),
    )
    taps = compare(model, x, size=2)
    assert taps.held * 16 > 2000
