"""The core that privacy rests on, for every method: bounded contributions → sum → noise → mean.

    every contribution c:   c · min(1, C/‖c‖) in every block, or 0 if it is not finite
    S = (1/K) Σ c                                                     in float64
    release ⌊S⌉ + ⌊z⌉,  z ~ N(0, σ² I), or correlated over steps     on a lattice (lattice.py),
                                                                      rounded to a coarser grid

A contribution is what one auxiliary or one example adds to a step. A block is a set of its entries
that are bounded together, by C. K is a constant. ⌊ ⌉ rounds to the lattice. What a method does with
the release (a step on θ, a torch optimizer, a basis) is post-processing.

Guarantees, for any input of any dtype: each contribution that enters the sum is finite, and its
norm in every block is at most C. The divisor is the constant K. The noise is drawn once for the
finished sum, from `noise.Randomness`. Replacing one contribution moves the mean, before noise, by
at most 2C/K + rounding in every block. Adding or removing one moves it by at most C/K + rounding.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpdt.errors import InputError
from dpdt.parts import BUFFER, Part

# Contributions stay below C by this share for each entry of their block, and for 16 more. That is
# four times what rounding can do to a norm that is summed in float64, in any order, and to the
# contribution that is scaled by this norm.
SLACK = 2.0**-51
DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla")  # that torch has autocast for
LEAST, MOST = 1e-100, 1e100  # clips whose squares float64 can hold
TINY = 1e-140  # norms below may have lost squares to underflow, and count as this


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch off the caller's autocast, which would compute in half precision what is done here."""
    with ExitStack() as stack:
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class Source(Protocol):
    def gaussian(self, size: int) -> np.ndarray:
        """`size` entries of noise in units of σ, independent of each other, in float64 (noise.py).

        Over steps they are independent too, or correlated as the ledger says (bands.py).
        """
        ...


