"""A finished run as an attacker finds it: its model, its data, and what was planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dpdt import data, models
from dpdt.config import Config
from dpdt.data.access import count, take
from dpdt.errors import InputError
from dpdt.fields import PUBLIC
from dpdt.ledger import Ledger
from dpdt.methods.canaries import Planted
from dpdt.models.loss import answers, numberwise
from dpdt.runs import Run
from dpdt.tasks import Task
from dpdt.training.run import canaries_of, load

Said = tuple[np.ndarray, np.ndarray]  # scores of classes (or other outputs), and the labels


def said(model: nn.Module, part: Any, task: Task) -> Said:
    """What a model says of examples, and their labels; one logit becomes scores of two classes."""
    outputs, labels = answers(model, part)
    if task.name == "binary":
        outputs, labels = outputs.reshape(-1, 1), labels.reshape(-1).long()
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    return outputs.numpy(), labels.numpy()


def minus_loss(found: Said, task: Task) -> np.ndarray:
    """Minus the loss of every example, for tasks without classes."""
    outputs, labels = (torch.from_numpy(x).double() for x in found)
    labels = numberwise(outputs, labels)
    if task.name == "multi-label":
        loss = F.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    else:
        loss = (outputs - labels).square()
    return np.asarray(-loss.flatten(1).mean(1).numpy())


def task_in(config: Config) -> Task:
    """What the model of a configuration is trained for."""
    return models.task(config.model, config.data.facts())


@dataclass(frozen=True, kw_only=True)
class Target:
    """A run to attack."""

    folder: Run
    ledger: Ledger
    examples: data.Examples  # held-out ones without those that were public
    learner: nn.Module
    start: nn.Module  # the learner as it was before the first step, which is public
    planted: Planted | None
    public: Any  # inputs without labels that were public

    @property
    def task(self) -> Task:
        return task_in(self.folder.config)

    @property
    def whitened(self) -> bool:
        """Whether it was trained in the coordinates that public inputs give."""
        return self.ledger.header.preconditioner == PUBLIC

    @property
    def members(self) -> np.ndarray:
        """Places in the training set that held real examples."""
        everyone = np.arange(count(self.examples.train))
        return everyone if self.planted is None else np.setdiff1d(everyone, self.planted.places)

    def said(self) -> tuple[Said, Said]:
        """What the released model says of its members, and of held-out examples."""
        inside = take(self.examples.train, torch.from_numpy(self.members))
        parts = (inside, self.examples.test)
        first, second = (said(self.learner, part, self.task) for part in parts)
        return first, second

    @classmethod
    def read(cls, path: str) -> Target:
        """Read a run's folder, and the data that it names."""
        folder = Run.open(path)
        ledger, chosen = folder.ledger(), folder.config
        facts = chosen.data.facts()
        model = models.build(chosen.model, facts, chosen.train.seed)
        start = models.build(chosen.model, facts, chosen.train.seed)
        folder.load_model(model)
        public, examples = data.set_aside(load(chosen, show_progress=True), chosen.data.public)
        if examples.test is None or not count(examples.test):
            raise InputError(f"{path}: data {chosen.data.name!r} has no held-out examples")
        planted = None
        if chosen.audit.canaries:
            planted = Planted.again(examples.train, canaries_of(chosen), folder.canaries())
        return cls(
            folder=folder,
            ledger=ledger,
            examples=examples,
            learner=models.learner(model, chosen.model, chosen.train.augment).eval(),
            start=models.learner(start, chosen.model, chosen.train.augment),
            planted=planted,
            public=public,
        )
