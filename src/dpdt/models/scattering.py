"""Scattering features: fixed wavelets instead of learnt filters, so that they cost no privacy.

Two scales and eight angles of Morlet wavelets, up to second order (Oyallon & Mallat 2015), averaged
over windows of 4 pixels: 81 channels for each colour. Each example is normalised by itself, in
groups of channels (Tramèr & Boneh 2021), so that no statistic of the data is needed.

Nearly all time goes into convolutions of single channels, which processors are bad at. So a bank
computes a square of 2 × 2 neighbouring outputs at once, by kernels that are a little larger
(`blocked`). That takes a third more products and half the time.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.models import describe

ANGLES = 8
SCALES = 2
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
GROUPS = 27
SIDE = 2  # of the square of outputs that are computed at once


def _grid(radius: int) -> tuple[Tensor, Tensor]:
    line = torch.arange(-radius, radius + 1, dtype=torch.float64)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    return rows, columns


def morlet(scale: int, angle: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of a wavelet of mean 0 at width 0.8·2^scale."""
    rows, columns = _grid(3 * 2**scale)
    width, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    turn = math.pi * angle / ANGLES
    along = math.cos(turn) * columns + math.sin(turn) * rows
    across = math.cos(turn) * rows - math.sin(turn) * columns
    envelope = torch.exp(-(along**2 + (across * 4 / ANGLES) ** 2) / (2 * width**2))
    wave = torch.cos(frequency * along)
    shift = (envelope * wave).sum() / envelope.sum()
    norm = envelope.sum()
    return envelope * (wave - shift) / norm, envelope * torch.sin(frequency * along) / norm


def averaging(size: int, stride: int, width: float) -> Tensor:
    """A matrix [size / stride, size]: a Gaussian window around every stride-th place."""
    radius = min(size - 1, math.ceil(2 * width))
    line = torch.arange(-radius, radius + 1, dtype=torch.float64)
    window = torch.exp(-(line**2) / (2 * width**2))
    places = F.pad(torch.eye(size, dtype=torch.float64)[:, None], (radius,) * 2, mode="reflect")
    return F.conv1d(places, (window / window.sum())[None, None], stride=stride)[:, 0].t()


@cache
def windows(height: int, width: int, stride: int, pool: int, squares: bool) -> Tensor:
    """All averaging of a channel as one matrix, [height · width, outputs].

    With `squares`, inputs lie as a bank leaves them: by place in a square, then square by square.
    """
    rows, columns = (
        torch.unflatten(averaging(side, stride, 0.8 * stride), 0, (-1, pool)).mean(1)
        for side in (height, width)
    )
    both = torch.einsum("ij,kl->jlik", rows, columns)
    if squares:
        both = torch.unflatten(torch.unflatten(both, 1, (-1, SIDE)), 0, (-1, SIDE))
        both = both.permute(1, 3, 0, 2, 4, 5)
    return both.reshape(height * width, -1).float()


def blocked(scale: int, stride: int) -> Tensor:
    """A bank [2 · angles · SIDE², 1, side, side]: all real parts, then all imaginary ones.

    An output channel is an angle and a place in a square. Its kernel is the wavelet, moved there.
    """
    pairs = [morlet(scale, angle) for angle in range(ANGLES)]
    plain = torch.stack([p[0] for p in pairs] + [p[1] for p in pairs])
    side, room = plain.shape[-1], stride * (SIDE - 1)
    bank = plain.new_zeros(len(plain), SIDE, SIDE, side + room, side + room)
    for i in range(SIDE):
        for j in range(SIDE):
            y, x = i * stride, j * stride
            bank[:, i, j, y : y + side, x : x + side] = plain
    return bank.flatten(0, 2).unsqueeze(1).float()


class Scattering(nn.Module):
    """Images [n, colours, height, width] → features [n, colours · 81 · (height/4) · (width/4)].

    With `pool`, windows of that many neighbours are averaged once more.
    """

    def __init__(self, pool: int = 1):
        super().__init__()
        self.pool = pool
        self.register_buffer("fine", blocked(0, 1), persistent=False)
        self.register_buffer("coarse", blocked(1, 2), persistent=False)

    def _modulus(self, x: Tensor, bank: Tensor, stride: int) -> Tensor:
        """|x ∗ ψ| for every wavelet: [n, 1, h, w] → [n, angles · SIDE², h', w'], in squares."""
        radius = (bank.shape[-1] - stride * (SIDE - 1)) // 2
        padded = F.pad(x, (radius,) * 4, mode="reflect")
        real, imaginary = F.conv2d(padded, bank, stride=SIDE * stride).chunk(2, dim=1)
        return real.square().addcmul_(imaginary, imaginary).add_(1e-12).sqrt_()

    def _average(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Low-pass and subsample every channel by itself."""
        return x.reshape(-1, len(matrix)) @ matrix.to(x)

    def forward(self, x: Tensor) -> Tensor:
        n, colours, height, width = x.shape
        image = x.reshape(n * colours, 1, height, width)
        first = self._modulus(image, self.fine, 1)  # type: ignore[arg-type]
        whole = F.pixel_shuffle(first, SIDE)
        second = self._modulus(image, self.coarse, 2)  # type: ignore[arg-type]
        both = self._modulus(
            whole.view(-1, 1, height, width),
            self.coarse,  # type: ignore[arg-type]
            2,
        )
        half = windows(height // 2, width // 2, 2, self.pool, True)
        parts = [
            self._average(image, windows(height, width, 4, self.pool, False)),
            self._average(first, windows(height, width, 4, self.pool, True)),
            self._average(second, half),
            self._average(both, half),
        ]
        result = torch.cat([part.view(n * colours, -1, half.shape[1]) for part in parts], dim=1)
        return F.group_norm(result.view(n, colours * CHANNELS, -1), GROUPS).flatten(1)


class Scattered(nn.Module):
    """Scattering features with a linear head, the only part that is trained."""

    def __init__(self, pool: int, size: int, classes: int):
        super().__init__()
        self.features = Scattering(pool)
        self.head = nn.Linear(size, classes)
        found = describe.length(size, describe.SCATTERED)
        self.head.input_length = found  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]
