"""The paper's augmentation: a random crop of the padded image, a horizontal flip.

Guarantees: how an example is changed depends on a public seed, on the step and on the example's own
number, never on data or on who else is in the mini-batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dpdt.algorithm.batch import Data
from dpdt.errors import InputError


class Augment:
    """Crops and flips the images x of (x, y), all of a mini-batch at once."""

    def __init__(self, seed: int, examples: int):
        self.seed, self.examples = seed, examples

    def __call__(self, data: Data, indices: np.ndarray, step: int) -> Data:
        x = data[0] if isinstance(data, tuple) else None
        if not isinstance(x, Tensor) or x.dim() != 4:
            raise InputError(
                "train.augment: needs images, [examples, channels, height, width], as the first "
                "of (x, y); leave it false"
            )
        pad = x.shape[-1] // 8  # 4 pixels of 32
        generator = np.random.default_rng((self.seed, 2, step))
        draws = generator.random((self.examples, 3))[indices]
        return crop_and_flip(x, torch.from_numpy(draws), pad), *data[1:]


def crop_and_flip(x: Tensor, draws: Tensor, pad: int) -> Tensor:
    """`draws` are three numbers in [0, 1) for each image: row, column, flip."""
    height, width = x.shape[-2:]
    offset = (draws[:, :2] * (2 * pad + 1)).long()
    rows = offset[:, :1] + torch.arange(height)
    columns = torch.arange(width).expand(len(x), width)
    columns = offset[:, 1:] + torch.where(draws[:, 2:] < 0.5, columns, width - 1 - columns)
    padded = F.pad(x, (pad,) * 4)
    flat = (rows.unsqueeze(2) * (width + 2 * pad) + columns.unsqueeze(1)).flatten(1).to(x.device)
    channels = padded.flatten(2)
    index = flat.unsqueeze(1).expand(-1, x.shape[1], -1)
    return channels.gather(2, index).view_as(x)
