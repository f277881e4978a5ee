"""Shadow models: trained as a run was, on examples that the attacker chooses.

The attacker knows who was in a shadow, and so learns what members look like. What shadows say is
kept in a run's private/shadows, so that no shadow is trained twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import nn

from dpdt import models
from dpdt.algorithm.batch import tree_map
from dpdt.config import Config
from dpdt.data.access import count
from dpdt.errors import InputError
from dpdt.training import device
from dpdt.training.loop import train


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Members and held-out examples under attack, as numbers in train and in test."""

    members: np.ndarray
    others: np.ndarray

    @classmethod
    def draw(
        cls, members: np.ndarray, others: int, most: int, generator: np.random.Generator
    ) -> Targets:
        """At most `most` of each, as many of one as of the other."""
        number = min(most, len(members), others)
        return cls(
            members=np.sort(generator.choice(members, number, replace=False)),
            others=np.sort(generator.choice(others, number, replace=False)),
        )


def train_shadow(config: Config, data: Any, public: Any, number: int) -> nn.Module:
    """Shadow `number`: a learner with the run's settings, another start and other noise.

    It is trained in this process, on the threads that torch has here. A batch size beyond the
    number of examples becomes that number: where a run takes all examples at once, so does the
    shadow.
    """
    if config.privacy.unit == "user":
        raise InputError(
            "privacy.unit: shadow models are trained on examples drawn one by one, so a run that "
            "protects users cannot have them"
        )
    privacy, settings = config.privacy, config.train
    if privacy.noise_seed is not None:  # otherwise noise is fresh anyway
        privacy = replace(privacy, noise_seed=privacy.noise_seed + 1 + number)
    settings = replace(settings, batch_size=min(settings.batch_size, count(data)))
    known = config.data.facts()
    model = models.build(config.model, known, config.train.seed + 1 + number)
    learner = models.learner(model, config.model, config.train.augment)
    learner.to(device.chosen(config.train.device, device.best()))  # as the run was
    using = replace(config.training, train=settings, privacy=privacy)
    task = models.task(config.model, known).name
    train(learner, data, public=public, using=using, task=task, quiet=True)
    return learner


def keep(path: Path, **arrays: np.ndarray) -> None:
    """Write what a shadow said. A file that is there is whole."""
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    part.rename(path)


def kept(path: Path, **drawn: np.ndarray) -> dict[str, np.ndarray]:
    """What a shadow said; refused if it was drawn for other targets."""
    try:
        with np.load(path) as file:
            record = dict(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); remove it") from None
    except (ValueError, EOFError, BadZipFile):  # numpy would advise to unpickle it
        raise InputError(f"{path}: cannot be read (it is damaged); remove it") from None
    for name, wanted in drawn.items():
        if name not in record or not np.array_equal(record[name], wanted):
            raise InputError(f"{path.parent}: holds shadows of other targets; remove it")
    return record


def join(first: Any, second: Any) -> Any:
    """Two batches of examples as one."""
    return tree_map(lambda a, b: torch.cat([a, b]), first, second)
