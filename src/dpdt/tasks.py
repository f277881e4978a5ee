"""What a model can be trained for: its loss, what it is judged by, what targets must be.

The one table of tasks. It is plain words and numbers, so that accounting needs no torch.
models/loss.py computes the losses, models/metrics.py what models are judged by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpdt.errors import InputError

AUTO = "auto"  # what the data set is made for; in Python, what loss, targets and outputs show


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task. `whole` says that targets are whole numbers, otherwise they are any numbers."""

    name: str
    loss: str  # in words
    metric: str  # one of METRICS
    targets: str  # what they must be, in words
    outputs: str  # what the model must give for an example, in words
    whole: bool
    classes: bool = False  # outputs are scores of classes, which can be told apart

    def width(self, classes: int) -> int:
        """How many outputs a model needs for one target.

        `classes` is the number of classes, or of labels, tokens or numbers that a target holds.
        """
        return 1 if self.name == "binary" else classes


TASKS = {
    task.name: task
    for task in (
        Task(
            name="classification",
            loss="cross-entropy",
            metric="accuracy",
            targets="class numbers from 0 on, one for each example",
            outputs="a score for each class",
            whole=True,
            classes=True,
        ),
        Task(
            name="binary",
            loss="binary cross-entropy of one logit",
            metric="accuracy",
            targets="0 or 1, one for each example",
            outputs="one logit, which is above 0 for class 1",
            whole=True,
            classes=True,
        ),
        Task(
            name="multi-label",
            loss="mean binary cross-entropy over labels",
            metric="label_accuracy",
            targets="0 or 1 for each label",
            outputs="a logit for each label",
            whole=False,
        ),
        Task(
            name="regression",
            loss="mean squared error",
            metric="mse",
            targets="numbers, one or more for each example",
            outputs="as many numbers as a target has",
            whole=False,
        ),
        Task(
            name="next-token",
            loss="mean cross-entropy over tokens; -100 is left out",
            metric="perplexity",
            targets="token numbers, one for each position",
            outputs="a score for each token, at each position",
            whole=True,
        ),
    )
}
# What a model can be judged by on held-out examples, and for which tasks; () stands for any.
METRICS: dict[str, tuple[str, ...]] = {
    "accuracy": ("classification", "binary", "next-token"),
    "label_accuracy": ("multi-label",),
    "mse": ("regression",),
    "mae": ("regression",),
    "perplexity": ("next-token",),
    "test_loss": (),
}
# Which tasks the targets of a data set can serve, by the task that it is made for.
SERVES = {
    "classification": ("classification", "binary", "regression"),  # class numbers are numbers
    "multi-label": ("multi-label", "regression"),
    "regression": ("regression",),
}


def task_of(name: Any, made_for: str, classes: int) -> tuple[Task, int]:
    """The task of that name on a data set, and how many outputs a model needs for it.

    "auto" stands for the task that the data set is made for. `classes` is its number of classes, or
    of labels or numbers that a target holds.
    """
    chosen = made_for if name == AUTO else name
    if chosen not in SERVES[made_for]:
        raise InputError(
            f"model.task: the data are for {made_for}, which cannot serve {chosen!r:.50}; give "
            f"{AUTO!r} or {' or '.join(map(repr, SERVES[made_for]))}"
        )
    if chosen == "binary" and classes != 2:
        raise InputError(f"model.task: 'binary' is for 2 classes, and the data have {classes}")
    task = TASKS[chosen]
    one = chosen == "regression" and made_for == "classification"
    return task, task.width(1 if one else classes)
