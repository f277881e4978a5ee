"""The norm bound is enforced: privacy rests on it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.layout import Layout
from dpdt.errors import InputError
from dpdt.mechanism import BoundedSum, Columns
from dpdt.parts import TERMS, Lookups, Products, Rows

from .problems import batch_of, engine_for, flat, take_step


def layout_of(*sizes, dtype=torch.float32):
    model = nn.ParameterList([nn.Parameter(torch.zeros(s, dtype=dtype)) for s in sizes])
    return Layout(model, "tensor")


def buffer(layout, values):
    """Rows of parameters, without padding, as a buffer of the layout."""
    x = torch.from_numpy(values.copy())
    return layout.join(x.split([b.size for b in layout.blocks.blocks], dim=1))


def inside(layout, total, clip):
    """Whether a flat vector is finite and no longer than C in every block, without rounding."""
    if not torch.isfinite(total).all():
        return False
    squares = [sum(Fraction(x) ** 2 for x in part.tolist()) for part in layout.split(total)]
    return max(squares) <= Fraction(clip) ** 2


def bounded(layout, rows, clip):
    """What each row, as a contribution of its own, adds to a sum."""
    result = []
    for row in rows:
        total = BoundedSum(layout.columns, (clip,) * layout.count)
        total.add(row.unsqueeze(0))
        assert total.total.dtype == torch.float64
        result.append(total.total)
    return result


# Everything a float can be: infinities, NaN, subnormals, the largest numbers.
wild = arrays(np.float32, (3, 12), elements=st.floats(width=32))
wilder = arrays(np.float64, (3, 12), elements=st.floats())
# Numbers around any clip below, where the bound is at work.
near = st.tuples(
    arrays(np.float64, (3, 12), elements=st.floats(-10, 10)), st.integers(-32, 32)
).map(lambda pair: pair[0] * 10.0 ** pair[1])
clips = st.floats(-30, 30).map(lambda exponent: 10.0**exponent)


@settings(max_examples=600)
@given(st.one_of(wild, wilder, near), clips)
def test_any_input_ends_inside_the_ball(values, clip):
    dtype = torch.float32 if values.dtype == np.float32 else torch.float64
    layout = layout_of(5, 5, 2, dtype=dtype)
    x = buffer(layout, values)
    before = x.clone()
    for total in bounded(layout, x, clip):
        assert inside(layout, total, clip)
    assert torch.equal(x.view(torch.uint8), before.view(torch.uint8))  # the caller's stays


@settings(max_examples=300)
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.tuples(
            arrays(np.float64, (1, n, 4), elements=st.floats(-1e9, 1e9)),
            arrays(np.float64, (1, n, 5), elements=st.floats(width=32)),
        )
    ),
    clips,
    st.sampled_from(["products", "weighted", "lookups", "rows"]),
    st.sampled_from([1.0, 1e-6, 1e6]),
)
def test_any_part_ends_inside_the_ball(pair, clip, kind, factor):
    """However it is held, and if its terms cancel."""
    left, right = (torch.from_numpy(x) for x in pair)
    if kind == "lookups":
        shape, part = (3, 5), Lookups(right, torch.tensor([[0, 2, 0]])[:, : right.shape[1]])
    elif kind == "rows":
        shape, part = (5,), Rows(right[:, 0])
    else:
        if kind == "weighted":
            left, right = left[:, :1], right[:, :1]
        weights = torch.linspace(0.1, 3.0, 20).view(4, 5) if kind == "weighted" else None
        shape, part = (4, 5), Products(left, right, weights)
    layout = layout_of(math.prod(shape), dtype=torch.float64)
    bounded = BoundedSum(Columns([layout.size]), (clip,))
    total, real = torch.zeros(shape, dtype=torch.float64), torch.tensor([True])
    bounded.add_parts([(part, 0, total)], real, lambda norms: torch.full_like(norms, factor))
    assert inside(layout, total.flatten(), clip)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("positions", [1, 3])
def test_products_in_stretches_are_the_products(monkeypatch, positions, dtype, weighted):
    """However many stretches: norms and sums are those of what is written out."""
    generator, rows = torch.Generator().manual_seed(0), 150
    positions = 1 if weighted else positions
    left = torch.randn(rows, positions, 4, generator=generator).to(dtype)
    right = torch.randn(rows, positions, 5, generator=generator).to(dtype)
    weights = torch.rand(4, 5, generator=generator).to(dtype) if weighted else None
    written = torch.einsum("rpa,rpb->rab", left.double(), right.double())
    written = written if weights is None else written * weights.double()
    factors, cleared = torch.linspace(0.0, 1.0, rows, dtype=torch.float64), torch.arange(rows) == 99
    for numbers, stretches in ((19, 1), (20, 3), (1 << 17, 1)):
        monkeypatch.setattr("dpdt.parts.STRETCH", numbers)
        part, total = Products(left, right, weights), torch.ones(4, 5, dtype=torch.float64)
        assert len(list(part._stretches())) == (1 if weighted else stretches)
        squares = part.squares()
        torch.testing.assert_close(squares, written.square().sum((1, 2)), rtol=1e-12, atol=0.0)
        part.clear(cleared)
        part.add_to(total, factors)
        expected = 1.0 + torch.einsum("r,rab->ab", factors.masked_fill(cleared, 0.0), written)
        torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)


def test_what_cancels_counts_by_all_rows_of_a_sum_not_by_those_of_a_stretch(monkeypatch):
    """The more terms a sum has, the more rounding can add: κ is about the whole of it."""
    rows, left = 150, torch.tensor([[1.0], [-1.0]]).expand(150, 2, 1)
    for numbers in (3, 1 << 17):
        monkeypatch.setattr("dpdt.parts.STRETCH", numbers)
        found = Products(left, torch.ones(rows, 2, 3)).squares()
        least = (2 * math.sqrt(3.0) * rows * 2 / TERMS) ** 2
        torch.testing.assert_close(found, torch.full_like(found, least), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.0 + 1e-9, 3.0, 1e6])
@pytest.mark.parametrize("clip", [1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_what_is_short_enough_is_left_and_the_rest_is_cut_to_the_clip(factor, clip):
    """So that being inside the ball is not had by sending 0."""
    layout = layout_of(5, 5, 2, dtype=torch.float64)
    values = np.random.default_rng(0).standard_normal((1, 12))
    x = buffer(layout, values)
    layout.scale_(x, factor * clip / layout.norms(x))
    (total,) = bounded(layout, x, clip)
    torch.testing.assert_close(total, x[0] * min(1.0, 1.0 / factor), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("clip", [0.0, -1.0, 1e-200, 1e200, math.inf, math.nan])
def test_a_clip_that_float64_cannot_square_is_refused(clip):
    with pytest.raises(InputError, match=r"method.clip: must be from 1e-100 to 1e\+100"):
        BoundedSum(layout_of(5).columns, (clip,))


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
    from dpdt.algorithm.recipe import Recipe

    layout = layout_of(5, 5, 2)
    preconditioner = Preconditioner(name=name, decay=DECAYS[name])
    told = Recipe(
        auxiliaries=3, clip=(clip,), noise=(0.0,), lr=0.1, memory=memory,
        preconditioner=preconditioner,
    )  # fmt: skip
    kept = memories.make(told, layout, 3)
    if memory == "auxiliary":
        kept.multiplier.copy_(buffer(layout, multiplier))
        kept.norms.copy_(layout.norms(kept.multiplier))
    limits = torch.full((3,), clip, dtype=torch.float64)
    step = memories.StepValues(
        index=0,
        clip=limits,
        penalty=torch.tensor([[rho]], dtype=torch.float64),
        lr=0.5,
        decay=None,
    )
    gradient = buffer(layout, values)
    scratch = torch.full_like(gradient, math.nan)
    tally = kept.contribute_(slice(0, 3), gradient, scratch, step)
    assert isinstance(tally, Tally)
    for total in bounded(layout, gradient, clip):
        assert inside(layout, total, clip)
    for state in kept.state().values():
        assert torch.isfinite(state).all()  # one bad step must not poison the run


def test_norm_of_millions_of_float32_entries():
    """Summed in float32, the norm of eleven million entries is too small by 4e-4."""
    layout = layout_of(11_000_000)
    generator = torch.Generator().manual_seed(0)
    x = layout.join([torch.randn(1, 11_000_000, generator=generator)])
    (total,) = bounded(layout, x, 1.0)
    assert 1 - 1e-4 < float(total.norm()) <= 1.0


def moved_by(x, **options):
    """Where one step from 0 leads with two auxiliaries of one example each, and what was seen."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(m, x):
        return (m(x) * 1.0).mean()

    engine = engine_for(model, loss, auxiliaries=2, lr=0.5, clip=1.0, global_lr=1.0, **options)
    result = take_step(engine, batch_of(x, (1, 1)))
    return flat(model), result


