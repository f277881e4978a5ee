"""The preconditioner V of an auxiliary's step: identity, RMSProp or Adam.

V is diagonal with entries 1 / max(√v, τ) ≤ 1/τ. Here v is a moving average of squared gradients.
RMSProp uses v as it is. Adam corrects v for its start at zero; the corrected v is v̂. Only this part
of Adam is a preconditioner. Its momentum has no place here: in Algorithm 1 that is the multiplier's
role. The paper's words are that V is the inverse of v itself; that is a power of 1 in place of ½.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DECAYS = {"identity": 0.0, "rmsprop": 0.99, "adam": 0.999}


@dataclass(frozen=True, kw_only=True)
class Preconditioner:
    name: str = "identity"  # identity | rmsprop | adam
    decay: float = 0.0  # weight of the past in v
    floor: float = 1e-8  # τ
    power: float = 0.5  # V⁻¹ = v^power

    @property
    def stateful(self) -> bool:
        return self.name != "identity"

    def update_(self, v: Tensor, gradient: Tensor) -> None:
        """v ← decay·v + (1 − decay)·gradient²."""
        v.mul_(self.decay).addcmul_(gradient, gradient, value=1.0 - self.decay)

    def inverse(self, v: Tensor, updates: int, out: Tensor | None = None) -> Tensor:
        """V⁻¹ = max(v̂^power, τ), after `updates` updates of v."""
        import torch  # this module also describes V where there is no torch

        root = torch.sqrt(v, out=out) if self.power == 0.5 else torch.pow(v, self.power, out=out)
        if self.name == "adam":
            root.div_((1.0 - self.decay**updates) ** self.power)
        return root.clamp_min_(self.floor)
