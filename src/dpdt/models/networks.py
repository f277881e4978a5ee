"""Small networks, and ResNet-18 with the CIFAR stem."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.models.bounds import Bounds, linear_bounds
from dpdt.models.describe import CONVNET, CONVNET_SIDE, cnn_side


def mlp(inputs: int, hidden: tuple[int, ...], classes: int) -> nn.Sequential:
    """Fully connected layers with ReLU between them; without hidden layers, a linear classifier."""
    widths = [inputs, *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(channels: int, sides: tuple[int, ...], classes: int) -> nn.Sequential:
    """The small network of Papernot et al. and Tramèr & Boneh: tanh, 26,010 numbers on 28×28."""
    layers = [
        nn.Conv2d(channels, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    ]
    left = 32 * cnn_side(sides[0]) * cnn_side(sides[1])
    return nn.Sequential(*layers, nn.Linear(left, 32), nn.Tanh(), nn.Linear(32, classes))


class BoundedLinear(nn.Linear):
    """A linear classifier that scales each input down to norm at most `radius`.

    Guarantees: with cross-entropy and class numbers for labels, gradients and curvature obey
    `linear_bounds(radius)`, whatever the input. An input that is not finite counts as 0.
    """

    def __init__(self, inputs: int, classes: int, radius: float):
        super().__init__(inputs, classes)
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        finite = torch.isfinite(x).all(dim=1, keepdim=True)
        x = torch.where(finite, x, 0.0)
        norms = x.double().norm(dim=1, keepdim=True)
        # a little below the radius, so that rounding cannot exceed it
        scale = (self.radius * (1.0 - 1e-6) / norms.clamp_min(1e-300)).clamp_max(1.0)
        return super().forward((x.double() * scale).to(x.dtype))


def bounded_linear(inputs: int, classes: int, radius: float) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), BoundedLinear(inputs, classes, radius))


def bounds_of(model: nn.Module) -> Bounds | None:
    """Bounds on the gradients of a built model under cross-entropy, if its construction gives any.

    The construction gives bounds if a BoundedLinear comes last and nothing before it is trained.
    """
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    head = layers[-1] if layers else None
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if isinstance(head, BoundedLinear) and trained <= {id(p) for p in head.parameters()}:
        return linear_bounds(head.radius)
    return None


def _norm(width: int, by: str) -> nn.GroupNorm:
    """What the paper calls LayerNorm on images: each example normalised by itself.

    The paper writes GroupNorm(1, C), which is over all channels (by "layer"). It then says that
    each channel is normalised independently, which would be GroupNorm(C, C) (by "channel").
    """
    return nn.GroupNorm(1 if by == "layer" else width, width)


class ConvNet(nn.Sequential):
    """Two convolutions with a norm each, and a linear head: all of ResNet-18's kinds of block.

    It is small enough for experiments that ResNet-18 would make too long.
    """

    def __init__(self, channels: int, classes: int, width: float = 1.0, norm: str = "layer"):
        wide = [max(1, round(w * width)) for w in CONVNET]
        super().__init__(
            nn.Conv2d(channels, wide[0], 3, padding=1, bias=False),
            _norm(wide[0], norm),
            nn.ReLU(),
            nn.Conv2d(wide[0], wide[1], 3, 2, padding=1, bias=False),
            _norm(wide[1], norm),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(CONVNET_SIDE),
            nn.Flatten(),
            nn.Linear(wide[1] * CONVNET_SIDE**2, classes),
        )


class Residual(nn.Module):
    """Two convolutions, and a way past them.

    The shortcut takes every other place before its convolution of kernel 1, not within it: torch
    may then compute it with channels last in memory (algorithm/kernels.py).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(outputs, norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _norm(outputs, norm)
        self.shortcut, self.stride = None, stride
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)
            self.shortcut_norm = _norm(outputs, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x[:, :, :: self.stride, :: self.stride]))
        return F.relu(y + x)


class ResNet18(nn.Module):
    """ResNet-18 for 32×32 images, GroupNorm in place of BatchNorm, widths times a factor."""

    def __init__(
        self, channels: int = 3, classes: int = 10, width: float = 1.0, norm: str = "layer"
    ):
        super().__init__()
        widths = [max(1, round(w * width)) for w in (64, 128, 256, 512)]
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.stem_norm = _norm(widths[0], norm)
        blocks, inputs = [], widths[0]
        for stage, outputs in enumerate(widths):
            for block in range(2):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Residual(inputs, outputs, stride, norm))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = self.blocks(x)
        return cast(Tensor, self.head(torch.mean(x, dim=(2, 3))))
