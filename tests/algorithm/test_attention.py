"""Attention that is mapped gives what torch's own gives, example by example."""

import threading

import pytest
import torch
from torch.func import vmap
from torch.nn import functional as F

from dpdt.algorithm import attention
from dpdt.algorithm.gradients import differentiated, mappable

ROWS, HEADS, TOKENS, WIDTH = 5, 2, 7, 8
TRIANGLE = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
ORIGINAL = F.scaled_dot_product_attention


def attend(*args, **options):
    """As models call it: the name is looked up at every call."""
    return F.scaled_dot_product_attention(*args, **options)


def masks(kind: str, size: int) -> torch.Tensor:
    """A mask for every micro-batch, as models make them."""
    seen = torch.rand(ROWS, size, 1, TOKENS, TOKENS) > 0.3
    seen[..., 0] = True  # otherwise a token that sees nothing
    made = {
        "bool": seen,
        "padding": seen[..., :1, :],
        "float": torch.randn(ROWS, size, HEADS, TOKENS, TOKENS),
        "blind": seen & (torch.arange(TOKENS) != 3).view(-1, 1),  # token 3 sees nothing
    }
    return made[kind]


@pytest.fixture
def calls(monkeypatch):
    """How often the fused kernel is called."""
    found: list[int] = []
    kernel = attention.KERNEL

    def counted(*args, **kwargs):
        found.append(1)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(attention, "KERNEL", counted)
    return found


def given(size: int, width: int = WIDTH) -> list[torch.Tensor]:
    """Queries, keys and values of every micro-batch, laid out as models lay them out."""
    shapes = [(ROWS, size, TOKENS, HEADS, w) for w in (WIDTH, WIDTH, width)]
    return [torch.randn(shape).transpose(2, 3) for shape in shapes]


def compare(function, mapped, masks=None):
    """Values and gradients of a mapped function against those of each micro-batch by itself."""

    def value(mask, *x):
        out = function(*x, *mask)
        return (out * torch.arange(out.shape[-1])).sin().sum(), out

    masks = () if masks is None else (masks,)
    with mappable():
        slopes, out = vmap(lambda mask, *x: differentiated(lambda *x: value(mask, *x), *x))(
            masks, *mapped
        )
    for i in range(ROWS):
        alone = [t[i].clone().requires_grad_() for t in mapped]
        total, expected = value([m[i] for m in masks], *alone)
        torch.testing.assert_close(out[i], expected, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(slopes, torch.autograd.grad(total, alone), strict=True):
            torch.testing.assert_close(mine[i], theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", ["bool", "padding", "float", "blind"])
def test_a_mask_is_that_of_its_micro_batch(kind, size, calls):
    torch.manual_seed(0)
    compare(attend, given(size), masks(kind, size))
    assert calls


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": TRIANGLE}, {"scale": 0.1}]
)
def test_mapped_attention_is_that_of_each_micro_batch(options, size, calls):
    torch.manual_seed(0)
    compare(lambda *x: attend(*x, **options), given(size))
    assert calls


def test_a_mask_that_is_learnt_has_its_gradient():
    torch.manual_seed(0)
    bias = torch.randn(ROWS, 1, HEADS, TOKENS, TOKENS)
    compare(attend, [*given(1), bias])


def test_what_the_kernel_is_not_for_is_computed_as_it_is(calls):
    torch.manual_seed(0)
    compare(attend, given(1, width=4))
    three = [t.squeeze(1) for t in given(1)]  # without a dimension for examples
    compare(attend, three)
    few = [given(1)[0], *(t[:, :, :1] for t in given(1)[1:])]
    compare(lambda *x: attend(*x, enable_gqa=True), few)
    assert not calls


@pytest.mark.parametrize("wrong", ["values", "heads", "tokens"])
def test_shapes_that_do_not_fit_are_refused_as_by_torch(wrong, calls):
    """The kernel itself would read past the end."""
    q, k, v = given(1)
    mask = torch.zeros(ROWS, 1, 3 if wrong == "heads" else 1, TOKENS, TOKENS)
    v = v[:, :, :, :-2] if wrong == "values" else v
    mask = mask[..., :-2] if wrong == "tokens" else mask
    with mappable(), pytest.raises(RuntimeError):
        vmap(attend)(q, k, v, mask)
    assert not calls


def test_a_row_does_not_depend_on_others():
    torch.manual_seed(0)
    three, others = given(2), given(2)
    others = [torch.cat([a[:2], b[2:]]) for a, b in zip(three, others, strict=True)]

    def run(given):
        def value(*x):
            out = attend(*x)
            return out.sin().sum(), out

        with mappable():
            slopes, out = vmap(lambda *x: differentiated(value, *x))(*given)
        return [t[:2] for t in (*slopes, out)]

    for mine, theirs in zip(run(three), run(others), strict=True):
        assert torch.equal(mine, theirs)


def test_only_the_thread_that_maps_has_another_function(calls):
    three, found = [t[0] for t in given(1)], []
    expected = ORIGINAL(*three)
    with mappable():
        assert F.scaled_dot_product_attention is not ORIGINAL
        thread = threading.Thread(
            target=lambda: found.append(F.scaled_dot_product_attention(*three))
        )
        thread.start()
        thread.join()
        assert not calls
    torch.testing.assert_close(found[0], expected)
    assert F.scaled_dot_product_attention is ORIGINAL


def test_a_function_that_somebody_else_has_put_there_stays(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v: v)
    mine = F.scaled_dot_product_attention
    with mappable():
        assert F.scaled_dot_product_attention is mine
    assert F.scaled_dot_product_attention is mine
