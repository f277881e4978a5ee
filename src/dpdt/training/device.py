"""Where a run computes, and that it computes the same there every time.

Guarantees: within `repeatable` operations on a GPU give the same bits whenever they are repeated,
or fail. A run that is resumed repeats its noise, so its sums must come out as they did. The engine
also computes some gradients twice, to see that nothing is kept between calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dpdt.errors import InputError
from dpdt.fields import AUTO
from dpdt.methods.method import Training
from dpdt.methods.settings import TrainSettings

PLAIN = (torch.Tensor, nn.Parameter)


def best() -> torch.device:
    """What the command line means by "auto": a CUDA GPU if there is one, otherwise the CPU."""
    return _named("cuda" if torch.cuda.is_available() else "cpu")


def _named(name: str) -> torch.device:
    """The device of that name. Of several GPUs, each process that torchrun starts has its own."""
    rank = os.environ.get("LOCAL_RANK")
    return torch.device(name if name != "cuda" or rank is None else f"cuda:{rank}")


def chosen(name: str, auto: torch.device) -> torch.device:
    """The device of that name, refused if it is absent. `auto` is what "auto" means here."""
    there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    if name in there and not there[name]():
        raise InputError(
            f"train.device: {name!r} is not there, or this torch ({torch.__version__}) cannot use "
            "it; use 'cpu' or 'auto'"
        )
    return auto if name == AUTO else _named(name)


def refuse_odd(model: Any) -> None:
    """Refuse what is no model, or one without numbers that could be trained."""
    if isinstance(model, type):
        name = model.__name__
        raise InputError(f"model: is the class {name}; give an object of it, {name}(…)")
    if not isinstance(model, nn.Module):
        raise InputError(f"model: must be a torch.nn.Module, found {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise InputError("model: has no parameters, so there is nothing to train")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta and type(tensor) in PLAIN:  # others may have numbers elsewhere
            raise InputError(
                f"model: {name} is on the device 'meta', where it has a shape and no numbers; "
                "give a model with its weights"
            )


def place(model: nn.Module, settings: TrainSettings) -> torch.device:
    """Move the model to where it is to be trained; "auto" leaves it where it is."""
    device = chosen(settings.device, next(model.parameters()).device)
    found = {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.requires_grad}
    if settings.precision != "float32" and found != {"float32"}:
        raise InputError(
            f"train.precision: {settings.precision!r} is for models in float32, found "
            f"{', '.join(sorted(found))}; autocast would leave it as it is"
        )
    model.to(device)
    return device


def anywhere(training: Training) -> Training:
    """The settings without those that say where, not what, to compute."""
    return replace(training, train=replace(training.train, device=AUTO, workers=0))


def facts(device: torch.device) -> list[str]:
    """What a run's numbers depend on, of its device."""
    if device.type != "cuda":
        return [device.type]
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    name = torch.cuda.get_device_name(device)
    return [device.type, name, f"CUDA {torch.version.cuda}", f"cuDNN {cudnn}"]


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Compute on a GPU by operations that give the same bits every time."""
    if device.type == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which torch insists on
    before = torch.are_deterministic_algorithms_enabled()
    warning = torch.is_deterministic_algorithms_warn_only_enabled()
    chosen_by_trial = torch.backends.cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warning)
        torch.backends.cudnn.benchmark = chosen_by_trial
