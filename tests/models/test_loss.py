"""The usual loss."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional as F

from dpdt.algorithm.state import Tainted
from dpdt.models.loss import Criterion, default_loss


def same(x):
    return x


@pytest.mark.parametrize("y", [[0, 3, 2, 3], [-100, 1, 2, 0], [-100] * 4])
def test_it_is_the_cross_entropy_of_torch(y):
    x, y = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.tensor(y)
    expected, found = F.cross_entropy(x, y), default_loss(same, (x, y))
    torch.testing.assert_close(found, expected, equal_nan=True)
    if (y >= 0).any():
        gradients = [torch.autograd.grad(value, x)[0] for value in (expected, found)]
        torch.testing.assert_close(*gradients)
    mapped = vmap(lambda a, b: default_loss(same, (a, b)))(x[:, None], y[:, None])
    torch.testing.assert_close(mapped, F.cross_entropy(x, y, reduction="none") / (y >= 0),
                               equal_nan=True)  # fmt: skip


def test_other_labels_are_left_to_torch():
    images, rows = torch.randn(4, 5, 6), torch.randn(4, 5)
    for x, y in ((images, torch.randint(5, (4, 6))), (rows, torch.rand(4, 5))):
        assert torch.equal(default_loss(same, (x, y)), F.cross_entropy(x, y))
    with pytest.raises((IndexError, RuntimeError)):
        default_loss(same, (torch.randn(2, 3), torch.tensor([0, 3])))
    with pytest.raises((IndexError, RuntimeError)):
        default_loss(same, (torch.randn(2, 3), torch.tensor([0, -1])))


class Remembers(nn.Module):
    """After a few calls, pulls outputs to those of the call before."""

    def __init__(self, pool=None):
        super().__init__()
        self.calls, self.before, self.pool = 0, None, pool
        self.seen = []

    def forward(self, outputs, targets):
        self.calls += 1
        pull = 0.0 if self.before is None else (outputs - self.before).square().mean()
        self.before = outputs.detach()
        if self.pool is not None:
            self.seen.append(self.calls)
        return F.cross_entropy(outputs, targets) + pull


def test_what_a_loss_keeps_does_not_reach_the_next_call():
    loss, x, y = Criterion(Remembers(), torch.device("cpu")), torch.randn(4, 3), torch.arange(4) % 3
    assert [loss(same, (x * k, y)) for k in (1.0, 1.0)] == [F.cross_entropy(x, y)] * 2
    assert (loss.module.calls, loss.module.before) == (0, None)
    with pytest.raises(Tainted, match="seen"):
        Criterion(Remembers(pool=True), torch.device("cpu"))(same, (x, y))
