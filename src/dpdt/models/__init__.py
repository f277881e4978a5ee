"""Models by name, and their parameters in numbers, so that accounting needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from dpdt.algorithm.blocks import Parameter
from dpdt.data import Examples, Facts, folder_of
from dpdt.errors import InputError, one_of
from dpdt.models import describe
from dpdt.models.bounds import Bounds, linear_bounds
from dpdt.models.settings import ModelSettings
from dpdt.ram import available, gigabytes
from dpdt.tasks import Task, task_of

if TYPE_CHECKING:
    from torch import nn

    from dpdt.models.frozen import Watch

# The models that can be described without building them.
_DESCRIBE: dict[str, Callable[[ModelSettings, Facts], list[Parameter]]] = {
    "linear": lambda m, f: describe.mlp(prod(f.shape), (), f.classes),
    "mlp": lambda m, f: describe.mlp(prod(f.shape), m.hidden, f.classes),
    "cnn": lambda m, f: describe.cnn(f.shape, f.classes),
    "convnet": lambda m, f: describe.convnet(f.shape[0], f.classes, m.width),
    "resnet18": lambda m, f: describe.resnet18(f.shape[0], f.classes, m.width),
    "scatter": lambda m, f: describe.scatter(f.shape, f.classes, m.pool),
    "patches": lambda m, f: describe.patches(m.dictionary, m.channels, m.grid, f.classes),
    "vit-small": lambda m, f: describe.vit(
        f.shape,
        f.classes,
        width=m.width,
        layers=m.layers or describe.VIT_LAYERS,
        patch=m.patch or describe.VIT_PATCH,
    ),
}
FLOAT = 4  # bytes of a parameter
FROZEN = ("scatter", "patches")  # a linear head on features that are not learnt
IMAGES = ("cnn", "convnet", "resnet18", *FROZEN, "vit-small")


def by_name(model: ModelSettings) -> bool:
    """Whether the settings say all about a model: no folder is read."""
    return model.name in _DESCRIBE


def check(model: ModelSettings, facts: Facts) -> None:
    """Refuse a model that cannot read the data."""
    images = len(facts.shape) == 3
    in_folder = facts.text or (images and folder_of(model.name) is not None)
    if model.name not in _DESCRIBE and not in_folder:
        more = ("the folder of an image encoder",) if images else ()
        raise InputError(f"model.name: {one_of(model.name, (*_DESCRIBE, *more))}")
    if model.name in _DESCRIBE and facts.text:
        raise InputError(
            f"model.name: {model.name!r} reads numbers, and the data are texts; give gpt2, "
            "gpt2-medium or the folder of a transformers model"
        )
    if model.name in IMAGES and not images:
        raise InputError(
            f"model.name: {model.name!r} reads images, and the data have shape {facts.shape}"
        )
    if model.name == "cnn" and min(describe.cnn_side(side) for side in facts.shape[1:]) < 1:
        raise InputError(
            f"model.name: 'cnn' reads images of at least {describe.CNN_LEAST} × "
            f"{describe.CNN_LEAST} pixels, and the data have {facts.shape[1]} × {facts.shape[2]}; "
            "'convnet' reads smaller ones"
        )


def task(model: ModelSettings, facts: Facts) -> Task:
    """What a model is trained for on a data set."""
    return task_of(model.task, facts.task, facts.classes)[0]


def outputs(model: ModelSettings, facts: Facts) -> Facts:
    """The facts, with as many classes as a model for its task needs outputs."""
    return replace(facts, classes=task_of(model.task, facts.task, facts.classes)[1])


def parameters(model: ModelSettings, facts: Facts, augment: bool) -> list[Parameter]:
    """The parameters of what is trained on a data set; known models are not built for it."""
    check(model, facts)
    whole, facts = facts, outputs(model, facts)
    if model.name in _DESCRIBE and model.trained == "all":
        found = _DESCRIBE[model.name](model, facts)
        return [_of_head(p) for p in found] if has_features(model, augment) else found
    if model.name in describe.GPT2 and model.trained == "lora":
        layers, width = describe.GPT2[model.name]
        return describe.gpt2_lora(
            layers=model.layers or layers,
            width=width,
            rank=model.lora_rank,
            classes=facts.classes,
        )
    from dpdt.algorithm.layout import parameters_of

    return parameters_of(learner(build(model, whole, 0), model, augment))


def _of_head(parameter: Parameter) -> Parameter:
    """A parameter of the head, as it is called where the head is all that is trained."""
    return replace(parameter, name=parameter.name.removeprefix("head."), layer="model")


def bounds(model: ModelSettings) -> Bounds | None:
    """What the model's construction says about gradients of cross-entropy, if anything."""
    bounded = model.name == "linear" and model.radius is not None
    return linear_bounds(model.radius) if bounded and model.radius else None


