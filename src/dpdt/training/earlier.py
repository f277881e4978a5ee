"""Models that this process has trained before: their start depends on the data of those runs.

An ε is about one run. A model that is trained twice on the same data pays twice, and the ε of
neither run says so. Across processes nobody can know. Within one process it is noticed, by the
parameter objects and by the weights that a run has left, wherever they were copied to. Data are
recognised by a hash of some of their examples, so that two sets of one size that differ in few
examples count as the same.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from dpdt.algorithm.places import as_bytes

_TRAINED: Any = WeakIdKeyDictionary()  # parameter → the data it was trained on
_LEFT: dict[str, set[str]] = {}  # weights that a run has left → its data


def remember(model: nn.Module, data: str) -> None:
    """This model is being trained on these data."""
    for parameter in model.parameters():
        _TRAINED[parameter] = _TRAINED.get(parameter, set()) | {data}


def remember_weights(weights: str, data: str) -> None:
    """These weights come from a run on these data."""
    _LEFT.setdefault(weights, set()).add(data)


def why_not(model: nn.Module, data: str) -> str | None:
    """Why a run on these data would not guarantee what it says, if the model has seen them.

    A model that was trained on other data is only warned about.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    seen = set().union(_LEFT.get(weights_of(model), ()), *(_TRAINED.get(p, ()) for p in trained))
    if data in seen:
        return (
            "the model was trained on these data before, so its start depends on them: an ε of "
            "this run alone leaves out what the earlier one cost"
        )
    if seen:
        warnings.warn(
            "the model was trained before: this ε counts this run alone, and holds if the earlier "
            "data and these have nobody in common",
            stacklevel=4,
        )
    return None


def weights_of(model: nn.Module) -> str:
    """A hash of what is trained in a model."""
    digest = hashlib.sha256()
    for t in model.parameters():
        if t.requires_grad:
            digest.update(as_bytes(t).numpy().data)
    return digest.hexdigest()
