"""Training by any method: what a run is prepared from, and the loop around its step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.kernels import lay_first
from dpdt.data.access import count, sample
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.methods.plan import Plan, decide
from dpdt.methods.problem import Problem
from dpdt.training import doubts, earlier
from dpdt.training.ahead import Draws
from dpdt.training.arguments import Arguments, Given, complete, parted, training_of
from dpdt.training.augment import Augment
from dpdt.training.behind import Behind, refuse_beside
from dpdt.training.callbacks import Callback, listeners
from dpdt.training.device import place, refuse_odd
from dpdt.training.fitted import Fitted
from dpdt.training.loader import Loader
from dpdt.training.offered import Offered, as_read
from dpdt.training.ranks import number_of, own_users, refuse_alone, refuse_unlike
from dpdt.training.ready import Ready, frozen_of, identity_of, sealed
from dpdt.training.step import Step
from dpdt.training.streams import streams
from dpdt.training.tally import Tally
from dpdt.training.watching import Keep, watching
from dpdt.users import Users
from dpdt.weights import storable


def prepare(
    model: nn.Module, data: Any, *, kind: type[Step] = Step, **options: Unpack[Arguments]
) -> tuple[Step, Loader]:
    """A step and the mini-batches of the whole run. `dpdt.prepare` is in own.py."""
    given, own, settings = parted(options)
    world = given.get("world") or World.join()
    with world.telling():
        refuse_odd(model)
        _warn_of_odd_weights(model, world)
        training = as_read(training_of(given.get("using"), settings), data)
        refuse_beside(own, training, settings, given.get("scheduler"))
        device = place(model, training.train)
        behind = Behind.of(own, given.get("scheduler"), model, training, world)
        return _prepared(model, data, behind, given, world, device, kind)


def _prepared(
    model: nn.Module, data: Any, behind: Behind, given: Given, world: World, device: torch.device,
    kind: type[Step],
) -> tuple[Step, Loader]:  # fmt: skip
    training, owners, local = behind.training, given.get("users"), given.get("local", False)
    lay_first(model)
    offered, as_given = Offered.of(model, data, given, device, training.method, world), data
    data, public, loss = offered.data, offered.public, offered.loss
    refuse_alone(world, given, local)
    if (training.privacy.unit == "user") != (owners is not None):
        raise InputError(
            "users: must be given, one owner for each example, exactly when privacy.unit is 'user'"
        )
    users = None if owners is None else Users.of(owners, count(data))
    number = number_of(world, data, users, training, local)
    shown = training.privacy.examples or number
    plan = decide(training, replace(Problem.of(model, data, public, loss), examples=shown))
    if not given.get("quiet"):
        doubts.say(plan, as_given, data, given.get("test"), world)
    seen = sample(data)
    why_not = world.gather(earlier.why_not(model, seen))
    refuse_unlike(
        world, model, plan, loss=loss, public=public, users=users, data=data, seen=seen,
        local=local,
    )  # fmt: skip
    frozen = frozen_of(model, private=training.method.private)
    identity = partial(identity_of, model, data, public, users, plan, world, local, frozen)
    ready = Ready.of(model, data, public, plan, identity, given.get("overwrite", False))
    world.refuse_differences({"learning rate": ready.plan.at(0).lr})
    learner, data, plan = ready.learner, ready.data, ready.plan
    if (pulls := given.get("pulls")) is not None:
        learner, data, loss = pulls.plant(learner, data, loss, plan)
    noise, coins = streams(plan, world)
    sampler = plan.sampler(source=coins, users=users, examples=number, absent=given.get("absent"))
    if local and users is not None:
        sampler = own_users(world, sampler, users)
    draws = Draws(sampler, coins, (0, 1) if local else (world.rank, world.size))
    loader = _loader(data, draws, plan, device, world)
    job = offered.job(learner, loss, plan, noise, world, diagnose=given.get("diagnose", False))
    step = kind(
        plan.training.method.engine(behind.added(job)),
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
    _begin(step, given, filter(None, why_not))
    return step, loader


def _begin(step: Step, given: Given, voids: Iterable[str]) -> None:
    """Say in the ledger whose data it is about and what is wrong from the start; remember both."""
    model, seen, world = step.whole, step.seen, step.world
    step.writer.ledger.data = sealed(step.plan.training, given.get("source"), seen, world)
    for why in voids:
        step.writer.void(why)
    earlier.remember(model, seen)
    if (path := given.get("ledger")) is not None and world.first:
        step.writer.open(path)


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
        augment=Augment(train.seed, train.views) if train.augment else None,
        alone=poisson and plan.header.per_example,
        # how much a user holds may be what is replaced
        fixed=not poisson and plan.header.unit != "user",
        workers=train.workers,
        world=world,
    )


@complete
def train(
    model: nn.Module,
    data: Any,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    out: str | Path | None = None,
    resume: bool = False,
    on_epoch: Callable[[dict[str, Any]], bool | None] | None = None,
    on_step: Callable[[StepResult, Batch], None] | None = None,
    **options: Unpack[Arguments],
) -> Fitted:
    """Train a model and say what the result guarantees.

        result = dpdt.train(model, (x, y), epochs=20, batch_size=256, epsilon=8.0)

    Args:
        model: any module; it is trained in place.
        data: inputs and targets as tensors, arrays or frames, a mapping, a Dataset, a DataLoader.
        test: held-out examples in the form of `data`, measured (`metric`) after each epoch. They
            should not overlap with `data`: what is measured on training data is private.
        callbacks: listen to the run, and may stop it (docs/python.md).
        progress: show a line about the run where there is a terminal or a notebook.
        out: keep the run in this folder, which must not exist. `dpdt account`, `budget` and
            `report` read it. With `resume` an interrupted run in it goes on.
        on_epoch: a callback that is one function. It gets public numbers, and stops the run by
            returning True.
        epochs, batch_size: how long to train, and on how many examples a step.
        epsilon, delta: the privacy to reach. Without `epsilon`, give `noise`.
        unit: what is protected: "example", "shard", or "user" with `users`, one for each example.
        method: "dpdt" (decoupled training), "dpsgd", "gep", "pate", or "plain" without privacy.
        clip, noise: the bound on a contribution, and the noise on the mean of all.
        lr: the learning rate; "auto" is computed from the noise.
        auxiliaries, memory: of decoupled training: how many, and what outlives a step.
        sampling: who is in which mini-batch: "poisson", "partition" or "cyclic-poisson".
        optimizer, scheduler: for "dpsgd": functions that make a torch optimizer of the parameters,
            and an lr_scheduler of the optimizer.
        loss, task: a loss of torch, or (model, micro-batch) → mean loss; what it is trained for.
        public: inputs without labels that need no protection.
        **options: more settings, below and in docs/configuration.md.

    Ctrl-C ends the run after its step, and raises `dpdt.Interrupted` with the `result` so far. A
    run that ends early costs what was planned.
    """
    heard = listeners(callbacks, on_epoch)
    keep = Keep.of(out, resume, options.get("ledger"))
    step, loader = prepare(model, data, **options)
    with watching(model, step, heard, on_step, keep, show=progress) as watch:
        result = fit(model, step, loader, **watch.hooks())
    return watch.end(result)


def fit(
    model: nn.Module,
    step: Step,
    loader: Loader,
    *,
    on_epoch: Callable[[dict[str, Any]], bool | None] | None = None,
    on_step: Callable[[StepResult, Batch], bool | None] | None = None,
    tally: Tally | None = None,
) -> Fitted:
    """Run a prepared step over its loader.

    Where the run has said that only the last iterate leaves, nothing is measured before the end.
    A run that goes on within an epoch has a tally of it. It ends early if a listener returns True.
    """
    history: list[dict[str, Any]] = []
    tally = Tally() if tally is None else tally
    hidden = step.plan.header.release == "last"
    model.train()
    try:
        for batch in loader:
            result, stop = step(batch), False
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
                    stop = on_epoch(record) is True
            if on_step is not None:  # last, since it may raise to stop
                stop |= on_step(result, batch) is True
            if stop:
                break
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
    if (
        history and history[-1]["step"] == step.engine.steps
    ):  # of the model that is left: an average
        history[-1] |= step.held.record(model)
    return Fitted.of(model, step, history)
