"""The sums of a pass by taps (taps.py), each in the shape of its parameter's parts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dpdt.algorithm.layout import Layout
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.taps import Found, Taps
from dpdt.mechanism import BoundedSum, Columns


class Sums:
    """The sums of a pass, parameter by parameter, in the shapes that their parts have."""

    def __init__(self, taps: Taps, scaled: Scaled, blocks: Sequence[int], target: BoundedSum):
        self.taps, self.scaled, self.target = taps, scaled, target
        self.blocks = dict(zip(taps.layout.names, blocks, strict=True))
        self.homes = dict(zip(taps.layout.names, taps.layout.split(target.total), strict=True))
        # a sum that has the order of the total is written there at once
        self.sums = {
            name: home if home.is_contiguous() and taps.shape(name) == home.shape
            else taps.zeros(name)
            for name, home in self.homes.items()
        }  # fmt: skip

    def add(self, found: Found, real: Tensor) -> Tensor:
        """Bound the contributions of a chunk, those that are real, and add them.

        Returns their norms.
        """
        parts = self.taps.parts(found, self.scaled)
        entries = [(part, self.blocks[name], self.sums[name]) for name, part in parts]
        return self.target.add_parts(entries, real, self.scaled.rule, whole=self.scaled.whole)

    def finish(self) -> None:
        """Bring what was summed in another order into the total."""
        for name, home in self.homes.items():
            if self.sums[name] is not home:
                home += self.taps.arranged(name, self.sums[name])


def block_numbers(layout: Layout, columns: Columns) -> list[int] | None:
    """In which block of `columns` each parameter lies; None if one lies in several."""
    if columns.size != layout.size:
        return None
    of, result = columns.block_of.repeat_interleave(columns.piece), []
    for part in layout.split(of):
        first, last = (int(part.min()), int(part.max())) if part.numel() else (0, 0)
        if first != last:
            return None
        result.append(first)
    return result
