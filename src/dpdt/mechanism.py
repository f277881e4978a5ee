"""The core that privacy rests on, for every method: bounded contributions → sum → noise → mean.

    every contribution c:   c · min(1, C/‖c‖) in every block, or 0 if it is not finite
    S = (1/K) Σ c                                                     in float64
    release ⌊S⌉ + ⌊z⌉,  z ~ N(0, σ² I)                                on a lattice (lattice.py)

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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from dpdt.errors import InputError
from dpdt.noise import Randomness

# Contributions stay below C by this share for each entry of their block, and for 16 more. That is
# four times what rounding can do to a norm that is summed in float64, in any order, and to the
# contribution that is scaled by this norm.
SLACK = 2.0**-51
DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla")  # that torch has autocast for
LEAST, MOST = 1e-100, 1e100  # clips whose squares float64 can hold


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch off the caller's autocast, which would compute in half precision what is done here."""
    with ExitStack() as stack:
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class Columns:
    """Columns that are clipped together: block by block, each in pieces of `piece` columns."""

    def __init__(self, pieces: Sequence[int], piece: int = 1, device: str | torch.device = "cpu"):
        self.piece, self.count, self.device = piece, len(pieces), device
        self.size = sum(pieces) * piece
        self.sizes = [number * piece for number in pieces]
        numbers = torch.arange(self.count, device=device)
        repeats = torch.tensor(pieces, device=device)
        self.block_of = numbers.repeat_interleave(repeats, output_size=sum(pieces))

    def squares(self, x: Tensor) -> Tensor:
        """‖x_g‖² of every row and block of a float64 x: [rows, blocks]."""
        if self.count == 1:
            norms: Tensor = torch.linalg.vector_norm(x, dim=1)
            return norms.square_().unsqueeze(1)
        sums = torch.linalg.vector_norm(x.view(len(x), -1, self.piece), dim=-1).square_()
        result = torch.zeros(len(x), self.count, dtype=torch.float64, device=self.device)
        return result.index_add_(1, self.block_of, sums)

    def scaled_sum(self, x: Tensor, factors: Tensor) -> Tensor:
        """Σ over rows of x times its factor in each block. x is float64 and may be overwritten."""
        if self.count == 1:
            return factors[:, 0] @ x
        pieces = x.view(len(x), -1, self.piece)
        return pieces.mul_(factors[:, self.block_of].unsqueeze(-1)).sum(0).flatten()


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
        x = rows.to(torch.float64, copy=True)
        norms, factors = self._factors(self.blocks.squares(x).sqrt_())
        broken = factors == 0.0
        if bool(broken.any()):
            pieces = x.view(len(x), -1, self.blocks.piece)
            pieces.masked_fill_(broken[:, self.blocks.block_of].unsqueeze(-1), 0.0)
        self.total += self.blocks.scaled_sum(x, factors)
        return norms

    def add_products(self, left: Tensor, right: Tensor, *, constant: bool) -> Tensor:
        """Add contributions that are outer products, left ⊗ right row by row, never written out.

        With `constant`, right has a further entry that is always 1. The sum is one block, flat,
        with an entry for each pair of entries, [left, right]. Returns the norms before.
        """
        left = left.double()
        longer = _norms(right)
        if constant:
            longer = torch.hypot(longer, torch.ones_like(longer))
        norms, factors = self._factors((_norms(left) * longer).unsqueeze(1))
        broken = factors == 0.0
        if bool(broken.any()):
            left, right = left.masked_fill(broken, 0.0), right.masked_fill(broken, 0.0)
        left = left * factors
        total = self.total.view(left.shape[1], -1)
        total[:, : right.shape[1]] += left.t() @ right.double()
        if constant:
            total[:, -1] += left.sum(0)
        return norms

    def _factors(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        """What every contribution is multiplied by: 0 if its norm is not finite."""
        finite = torch.isfinite(norms)
        factors = torch.where(norms > self.limit, self.limit / norms, 1.0)
        return torch.where(finite, norms, math.inf), torch.where(finite, factors, 0.0)

    def merge(self, other: BoundedSum) -> None:
        """Add what another sum of the same blocks holds."""
        self.total += other.total


def _norms(x: Tensor) -> Tensor:
    """‖x‖ of every row in float64, also where squares would leave the range of float64."""
    norms: Tensor
    if x.dtype != torch.float64:  # squares of float32 never do
        norms = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
        return norms
    largest = x.abs().amax(1, keepdim=True)
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    norms = torch.linalg.vector_norm(x / unit, dim=1)
    return norms * unit.squeeze(1)


def perturbed(
    total: Tensor,
    *,
    divisor: int,
    noise: Tensor | float,
    spacing: Tensor | float,
    source: Randomness,
) -> Tensor:
    """The noisy mean ⌊total/K⌉ + ⌊z⌉, in float64.

    `noise` is σ. `spacing` is that of the lattice, 0 for none. Both may differ by entry.

    Guarantees: z has independent draws of N(0, σ²) in every entry. They are made once, after the
    sum is complete.
    """
    z = torch.from_numpy(source.gaussian(len(total))).to(total.device) * noise
    mean = total / divisor
    s = torch.as_tensor(spacing, dtype=torch.float64, device=total.device)
    step = torch.where(s > 0, s, 1.0)
    return torch.where(s > 0, (mean / step).round() * step + (z / step).round() * step, mean + z)
