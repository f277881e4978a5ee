"""dpdt: train models on sensitive data by differentially private decoupled training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors: at run time each is imported on first use
    from dpdt.accounting import Privacy, account
    from dpdt.algorithm.readiness import make_private_ready
    from dpdt.errors import InputError, PrivateWarning
    from dpdt.ledger import Ledger
    from dpdt.releasing.loading import load
    from dpdt.releasing.making import release
    from dpdt.releasing.verify import verify
    from dpdt.training.callbacks import Callback, EarlyStopping, Logger, TensorBoard
    from dpdt.training.fitted import Fitted, Interrupted
    from dpdt.training.loop import train
    from dpdt.training.own import prepare

__version__ = "0.1.0"

# Where each public name lives. Imported on first use, so that accounting starts without torch.
_HOMES = {
    "release": "dpdt.releasing.making",
    "verify": "dpdt.releasing.verify",
    "train": "dpdt.training.loop",
    "prepare": "dpdt.training.own",
    "Fitted": "dpdt.training.fitted",
    "Interrupted": "dpdt.training.fitted",
    "Callback": "dpdt.training.callbacks",
    "EarlyStopping": "dpdt.training.callbacks",
    "Logger": "dpdt.training.callbacks",
    "TensorBoard": "dpdt.training.callbacks",
    "make_private_ready": "dpdt.algorithm.readiness",
    "account": "dpdt.accounting",
    "Privacy": "dpdt.accounting",
    "Ledger": "dpdt.ledger",
    "InputError": "dpdt.errors",
    "PrivateWarning": "dpdt.errors",
    "load": "dpdt.releasing.loading",
}
__all__ = [
    "Callback",
    "EarlyStopping",
    "Fitted",
    "InputError",
    "Interrupted",
    "Ledger",
    "Logger",
    "Privacy",
    "PrivateWarning",
    "TensorBoard",
    "account",
    "load",
    "make_private_ready",
    "prepare",
    "release",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dpdt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