@pytest.mark.parametrize("size", [1e20, 3e38])
@pytest.mark.parametrize("memory", ["none", "shared"])
def test_a_gradient_whose_square_overflows_is_clipped(size, memory):
    """In float32, that is: norms are float64, so it is scaled to norm C like any other."""
    x = torch.tensor([[size, size], [0.6, 0.8]])
    theta, result = moved_by(x, memory=memory)
    assert result.nonfinite == 0
    # contribution of the first: C along g; of the second: 2ρη g = g with norm 1; the mean over K
    assert torch.allclose(theta, -(torch.tensor([0.5, 0.5]).sqrt() + x[1]) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("bad", "memory"),
    [(math.inf, "none"), (math.nan, "none"), (math.inf, "shared"), (1e20, "auxiliary")],
)
def test_scaled_sum_of_a_gradient_that_overflows(bad, memory):
    """A contribution that is not finite becomes 0, the divisor stays K.

    Where multipliers are kept, inner products are float32: the square of 1e20 is not finite.
    """
    x = torch.tensor([[bad, bad], [0.6, 0.8]])
    theta, result = moved_by(x, memory=memory)
    assert result.nonfinite == 1
    # contribution of the second: 2ρη g = g with norm 1; the mean over K = 2 is half of it
    assert torch.allclose(theta, torch.tensor([-0.3, -0.4]), atol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_examples_are_counted_and_do_no_harm(bad):
    model = nn.Linear(2, 1, bias=False)

    def loss(m, x):
        return m(x).mean()

    engine = engine_for(model, loss, auxiliaries=3, memory="auxiliary", lr=0.5, noise=0.0, seed=1)
    x = torch.tensor([[bad, 1.0], [1.0, 1.0], [0.0, 2.0]])
    for step in range(3):
        result = take_step(engine, batch_of(x, (1, 1, 1), step))
        assert result.nonfinite == 1
    assert torch.isfinite(flat(model)).all()
    assert all(torch.isfinite(t).all() for t in engine.memory.state().values())
    assert (engine.memory.multiplier[0] == 0).all()
