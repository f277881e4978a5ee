"""What training minimises: the usual losses by task, and torch's own losses as users give them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Data, on_device
from dpdt.algorithm.reachable import Snapshot
from dpdt.algorithm.readiness import refuse_unready
from dpdt.data.access import count, take
from dpdt.errors import InputError

IGNORED = -100  # the class number that torch's cross-entropy leaves out

# torch's losses, as functions and as modules
FUNCTIONS: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.huber_loss: nn.HuberLoss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.binary_cross_entropy: nn.BCELoss,
}
# Which task a loss is for. Of BCEWithLogitsLoss the targets decide: one number, or several labels.
MEANT_FOR: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "classification",
    nn.NLLLoss: "classification",
    nn.MultiMarginLoss: "classification",
    nn.MSELoss: "regression",
    nn.L1Loss: "regression",
    nn.HuberLoss: "regression",
    nn.SmoothL1Loss: "regression",
    nn.BCEWithLogitsLoss: "binary",
    nn.MultiLabelSoftMarginLoss: "multi-label",
}
# Losses that compare outputs and targets number by number.
NUMBERWISE = (
    nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss, nn.BCELoss,
    nn.PoissonNLLLoss, nn.SoftMarginLoss, nn.MultiLabelSoftMarginLoss,
)  # fmt: skip


def default_loss(model: Callable[..., Any], batch: Data) -> Tensor:
    """Mean loss of a micro-batch: the model's own for a mapping, cross-entropy for (x, y).

    The mean is over all examples, whatever their labels. So each has the same weight, also beside
    labels that are left out.
    """
    if isinstance(batch, Mapping):
        said = model(**batch)
        loss = getattr(said, "loss", None)
        if not isinstance(loss, Tensor):
            raise InputError(
                "loss: a model that is given a mapping must give its loss itself, as those of "
                f"transformers do, found {type(said).__name__}; give loss=nn.CrossEntropyLoss(), "
                "or another"
            )
        return loss
    outputs, y = tensor_of(model(batch[0])), batch[1]
    y = class_numbers(outputs, y)
    if outputs.dim() == 2 and y.dim() == 1 and y.dtype == torch.int64:
        return _cross_entropies(outputs, y).sum() / len(y)
    return F.cross_entropy(outputs, y)


def _cross_entropies(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of every class number, in steps that vmap knows.

    Mapped over examples, torch's own imports sympy (0.3 s) and runs in Python at every call. A
    label that is none of the classes has no gradient, so that it neither ends a run nor exceeds a
    bound that is recorded. Its loss is NaN, for whoever trains to see; that of IGNORED is 0.
    """
    known = (y >= 0) & (y < outputs.shape[1])
    scores = outputs.log_softmax(1).gather(1, torch.where(known, y, 0).unsqueeze(1)).squeeze(1)
    losses: Tensor = torch.where(known, -scores, torch.nan).masked_fill(y == IGNORED, 0.0)
    return losses


def token_loss(model: Callable[..., Any], batch: Data) -> Tensor:
    """Mean cross-entropy of every position's token: the model's own for a mapping."""
    if isinstance(batch, Mapping):
        return default_loss(model, batch)
    outputs, y = tensor_of(model(batch[0])), batch[1]
    tokens: Tensor = (y != IGNORED).sum()
    return _cross_entropies(outputs.flatten(0, 1), y.flatten()).sum() / tokens.clamp_min(1)


def tensor_of(found: Any) -> Tensor:
    """A model's outputs: the tensor itself, or the logits of what transformers models give."""
    outputs: Tensor = getattr(found, "logits", found)
    return outputs


def outputs_of(model: Callable[..., Any], batch: Data) -> Tensor:
    """What a model says of a batch, without looking at its targets."""
    if isinstance(batch, Mapping):
        return tensor_of(model(**{k: v for k, v in batch.items() if k != "labels"}))
    return tensor_of(model(batch[0]))


def targets_of(batch: Data) -> Tensor:
    targets: Tensor = batch["labels"] if isinstance(batch, Mapping) else batch[1]
    return targets


def class_numbers(outputs: Tensor, y: Tensor) -> Tensor:
    """Class numbers as [examples], also if they were given as [examples, 1]."""
    column = y.dim() == 2 and y.shape[1] == 1 and outputs.dim() == 2 and outputs.shape[1] > 1
    return y.squeeze(1) if column and not y.is_floating_point() else y


