"""A training loop of one's own: an epoch each time the loader is iterated, a step that ends itself.

What the ledger records does not depend on the loop. A batch is paid for when it is handed out. Each
is used once, in order, or refused. So a loop that breaks off, starts again in the middle of an
epoch, or iterates twice at once has spent what it was handed, and no more. A run that is ended
early costs what was planned.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Unpack

from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.errors import InputError
from dpdt.noise import Single
from dpdt.training import loop
from dpdt.training.arguments import Arguments, complete
from dpdt.training.fitted import Fitted
from dpdt.training.loader import Loader
from dpdt.training.step import Step
from dpdt.weights import hash_of_model


class OwnStep(Step):
    """A step that ends the run after the last mini-batch."""

    def __call__(self, batch: Batch) -> StepResult:
        """Take the step of a batch, the next one of the loader, which has recorded it."""
        result = super().__call__(batch)
        if self.engine.steps == self.loader.steps:
            self.finish()
        return result

    def finish(self) -> None:
        """End the run: close the ledger, and leave in the model what is to be released."""
        early = not self._finished and self.engine.steps < self.loader.steps
        super().finish()
        if early:
            warnings.warn(
                f"the run was ended after {self.engine.steps} of {self.loader.steps} steps, and "
                "costs what was planned; but if a private number, such as a loss, has decided "
                "when, no ε covers what that tells: decide on public examples",
                stacklevel=2,
            )

    def result(self) -> Fitted:
        """What `dpdt.train` returns, without a history. A run that has not ended ends here."""
        self.finish()
        if hash_of_model(self.whole) != self.writer.ledger.model:
            raise InputError(
                "result: the model's weights are not those that the run left, so its ledger says "
                "nothing about them; ask for the result before the model is changed"
            )
        return Fitted.of(self.whole, self, [])


class Epochs(Single):
    """The mini-batches of a run, an epoch each time it is iterated.

    It begins where the run stands. After a break that is within an epoch, of which it then yields
    the rest. After the last epoch it raises.
    """

    def __init__(self, loader: Loader):
        self._loader = loader

    def __len__(self) -> int:
        """How many mini-batches an epoch has."""
        return self._loader.batches

    def __iter__(self) -> Iterator[Batch]:
        loader = self._loader
        if loader.position >= loader.steps:
            raise InputError(
                f"loader: all {loader.steps // loader.batches} epochs of this run were handed out; "
                "prepare(epochs=…) says how many there are, and noise was chosen for these"
            )
        return loader.until((loader.position // loader.batches + 1) * loader.batches)


@complete
def prepare(model: nn.Module, data: Any, **options: Unpack[Arguments]) -> tuple[OwnStep, Epochs]:
    """A step and its loader, for a training loop of one's own.

        step, loader = dpdt.prepare(model, (x, y), epochs=20, batch_size=256, epsilon=8.0)
        for epoch in range(20):
            for batch in loader:
                step(batch)
        print(step.privacy())

    The loader yields one epoch each time it is iterated, and raises after the last. The step ends
    the run after the last batch, which leaves in the model what is to be released. To end it
    earlier, break off and call `step.finish()`, which still costs what was planned.
    `step.result()` is what `dpdt.train` returns.

    Args:
        model: any module; it is trained in place, in its current mode.
        data: inputs and targets as tensors, arrays or frames, a mapping, a Dataset, a DataLoader.
        **options: those of `dpdt.train`.
    """
    step, loader = loop.prepare(model, data, kind=OwnStep, **options)
    assert isinstance(step, OwnStep)
    return step, Epochs(loader)
