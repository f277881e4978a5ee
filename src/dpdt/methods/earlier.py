"""Models that this process has trained before: their start depends on the data of those runs.

An ε is about one run. A model that is trained twice on the same data pays twice, and neither run's
own ε tells. Across processes nobody can know; within one, it is noticed.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from dpdt.algorithm.batch import tree_map

_TRAINED: Any = WeakIdKeyDictionary()  # parameter → the data it was trained on, as weak references


def _leaves(data: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map(found.append, data)
    return found


def remember(model: nn.Module, data: Any) -> None:
    """This model is being trained on these data."""
    leaves = _leaves(data) or [data]
    for parameter in model.parameters():
        known = _TRAINED.get(parameter, [])
        _TRAINED[parameter] = [*known, [weakref.ref(leaf) for leaf in leaves]]


def why_not(model: nn.Module, data: Any) -> str | None:
    """Why a run on these data would not guarantee what it says, if the model has seen them.

    A model that was trained on other data, or on data that are gone, is only warned about.
    """
    leaves = _leaves(data) or [data]
    earlier = [run for p in model.parameters() for run in _TRAINED.get(p, [])]
    if any(_same(leaves, [ref() for ref in run]) for run in earlier):
        return (
            "the model was trained on these data before, so its start depends on them: an ε of "
            "this run alone leaves out what the earlier one cost"
        )
    if earlier:
        warnings.warn(
            "the model was trained before: this ε counts this run alone, and holds if the earlier "
            "data and these have nobody in common",
            stacklevel=4,
        )
    return None


def _same(mine: list[Any], theirs: list[Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if a is b:
            return True
        both = isinstance(a, Tensor) and isinstance(b, Tensor)
        return both and a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)

    return len(mine) == len(theirs) and all(map(equal, mine, theirs))
