"""What a plan needs to know of a model and its data, in plain numbers.

The same problem comes from a configuration before anything is loaded (`config.problem_of`), and
from the model and data themselves (`Problem.of`). A run compares the two, and refuses to start if
they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpdt.algorithm.blocks import Blocks, Parameter
from dpdt.models.bounds import Bounds

if TYPE_CHECKING:
    from torch import nn

    from dpdt.algorithm.gradients import Loss


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model, and the number of examples that it is trained on.

    Where users are protected it is the number of users. What they hold is not public.
    """

    examples: int  # or the nominal number that stands for it (privacy.examples)
    parameters: tuple[Parameter, ...]  # what is trained
    bounds: Bounds | None = None  # on gradients, if the model's construction gives any
    public: int = 0  # number of public examples
    linear: bool = False  # one linear layer with a bias, under cross-entropy
    length: float | None = None  # of inputs, if the model's construction makes them so long

    def blocks(self, granularity: str) -> Blocks:
        """What is clipped together."""
        return Blocks.group(self.parameters, granularity)

    @property
    def size(self) -> int:
        """The number of trained parameters."""
        return sum(parameter.size for parameter in self.parameters)

    @classmethod
    def of(cls, model: nn.Module, data: Any, public: Any, loss: Loss) -> Problem:
        """The problem of training this model on these data."""
        from dpdt.algorithm.layout import parameters_of
        from dpdt.data.access import count
        from dpdt.methods.dpdt.whitening import trained_layer
        from dpdt.models.loss import default_loss
        from dpdt.models.networks import bounds_of

        layer = trained_layer(model)
        usual = loss is default_loss  # of a loss of the user's own nothing is known
        return cls(
            examples=count(data),
            parameters=tuple(parameters_of(model)),
            bounds=bounds_of(model) if usual and _has_class_numbers(data) else None,
            public=0 if public is None else count(public),
            linear=usual and layer is not None,
            length=getattr(layer, "input_length", None),
        )


def _has_class_numbers(data: Any) -> bool:
    """Tell by their form whether labels are class numbers, which the bounds on gradients rest on.

    The bounds hold whatever the labels are: what is no class has no gradient (models/loss.py). If
    labels were looked at, one of them could decide what the ledger says.
    """
    import torch

    y = data[1] if isinstance(data, tuple) and len(data) == 2 else None
    return isinstance(y, torch.Tensor) and y.dim() == 1 and y.dtype == torch.int64
