"""What is said before a run to who trains: what may be wrong with its data and its plan.

These are warnings, at the line of the caller's own code. They change nothing, and no file has them.
Those that depend on what examples say are private (`PrivateWarning`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpdt.algorithm.batch import leaves
from dpdt.data.access import LOOKED_AT, count, take
from dpdt.data.overlap import overlaps, same_inputs
from dpdt.distributed.world import World
from dpdt.errors import PrivateWarning
from dpdt.methods.plan import Plan
from dpdt.methods.signal import too_few

PACKAGE = __name__.partition(".")[0]
NOT_FINITE = (
    "data: some numbers are NaN or infinite; an example whose gradient is not finite counts as 0, "
    "so replace them beforehand by a constant that is known without the data (this warning tells "
    "about the data, so keep it to yourself)"
)
TRAINED_ON = (
    "test: these are the training data, or some of them: what is measured on them is private, and "
    "says nothing about other examples; give held-out ones"
)


def say(plan: Plan, data: Any, read: Any, test: Any, world: World) -> None:
    """Warn of what may be wrong. `data` and `test` are as the caller has them, `read` as trained.

    All ranks must call this together.
    """
    odd = any(world.gather(not finite(read)))
    if world.first:
        if few := too_few(plan):
            warn(few)
        for text in _private(data, read, test, odd):
            warn(text, PrivateWarning)


def _private(data: Any, read: Any, test: Any, odd: bool) -> Iterator[str]:
    if odd:
        yield NOT_FINITE
    if test is not None and (overlaps(data, test) or same_inputs(read, _inputs(test))):
        yield TRAINED_ON


def _inputs(data: Any) -> Any:
    return data[0] if isinstance(data, tuple | list) and len(data) else data


def finite(data: Any) -> bool:
    """Tell whether all numbers are finite; of a Dataset those of some examples."""
    if not count(data):
        return True
    if isinstance(data, Dataset):
        number = min(LOOKED_AT, count(data))
        data = take(data, torch.arange(number) * count(data) // number)
    return all(map(_finite, leaves(data)))


def _finite(t: Tensor) -> bool:
    if not t.numel() or not (t.is_floating_point() or t.is_complex()):
        return True
    plain = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    return all(bool(torch.isfinite(end)) for end in torch.aminmax(plain.detach()))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the caller's own code."""
    level, frame = 1, sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
