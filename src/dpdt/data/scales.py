"""How the numbers of a data set become what a model is shown: by public constants alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Scale:
    """x ↦ x / divide − subtract.

    With `highest` only whole numbers from 0 to that are right. With `crop` images may have any
    size: they are resized, and cropped to a square.
    """

    divide: float = 1.0
    subtract: float = 0.0
    highest: int | None = None
    crop: bool = False

    def apply(self, x: Tensor) -> Tensor:
        """In single precision."""
        return x.float().div(self.divide).sub(self.subtract)

    def words(self) -> str:
        """Which numbers are right."""
        if self.highest is None:
            return "numbers on the scale that the model was trained on"
        return f"whole numbers from 0 to {self.highest}"


AS_THEY_ARE = Scale()
BYTES = Scale(divide=127.5, subtract=1.0, highest=255)
CROPPED = Scale(divide=127.5, subtract=1.0, highest=255, crop=True)
DIGITS = Scale(divide=16.0, highest=16)
