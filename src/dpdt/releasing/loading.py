"""A model from the folder of a release or of a finished run, ready for inference.

Guarantees: no code from the folder is run and nothing is unpickled. What a folder says of sizes is
compared with the weights that are there before anything of that size is allocated. A model is
filled as a whole or not at all. A release whose files are not those that its certificate names is
refused; whether the certificate itself is true is what `dpdt verify` finds out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dpdt import models
from dpdt.algorithm.randomness import kept
from dpdt.data import GIVEN
from dpdt.errors import InputError
from dpdt.releasing import canonical, inside
from dpdt.releasing.certificate import hash_of
from dpdt.releasing.description import FILE, TRANSFORMERS, Description, describe, read, rebuild
from dpdt.releasing.tokens import SETTINGS, WORDS
from dpdt.runs import Run
from dpdt.runs.place import is_run

WEIGHTS, CERTIFICATE = "model.safetensors", "certificate.json"
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
Sizes = dict[str, tuple[tuple[int, ...], torch.dtype | str]]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model in eval mode, what is known of it, and whether it was released."""

    model: nn.Module
    description: Description
    released: bool
    certified: bool  # its files are those that a certificate names
    folder: Path


def load(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The model of a release or of a finished run, in eval mode.

        model = dpdt.load("runs/first/release")

    Args:
        folder: of a release, or of a run.
        model: for a model of one's own class: a module of it, which is filled.
    """
    return opened(folder, model).model


def opened(folder: str | Path, model: nn.Module | None = None) -> Loaded:
    """The model in a folder, with what is known of it."""
    path = Path(folder)
    if (path / WEIGHTS).exists():
        return _of_release(path, model)
    if not is_run(path):
        raise InputError(
            f"{path}: is neither the folder of a release (it has no {WEIGHTS}) nor of a run"
        )
    return _of_run(Run.open(path), model)


def _of_run(run: Run, model: nn.Module | None) -> Loaded:
    if run.has_checkpoint:
        raise InputError(
            f"{run.path}: is not finished; dpdt train --resume {run.path} continues it"
        )
    if not run.model_path.is_file():
        raise InputError(
            f"{run.path}: holds no model; the run was stopped too early, or has forgotten it after "
            "its release"
        )
    chosen = run.config
    if model is None:
        model = models.build(chosen.model, chosen.data.facts(), chosen.train.seed)
    fill(model, run.model_path)
    named = None if chosen.data.name == GIVEN else chosen
    found = Description.of(describe(model, named), str(run.path))
    return Loaded(
        model=model.eval(), description=found, released=False, certified=False, folder=run.path
    )


def _of_release(path: Path, model: nn.Module | None) -> Loaded:
    listed = _refuse_changed(path)
    found = read(inside.checked(path, FILE))
    needed = {WORDS, SETTINGS} if found.facts is not None and found.facts.text else set()
    if listed is not None and (missing := needed - listed):
        raise InputError(f"{path / CERTIFICATE}: does not list {min(missing)}, which is read")
    if model is None:
        if found.model is None:
            raise InputError(
                f"{path}: holds a model of its author's own class, {found.kind}; build one and "
                "give it, as in dpdt.load(folder, model)"
            )
        model = _rebuilt(found, path)
    fill(model, inside.checked(path, WEIGHTS))
    certified = listed is not None
    return Loaded(
        model=model.eval(), description=found, released=True, certified=certified, folder=path
    )


def _rebuilt(found: Description, path: Path) -> nn.Module:
    """Built without memory first, to see whether the weights fit."""
    with torch.device("meta"):
        empty = _built(found, path)
    _refuse_others(empty, inside.checked(path, WEIGHTS))
    return _built(found, path)


def _built(found: Description, path: Path) -> nn.Module:
    try:
        with kept():
            return rebuild(found, path)
    except InputError as error:
        raise InputError(f"{path / FILE}: {error}") from None
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        said = str(error).strip().split("\n")[0][:200]
        raise InputError(f"{path / FILE}: builds no model ({said})") from None


def fill(model: nn.Module, path: Path) -> None:
    """Put the weights of a file into a model, if all of them fit by name, shape and type."""
    _refuse_others(model, path)
    with _weights(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        model.load_state_dict(tensors, strict=False)  # tied ones are there once


def _weights(path: Path) -> Any:
    """An open file of tensors. The library checks that its header fits its size."""
    if not path.is_file():  # no pipe, which would wait for ever
        raise InputError(f"{path}: is missing, or is no file")
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _sizes(path: Path) -> Sizes:
    """What a file holds, from its header alone."""
    with _weights(path) as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return {
            name: (tuple(part.get_shape()), TYPES.get(part.get_dtype(), part.get_dtype()))
            for name, part in parts.items()
        }


def _refuse_others(model: nn.Module, path: Path) -> None:
    """Refuse weights that are not those of a model. Tied ones may be there once."""
    there, own = _sizes(path), model.state_dict(keep_vars=True)
    for name in there:
        if name not in own:
            raise InputError(f"{path}: holds {name!r:.80}, which the model does not have")
    known = {_place(own[name]) for name in there}
    for name, tensor in own.items():
        if name not in there:
            if _place(tensor) not in known:
                raise InputError(f"{path}: has no {name!r}, which the model has")
            continue
        shape, kind = there[name]
        if shape != tuple(tensor.shape) or kind != tensor.dtype:
            raise InputError(
                f"{path}: {name!r} has shape {shape} of {kind}, and in the model it has shape "
                f"{tuple(tensor.shape)} of {tensor.dtype}"
            )


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for two names of the same numbers."""
    if tensor.is_meta or not tensor.numel():
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _plain(name: str) -> str:
    """A name that leads nowhere but into the folder."""
    if not all(part not in ("", ".", "..") for part in name.split("/")) or "\\" in name:
        raise ValueError(f"{name!r:.80} is no name of a file in a release")
    return name


def _refuse_changed(path: Path) -> set[str] | None:
    """Refuse files that are not those of the certificate; their names. Without one, None."""
    if not os.path.lexists(path / CERTIFICATE):
        return None
    place = inside.checked(path, CERTIFICATE)
    try:
        said = canonical.load(canonical.read(place))
        named = {_plain(n): (f["sha256"], f["size"]) for n, f in said["files"].items()}
        if not {WEIGHTS, FILE} <= set(named):
            raise ValueError(f"{WEIGHTS} or {FILE} is not listed")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path / CERTIFICATE}: does not name the files of the release ({error!r:.80}); "
            f"dpdt verify {path} says more"
        ) from None
    for extra in (path / TRANSFORMERS).rglob("*"):
        if not extra.is_dir() and extra.relative_to(path).as_posix() not in named:
            raise InputError(f"{extra}: is not listed by {CERTIFICATE}")
    for name, (digest, size) in named.items():
        place = inside.checked(path, name)
        if place.stat().st_size != size or hash_of(place) != digest:
            raise InputError(
                f"{place}: is not the file that {CERTIFICATE} names; dpdt verify {path} says more"
            )
    return set(named)