def numberwise(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets in the shape and type of outputs; [examples] and [examples, 1] mean the same."""
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        targets = targets.unsqueeze(-1)
    elif targets.dim() == outputs.dim() + 1 and targets.shape[-1] == 1:
        targets = targets.squeeze(-1)
    return targets.to(outputs.dtype)


class Criterion:
    """A loss of outputs and targets, as a mean over the examples of a micro-batch.

    It never broadcasts targets of another shape. Class weights count: torch's mean divides by the
    weights of the batch, which takes them away from an example that is alone.
    """

    def __init__(self, module: nn.Module, device: torch.device):
        if any(True for _ in module.parameters()):
            raise InputError(
                f"loss: {type(module).__name__} has parameters of its own, which would not be "
                "trained; make them part of the model"
            )
        refuse_unready(module)
        self.module = copy.deepcopy(module).to(device)
        self.__qualname__ = repr(module)  # by which ranks compare losses
        self.meant_for = MEANT_FOR.get(type(module))
        self.numberwise = isinstance(module, NUMBERWISE)
        self.by_example = getattr(module, "reduction", None) == "sum"
        weight = getattr(module, "weight", None)
        if self.meant_for == "classification" and weight is not None and not self.by_example:
            setattr(self.module, "reduction", "sum")  # noqa: B010
            self.by_example = True

    def __call__(self, model: Callable[..., Any], batch: Data) -> Tensor:
        outputs, targets = outputs_of(model, batch), targets_of(batch)
        if self.numberwise:
            targets = numberwise(outputs, targets)
        elif self.meant_for == "classification":
            targets = class_numbers(outputs, targets)
            if outputs.dim() == 3 and targets.shape == outputs.shape[:2]:  # tokens of positions
                outputs = outputs.movedim(2, 1)
        if self.numberwise and targets.shape != outputs.shape:
            raise InputError(
                f"targets of shape {tuple(targets.shape[1:])} for outputs of "
                f"{tuple(outputs.shape[1:])}"
            )
        before = Snapshot({"": self.module})
        value: Tensor = self.module(outputs, targets)
        before.put_back()  # what it keeps would carry one example to the next
        return value.sum() / len(targets) if self.by_example else value.mean()


def usual(name: str, device: torch.device) -> Any:
    """The loss of a task."""
    if name == "classification":
        return default_loss
    if name == "next-token":
        return token_loss
    return Criterion(nn.MSELoss() if name == "regression" else nn.BCEWithLogitsLoss(), device)


def given(loss: Any, device: torch.device, *, by_name: bool = False) -> Any:
    """A loss as it is computed here: torch's own take outputs and targets, others model and batch.

    Plain cross-entropy is the library's own, of which more is known. For a mapping (`by_name`) that
    would be the model's, which may have none.
    """
    module = next((kind() for function, kind in FUNCTIONS.items() if function is loss), loss)
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise InputError(f"loss: is the class {module.__name__}; give {module.__name__}()")
    if not isinstance(module, nn.Module):
        if not callable(module):
            raise InputError(
                "loss: must be a loss of torch such as torch.nn.MSELoss(), or a function (model, "
                f"batch) → mean loss, found {type(module).__name__}"
            )
        return module
    if type(module) is nn.CrossEntropyLoss:
        plain = (module.weight, module.label_smoothing, module.reduction, module.ignore_index)
        if plain == (None, 0.0, "mean", IGNORED) and not by_name:
            return default_loss
    return Criterion(module, device)


def answers(model: nn.Module, part: Any, batch_size: int = 1000) -> tuple[Tensor, Tensor]:
    """What a model says of examples, and their labels."""
    was_training = model.training
    model.eval()
    outputs, labels = [], []
    own = next(model.parameters(), None)
    device = torch.device("cpu") if own is None else own.device
    with torch.no_grad():
        for chosen in torch.split(torch.arange(count(part)), batch_size):
            batch = on_device(take(part, chosen), device)
            outputs.append(outputs_of(model, batch))
            labels.append(targets_of(batch))
    model.train(was_training)
    return torch.cat(outputs).cpu(), torch.cat(labels).cpu()
