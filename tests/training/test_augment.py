"""Crop and flip: the right pictures, and nothing that depends on others."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dpdt.errors import InputError
from dpdt.training.augment import Augment, crop_and_flip
from tests.numbers import prepare


@pytest.mark.parametrize(("row", "column", "flip"), [(0, 0, 0), (3, 8, 1), (8, 4, 0), (4, 4, 1)])
def test_a_crop_is_a_window_of_the_padded_image(row, column, flip):
    x = torch.randn(2, 3, 32, 32)
    draws = torch.tensor([[(row + 0.5) / 9, (column + 0.5) / 9, 0.75 if flip else 0.25]] * 2)
    window = F.pad(x, (4,) * 4)[:, :, row : row + 32, column : column + 32]
    assert torch.equal(crop_and_flip(x, draws, 4), window.flip(3) if flip else window)


def test_all_offsets_and_flips_occur():
    x = torch.arange(64.0).view(1, 1, 8, 8) + 1
    seen = {
        tuple(Augment(0, 1)((x, torch.zeros(1)), np.array([0]), step)[0].flatten().tolist())
        for step in range(400)
    }
    assert len(seen) == 3 * 3 * 2


def test_an_example_looks_the_same_whoever_else_is_there():
    x = torch.randn(10, 3, 16, 16)
    augment = Augment(3, 10)
    all_of_them = augment((x, torch.arange(10)), np.arange(10), 5)[0]
    some = np.array([7, 2])
    assert torch.equal(augment((x[some], torch.arange(2)), some, 5)[0], all_of_them[some])
    assert not torch.equal(augment((x, torch.arange(10)), np.arange(10), 6)[0], all_of_them)


def test_only_images_can_be_changed():
    model = torch.nn.Linear(4, 2)
    x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    step, loader = prepare(model, (x, y), noise=1.0, batch_size=8, augment=True)
    with pytest.raises(InputError, match=r"train.augment: needs images"):
        step(next(iter(loader)))
