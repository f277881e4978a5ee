"""The lattice that noisy means lie on, and what rounding costs.

Floating-point noise leaks through the low bits of a sum (Mironov 2012; Jin et al. 2022). So the
mean of the contributions, S, and the noise z are both rounded to multiples of a public spacing s,
which form a lattice. Since ⌊S⌉ lies on the lattice, ⌊S⌉ + ⌊z⌉ = ⌊⌊S⌉ + z⌉. This is post-processing
of the ideal Gaussian mechanism on ⌊S⌉. What remains is that ⌊S⌉ may move further than S. Let d be
the number of entries, K the divisor, and n the largest number of contributions of norm C that a sum
can have. For both data sets together:

    rounding to the lattice   at most s/2 an entry on either side:  s·√d
    summing in float64        n·2⁻⁵³ of n·C on either side:         2⁻⁵¹·n²·C/K, with room to spare
    terms that cancel         2⁻³³ of n·C on either side:           2⁻³¹·n·C/K, with room to spare

What is published is rounded once more, to a grid of about σ·2⁻²⁰. Draws of noise are float64: where
σ/s is large, z/s has few bits behind the point, or none, and its parity would tell that of ⌊S⌉/s.
Rounding what is noisy costs nothing, and a grid this fine is far below the noise.

The last is of contributions that are not written out: their terms may be larger than they are
(parts.py). `rounding` is the sum of all three. Accountants add it to the sensitivity of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dpdt.ledger import Block, Setting

FINE = 2.0**-26  # the lattice's share of the sensitivity
GRID = 2.0**-20  # the published grid's share of the noise


def spacing(clip: float, size: int, divisor: int) -> float:
    """s, a power of two: FINE·C/(K·√d) rounded down."""
    return 2.0 ** math.floor(math.log2(FINE * clip / (divisor * math.sqrt(size))))


def grid(noise: float, spacing: float) -> float:
    """Return the spacing of the grid that is published, a power of two: σ·GRID, or s if larger.

    Args:
        noise: the standard deviation σ of the noise in a block.
        spacing: that of the lattice, 0 for none.
    """
    if not spacing or not noise:
        return spacing
    return max(spacing, 2.0 ** math.floor(math.log2(GRID * noise)))


def on_lattice(setting: Setting, blocks: Sequence[Block], divisor: int, terms: int) -> Setting:
    """The setting with its lattice; `terms` is the largest number of contributions in a sum."""
    spaced = tuple(
        spacing(clip, block.size, divisor) if clip else 0.0
        for clip, block in zip(setting.clip, blocks, strict=True)
    )
    added = tuple(
        s * math.sqrt(block.size) + (2.0**-51 * terms + 2.0**-31) * terms * clip / divisor
        for s, clip, block in zip(spaced, setting.clip, blocks, strict=True)
    )
    grids = tuple(map(grid, setting.noise, spaced))
    return replace(setting, spacing=spaced, grid=grids, rounding=added)
