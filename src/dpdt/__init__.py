"""dpdt: train models on sensitive data by differentially private decoupled training."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Where each public name lives. Imported on first use, so that accounting starts without torch.
_HOMES = {
    "train": "dpdt.training.loop",
    "prepare": "dpdt.training.loop",
    "make_private_ready": "dpdt.algorithm.readiness",
    "account": "dpdt.accounting",
    "Privacy": "dpdt.accounting",
    "Ledger": "dpdt.ledger",
    "InputError": "dpdt.errors",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dpdt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
