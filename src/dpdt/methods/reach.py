"""How far a change of θ reaches into a model's outputs, for the learning rate that fits the noise.

Guarantees: computed from the initial model and from public inputs, or numbers that stand in for
them; of private examples only the shape is looked at.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.batch import Data, tree_map
from dpdt.data.access import count, take
from dpdt.errors import InputError

INPUTS = 32  # that are looked at


def reach(model: nn.Module, inputs: Data, *, by_name: bool = False) -> float:
    """‖∂output/∂θ‖, as a root mean square over inputs and outputs.

    Noise of deviation s in every entry of θ has about deviation s·reach in an output. One random
    sign for each output makes one backward pass an input enough. `by_name`: inputs are keywords of
    the model, as in training on a mapping.
    """
    generator = torch.Generator().manual_seed(0)
    trained = [p for p in model.parameters() if p.requires_grad]
    like = trained[0]
    inputs = tree_map(lambda t: t.to(like if t.is_floating_point() else like.device), inputs)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    squares = []
    try:
        for i in range(count(inputs)):
            with torch.enable_grad():
                outputs = _outputs(model, take(inputs, torch.tensor([i])), by_name)
            signs = torch.randint(2, outputs.shape, generator=generator).to(outputs) * 2.0 - 1.0
            gradients = torch.autograd.grad(outputs, trained, signs, allow_unused=True)
            total = sum(float(g.double().square().sum()) for g in gradients if g is not None)
            squares.append(total / outputs.numel())
    finally:
        for module, training in modes:
            module.training = training
    found = math.sqrt(sum(squares) / len(squares))
    if not 0.0 < found < math.inf:
        raise InputError(
            "method.lr: 'auto' needs a model whose outputs change with its parameters, and finite "
            f"inputs; found gradients of norm {found:g}, so give numbers for lr and penalty"
        )
    return found


def _outputs(model: nn.Module, one: Any, by_name: bool) -> Tensor:
    try:
        outputs: Tensor = model(**one).logits if by_name else model(one)
        if not outputs.requires_grad:
            raise TypeError("its outputs do not depend on what is trained")
        return outputs
    except Exception as error:  # a model of the user's own can fail in any way
        raise InputError(
            "method.lr: 'auto' calls the model on inputs alone and needs a tensor of outputs, "
            f"which failed ({error}); give numbers for lr and penalty"
        ) from error


def typical(public: Any, data: Any) -> Data:
    """Some public inputs, or, if there are none, random numbers from −1 to 1 of their shape."""
    if public is not None and count(public):
        return take(public, torch.arange(min(INPUTS, count(public))))
    one = take(data, torch.arange(1))
    x = one[0] if isinstance(one, tuple | list) else None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InputError(
            "method.lr: 'auto' needs public inputs here, since the inputs are not plain numbers; "
            "give data.public (public=… in Python), or numbers for lr and penalty"
        )
    generator = torch.Generator().manual_seed(0)
    return torch.rand((INPUTS, *x.shape[1:]), generator=generator).to(x) * 2.0 - 1.0
