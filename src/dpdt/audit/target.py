"""A finished run as an attacker finds it: its model, its data, and what was planted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from dpdt import config as configuration
from dpdt import data, models
from dpdt.methods.canaries import CANARIES, Planted
from dpdt.config import Config
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.data.access import count
from dpdt.runs.folder import LEDGER, RunFolder, is_run


@dataclass(frozen=True, kw_only=True)
class Target:
    """A run to attack."""

    folder: RunFolder
    config: Config
    ledger: Ledger
    examples: data.Examples  # held-out ones without those that were public
    learner: nn.Module
    start: nn.Module  # the learner as it was before the first step, which is public
    planted: Planted | None

    @property
    def members(self) -> np.ndarray:
        """Places in the training set that held real examples."""
        everyone = np.arange(count(self.examples.train))
        return everyone if self.planted is None else np.setdiff1d(everyone, self.planted.places)

    @classmethod
    def read(cls, path: str) -> Target:
        """Read a run's folder, and the data that it names."""
        from dpdt.training.run import load

        if not is_run(path):
            raise InputError(f"{path}: not the folder of a run (it has no {LEDGER})")
        folder = RunFolder.existing(Path(path))
        ledger = Ledger.read(folder.ledger)
        chosen = configuration.load(str(folder.path / "config.toml"))
        facts = data.facts(chosen.data.name, chosen.data.limit)
        model = models.build(chosen.model, facts, chosen.train.seed)
        start = models.build(chosen.model, facts, chosen.train.seed)
        folder.load_model(model)
        _, examples = data.set_aside(load(chosen), chosen.data.public)
        if examples.test is None or not count(examples.test):
            raise InputError(f"{path}: data {chosen.data.name!r} has no held-out examples")
        planted = None
        if chosen.audit.canaries:
            planted = Planted.again(examples.train, chosen, folder.read_private(CANARIES))
        return cls(
            folder=folder,
            config=chosen,
            ledger=ledger,
            examples=examples,
            learner=models.learner(model, chosen.model, chosen.train.augment).eval(),
            start=models.learner(start, chosen.model, chosen.train.augment),
            planted=planted,
        )
