import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpdt.algorithm.blocks import Blocks
from dpdt.algorithm.layout import Layout, parameters_of
from dpdt.errors import InputError


def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)
    )


@pytest.mark.parametrize(
    ("granularity", "names"),
    [
        ("layer", {"0", "1", "3", "4"}),
        ("tensor", {f"{i}.{n}" for i in (0, 1, 3, 4) for n in ("weight", "bias")}),
        ("kind", {"conv", "norm", "linear"}),
        ("model", {"model"}),
    ],
)
def test_granularities_partition_everything_that_is_trained(granularity, names):
    model = network()
    blocks = Blocks.group(parameters_of(model), granularity)
    assert {b.name for b in blocks.blocks} == names
    members = [n for group in blocks.members for n in group]
    assert sorted(members) == sorted(n for n, _ in model.named_parameters())
    assert sum(b.size for b in blocks.blocks) == sum(p.numel() for p in model.parameters())


def test_values_by_kind_and_by_block():
    blocks = Blocks.group(parameters_of(network()), "layer")
    values = blocks.expand({"conv": 1.0, "norm": 2.0, "linear": 3.0, "4": 4.0}, "method.clip")
    assert dict(zip([b.name for b in blocks.blocks], values, strict=True)) == {
        "0": 1.0, "1": 2.0, "3": 3.0, "4": 4.0,
    }  # fmt: skip
    with pytest.raises(InputError, match=r"method.clip: no value for block '1' of kind 'norm'"):
        blocks.expand({"conv": 1.0, "linear": 3.0}, "method.clip")
    with pytest.raises(InputError, match=r"method.clip.head: neither a kind .* nor a block"):
        blocks.expand({"head": 1.0}, "method.clip")


@settings(max_examples=50)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99))
def test_arithmetic_by_block(sizes, rows, seed):
    model = nn.ParameterList([nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in sizes])
    layout = Layout(model, "tensor")
    assert layout.size <= 1.25 * sum(sizes)
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return [torch.randn(rows, s, generator=generator, dtype=torch.float64) for s in sizes]

    xs, ys = draw(), draw()
    x, y = layout.join(xs), layout.join(ys)
    torch.testing.assert_close(layout.norms(x), torch.stack([p.norm(dim=1) for p in xs], 1))
    torch.testing.assert_close(
        layout.dots(x, y), torch.stack([(p * q).sum(1) for p, q in zip(xs, ys, strict=True)], 1)
    )
    factors = torch.rand(rows, layout.count, dtype=torch.float64, generator=generator)
    scaled = layout.join([p * factors[:, [i]] for i, p in enumerate(xs)])
    torch.testing.assert_close(layout.scale_(x.clone(), factors), scaled)
    where = factors > 0.5
    zeroed = layout.join([p.masked_fill(where[:, [i]], 0.0) for i, p in enumerate(xs)])
    assert torch.equal(layout.zero_(x.clone(), where), zeroed)
    numbers = torch.rand(layout.count).tolist()
    spread = layout.split(layout.spread(numbers))
    assert all((part == n).all() for part, n in zip(spread, numbers, strict=True))
    assert layout.spread(numbers).count_nonzero() == sum(sizes)  # padding is 0
    layout.scatter(y[0])
    assert torch.equal(layout.gather(), y[0])
