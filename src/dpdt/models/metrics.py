"""What a model is judged by on held-out examples, by name.

Every metric is a mean over examples, labels, numbers or tokens, so that examples are read and asked
about a few at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.batch import on_device
from dpdt.algorithm.gradients import Loss
from dpdt.data.access import count, take
from dpdt.data.given import taken
from dpdt.models.loss import (
    IGNORED,
    answers,
    class_numbers,
    default_loss,
    numberwise,
    outputs_of,
    targets_of,
)
from dpdt.tasks import TASKS, Task

ROWS = 1000  # examples that are asked about at once, at most
HELD = 1 << 24  # numbers that a model may say at once
Metric = Callable[[Tensor, Tensor], Any]  # outputs and targets of all examples → a number


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Measures a model on held-out examples, by the metric of this name.

    A metric of the user's own (`own`) sees all outputs and targets at once. `shifted` says that
    outputs at a position are about the next one, as in causal models of transformers.
    """

    task: Task | None  # None: a loss of the user's own, of which nothing is known
    name: str
    loss: Loss
    own: Metric | None = None
    shifted: bool = False
    rows: int = ROWS

    @classmethod
    def of_task(cls, task: Task) -> Judge:
        """By the task's own metric, of examples (inputs, targets)."""
        return cls(task=task, name=task.metric, loss=default_loss)

    @classmethod
    def of_own(cls, task: str) -> Judge:
        """Of a model that was given in Python: by its task's metric, or by a loss."""
        if task in TASKS:
            return cls.of_task(TASKS[task])
        return cls(task=None, name="test_loss", loss=default_loss)

    def __call__(self, model: nn.Module, test: Any) -> float | None:
        """The metric, or None if there is nothing to measure it on."""
        if test is None or not count(test):
            return None
        if self.own is not None:
            return float(self.own(*answers(model, test, self.rows)))
        total, number = 0.0, 0
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        device = next(model.parameters()).device
        try:
            with torch.no_grad():
                for chosen in torch.split(torch.arange(count(test)), self.rows):
                    more, examples = self.part(model, on_device(take(test, chosen), device))
                    total, number = total + more, number + examples
        finally:
            for module, training in modes:
                module.training = training
        if not number:  # every target is left out
            return None
        mean = total / number
        return math.exp(min(mean, 700.0)) if self.name == "perplexity" else mean

    def part(self, model: nn.Module, batch: Any) -> tuple[float, int]:
        """The sum of the metric over a batch, and over how many it goes."""
        if self.name == "test_loss":
            return float(self.loss(model, batch)) * count(batch), count(batch)
        outputs, targets = outputs_of(model, batch), targets_of(batch)
        if self.shifted:
            outputs, targets = outputs[:, :-1], targets[:, 1:]
        return self.sums(outputs, targets)

    def tried(self, model: nn.Module, batch: Any) -> None:
        """Compute the metric of a batch, to see that it can be."""
        if self.own is not None:
            float(self.own(outputs_of(model, batch), targets_of(batch)))
        else:
            self.part(model, batch)

    def sums(self, outputs: Tensor, targets: Tensor) -> tuple[float, int]:
        """The same for outputs and targets."""
        assert self.task is not None
        if self.name == "accuracy":
            return _right(outputs, targets, self.task.name)
        if self.name == "perplexity":
            known = int((targets != IGNORED).sum())
            flat = outputs.flatten(0, 1).double()
            missed = F.cross_entropy(flat, targets.flatten(), reduction="sum", ignore_index=IGNORED)
            return float(missed), known
        targets = numberwise(outputs, targets)
        if self.name == "label_accuracy":
            return float(((outputs > 0) == (targets > 0.5)).sum()), targets.numel()
        off = (outputs.double() - targets.double()).abs()
        return float((off.square() if self.name == "mse" else off).sum()), targets.numel()


@dataclass(frozen=True, kw_only=True)
class Held:
    """Held-out examples, if there are any, and what a model is judged by on them."""

    judge: Judge
    test: Any = None
    read: Callable[[Any], Any] = taken  # examples as a caller has them, as the model reads them
    trained: Callable[[Any], bool] = lambda examples: False  # whether some are the training data

    @property
    def name(self) -> str:
        return self.judge.name

    def __call__(self, model: nn.Module) -> float | None:
        """The metric, or None if there is nothing to measure it on."""
        return self.judge(model, self.test)

    def loss(self, model: nn.Module, examples: Any) -> float | None:
        """The mean loss of other examples, as a caller has them."""
        judge = replace(self.judge, name="test_loss", own=None)
        return judge(model, self.read(examples))

    def record(self, model: nn.Module | None) -> dict[str, float | None]:
        """The metric under its name, and accuracy if it is another; None without a model."""
        value = None if model is None else self(model)
        return {"accuracy": None, self.name: value}


def _right(outputs: Tensor, targets: Tensor, task: str) -> tuple[float, int]:
    """How many classes, or tokens, are predicted right."""
    if task == "binary":
        return float(((outputs > 0) == (numberwise(outputs, targets) > 0.5)).sum()), len(targets)
    if task == "next-token":
        found = outputs.argmax(-1)
    else:
        targets, found = class_numbers(outputs, targets), outputs.argmax(1)
        if targets.is_floating_point():  # probabilities of classes
            targets = targets.argmax(1)
    known = targets != IGNORED
    return float((found == targets)[known].sum()), int(known.sum())


def accuracy(model: nn.Module, test: Any) -> float | None:
    """Share of held-out examples whose class is predicted right."""
    return Judge.of_task(TASKS["classification"])(model, test)
