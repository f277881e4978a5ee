"""Methods: the same protocol for all, so that a comparison is a loop.

A method is an engine that takes steps (`Engine`), made by the function `engine` of its module. What
it does to privacy is decided before training, in plan.py; the step, its ledger and the loop around
it (loop.py) are everyone's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dpdt.algorithm.batch import Batch
    from dpdt.algorithm.engine import StepResult
    from dpdt.ledger import Setting


class Engine(Protocol):
    steps: int

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        """Take one step on a mini-batch, with the setting that was recorded; changes the model."""
        ...

    def check(self) -> None:
        """Refuse a model in which anything that is not trained has changed."""
        ...

    def finish(self) -> None:
        """Leave in the model what is to be released; no step may follow."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything the run needs to continue, but for its noise. As secret as the data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make(name: str, *args: Any, **options: Any) -> Engine:
    """The engine of the method called `name`."""
    engine: Engine = import_module(f"dpdt.methods.{name}").engine(*args, **options)
    return engine
