"""The usual loss."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional as F

from dpdt.algorithm.state import Tainted
from dpdt.models.loss import Criterion, default_loss, token_loss


def same(x):
    return x


@pytest.mark.parametrize("y", [[0, 3, 2, 3], [-100, 1, 2, 0], [-100] * 4])
def test_it_is_the_cross_entropy_of_torch_and_every_example_has_the_same_weight(y):
    x, y = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.tensor(y)
    each = F.cross_entropy(x, y, reduction="none")
    expected, found = each.mean(), default_loss(same, (x, y))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(value, x)[0] for value in (expected, found)]
    torch.testing.assert_close(*gradients)
    mapped = vmap(lambda a, b: default_loss(same, (a, b)))(x[:, None], y[:, None])
    torch.testing.assert_close(mapped, each)


def test_other_labels_are_left_to_torch():
    images, rows = torch.randn(4, 5, 6), torch.randn(4, 5)
    for x, y in ((images, torch.randint(5, (4, 6))), (rows, torch.rand(4, 5))):
        assert torch.equal(default_loss(same, (x, y)), F.cross_entropy(x, y))


@pytest.mark.parametrize("label", [3, -1, 2**62])
def test_a_label_that_is_no_class_has_no_gradient_and_a_loss_that_shows(label):
    x, y = torch.randn(2, 3, requires_grad=True), torch.tensor([0, label])
    loss = default_loss(same, (x, y))
    (gradient,) = torch.autograd.grad(loss, x)
    (first,) = torch.autograd.grad(F.cross_entropy(x[:1], y[:1]), x)
    torch.testing.assert_close(gradient, first / 2)
    assert loss.isnan()


def test_the_tokens_of_a_text_share_its_weight():
    x, y = torch.randn(2, 3, 5, requires_grad=True), torch.tensor([[1, -100, 4], [-100] * 3])
    for chosen, number in (([0, 1], 2), ([0], 2), ([1], 1)):
        expected = F.cross_entropy(x[chosen].movedim(2, 1), y[chosen], reduction="sum") / number
        torch.testing.assert_close(token_loss(same, (x[chosen], y[chosen])), expected)


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
