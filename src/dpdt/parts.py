"""Contributions in parts: what one layer adds to many contributions, written out or not.

A contribution is bounded by its norm and added with a factor. Both can be had without writing it
out. The gradient of a linear layer on one example is Σ_t l_t ⊗ r_t, over the positions t that the
layer saw: l_t is the gradient by its output there, r_t its input. A part holds such numbers for
every contribution, one a row:

    Rows       x, written out
    Products   Σ_t l_t ⊗ r_t;  ‖·‖² = Σ_{t,u} ⟨l_t,l_u⟩⟨r_t,r_u⟩
    Lookups    Σ_t l_t in the row of an embedding that position t looked up

Guarantees: `squares` is never below ‖c‖² of what `add_to` adds, but for the share that mechanism.py
leaves below the clip. All sums run in float64. Terms that cancel could leave a small ‖c‖ and a
large error in the sum. So with E = Σ_t ‖l_t‖‖r_t‖ a contribution counts as if ‖c‖ ≥ E/κ. Here κ
is 2²⁰ over the number of terms in a sum. What rounding can add is then below 2⁻³² of the
contributions' bounds, and is accounted (lattice.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

BUFFER = 1 << 18  # numbers that are converted to float64 at once: they stay in the cache
STRETCH = 1 << 17  # numbers of some rows of products, and of their sum, that stay in the cache
ALIKE = 64  # of so many rows each stretch is a multiple, so that places are alike in all of them
TERMS = 1 << 20  # κ times the number of terms in a sum
LEAST = 16  # a smaller κ would shorten ordinary gradients


class Part(Protocol):
    def squares(self) -> Tensor:
        """‖c‖² of every row, in float64; infinite or NaN if it is not finite."""
        ...

    def clear(self, rows: Tensor) -> None:
        """Make the contributions of some rows 0, whatever they hold."""
        ...

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add Σ factor · c to a float64 sum."""
        ...


class Rows:
    """Contributions that are written out: [rows, …]."""

    def __init__(self, x: Tensor):
        self.x = x.reshape(len(x), -1)

    def squares(self) -> Tensor:
        found = self.x.new_zeros(len(self.x), dtype=torch.float64)
        for columns in self._columns():
            found += torch.linalg.vector_norm(columns.double(), dim=1).square_()
        return found

    def clear(self, rows: Tensor) -> None:
        self.x = self.x.masked_fill(rows.unsqueeze(1), 0.0)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        sums, first = total.view(-1), 0
        for columns in self._columns():
            sums[first : first + columns.shape[1]] += factors @ columns.double()
            first += columns.shape[1]

    def _columns(self) -> tuple[Tensor, ...]:
        return torch.split(self.x, max(1, BUFFER // max(1, len(self.x))), dim=1)


class Products:
    """Σ_t l_t ⊗ r_t, for l of [rows, positions, left] and r of [rows, positions, right].

    With `weights`, [left, right], the contribution is this times the weights, entry by entry. That
    is for one position only.
    """

    def __init__(self, left: Tensor, right: Tensor, weights: Tensor | None = None):
        assert weights is None or left.shape[1] == 1
        self.left, longest = _unit(left)
        self.right, widest = _unit(right)
        self.unit = longest * widest
        self.weights = None if weights is None else weights.double()
        self.step = self._rows_at_once()
        if self.step >= len(left):
            self.left, self.right = self.left.double(), self.right.double()

    def squares(self) -> Tensor:
        found = [self._squares(left, right) for _, left, right in self._stretches()]
        return torch.cat(found) * self.unit.square()

    def _squares(self, left: Tensor, right: Tensor) -> Tensor:
        """‖c‖² of some rows, in their units."""
        if self.weights is not None:
            each = left[:, 0].square() @ self.weights.square()
            return (each * right[:, 0].square()).sum(1)
        if left.shape[1] == 1:
            return _norms(left[:, 0]).square_() * _norms(right[:, 0]).square_()
        found = (left @ left.mT).mul_(right @ right.mT).sum((1, 2))
        effort = (_norms(left) * _norms(right)).sum(1)
        width = left.shape[2] + right.shape[2]
        return _guarded(found, effort, len(self.left), left.shape[1], width)

    def clear(self, rows: Tensor) -> None:
        self.left = self.left.masked_fill(rows[:, None, None], 0.0)
        self.right = self.right.masked_fill(rows[:, None, None], 0.0)
        self.unit = self.unit.masked_fill(rows, 0.0)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        factors = factors * self.unit
        sums = total if self.weights is None else torch.zeros_like(total)
        for rows, left, right in self._stretches():
            left = left * factors[rows, None, None]
            left, right = left.flatten(0, 1).t(), right.flatten(0, 1)
            sums.addmm_(left, right)
        if self.weights is not None:
            total.addcmul_(sums, self.weights)

    def _rows_at_once(self) -> int:
        """How many rows become float64 at once: some, if their sum stays in the cache as well.

        With weights all: a product of matrices may round a row by their number.
        """
        rows, positions, right = self.right.shape
        left = self.left.shape[2]
        if self.weights is not None or left * right > STRETCH:
            return max(1, rows)
        most = STRETCH // max(1, positions * (left + right))
        return max(ALIKE, most // ALIKE * ALIKE)

    def _stretches(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        for first in range(0, max(1, len(self.left)), self.step):
            some = slice(first, first + self.step)
            yield some, self.left[some].double(), self.right[some].double()


class Lookups:
    """Σ_t l_t in the row that position t looked up, for l of [rows, positions, width].

    What positions of one contribution add to the same row is summed first, so that the rest has no
    terms that cancel.
    """

    def __init__(self, slopes: Tensor, indices: Tensor):
        ordered, order = indices.sort(dim=1, stable=True)
        slot = torch.zeros_like(ordered)
        slot[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
        wide = order.unsqueeze(-1).expand_as(slopes)
        each = slopes.double().gather(1, wide)
        self.slopes = torch.zeros_like(each).scatter_add_(
            1, slot.unsqueeze(-1).expand_as(slopes), each
        )
        self.indices = torch.zeros_like(ordered).scatter_(1, slot, ordered)

    def squares(self) -> Tensor:
        return _norms(self.slopes).square_().sum(1)

    def clear(self, rows: Tensor) -> None:
        self.slopes = self.slopes.masked_fill(rows[:, None, None], 0.0)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        slopes = self.slopes * factors[:, None, None]
        total.index_add_(0, self.indices.flatten(), slopes.flatten(0, 1))


def fits(rows: int, positions: int) -> bool:
    """Whether sums over so many terms leave ordinary gradients alone."""
    return rows * positions * LEAST <= TERMS


def _guarded(found: Tensor, effort: Tensor, rows: int, positions: int, width: int) -> Tensor:
    """‖c‖² as it was computed, raised by what rounding can have taken, and to (E/κ)² at least."""
    effort = effort.square()
    lost = 2.0**-50 * (positions * positions + width)
    return torch.maximum(found + lost * effort, effort * (rows * positions / TERMS) ** 2)


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose products stay in the range of float64, and what they were divided by.

    Products of four numbers of float32 always do. Rows of float64 are divided by their largest.
    """
    if x.dtype != torch.float64:
        return x, x.new_ones(len(x), dtype=torch.float64)
    largest = x.abs().amax((1, 2))
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    return x / unit[:, None, None], unit


def _norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norms
