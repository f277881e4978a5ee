"""A finished run as an attacker finds it: its model, its data, and what was planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dpdt import data, models
from dpdt.data.access import count, take
from dpdt.errors import InputError
from dpdt.fields import PUBLIC
from dpdt.ledger import Ledger
from dpdt.methods.canaries import Planted
from dpdt.models.loss import answers
from dpdt.runs import Run
from dpdt.training.run import canaries_of, load

Said = tuple[np.ndarray, np.ndarray]  # scores of classes, and the labels


def said(model: nn.Module, part: Any) -> Said:
    """What a model says of examples, and their labels."""
    outputs, labels = answers(model, part)
    return outputs.numpy(), labels.numpy()


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
        return said(self.learner, inside), said(self.learner, self.examples.test)

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
