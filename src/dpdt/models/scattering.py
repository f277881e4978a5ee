"""Scattering features: fixed wavelets instead of learnt filters, so that they cost no privacy.

Two scales and eight angles of Morlet wavelets, up to second order (Oyallon & Mallat 2015), averaged
over windows of 4 pixels: 81 channels for each colour. Each example is normalised by itself, in
groups of channels (Tramèr & Boneh 2021), so that no statistic of the data is needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ANGLES = 8
SCALES = 2
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
GROUPS = 27


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
    return F.conv1d(places, (window / window.sum())[None, None], stride=stride)[:, 0].t().float()


def _bank(scale: int) -> Tensor:
    """[2 · angles, 1, side, side]: all angles' real parts, then all imaginary ones."""
    pairs = [morlet(scale, angle) for angle in range(ANGLES)]
    return torch.stack([p[0] for p in pairs] + [p[1] for p in pairs]).unsqueeze(1).float()


class Scattering(nn.Module):
    """Images [n, colours, height, width] → features [n, colours · 81 · (height/4) · (width/4)].

    With `pool`, windows of that many neighbours are averaged once more.
    """

    def __init__(self, pool: int = 1):
        super().__init__()
        self.pool = pool
        self.register_buffer("fine", _bank(0), persistent=False)
        self.register_buffer("coarse", _bank(1), persistent=False)

    def _modulus(self, x: Tensor, bank: Tensor, stride: int) -> Tensor:
        """|x ∗ ψ| for every wavelet: [n, 1, h, w] → [n, angles, h / stride, w / stride]."""
        radius = bank.shape[-1] // 2
        padded = F.pad(x, (radius,) * 4, mode="reflect")
        real, imaginary = F.conv2d(padded, bank, stride=stride).chunk(2, dim=1)
        return torch.sqrt(real.square() + imaginary.square() + 1e-12)

    def _average(self, x: Tensor, stride: int) -> Tensor:
        """Low-pass and subsample every channel by itself; `stride` is what is left of 4 pixels."""
        rows, columns = (averaging(side, stride, 0.8 * stride).to(x) for side in x.shape[-2:])
        return rows @ x @ columns.t()

    def forward(self, x: Tensor) -> Tensor:
        n, colours, height, width = x.shape
        image = x.reshape(n * colours, 1, height, width)
        first = self._modulus(image, self.fine, 1)  # type: ignore[arg-type]
        second = self._modulus(image, self.coarse, 2)  # type: ignore[arg-type]
        both = self._modulus(
            first.reshape(-1, 1, height, width),
            self.coarse,  # type: ignore[arg-type]
            2,
        ).view(n * colours, ANGLES**2, *second.shape[-2:])
        parts = [
            self._average(image, 4),
            self._average(first, 4),
            self._average(second, 2),
            self._average(both, 2),
        ]
        result = torch.cat(parts, dim=1)
        if self.pool > 1:
            result = F.avg_pool2d(result, self.pool)
        grouped = result.view(n, colours * CHANNELS, *result.shape[-2:])
        return F.group_norm(grouped, GROUPS).flatten(1)


class Scattered(nn.Module):
    """Scattering features with a linear head, the only part that is trained."""

    def __init__(self, pool: int, size: int, classes: int):
        super().__init__()
        self.features = Scattering(pool)
        self.head = nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]
