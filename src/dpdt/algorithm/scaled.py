"""Contributions that are gradients times numbers, so that gradients need not be written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Contributions that are gradients times numbers.

    `weights` has a number for each entry, flat. What comes out is multiplied by `factor`: a number,
    or a function of norms. With `whole`, a gradient that is not finite anywhere counts for nothing
    at all.
    """

    factor: float | Callable[[Tensor], Tensor] = 1.0
    weights: Tensor | None = None
    whole: bool = False

    def rule(self, norms: Tensor) -> Tensor:
        """What contributions of these norms are multiplied by."""
        if isinstance(self.factor, float):
            return torch.full_like(norms, self.factor)
        return self.factor(norms)
