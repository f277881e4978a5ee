"""Which task a loss, outputs and targets are for, by their shapes and types, and what fits it.

The task is inferred only where nothing is in doubt. Values of targets are looked at in one place,
`refuse_values`, and only to refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dpdt.errors import InputError
from dpdt.models.loss import IGNORED, Criterion, class_numbers, default_loss, numberwise
from dpdt.tasks import AUTO, TASKS

SAY = "say task='regression', 'binary' or 'multi-label', or give the loss, such as nn.MSELoss()"


def targets_in(data: Any) -> Tensor | None:
    """The targets of examples, if they are where targets are looked for."""
    found = data.get("labels") if isinstance(data, Mapping) else None
    if isinstance(data, tuple | list) and len(data) > 1:
        found = data[1]
    return found if isinstance(found, Tensor) else None


def is_own(loss: Any) -> bool:
    """Whether a loss is a function of the user's own, of which nothing is known."""
    return not (loss is None or loss is default_loss or isinstance(loss, Criterion))


def task_for(loss: Any, wanted: str, said: Tensor, y: Tensor, *, by_name: bool) -> str | None:
    """The task that outputs and targets are for; None if a loss of one's own leaves it open.

    Without a loss, a model that is given inputs `by_name` has one of its own.
    """
    meant = "classification" if loss is default_loss else getattr(loss, "meant_for", None)
    if meant == "binary" and numberwise(said, y)[0].numel() > 1:
        meant = "multi-label"
    whole = not y.is_floating_point()
    tokens = whole and said.dim() == 3 and y.dim() == 2 and said.shape[1] == y.shape[1]
    if wanted != AUTO:
        crossed = meant == "classification" and wanted == "next-token"
        if meant not in (None, wanted) and not crossed:
            raise InputError(f"task: the loss is for {meant}, found {wanted!r}")
        found: str | None = wanted
    elif tokens and not by_name and (loss is None or meant == "classification"):
        if said.shape[1] == said.shape[2]:
            raise InputError(
                f"task: outputs of shape {tuple(said.shape[1:])} may have tokens last, or classes "
                "first; say task='next-token' or 'classification'"
            )
        found = "next-token"
    elif meant is not None:
        found = meant
    elif whole and y.dim() == 1 and said.dim() == 2 and said.shape[1] > 1:
        found = "classification"
    elif by_name or loss is not None:
        one = not whole and loss is None and said[0].numel() == 1
        found = "regression" if one else None
    else:
        found = _without_loss(said, y)
    if found is not None:
        refuse_shapes(found, said, y)
    return found


def _without_loss(said: Tensor, y: Tensor) -> str:
    """Class numbers in another form; anything else is in doubt."""
    outputs, targets = tuple(said.shape[1:]), tuple(y.shape[1:])
    if y.is_floating_point() or outputs[:1] in ((), (1,)) or outputs == targets:
        kind = "numbers with a point" if y.is_floating_point() else "whole numbers"
        raise InputError(
            f"task: is in doubt with targets that are {kind} of shape {targets} and outputs of "
            f"shape {outputs} for an example; {SAY}"
        )
    return "classification"


def refuse_shapes(task: str, said: Tensor, y: Tensor, what: str = "data") -> None:
    """Refuse targets that do not fit the outputs."""
    outputs, targets, whole = tuple(said.shape[1:]), tuple(y.shape[1:]), not y.is_floating_point()
    if task == "classification":
        soft = not whole and outputs == targets  # probabilities of classes
        fits = soft or (whole and said.shape[2:] == class_numbers(said, y).shape[1:])
        fits = fits and outputs[:1] not in ((), (1,))
    elif task == "next-token":
        fits = whole and len(outputs) == 2 and outputs[:1] == targets
    else:
        fits = tuple(numberwise(said, y).shape[1:]) == outputs
        fits = fits and (task != "binary" or said[0].numel() == 1)
    if not fits:
        known = TASKS[task]
        raise InputError(
            f"{what}: {task} needs {known.outputs}, and targets that are {known.targets}; found "
            f"outputs of shape {outputs} and {str(y.dtype).removeprefix('torch.')} targets of "
            f"shape {targets} for an example"
        )


def refuse_values(task: str, said: Tensor, data: Any, what: str = "data") -> None:
    """Refuse targets in memory that no output stands for."""
    y = targets_in(data)
    if y is None or task == "regression":
        return
    if not (y.is_floating_point() or y.is_complex()):
        y = y.long()  # torch compares no uint64; what is too large becomes negative
    if task in ("binary", "multi-label") or y.is_floating_point():
        most = 1
    else:
        y, most = y[y != IGNORED], said.shape[2 if task == "next-token" else 1] - 1
    if y.numel() and not bool(((y >= 0) & (y <= most)).all()):
        raise InputError(
            f"{what}: {task} needs targets from 0 to {most}, which the outputs stand for; found "
            "one outside"
        )
