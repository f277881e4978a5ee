"""Kernels of torch that fail on channels last never see them."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F

from dpdt.algorithm import kernels
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.kernels import lay_first, takes_channels_last
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.scaled import Scaled
from dpdt.errors import InputError
from dpdt.models.loss import default_loss
from dpdt.models.networks import Residual
from dpdt.training.loop import prepare

from .problems import batch_of, engine_for, take_step

MICRO: dict[str, Any] = {
    "auxiliaries": 2, "memory": "auxiliary", "sampling": "partition", "lr": 1e-2, "penalty": 0.1,
    "preconditioner": "rmsprop", "clip": 1.0, "averaging": 0.0,
}  # fmt: skip
FIRST, LAST = torch.contiguous_format, torch.channels_last


class Skipping(nn.Module):
    """A convolution of kernel 1 that skips places, behind one that does not."""

    def __init__(self, stride=2, by="layer", channels=3):
        super().__init__()
        self.first, self.by, self.stride = nn.Conv2d(channels, 4, 3, padding=1), by, stride
        self.skips, self.head = nn.Conv2d(4, 6, 1, stride), nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.by == "function":
            x = F.conv2d(x, self.skips.weight, self.skips.bias, self.stride)
        else:
            x = self.skips(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
                           if self.by == "permute" else x)  # fmt: skip
        return self.head(x.mean((2, 3)))


class Identity(Function):
    """What it calls is not in the graph."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(Identity.apply(self.first(x)).mean((2, 3)))


def shortcut():
    return nn.Sequential(Residual(3, 4, 2, "layer"), nn.Flatten(), nn.Linear(4 * 16, 3))


def images(number, channels=3):
    x = torch.randn(number, 8, 8, channels).movedim(-1, 1)
    return x.clone(memory_format=FIRST), torch.randint(0, 3, (number,))


@pytest.mark.parametrize(
    ("model", "last"),
    [
        (lambda: Skipping(1), True),
        (lambda: Skipping(2), False),
        (lambda: Skipping((1, 2)), False),
        (lambda: Skipping(2, "function"), False),
        (Hidden, False),
        (shortcut, True),
    ],
    ids=["steps of 1", "steps of 2", "steps along one side", "a function", "hidden", "ours"],
)
def test_a_model_with_a_kernel_that_fails_on_channels_last_keeps_them_first(model, last):
    """One example at a time: then such a kernel stays within its memory."""
    engine = engine_for(model(), memory="auxiliary", auxiliaries=3)
    take_step(engine, batch_of(images(4), (2, 1, 1)))
    assert engine.layout.channels_last == last


def frozen():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 3, 6), nn.Flatten())
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "takes"),
    [(lambda: Skipping(1), True), (Skipping, False), (frozen, False), (Hidden, False)],
    ids=["steps of 1", "steps of 2", "frozen", "hidden"],
)
def test_the_graph_of_a_loss_shows_what_it_calls(model, takes):
    value = default_loss(model(), images(2))
    assert takes_channels_last(value) == takes


def test_kernels_are_looked_for_on_made_up_inputs(monkeypatch):
    def looked(value):
        seen.extend(n._saved_input for n in kernels._behind(value) if "Convolution" in n.name())
        return takes_channels_last(value)

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(kernels, "takes_channels_last", looked)
    engine = engine_for(Skipping(1), memory="auxiliary", auxiliaries=3)
    x, y = images(4)
    take_step(engine, batch_of((torch.full_like(x, 777.0), y), (2, 1, 1)))
    assert seen
    assert not any((x == 777.0).any() for x in seen)


@pytest.mark.parametrize(("stride", "last"), [(1, True), (2, False)])
def test_so_it_does_where_taps_compute_it(stride, last):
    model = Skipping(stride)
    layout = Layout(model, "model")
    executor = Executor(model, default_loss, layout, auxiliaries=3, expected=1, scales=True)
    how = executor._settle(batch_of(images(3), (1, 1, 1)), None, Scaled(factor=1.0), layout.columns)
    assert how.taps.channels_last == last


def test_the_shortcut_is_the_convolution_that_skips_places():
    block, x = Residual(3, 4, 2, "layer"), torch.randn(2, 3, 8, 8)
    skips = F.conv2d(x, block.shortcut.weight, stride=2)
    torch.testing.assert_close(block.shortcut(x[:, :, ::2, ::2]), skips)
    straight = block.shortcut_norm(skips)
    bent = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
    torch.testing.assert_close(block(x), F.relu(bent + straight))


@pytest.mark.parametrize("taps", [True, False])
def test_a_model_that_lays_channels_last_itself_is_refused(taps):
    model = Skipping(by="permute")
    step, loader = prepare(
        model, images(8), epochs=1, batch_size=4, noise=1.0,
        **({} if taps else MICRO),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"'skips.weight'.*call .contiguous\(\) on its input"):
        step(next(iter(loader)))


def last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


class Strict(Skipping):
    """Looks whether what it is given lies channels first."""

    def forward(self, x):
        for t in (x, self.first.weight, self.skips.weight):
            if t.stride() != torch.empty(t.shape).stride():
                raise TypeError(f"{tuple(t.shape)} lie as {t.stride()}")
        return super().forward(x)


@pytest.mark.parametrize("method", ["dpdt", "dpsgd", "plain", "pate"])
@pytest.mark.parametrize("channels", [1, 3])
def test_weights_and_examples_with_channels_last_are_laid_channels_first(method, channels):
    """Of one channel, and of kernel 1, strides alone tell the order."""
    model, (x, y) = Strict(channels=channels).to(memory_format=LAST), images(24, channels)
    public = last(images(12, channels)[0])
    before = [p.detach().clone() for p in model.parameters()]
    step, loader = prepare(
        model, (last(x), y), epochs=1, batch_size=24, method=method,
        **({} if method == "plain" else {"noise": 1.0}),
        **({"public": public, "teachers": 4} if method == "pate" else {}),
    )  # fmt: skip
    assert all(map(torch.equal, before, model.parameters()))
    for batch in loader:
        step(batch)


def test_weights_of_three_dimensions_are_laid_first_too():
    model = nn.Sequential(nn.Conv3d(2, 3, 2), nn.Conv1d(2, 3, 2)).to(
        memory_format=torch.channels_last_3d
    )
    before = [p.detach().clone() for p in model.parameters()]
    assert not model[0].weight.is_contiguous()
    lay_first(model)
    assert all(p.is_contiguous() for p in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))
