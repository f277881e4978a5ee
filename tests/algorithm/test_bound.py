"""The norm bound is enforced: privacy rests on it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from dpdt.algorithm.auxiliary import Tally, bound_
from dpdt.algorithm.layout import Layout

from .problems import batch_of, engine_for, flat


def layout_of(*sizes, dtype=torch.float32):
    model = nn.ParameterList([nn.Parameter(torch.zeros(s, dtype=dtype)) for s in sizes])
    return Layout(model, "tensor")


def buffer(layout, values):
    """Rows of parameters, without padding, as a buffer of the layout."""
    x = torch.from_numpy(values.copy())
    return layout.join(x.split([b.size for b in layout.blocks.blocks], dim=1))


def exact_norms(layout, x):
    rows = [[part.double().norm() for part in layout.split(row)] for row in x]
    return torch.tensor(rows)


# Everything a float32 can be: infinities, NaN, subnormals, the largest numbers.
wild = arrays(np.float32, (3, 12), elements=st.floats(width=32))


@settings(max_examples=300)
@given(wild, st.floats(1e-6, 1e6))
def test_any_input_ends_inside_the_ball(values, clip):
    layout = layout_of(5, 5, 2)
    x = buffer(layout, values)
    limits = torch.full((3,), clip, dtype=torch.float64)
    bound_(layout, x, limits)
    assert torch.isfinite(x).all()
    assert (exact_norms(layout, x) <= limits).all()


@settings(max_examples=200)
@given(
    wild,
    arrays(np.float32, (3, 12), elements=st.floats(-10, 10, width=32)),
    st.sampled_from(["auxiliary", "shared", "none"]),
    st.sampled_from(["identity", "rmsprop", "adam"]),
    st.floats(1e-3, 10),
    st.floats(1e-3, 1e3),
)
def test_contributions_of_any_gradient_are_bounded(values, multiplier, memory, name, clip, rho):
    from dpdt.algorithm import memory as memories
    from dpdt.algorithm.preconditioner import DECAYS, Preconditioner

    layout = layout_of(5, 5, 2)
    preconditioner = Preconditioner(name=name, decay=DECAYS[name])
    kept = memories.make(memory, layout, preconditioner, 3)
    if memory == "auxiliary":
        kept.multiplier.copy_(buffer(layout, multiplier))
        kept.norms.copy_(layout.norms(kept.multiplier))
    limits = torch.full((3,), clip, dtype=torch.float64)
    step = memories.Step(
        index=0,
        clip=limits,
        penalty=torch.tensor([[rho]], dtype=torch.float64),
        lr=0.5,
        decay=None,
        diagnose=False,
    )
    gradient = buffer(layout, values)
    scratch = torch.full_like(gradient, math.nan)
    tally = kept.contribute_(slice(0, 3), gradient, scratch, step)
    assert isinstance(tally, Tally)
    assert torch.isfinite(gradient).all()
    assert (exact_norms(layout, gradient) <= limits).all()
    for state in kept.state().values():
        assert torch.isfinite(state).all()  # one bad step must not poison the run


def test_norm_of_millions_of_float32_entries():
    """Summed in float32, the norm of eleven million entries is too small by 4e-4."""
    layout = layout_of(11_000_000)
    generator = torch.Generator().manual_seed(0)
    x = layout.join([torch.randn(1, 11_000_000, generator=generator)])
    bound_(layout, x, torch.tensor([1.0], dtype=torch.float64))
    assert 1 - 1e-4 < float(x.double().norm()) <= 1.0


def test_scaled_sum_of_a_gradient_that_overflows():
    """1e20 is finite but its square is not: the contribution becomes 0, the divisor stays K."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(m, x):
        return (m(x) * 1.0).mean()

    engine = engine_for(model, loss, auxiliaries=2, lr=0.5, clip=1.0, global_lr=1.0)
    x = torch.tensor([[1e20, 1e20], [0.6, 0.8]])
    result = engine.step(batch_of(x, (1, 1)))
    assert result.nonfinite == 1
    # contribution of the second: 2ρη g = g with norm 1; the mean over K = 2 is half of it
    assert torch.allclose(flat(model), torch.tensor([-0.3, -0.4]), atol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_examples_are_counted_and_do_no_harm(bad):
    model = nn.Linear(2, 1, bias=False)

    def loss(m, x):
        return m(x).mean()

    engine = engine_for(model, loss, auxiliaries=3, memory="auxiliary", lr=0.5, noise=0.0, seed=1)
    x = torch.tensor([[bad, 1.0], [1.0, 1.0], [0.0, 2.0]])
    for step in range(3):
        result = engine.step(batch_of(x, (1, 1, 1), step))
        assert result.nonfinite == 1
    assert torch.isfinite(flat(model)).all()
    assert all(torch.isfinite(t).all() for t in engine.memory.state().values())
    assert (engine.memory.multiplier[0] == 0).all()
