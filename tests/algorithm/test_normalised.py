"""GroupNorm that is mapped gives what torch's own gives, in whatever order images lie."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import vjp, vmap

from dpdt.algorithm import ways
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.normalised import group_norm
from dpdt.algorithm.scaled import Scaled
from dpdt.models.loss import default_loss

ORDERS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("shape", [(3, 4, 5, 5), (3, 1, 5, 5), (3, 4, 1, 1), (3, 4, 5, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_inputs_and_slopes_may_lie_in_different_orders(shape, groups):
    """torch's kernel takes both for granted to lie alike, and is far off if they do not."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(min(groups, shape[1]), shape[1])
    nn.init.normal_(norm.weight)
    x, slope = torch.randn(6, *shape[1:], requires_grad=True), torch.randn(6, *shape[1:])
    expected = norm(x)
    (by_input,) = torch.autograd.grad(expected, x, slope)

    def each(x, slope, tap):
        y, back = vjp(lambda x, tap: group_norm(norm, x, tap), x, tap)
        return y, *back(slope)

    for mine, theirs in product(ORDERS, ORDERS):
        given = x.detach().contiguous(memory_format=mine), slope.contiguous(memory_format=theirs)
        split = [torch.unflatten(t, 0, (2, 3)) for t in given]
        y, found, by_tap = vmap(each)(*split, torch.zeros(2, *shape))
        torch.testing.assert_close(y.flatten(0, 1), expected.detach())
        torch.testing.assert_close(found.flatten(0, 1), by_input)
        assert torch.equal(by_tap, split[1])


class Own(nn.Module):
    """A layer that nothing is known of."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x):
        return x * self.shift


def test_a_layer_of_one_s_own_before_a_norm_is_written_out_beside_it():
    model = nn.Sequential(
        Own(), nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), nn.Flatten(), nn.Linear(16, 2)
    )
    layout = Layout(model, "model")
    executor = Executor(model, default_loss, layout, auxiliaries=5, scales=True)
    data = torch.randn(5, 3, 4, 4), torch.randint(0, 2, (5,))
    batch = Batch(step=0, epoch=0, data=data, sizes=(1,) * 5)
    with torch.no_grad():
        how = ways.tapped(executor, batch, Scaled(), layout.columns)
    assert how.taps.homes.keys() == set(layout.names) - {"0.shift"}


def test_weights_that_differ_by_micro_batch_are_refused():
    def each(x, weight):
        norm = SimpleNamespace(weight=weight, bias=None, num_groups=1, eps=1e-5)
        return group_norm(norm, x, None)

    with pytest.raises(RuntimeError, match="must be the same for all micro-batches"):
        vmap(each)(torch.randn(2, 3, 4), torch.ones(2, 4))
