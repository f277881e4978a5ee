"""What a caller gives to train on, once it is understood: examples, loss, and what judges them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpdt.algorithm.gradients import Loss
from dpdt.data import frames
from dpdt.data.access import count
from dpdt.data.given import taken, taken_inputs, workers_of
from dpdt.methods.method import Training
from dpdt.models.metrics import Held
from dpdt.models.trial import tried
from dpdt.tasks import AUTO


@dataclass(frozen=True, kw_only=True)
class Offered:
    """Data and public inputs in the numbers that the model reads, the loss, and what judges it."""

    data: Any
    public: Any
    loss: Loss
    held: Held

    @classmethod
    def of(cls, model: nn.Module, data: Any, given: Any, device: torch.device) -> Offered:
        """Understand what was given, or refuse it, before anything is spent."""
        public, test = given.get("public"), given.get("test")
        for what, other in (("test", test), ("public", public)):
            frames.refuse_unlike(data, other, what)
        mine = taken(data)
        theirs = None if test is None else taken(test, "test")
        inputs = None if public is None else taken_inputs(public)
        if theirs is not None and not count(theirs):
            warnings.warn("test: has no examples, so nothing is measured", stacklevel=2)
        found = tried(
            model,
            mine,
            device,
            loss=given.get("loss"),
            task=given.get("task") or AUTO,
            metric=given.get("metric"),
            test=theirs,
        )
        read, alone = found.numbers.read, found.numbers.alone
        return cls(
            data=read(mine),
            public=None if inputs is None else alone(inputs),
            loss=found.loss,
            held=Held(judge=found.judge, test=None if theirs is None else read(theirs)),
        )


def as_read(training: Training, data: Any) -> Training:
    """The settings, with the workers that a DataLoader has, unless they say a number."""
    number = training.train.workers or workers_of(data)
    return replace(training, train=replace(training.train, workers=number))
