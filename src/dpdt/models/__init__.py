"""Models by name, and their parameters in numbers, so that accounting needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from dpdt.algorithm.blocks import Parameter
from dpdt.config import Model
from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.models import describe
from dpdt.models.bounds import Bounds, linear_bounds

if TYPE_CHECKING:
    from torch import nn

_DESCRIBE: dict[str, Callable[[Model, Facts], list[Parameter]]] = {
    "linear": lambda m, f: describe.mlp(prod(f.shape), (), f.classes),
    "mlp": lambda m, f: describe.mlp(prod(f.shape), m.hidden, f.classes),
    "resnet18": lambda m, f: describe.resnet18(f.shape[0], f.classes, m.width),
    "vit-small": lambda m, f: describe.vit(f.shape, f.classes),
    "gpt2-medium-lora": lambda m, f: describe.gpt2_lora(layers=24, width=1024, rank=16),
}


def parameters(model: Model, facts: Facts) -> list[Parameter]:
    """The trained parameters of a model on a data set, without building it."""
    if model.name not in _DESCRIBE:
        raise InputError(f"model.name: must be one of {', '.join(_DESCRIBE)}, found {model.name!r}")
    return _DESCRIBE[model.name](model, facts)


def bounds(model: Model) -> Bounds | None:
    """What the model's construction says about gradients, if anything."""
    bounded = model.name == "linear" and model.radius is not None
    return linear_bounds(model.radius) if bounded and model.radius else None


def build(model: Model, facts: Facts, seed: int) -> nn.Module:
    """Build a model, initialised from a public seed."""
    parameters(model, facts)
    import torch

    from dpdt.models import networks

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match model.name:
            case "linear":
                inputs = prod(facts.shape)
                if model.radius is not None:
                    return networks.bounded_linear(inputs, facts.classes, model.radius)
                return networks.mlp(inputs, (), facts.classes)
            case "mlp":
                return networks.mlp(prod(facts.shape), model.hidden, facts.classes)
            case "resnet18":
                return networks.ResNet18(facts.shape[0], facts.classes, model.width)
    raise InputError(f"model.name: {model.name!r} is known to accounting only; it is not built yet")
