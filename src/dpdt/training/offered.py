"""What a caller gives to train on, once it is understood: examples, loss, and what judges them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpdt.algorithm.batch import tree_map
from dpdt.algorithm.gradients import Loss
from dpdt.algorithm.kernels import channels_first
from dpdt.algorithm.precision import at_precision
from dpdt.data import frames
from dpdt.data.access import count, take
from dpdt.data.given import taken, taken_inputs, workers_of
from dpdt.data.overlap import overlaps, same_inputs
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.methods.method import Job, Method, Training
from dpdt.methods.plan import Plan
from dpdt.models.metrics import Held
from dpdt.models.trial import tried
from dpdt.noise import Randomness
from dpdt.tasks import AUTO
from dpdt.training.augment import over_views
from dpdt.training.ranks import refuse_empty, refuse_sharded

NOT_PUBLIC = "these are the training data, or some of them, which are private; give others"


@dataclass(frozen=True, kw_only=True)
class Offered:
    """Data and public inputs in the numbers that the model reads, the loss, and what judges it."""

    data: Any
    public: Any
    loss: Loss
    held: Held
    device: torch.device
    by_name: bool  # a model is given inputs as keywords

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Any,
        given: Any,
        device: torch.device,
        method: Method,
        world: World,
    ) -> Offered:
        """Understand what was given, or refuse it, before anything is spent."""
        public, test = given.get("public"), given.get("test")
        for what, other in (("test", test), ("public", public)):
            frames.refuse_unlike(data, other, what)
        refuse_sharded(model)
        if public is not None and overlaps(data, public):
            raise InputError(f"public: {NOT_PUBLIC}")
        mine = taken(data)
        if given.get("local"):
            refuse_empty(world, mine)
        theirs = None if test is None else taken(test, "test")
        inputs = None if public is None else taken_inputs(public)
        if inputs is not None and same_inputs(mine, inputs):
            raise InputError(f"public: {NOT_PUBLIC}")
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
        task = found.judge.task
        if method.needs_public and task is not None and task.name != "classification":
            raise InputError(
                f"method.name: {method.name} gives public inputs class numbers of its own, so it "
                f"is for classification, and the task is {task.name}; use dpdt or dpsgd"
            )
        if task is not None and task.name == "regression" and getattr(method, "lr", 0) == AUTO:
            warnings.warn(
                "method.lr: 'auto' was fitted to classification, and is often several times too "
                "large for regression; give a number, such as 0.1, and try it on public data",
                stacklevel=2,
            )
        read, alone = found.numbers.read, found.numbers.alone
        return cls(
            data=read(mine),
            public=None if inputs is None else tree_map(channels_first, alone(inputs)),
            loss=found.loss,
            held=Held(
                judge=found.judge,
                test=None if theirs is None else read(theirs),
                read=lambda examples: read(taken(examples)),
                trained=lambda examples: overlaps(data, examples),
            ),
            device=device,
            by_name=isinstance(take(mine, torch.arange(1)), Mapping),
        )

    def job(
        self,
        learner: nn.Module,
        loss: Loss,
        plan: Plan,
        noise: Randomness,
        world: World,
        *,
        diagnose: bool,
    ) -> Job:
        """What an engine is made from, with the loss over views and in the run's precision."""
        train = plan.training.train
        return Job(
            model=learner,
            loss=at_precision(over_views(loss, train.views), train.precision, self.device),
            plan=plan,
            noise=noise,
            world=world,
            public=self.public,
            by_name=self.by_name,
            diagnose=diagnose,
        )


def as_read(training: Training, data: Any) -> Training:
    """The settings, with the workers that a DataLoader has, unless they say a number."""
    number = training.train.workers or workers_of(data)
    return replace(training, train=replace(training.train, workers=number))
