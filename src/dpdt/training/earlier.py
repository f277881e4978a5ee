"""Models that this process has trained before: their start depends on the data of those runs.

An ε is about one run. A model that is trained twice on the same data pays twice, and the ε of
neither run says so. Across processes nobody can know. Within one process it is noticed, by the
parameter objects and by every tensor that a run has changed, wherever it was copied to, and whether
or not it is trained again: a frozen layer depends on the data as well. A tensor that was cast to
another precision is recognised too. Data are recognised by a
hash of some of their examples, so that two sets of one size that differ in few examples count as
the same.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch import Tensor, bfloat16, dtype, float16, float32, nn, strided
from torch import is_floating_point as is_real
from torch.utils.weak import WeakIdKeyDictionary

from dpdt.algorithm.places import as_bytes

_TRAINED: Any = WeakIdKeyDictionary()  # parameter → the data it was trained on
_LEFT: dict[str, set[str]] = {}  # a tensor, or all weights, that a run has left → its data
KINDS = (float32, float16, bfloat16)  # that a model may be cast to; float64 has all their numbers
TINY = 4  # a tensor of fewer numbers may equal another by chance


def remember(model: nn.Module, data: str) -> None:
    """This model is being trained on these data."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            _TRAINED[parameter] = _TRAINED.get(parameter, set()) | {data}


def remember_weights(hashes: Iterable[str], data: str) -> None:
    """Weights with these hashes come from a run on these data."""
    for weights in hashes:
        _LEFT.setdefault(weights, set()).add(data)


def why_not(model: nn.Module, data: str, *, replaced: bool = False) -> str | None:
    """Why a run on these data would not guarantee what it says, if the model has seen them.

    With `replaced` a checkpoint takes the place of what is trained, and only the rest counts. A
    model that was trained on other data is only warned about.
    """
    tensors = _frozen(model) if replaced else _tensors(model)
    left = {hash_of(t) for t in tensors if _telling(t)}
    left |= set() if replaced else {weights_of(model)}
    seen = set().union(*(_LEFT.get(h, ()) for h in left), *(_TRAINED.get(t, ()) for t in tensors))
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
    trained = [t for t in model.parameters() if t.requires_grad]
    return hashlib.sha256("".join(map(hash_of, trained)).encode()).hexdigest()


def hashes_of(model: nn.Module) -> set[str]:
    """What a copy of a model, or of one of its tensors, is known by, in any precision."""
    telling = [t for t in _tensors(model) if _telling(t)]
    return {hash_of(t, kind) for t in telling for kind in (None, *KINDS)} | {weights_of(model)}


def hash_of(tensor: Tensor, kind: dtype | None = None) -> str:
    """Return a hash of the numbers that a tensor holds, or would hold after a cast to a kind.

    The precision itself is no part of it. A tensor that cannot be read has the hash of its form.
    """
    digest = hashlib.sha256(f"{tuple(tensor.shape)}".encode())
    with suppress(RuntimeError, TypeError, NotImplementedError):
        numbers = tensor.detach().to_dense().cpu()
        numbers = numbers if kind is None else numbers.to(kind)
        digest.update(as_bytes(numbers.double() if is_real(numbers) else numbers).numpy().data)
    return digest.hexdigest()


def _tensors(model: nn.Module) -> list[Tensor]:
    """All that a model holds, trained or not."""
    return [*model.parameters(), *model.buffers()]


def _frozen(model: nn.Module) -> list[Tensor]:
    """What no checkpoint holds."""
    return [*(p for p in model.parameters() if not p.requires_grad), *model.buffers()]


def _telling(tensor: Tensor) -> bool:
    """Whether an equal tensor must be a copy: others are equal by chance, or by how they begin."""
    if tensor.layout != strided or tensor.is_quantized or not tensor.is_floating_point():
        return False
    if tensor.numel() < TINY:
        return False
    numbers = as_bytes(tensor).view(tensor.numel(), -1)
    return not bool((numbers == numbers[0]).all())
