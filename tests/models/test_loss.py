"""The usual loss."""

import pytest
import torch
from torch.func import vmap
from torch.nn import functional as F

from dpdt.models.loss import default_loss


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