class Columns:
    """Columns that are clipped together: block by block, each in pieces of `piece` columns."""

    def __init__(self, pieces: Sequence[int], piece: int = 1, device: str | torch.device = "cpu"):
        self.piece, self.count, self.device = piece, len(pieces), device
        self.size = sum(pieces) * piece
        self.sizes = [number * piece for number in pieces]
        self._ends = list(accumulate(self.sizes))
        numbers = torch.arange(self.count, device=device)
        repeats = torch.tensor(pieces, device=device)
        self.block_of = numbers.repeat_interleave(repeats, output_size=sum(pieces))

    def slices(self, rows: int, numbers: int = BUFFER) -> Iterator[tuple[slice, Tensor]]:
        """Stretches of columns that stay in the cache in float64, and the block of each piece."""
        pieces = max(1, numbers // (max(1, rows) * self.piece))
        for first in range(0, len(self.block_of), pieces):
            blocks = self.block_of[first : first + pieces]
            start = first * self.piece
            yield slice(start, start + len(blocks) * self.piece), blocks

    def squares(self, x: Tensor) -> Tensor:
        """‖x_g‖² of every row and block, in float64: [rows, blocks]."""
        found = torch.zeros(len(x), self.count, dtype=torch.float64, device=self.device)
        for columns, blocks in self.slices(len(x)):
            mine, block = x[:, columns].double(), self._block(columns)
            if block is None:
                pieces = mine.view(len(x), -1, self.piece)
                found.index_add_(1, blocks, torch.linalg.vector_norm(pieces, dim=-1).square_())
            else:
                found[:, block] += torch.linalg.vector_norm(mine, dim=1).square_()
        return found

    def _block(self, columns: slice) -> int | None:
        """The block that all of these columns lie in; None if they lie in several."""
        block = bisect_right(self._ends, columns.start)
        return block if columns.stop <= self._ends[block] else None

    def add_scaled(self, total: Tensor, x: Tensor, factors: Tensor) -> None:
        """Add Σ over rows of x, times its factor in each block, to a sum. No factor: nothing."""
        broken = factors == 0.0
        any_broken = bool(broken.any())
        for columns, blocks in self.slices(len(x)):
            pieces = x[:, columns].double().view(len(x), -1, self.piece)
            if any_broken:
                pieces = pieces.masked_fill(broken[:, blocks].unsqueeze(-1), 0.0)
            if (block := self._block(columns)) is not None:
                total[columns] += factors[:, block] @ pieces.flatten(1)
                continue
            sums = total[columns].view(-1, self.piece)
            for row, mine in zip(pieces, factors[:, blocks], strict=True):
                sums.addcmul_(row, mine.unsqueeze(-1))


class BoundedSum:
    """The sum of contributions, each bounded in every block. The only way into a release."""

    def __init__(self, blocks: Columns, clip: Sequence[float]):
        for c in clip:
            if not LEAST <= c <= MOST:
                raise InputError(f"method.clip: must be from {LEAST:g} to {MOST:g}, found {c:g}")
        self.blocks = blocks
        self.total = torch.zeros(blocks.size, dtype=torch.float64, device=blocks.device)
        slack = SLACK * (self.total.new_tensor(blocks.sizes) + 16.0)
        self.limit = self.total.new_tensor(clip) * (1.0 - slack)

    def add(self, rows: Tensor) -> Tensor:
        """Add contributions, [rows, size].

        Returns their norms before they were bounded; infinite for what is not finite.
        """
        norms, factors = self._factors(self.blocks.squares(rows).sqrt_())
        self.blocks.add_scaled(self.total, rows, factors)
        return norms

    def add_parts(
        self,
        parts: Sequence[tuple[Part, int, Tensor]],
        real: Tensor,
        rule: Callable[[Tensor], Tensor],
        *,
        whole: bool = False,
    ) -> Tensor:
        """Add contributions that come in parts (parts.py), each with its block and its own sum.

        Only rows that are `real` count. The `rule` gives a number for each norm, by which
        contributions are multiplied first. With `whole`, a contribution counts for nothing if it is
        not finite in any of its blocks. Returns the norms before, infinite for what is not finite.
        """
        found = [part.squares() for part, _, _ in parts]
        squares = self.total.new_zeros(len(found[0]), self.blocks.count)
        for (_, block, _), mine in zip(parts, found, strict=True):
            squares[:, block] += mine
        norms = squares.sqrt_()
        if whole:
            norms.masked_fill_(~torch.isfinite(norms).all(1, keepdim=True), math.inf)
        norms, factors = self._factors(norms, rule)
        broken = factors == 0.0  # what is not finite, also where it is not real: 0 · ∞ is no 0
        factors.masked_fill_(~real.unsqueeze(1), 0.0)
        for part, block, total in parts:
            if bool(broken[:, block].any()):
                part.clear(broken[:, block])
            part.add_to(total, factors[:, block])
        return norms[real]

    def _factors(
        self, norms: Tensor, rule: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """What every contribution is multiplied by: 0 if its norm is not finite."""
        least = norms.clamp_min(TINY)
        factors = torch.ones_like(norms) if rule is None else rule(least)
        reached = least * factors
        finite = torch.isfinite(norms) & torch.isfinite(reached)
        factors = torch.where(reached > self.limit, self.limit / least, factors)
        return torch.where(finite, norms, math.inf), torch.where(finite, factors, 0.0)

    def merge(self, other: BoundedSum) -> None:
        """Add what another sum of the same blocks holds."""
        self.total += other.total


def perturbed(
    total: Tensor,
    *,
    divisor: int,
    noise: Tensor | float,
    spacing: Tensor | float,
    grid: Tensor | float,
    source: Source,
) -> Tensor:
    """Return the noisy mean ⌊total/K⌉ + ⌊z⌉, rounded to the grid, in float64.

    Args:
        noise: σ.
        spacing: that of the lattice, a power of two, or 0 for none.
        grid: that of the coarser grid that is published, a power of two (lattice.py). Without a
            lattice it is 0. All three may differ by entry.

    Guarantees: z is the source's noise times σ. It is drawn for this release alone, and added to a
    sum that is complete.
    """
    z = torch.from_numpy(source.gaussian(len(total))).to(total.device)
    sigma, s, g = (
        torch.as_tensor(v, dtype=z.dtype, device=z.device) for v in (noise, spacing, grid)
    )
    lattice = s > 0
    if not bool(lattice.all()):
        mean, z, step = total / divisor, z * sigma, torch.where(lattice, s, 1.0)
        rounded = ((mean / step).round_() + (z / step).round_()).mul_(step)
        coarse = torch.where(lattice, g, 1.0)
        return torch.where(lattice, (rounded / coarse).round_().mul_(coarse), mean + z)
    size = BUFFER // 4 if z.device.type == "cpu" else len(z)  # what stays in the cache
    whole = (total, z, sigma.expand_as(z), s.expand_as(z), g.expand_as(z))
    for mean, mine, noise, s, g in zip(*(torch.split(x, size) for x in whole), strict=True):
        # spacings are powers of two, so that no division by them rounds
        mine.mul_(noise / s).round_().add_((mean / (divisor * s)).round_())
        mine.mul_(s / g).round_().mul_(g)
    return z
