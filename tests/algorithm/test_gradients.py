"""The derivative is the same whether torch's compiler is loaded or not, and does not load it."""

import importlib
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from dpdt.algorithm.gradients import differentiated

RUN = """
import sys, torch, dpdt
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
data = torch.randn(64, 3), torch.randint(0, 2, (64,))
dpdt.train(model, data, epochs=2, batch_size=64, epsilon=8.0, allow_large_delta=True)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def compiler(loaded, monkeypatch):
    if loaded:
        importlib.import_module("torch._dynamo")
    else:
        monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)


def slopes(model, x, loaded, monkeypatch, *, scale=1.0):
    """Gradients by two kinds of argument, one of which has a number that the loss never sees."""
    compiler(loaded, monkeypatch)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def local(theta, others, row):
        value = functional_call(model, theta, (row,)).square().sum() * scale
        return value + others[0].sum(), value

    def each(row):
        others = (torch.ones(2), torch.ones(3))
        return differentiated(lambda t, o: local(t, o, row), parameters, others)

    return vmap(each)(x)


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_the_derivative_is_the_same_with_and_without_the_compiler(scale, monkeypatch):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    (theta, others), aux = slopes(model, x, True, monkeypatch, scale=scale)
    (mine, too), value = slopes(model, x, False, monkeypatch, scale=scale)
    assert mine.keys() == theta.keys()
    assert all(torch.equal(mine[name], theta[name]) for name in theta)
    assert [t.tolist() for t in too] == [t.tolist() for t in others]
    assert too[0].tolist() == [[1.0, 1.0]] * 5
    assert too[1].tolist() == [[0.0] * 3] * 5
    assert torch.equal(value, aux)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_constant_has_no_slope(loaded, monkeypatch):
    compiler(loaded, monkeypatch)

    def each(x):
        return differentiated(lambda w: (x.sum(), x), torch.ones(2))

    (found,), _ = vmap(each)(torch.ones(3, 4))
    assert found.tolist() == [[0.0, 0.0]] * 3


def test_training_does_not_load_the_compiler():
    """It takes a second, more than a small run."""
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
