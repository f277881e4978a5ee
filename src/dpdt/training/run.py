"""A run from its configuration: data, model, training, and the folder that it leaves."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpdt import data, models
from dpdt.accounting import Privacy
from dpdt.algorithm.state import model_hash
from dpdt.config import Config, problem_of
from dpdt.config.planning import check_canaries
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.methods.canaries import Planted, Wanted
from dpdt.methods.ram import gigabytes
from dpdt.models.loss import accuracy
from dpdt.runs import Run
from dpdt.training import device
from dpdt.training.depends import depends_on, refuse_changes
from dpdt.training.interrupt import Interrupt
from dpdt.training.loader import Loader
from dpdt.training.loop import fit, prepare
from dpdt.training.progress import Display, counting
from dpdt.training.recorder import Recorder
from dpdt.training.step import Step

NOTABLE = 100_000_000  # bytes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to; `finished` is false if it was interrupted."""

    run: Path
    accuracy: float | None  # None: nothing but the last iterate may be seen, and this is not it
    epochs: float
    steps: int
    seconds: float
    nonfinite: int
    privacy: Privacy
    finished: bool
    ways: list[str]  # in which contributions were computed, in words

    def as_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "accuracy": self.accuracy,
            "epochs": self.epochs,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "finished": self.finished,
            "privacy": self.privacy.as_json(),
        }


def load(config: Config, *, show_progress: bool = False) -> data.Examples:
    """The examples of a configuration, as its model reads them."""
    device.chosen(config.train.device, device.best())  # refused before anything is read
    facts = data.facts(config.data.name, config.data.limit)
    models.check(config.model, facts)
    loaded = data.load(config.data.name, config.data.limit)
    model = models.build(config.model, facts, config.train.seed)
    public, _ = data.set_aside(loaded, config.data.public)
    fixed = models.learn(model, public)
    watch = partial(counting, enabled=show_progress)
    ready = models.inputs(model, config.model, loaded, augment=config.train.augment, watch=watch)
    return replace(ready, fixed=fixed)


def canaries_of(config: Config) -> Wanted:
    """Which canaries a configuration asks for."""
    return Wanted(
        kind=config.audit.canary,
        number=config.audit.canaries,
        seed=config.train.seed,
        classes=data.facts(config.data.name, config.data.limit).classes,
        relation=config.method.relation(config.privacy),
    )


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """Everything that a configuration names, loaded and built."""

    model: nn.Module
    learner: nn.Module  # the part of the model that is trained
    examples: data.Examples
    public: Any
    planted: Planted | None
    start: str  # a hash of the model before the first step

    @classmethod
    def of(
        cls,
        config: Config,
        examples: data.Examples | None,
        folder: Run | None,
        *,
        show_progress: bool = False,
    ) -> Assembled:
        """Load and build; canaries are planted as in the folder, if there is one."""
        check_canaries(config)
        facts = data.facts(config.data.name, config.data.limit)
        examples = examples or load(config, show_progress=show_progress)
        public, examples = data.set_aside(examples, config.data.public)
        if config.privacy.unit == "user" and examples.users is None:
            raise InputError(f"privacy.unit: data {config.data.name!r} does not say who owns what")
        where = device.chosen(config.train.device, device.best())
        model = models.build(config.model, facts, config.train.seed)
        if examples.fixed is not None:
            model.load_state_dict(examples.fixed, strict=False)
        model = model.to(where)
        planted = None
        if config.audit.canaries:
            wanted = canaries_of(config)
            if folder is None:
                planted = Planted.plant(examples.train, wanted)
            else:
                planted = Planted.again(examples.train, wanted, folder.canaries())
        return cls(
            model=model,
            learner=models.learner(model, config.model, config.train.augment),
            examples=examples,
            public=public,
            planted=planted,
            start=model_hash(model),
        )

    @property
    def data(self) -> Any:
        """What is trained on."""
        return self.planted.data if self.planted else self.examples.train

    def prepare(
        self,
        config: Config,
        diagnose: bool,
        *,
        overwrite: bool = False,
        world: World | None = None,
    ) -> tuple[Step, Loader]:
        """The step and its loader; refused if they are not what the configuration says.

        With `overwrite` the training examples are needed no more, and may be written to.
        """
        planted = self.planted
        step, loader = prepare(
            self.learner,
            self.data,
            users=self.examples.users,
            public=self.public,
            absent=planted.absent if planted else None,
            pulls=planted.pulls if planted else None,
            using=config.training,
            diagnose=diagnose,
            overwrite=overwrite,
            world=world or World.join(),
        )
        if step.plan.problem != problem_of(config):
            raise InputError(
                "model.name: the model that was built is not the one that the guarantee of this "
                "configuration is computed for; nothing was trained"
            )
        return step, loader

    def depends(self, config: Config, world: World | None = None) -> dict[str, str]:
        coins = torch.from_numpy(self.planted.included) if self.planted else None
        parts = [part for part in (self.data, self.public, coins) if part is not None]
        where = next(self.model.parameters()).device
        return depends_on(config, self.start, parts, where, world)


