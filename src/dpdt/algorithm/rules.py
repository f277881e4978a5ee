"""Which functions may say themselves how `vmap` maps them: the library's own, and no others.

A `torch.autograd.Function` or an operator of `torch.library` can bring a rule of its own along.
Such a rule is handed the examples of all micro-batches at once, and may mix them. It may also wait
with that until it sees something that made-up inputs never have. So it is not called at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._functorch import autograd_function

from dpdt.errors import Tainted

_torch: Any = autograd_function  # which makes a VmapInfo before it calls such a rule
_INFO = _torch.VmapInfo


class Foreign(Tainted, NotImplementedError):
    """A rule was about to be called. In trials this says that the model cannot be mapped."""


def _refuse(**_: Any) -> Any:
    raise Foreign(
        "the model calls a function that has a vmap rule of its own, and did not on made-up "
        "inputs; such a rule sees the examples of all auxiliaries"
    )


@contextmanager
def own_rules(allowed: bool) -> Iterator[None]:
    """Inside, functions may be mapped by rules of their own, or may not."""
    before, _torch.VmapInfo = _torch.VmapInfo, _INFO if allowed else _refuse
    try:
        yield
    finally:
        _torch.VmapInfo = before
