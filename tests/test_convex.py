"""The bounded linear head, and a run whose headline is the convex hidden-state bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dpdt.models.bounds import linear_bounds
from dpdt.models.networks import BoundedLinear, bounded_linear, bounds_of
from tests.numbers import train


@settings(max_examples=100)
@given(st.floats(0.1, 10), st.floats(1e-3, 1e6), st.integers(0, 10**6))
def test_gradients_of_any_example_obey_the_bound(radius, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    model = BoundedLinear(5, 3, radius)
    with torch.no_grad():
        model.weight.copy_(torch.randn(3, 5, generator=generator) * scale)
    x = torch.randn(1, 5, generator=generator) * scale
    loss = F.cross_entropy(model(x), torch.tensor([seed % 3]))
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradient))
    assert norm <= linear_bounds(radius).gradient


@pytest.mark.parametrize("radius", [0.5, 2.0])
def test_curvature_obeys_the_bound_and_nearly_reaches_it(radius):
    """The Hessian of softmax cross-entropy in the logits is largest for two equal classes."""
    model = BoundedLinear(4, 2, radius).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    x = torch.full((1, 4), 100.0, dtype=torch.float64)

    def loss(flat):
        parameters = {"weight": flat[:8].view(2, 4), "bias": flat[8:]}
        logits = torch.func.functional_call(model, parameters, (x,))
        return F.cross_entropy(logits, torch.tensor([0]))

    hessian = torch.autograd.functional.hessian(loss, torch.zeros(10, dtype=torch.float64))
    largest = float(torch.linalg.eigvalsh(hessian).max())
    bound = linear_bounds(radius).smoothness
    assert 0.99 * bound <= largest <= bound * (1 + 1e-9)


def test_which_models_have_bounds():
    assert bounds_of(bounded_linear(4, 2, 1.0)) == linear_bounds(1.0)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert bounds_of(nn.Sequential(frozen, nn.ReLU(), BoundedLinear(4, 2, 1.0))) is not None
    assert bounds_of(nn.Sequential(nn.Linear(4, 4), BoundedLinear(4, 2, 1.0))) is None
    assert bounds_of(nn.Sequential(BoundedLinear(4, 2, 1.0), nn.Tanh())) is None
    assert bounds_of(nn.Linear(4, 2)) is None


OPTIONS = {
    "memory": "none",
    "granularity": "model",
    "epochs": 3,
    "batch_size": 20,
    "lr": 0.1,
    "penalty": 1.0,
    "global_lr": 1.0,
    "noise": 1.0,
    "weight_decay": 0.1,
    "release": "last",
}


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, 4, generator=generator), torch.zeros(60, dtype=torch.long)


def test_a_run_with_the_convex_bound_as_its_headline():
    reach = 2 * 0.1 * linear_bounds(1.0).gradient
    result = train(bounded_linear(4, 2, 1.0), data(), clip=1.01 * reach, **OPTIONS)
    assert result.privacy.proven.accountant == "hidden-state-convex"
    assert result.privacy.proven.observer == "last iterate"
    composition = next(g for g in result.privacy.guarantees if g.accountant == "composition")
    assert result.privacy.epsilon < composition.epsilon


def test_the_convex_bound_is_not_the_headline_where_all_iterates_may_be_seen():
    reach = 2 * 0.1 * linear_bounds(1.0).gradient
    options = {**OPTIONS, "clip": 1.01 * reach, "release": "all"}
    result = train(bounded_linear(4, 2, 1.0), data(), **options)
    assert result.privacy.proven.accountant == "composition"
    convex = next(g for g in result.privacy.guarantees if g.accountant == "hidden-state-convex")
    assert not convex.valid
    assert any("release" in c.why for c in convex.conditions if not c.holds)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clip": 0.1}, "clip must be"),
        ({"loss": lambda m, b: F.cross_entropy(m(b[0]), b[1])}, "gives no such bound"),
        ({"model": nn.Linear(4, 2)}, "gives no such bound"),
    ],
)
def test_it_is_refused_where_a_condition_fails(change, reason):
    options = {"clip": 10.0, **OPTIONS, **change}
    model = options.pop("model", None) or bounded_linear(4, 2, 1.0)
    result = train(model, data(), **options)
    convex = next(g for g in result.privacy.guarantees if g.accountant == "hidden-state-convex")
    assert not convex.valid
    assert any(reason in c.why for c in convex.conditions if not c.holds)