def run(
    config: Config,
    path: Path,
    *,
    show_progress: bool = True,
    diagnose: bool = False,
    examples: data.Examples | None = None,
    resume: bool = False,
    world: World | None = None,
) -> Outcome:
    """Train as configured, on `examples` if they are at hand already.

    An interrupt ends the run early. It leaves a checkpoint, and a folder that accounts for what was
    done. With `resume` the run goes on from there: bit for bit, or with fresh noise if the number
    of ranks is another. Of several ranks only rank 0 has the folder.
    """
    world = world or World.join()
    with world.telling():
        if config.audit.canaries and not world.alone:
            raise InputError(
                f"audit.canaries: are for runs in one process, found {world.size} ranks; leave "
                "them out"
            )
        show = show_progress and world.first
        return _run(config, path, world, show, diagnose, examples, resume)


def _run(
    config: Config,
    path: Path,
    world: World,
    show_progress: bool,
    diagnose: bool,
    examples: data.Examples | None,
    resume: bool,
) -> Outcome:
    folder = Run.open(path) if resume and world.first else None
    state = folder.load_checkpoint() if folder else None
    # Everything that can be refused is refused here, before the folder exists.
    ready = Assembled.of(config, examples, folder, show_progress=show_progress)
    depends = ready.depends(config, world)
    step, loader = ready.prepare(config, diagnose, overwrite=examples is None, world=world)
    if world.first:
        _say_size(config)
    if state is not None:
        refuse_changes(path, state["depends"], depends)
    elif world.first:
        folder = Run.create(path, config)
        if ready.planted:
            folder.write_canaries(ready.planted.record())
        step.writer.open(folder.ledger_path)
    display = Display(loader.steps, config.train.epochs, show_progress)
    with display, Interrupt() as interrupt:
        recorder = Recorder(folder, step, depends, display=display, interrupt=interrupt)
        if resume:
            recorder.resume(state)
        elif not world.alone:
            recorder.checkpoint()  # for torchrun, which may restart the ranks at any time
        finished = True
        try:
            fit(
                ready.learner,
                step,
                loader,
                test=ready.examples.test,
                on_epoch=recorder.on_epoch,
                on_step=recorder.on_step,
            )
        except KeyboardInterrupt:
            finished = False  # the ledger has all that was done
    shown = finished or config.privacy.release != "last"
    if folder is not None:
        _keep(folder, ready.model if shown else None, finished)
        if found := config.method.findings(step.engine, config.privacy.delta):
            folder.write_findings(found)
    ledger, test = step.writer.ledger, ready.examples.test
    return Outcome(
        run=path,
        accuracy=accuracy(ready.learner, test) if shown else None,
        epochs=ledger.epochs,
        steps=ledger.steps,
        seconds=recorder.seconds,
        nonfinite=recorder.nonfinite,
        privacy=step.privacy(),
        finished=finished,
        ways=step.engine.executor.words() if hasattr(step.engine, "executor") else [],
    )


def _keep(folder: Run, model: nn.Module | None, finished: bool) -> None:
    """Keep the model, if it may be seen; a finished run needs no checkpoint."""
    if model is not None:
        folder.save_model(model)
    if finished:
        folder.remove_checkpoint()


def _say_size(config: Config) -> None:
    """Say how much memory the auxiliaries' state takes, if it is much."""
    problem = problem_of(config)
    size = config.method.state_size(problem, config.train)
    if size >= NOTABLE:
        print(
            f"state of the auxiliaries with {problem.size:,} parameters: {gigabytes(size)}",
            file=sys.stderr,
        )
