"""What follows the noise: a torch optimizer of one's own, and its scheduler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.fields import AUTO
from dpdt.methods.dpsgd import OWN
from dpdt.methods.method import Job, Training
from dpdt.methods.optimizers import of_ones_own, scheduler_of
from dpdt.training.arguments import Optimizing, Scheduling

LARGEST = 1e100  # learning rate that a ledger takes
ITS_OWN = ("lr", "momentum", "weight_decay")  # settings that such an optimizer has itself


def refuse_beside(
    own: Optimizing | None, training: Training, settings: Any, scheduler: Scheduling | None
) -> None:
    """Refuse what does not go with an optimizer of one's own, or without one."""
    method = training.method
    if own is None:
        if scheduler is not None:
            raise InputError(
                "scheduler: needs an optimizer of your own, as in optimizer=lambda p: "
                "torch.optim.SGD(p, lr=0.1)"
            )
        if getattr(method, "optimizer", None) == OWN:
            raise InputError(
                "method.optimizer: 'own' is a torch optimizer that is given in Python, as in "
                "optimizer=torch.optim.AdamW, found none"
            )
        return
    if not method.takes_optimizer:
        raise InputError(
            f"optimizer: one of your own goes with method 'dpsgd', found {method.name!r}, which "
            "has a step of its own"
        )
    for name in ITS_OWN:
        if name in settings:
            raise InputError(
                f"{name}: is the optimizer's own; give it where you make the optimizer"
            )
    if method.noise_bands == AUTO:
        raise InputError(
            "noise_bands: 'auto' needs to know what the optimizer does with noise, and does not "
            "know yours; give a number"
        )


@dataclass(frozen=True, kw_only=True)
class Behind:
    """An optimizer, its scheduler, and the settings with the rate that it begins with."""

    training: Training
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None

    @classmethod
    def of(
        cls,
        own: Optimizing | None,
        scheduler: Scheduling | None,
        model: nn.Module,
        training: Training,
        world: World,
    ) -> Behind:
        """Made of what is trained, the same on every rank."""
        if own is None:
            return cls(training=training)
        made = of_ones_own(own, [p for p in model.parameters() if p.requires_grad])
        world.refuse_differences({"optimizer": repr(made)})
        rate = float(made.param_groups[0].get("lr", training.method.lr))
        if not 0.0 < rate <= LARGEST:
            raise InputError(
                f"optimizer: must begin with a positive learning rate, found {rate:g}; a scheduler "
                "may change it from there"
            )
        method = replace(training.method, lr=rate, optimizer=OWN)  # type: ignore[type-var]
        return cls(
            training=replace(training, method=method),
            optimizer=made,
            scheduler=None if scheduler is None else scheduler_of(scheduler, made),
        )

    def added(self, job: Job) -> Job:
        """What an engine is made from, with these."""
        return replace(job, optimizer=self.optimizer, scheduler=self.scheduler)
