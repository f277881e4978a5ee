"""Training by any method: what a run is prepared from, and the loop around its step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import nn

from dpdt import config
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.gradients import Loss
from dpdt.data.access import count, sample
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.methods.canaries import Pulls
from dpdt.methods.method import Training
from dpdt.methods.plan import Plan, decide
from dpdt.methods.problem import Problem
from dpdt.models.metrics import Metric
from dpdt.training import earlier
from dpdt.training.ahead import Draws
from dpdt.training.augment import Augment
from dpdt.training.device import place
from dpdt.training.fitted import Fitted
from dpdt.training.loader import Loader
from dpdt.training.offered import Offered, as_read
from dpdt.training.ranks import examples_of, own_users, refuse_alone, refuse_unlike
from dpdt.training.ready import Ready, identity_of, sealed
from dpdt.training.step import Step
from dpdt.training.streams import streams
from dpdt.training.tally import Tally
from dpdt.weights import storable


class Given(TypedDict, total=False):
    """What `prepare` and `train` are given besides a model and data.

    loss: a loss of torch such as nn.MSELoss(), or (model, micro-batch) → mean loss. Default: that
        of the task, or the model's own loss.
    task: what the model is trained for (dpdt.tasks.TASKS), where it is not clear.
    metric: what it is judged by, by name or as (outputs, targets) → number. Default: the task's.
    test: held-out examples, which are checked at once.
    users: who owns each example, for unit "user".
    public: inputs without labels that need no protection. Some methods use them.
    absent: a mask of examples that never take part, for audits of adding and removing.
    pulls: gradient canaries, for audits.
    ledger: where to write the ledger. If left out, it is kept in memory.
    diagnose: compute the quantities of the convergence theory at every step.
    overwrite: the data's tensors are needed no more and may be written to, which saves memory.
    using: settings that were made already. Otherwise give settings as keywords.
    source: what the data are recognised by in budgets, if not by some of their examples.
    local: data and users are this rank's alone, and the ranks' users are trained on together.
    world: the ranks that train together. If left out, they are found as torchrun tells.
    """

    loss: Loss | nn.Module
    task: str
    metric: str | Metric
    test: Any
    users: Sequence[Any] | None
    public: Any
    absent: np.ndarray | None
    pulls: Pulls | None
    ledger: str | Path | None
    diagnose: bool
    overwrite: bool
    using: Training | None
    source: str
    local: bool
    world: World


class Arguments(Given, config.Options, total=False):
    """Everything in `Given`, and every setting of docs/configuration.md."""


def prepare(model: nn.Module, data: Any, **options: Unpack[Arguments]) -> tuple[Step, Loader]:
    """A step and its loader, for a training loop of one's own.

        step, loader = dpdt.prepare(model, (x, y), epochs=20, batch_size=256, epsilon=8.0)
        for batch in loader:
            step(batch)
        step.finish()
        print(step.privacy())

    Args:
        model: any module; it is trained in place, in its current mode.
        data: inputs and targets as tensors, arrays or frames, a mapping, a Dataset, a DataLoader.
        **options: see `Given` and docs/configuration.md.
    """
    given = _given(options)
    world = given.get("world") or World.join()
    with world.telling():
        _warn_of_odd_weights(model, world)
        training = as_read(_training(given.get("using"), options), data)
        return _prepared(model, data, training, given, world)


def _prepared(
    model: nn.Module, data: Any, training: Training, given: Given, world: World
) -> tuple[Step, Loader]:
    device, users = place(model, training.train), given.get("users")
    offered = Offered.of(model, data, given, device, training.method)
    data, public, loss = offered.data, offered.public, offered.loss
    local = given.get("local", False)
    refuse_alone(world, given, local)
    if (training.privacy.unit == "user") != (users is not None):
        raise InputError(
            "users: must be given, one owner for each example, exactly when privacy.unit is 'user'"
        )
    number = examples_of(world, data, training, local)
    plan = decide(training, replace(Problem.of(model, data, public, loss), examples=number))
    seen = sample(data)
    why_not = world.gather(earlier.why_not(model, seen))
    refuse_unlike(
        world, model, plan, loss=loss, public=public, users=users, data=data, seen=seen,
        local=local,
    )  # fmt: skip
    identity = partial(identity_of, model, data, public, users, plan, world, local)
    ready = Ready.of(model, data, public, plan, identity, given.get("overwrite", False))
    world.refuse_differences({"learning rate": ready.plan.at(0).lr})
    learner, data, plan = ready.learner, ready.data, ready.plan
    if (pulls := given.get("pulls")) is not None:
        learner, data, loss = pulls.plant(learner, data, loss, plan)
    noise, coins = streams(plan, world)
    sampler = plan.sampler(source=coins, users=users, absent=given.get("absent"))
    if local and users is not None:
        sampler = own_users(world, sampler, users)
    draws = Draws(sampler, coins, (0, 1) if local else (world.rank, world.size))
    loader = _loader(data, draws, plan, device, world)
    job = offered.job(learner, loss, plan, noise, world, diagnose=given.get("diagnose", False))
    step = Step(
        plan.training.method.engine(job),
        loader,
        plan,
        model=model,
        learner=learner,
        noise=noise,
        identity=ready.identity,
        seen=seen,
        world=world,
        whitened=ready.whitened,
    )
    step.held = offered.held
    step.writer.ledger.data = sealed(training, given.get("source"), seen, world)
    for why in filter(None, why_not):
        step.writer.void(why)
    earlier.remember(model, seen)
    if (path := given.get("ledger")) is not None and world.first:
        step.writer.open(path)
    return step, loader


def _warn_of_odd_weights(model: nn.Module, world: World) -> None:
    """Say before training what could not be released after it."""
    if world.first and not storable(model):
        warnings.warn(
            "the model has weights or buffers that a .safetensors file cannot hold (sparse, "
            "quantised, overlapping, or of a rare type), so it can be trained but not released",
            stacklevel=3,
        )


def _loader(data: Any, draws: Draws, plan: Plan, device: torch.device, world: World) -> Loader:
    train, poisson = plan.training.train, plan.header.sampling == "poisson"
    return Loader(
        data,
        draws,
        batches=plan.header.batches,
        steps=plan.steps,
        device=device,
        seed=train.seed,
        augment=Augment(train.seed, count(data), train.views) if train.augment else None,
        alone=poisson and plan.header.per_example,
        # how much a user holds may be what is replaced
        fixed=not poisson and plan.header.unit != "user",
        workers=train.workers,
        world=world,
    )


def _given(options: Any) -> Given:
    """Take what is no setting out of the options."""
    found: Given = {}
    for name in Given.__annotations__.keys() & options.keys():
        found[name] = options.pop(name)  # type: ignore[literal-required]
    return found


def _training(using: Training | None, settings: Any) -> Training:
    """The settings that were made already, or those that the keywords make."""
    if using is None:
        return config.training(**settings)
    if settings:
        raise InputError(
            f"using: settings that were made already leave no room for {', '.join(settings)}; "
            "give one or the other"
        )
    return using


def train(
    model: nn.Module,
    data: Any,
    *,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[StepResult, Batch], None] | None = None,
    **options: Unpack[Arguments],
) -> Fitted:
    """Train a model and say what the result guarantees.

    `test` are held-out examples, in the form of `data`. The metric on them (`metric`) is measured
    after each epoch. They should not overlap with `data`: what is measured on training data is
    private. The other arguments are those of `prepare`.
    """
    step, loader = prepare(model, data, **options)
    if on_epoch is not None or on_step is not None:
        step.export("what callbacks saw on the way")
    return fit(model, step, loader, on_epoch=on_epoch, on_step=on_step)


def fit(
    model: nn.Module,
    step: Step,
    loader: Loader,
    *,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[StepResult, Batch], None] | None = None,
    tally: Tally | None = None,
) -> Fitted:
    """Run a prepared step over its loader.

    Where the run has said that only the last iterate leaves, nothing is measured before the end.
    A run that goes on within an epoch has a tally of it.
    """
    history: list[dict[str, Any]] = []
    tally = Tally() if tally is None else tally
    hidden = step.plan.header.release == "last"
    model.train()
    try:
        for batch in loader:
            result = step(batch)
            tally.add(result)
            if (batch.step + 1) % loader.batches == 0:
                last = batch.step + 1 == loader.steps
                shown = step.held.test is not None and (last or not hidden)
                if shown and not last:
                    step.export(f"the {step.held.name} after each epoch")
                record: dict[str, Any] = {
                    "epoch": batch.epoch + 1,
                    "step": batch.step + 1,
                    **tally.taken(),
                    **step.held.record(model if shown else None),
                }
                if result.diagnostics is not None:
                    record["diagnostics"] = vars(result.diagnostics)
                history.append(record)
                if on_epoch is not None:
                    on_epoch(record)
            if on_step is not None:  # last, since it may raise to stop
                on_step(result, batch)
    except KeyboardInterrupt as error:
        if not step.world.stopping:  # the other ranks know nothing of it
            step.world.leave(error)
        step.pause()
        raise
    except BaseException as error:
        step.world.leave(error)
        raise
    finally:
        model.eval()
    step.finish()
    return Fitted(
        model=model,
        privacy=step.privacy(),
        _ledger=copy.deepcopy(step.writer.ledger),
        history=history,
        judge=step.held.judge,
    )