def length(model: ModelSettings, facts: Facts, augment: bool) -> float | None:
    """How long the inputs of what is trained are, if the model's construction says."""
    if model.name not in FROZEN or not has_features(model, augment):
        return None
    if model.name == "scatter":
        return describe.length(describe.scattered(facts.shape, model.pool), describe.SCATTERED)
    found = describe.patched(model.dictionary, model.channels, model.grid)
    return describe.length(found, describe.SIZE)


def build(model: ModelSettings, facts: Facts, seed: int) -> nn.Module:
    """Build a model, initialised from a public seed."""
    check(model, facts)
    if model.name in _DESCRIBE and model.name != "vit-small" and model.trained != "all":
        raise InputError(
            f"model.trained: {model.trained!r} is for transformers; {model.name} trains all"
        )
    refuse_large(model, facts)
    facts = outputs(model, facts)
    import torch

    from dpdt.algorithm.randomness import kept
    from dpdt.models import networks, pretrained
    from dpdt.models.patches import Patched
    from dpdt.models.scattering import Scattered

    with kept():
        torch.manual_seed(seed)
        match model.name:
            case "linear":
                inputs = prod(facts.shape)
                if model.radius is not None:
                    return networks.bounded_linear(inputs, facts.classes, model.radius)
                return networks.mlp(inputs, (), facts.classes)
            case "mlp":
                return networks.mlp(prod(facts.shape), model.hidden, facts.classes)
            case "cnn":
                return networks.cnn(facts.shape[0], facts.shape[1:], facts.classes)
            case "scatter":
                if any(side % (4 * model.pool) for side in facts.shape[1:]):
                    raise InputError(
                        f"model.pool: 4 times it must divide the sides of the images, "
                        f"{facts.shape[1:]}, found {model.pool}"
                    )
                size = describe.scattered(facts.shape, model.pool)
                return Scattered(model.pool, size, facts.classes)
            case "patches":
                return Patched.of(model, facts)
            case "convnet":
                return networks.ConvNet(facts.shape[0], facts.classes, model.width, model.norm)
            case "resnet18":
                return networks.ResNet18(facts.shape[0], facts.classes, model.width, model.norm)
        return pretrained.build(model, facts)


def refuse_large(model: ModelSettings, facts: Facts, copies: int = 1) -> None:
    """Refuse a model that does not fit into memory so many times, before it is built."""
    describe_it, free = _DESCRIBE.get(model.name), available()
    if describe_it is None or free is None:
        return
    parameters = describe_it(model, outputs(model, facts))
    size = copies * FLOAT * sum(parameter.size for parameter in parameters)
    if model.name == "patches":
        size += describe.learning(model.dictionary)
    if size > free:
        raise InputError(
            f"model: {model.name!r} of this size takes {gigabytes(size)} of memory, and "
            f"{gigabytes(free)} are free; lower hidden, width, layers or dictionary, or have fewer "
            "classes"
        )


def has_features(config: ModelSettings, augment: bool) -> bool:
    """Whether only a head is trained, on features that are computed once.

    Not if images are changed at every step: the features then change too.
    """
    return (config.trained == "head" or config.name in FROZEN) and not augment


def is_linear(config: ModelSettings, augment: bool) -> bool:
    """Whether what is trained is one linear layer on its inputs, unchanged."""
    return has_features(config, augment) or (config.name == "linear" and config.radius is None)


def learner(model: nn.Module, config: ModelSettings, augment: bool) -> nn.Module:
    """The part of a model that is trained on its `inputs`."""
    whole: Any = model
    part: nn.Module = whole.head if has_features(config, augment) else model
    return part


def learn(model: nn.Module, config: ModelSettings, public: Any) -> dict[str, Any] | None:
    """Let a frozen part learn from public inputs, if it can. Returns what it has learnt.

    These are the images of a folder, if one is named, or the public inputs of the data set. If
    there are none, made-up ones stand in.
    """
    from dpdt.models import frozen
    from dpdt.models.patches import Patched, made_up, of_folder

    if not isinstance(model, Patched):
        return None
    shape = model.features.shape
    if config.dictionary_from is not None:
        public = of_folder(config.dictionary_from, shape)
    frozen.learn_once(model, config, made_up(shape) if public is None else public)
    return {f"features.{name}": t for name, t in model.features.state_dict().items()}


def inputs(
    model: nn.Module,
    config: ModelSettings,
    examples: Examples,
    *,
    augment: bool,
    watch: Watch | None = None,
) -> Examples:
    """What is trained on. Texts become tokens, and inputs of a frozen part become its features.

    `watch` shows how far features are.
    """
    from dpdt.models import frozen, pretrained

    parts = {"train": examples.train, "test": examples.test}
    for name, part in parts.items():
        if isinstance(part, tuple) and isinstance(part[0], list):
            parts[name] = (pretrained.encode(config, part[0]), part[1])
    if has_features(config, augment):
        watch = watch or frozen.silent
        parts = {
            name: frozen.features_once(model, config, part, watch) for name, part in parts.items()
        }
    return replace(examples, **parts)
