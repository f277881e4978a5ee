"""The paper's augmentation: a random crop of the padded image, a horizontal flip.

With several views, an example is one image that was changed several times (De et al. 2022). Its
loss is the mean over its views. So gradients of views are averaged before the example's
contribution is bounded, and the example still adds one contribution.

Guarantees: how an example is changed depends on a public seed, on the step and on the example's own
key, never on data or on who else is there. The key is the example's number. Where users are
protected, it is made of its owner and its number among the owner's examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.gradients import Loss
from dpdt.errors import InputError
from dpdt.mixing import GOLDEN, fractions, hashed, mix

CHANGING = 2  # sets this use of the public seed apart from others


class Augment:
    """Crops and flips the images x of (x, y), all of a mini-batch at once.

    With several views, x gets a dimension for them, behind that of examples.
    """

    def __init__(self, seed: int, views: int = 1):
        self.seed, self.views = seed, views

    def __call__(self, data: Data, keys: np.ndarray, step: int) -> Data:
        x = data[0] if isinstance(data, tuple) else None
        if not isinstance(x, Tensor) or x.dim() != 4:
            raise InputError(
                "train.augment: needs images, [examples, channels, height, width], as the first "
                "of (x, y); leave it false"
            )
        pad = x.shape[-1] // 8  # 4 pixels of 32
        own = hashed(np.array([self.seed % 2**62]), CHANGING, step, keys)
        bits = mix(own[:, None] + np.arange(self.views * 3) * GOLDEN)
        draws = torch.from_numpy(fractions(bits) / 2.0**53).view(len(keys), self.views, 3)
        views = [crop_and_flip(x, draws[:, view], pad) for view in range(self.views)]
        return views[0] if self.views == 1 else torch.stack(views, 1), *data[1:]


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


class OverViews:
    """A loss as its mean over the views of every example.

    The model and the loss see views as if they were examples of the micro-batch. Public examples
    have no views, and are left alone.
    """

    def __init__(self, loss: Loss, views: int):
        self.loss, self.views = loss, views

    def __call__(self, model: Any, data: Data) -> Tensor:
        x, *others = data
        if x.dim() == 4:
            return self.loss(model, data)
        repeated = tree_map(lambda t: t.repeat_interleave(self.views, 0), tuple(others))
        return self.loss(model, (x.flatten(0, 1), *repeated))


def over_views(loss: Loss, views: int) -> Loss:
    """The loss of examples with this many views."""
    return OverViews(loss, views) if views > 1 else loss
