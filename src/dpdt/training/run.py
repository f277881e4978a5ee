"""A run from its configuration: data, model, training, and the folder that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpdt import data, models
from dpdt.algorithm.state import model_hash
from dpdt.config import Config, problem_of
from dpdt.config.planning import check
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.files import CannotWrite
from dpdt.ledger import Ledger, Tuned
from dpdt.methods.canaries import Planted, Wanted
from dpdt.runs import Run
from dpdt.runs.plan import announce, announced, undone
from dpdt.training import device
from dpdt.training.depends import depends_on, refuse_changes
from dpdt.training.interrupt import Interrupt
from dpdt.training.loader import Loader
from dpdt.training.loop import fit, prepare
from dpdt.training.outcome import Outcome
from dpdt.training.progress import Display, counting
from dpdt.training.recorder import Recorder, expected
from dpdt.training.size import say_size
from dpdt.training.step import Step

COPIES = 6  # of what is trained: as it is, as the step left it, and sum and noise in float64


def load(config: Config, *, show_progress: bool = False) -> data.Examples:
    """The examples of a configuration, as its model reads them."""
    device.chosen(config.train.device, device.best())  # refused before anything is read
    facts = config.data.facts()
    models.check(config.model, facts)
    models.refuse_large(config.model, facts, COPIES)
    loaded = config.data.load()
    model = models.build(config.model, facts, config.train.seed)
    public, _ = data.set_aside(loaded, config.data.public)
    fixed = models.learn(model, config.model, public)
    watch = partial(counting, enabled=show_progress)
    ready = models.inputs(model, config.model, loaded, augment=config.train.augment, watch=watch)
    return replace(ready, fixed=fixed)


def canaries_of(config: Config) -> Wanted:
    """Which canaries a configuration asks for."""
    return Wanted(
        kind=config.audit.canary,
        number=config.audit.canaries,
        seed=config.train.seed,
        classes=config.data.facts().classes,
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
    task: str  # what the model is trained for

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
        check(config)
        facts = config.data.facts()
        examples = examples or load(config, show_progress=show_progress)
        public, examples = data.set_aside(examples, config.data.public)
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
            task=models.task(config.model, facts).name,
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
        quiet: bool = False,
    ) -> tuple[Step, Loader]:
        """The step and its loader; refused if they are not what the configuration says.

        With `overwrite` the training examples are needed no more, and may be written to.
        """
        planted = self.planted
        step, loader = prepare(
            self.learner,
            self.data,
            public=self.public,
            test=self.examples.test,
            task=self.task,
            absent=planted.absent if planted else None,
            pulls=planted.pulls if planted else None,
            using=config.training,
            source=self.examples.source,
            diagnose=diagnose,
            overwrite=overwrite,
            world=world or World.join(),
            quiet=quiet,
        )
        step.whole = self.model
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
    approve: Callable[[Ledger], None] = lambda ledger: None,
    kept: Callable[[Outcome], None] | None = None,
    tuned: Tuned | None = None,
) -> Outcome:
    """Train as configured, on `examples` if they are at hand already.

    `approve` is shown the ledger that the whole run will have, before anything is spent. It may
    refuse by an InputError. Then no new folder is left.

    An interrupt ends the run early. It leaves a checkpoint, and a folder that accounts for what was
    done. With `resume` the run goes on from there: bit for bit, or with fresh noise if the number
    of ranks is another. Of several ranks only rank 0 has the folder. `kept` keeps what a finished
    run came to, while the run can still be resumed. `tuned` is the tune that the run is one of.
    """
    world = world or World.join()
    with world.telling():
        if config.audit.canaries and not world.alone:
            raise InputError(
                f"audit.canaries: are for runs in one process, found {world.size} ranks; leave "
                "them out"
            )
        show = show_progress and world.first
        return _run(config, path, world, show, diagnose, examples, resume, approve, kept, tuned)


def _run(
    config: Config,
    path: Path,
    world: World,
    show_progress: bool,
    diagnose: bool,
    examples: data.Examples | None,
    resume: bool,
    approve: Callable[[Ledger], None],
    kept: Callable[[Outcome], None] | None,
    tuned: Tuned | None,
) -> Outcome:
    with ExitStack() as held:
        folder = Run.open(path) if resume and world.first else None
        if folder is not None:
            held.enter_context(folder.locked())
        state = folder.load_checkpoint() if folder else None
        if folder is not None and tuned is None and folder.ledger().tuned:
            raise InputError(f"{path}: is one run of a tune; dpdt tune --resume goes on with all")
        # All but a limit is refused here, before the folder exists.
        ready = Assembled.of(config, examples, folder, show_progress=show_progress)
        depends = ready.depends(config, world)
        quiet = resume or tuned is not None
        step, loader = ready.prepare(
            config, diagnose, overwrite=examples is None, world=world, quiet=quiet
        )
        step.writer.ledger.tuned = tuned
        if state is not None:
            refuse_changes(path, state["depends"], depends)
        planned = expected(step, folder, state, depends)
        if world.first:
            if folder is None:
                folder = _begin(path, config, ready, step, planned, approve, held)
            else:
                with _going_on_later(path, tuned), announced(folder, planned):
                    approve(planned)
            if tuned is None:  # of which nobody is to know how many there are
                say_size(config, step.plan)
        display = Display(loader.steps, config.train.epochs, show_progress, step.held.name)
        with display, Interrupt() as interrupt:
            recorder = Recorder(folder, step, depends, display=display, interrupt=interrupt)
            if not resume:
                recorder.checkpoint()  # the noise's key, before anything is spent
            with _going_on_later(path, tuned):
                if resume:
                    recorder.resume(state, next(reversed(planned.forks), None))
                finished = _fit(ready, step, loader, recorder)
                status = 0 if finished else 128 + interrupt.number
                outcome = Outcome.of(path, ready.learner, recorder, status)
                if folder is not None:
                    outcome.keep(folder, ready.model, step, kept)
        return outcome


def _begin(
    path: Path,
    config: Config,
    ready: Assembled,
    step: Step,
    planned: Ledger,
    approve: Callable[[Ledger], None],
    held: ExitStack,
) -> Run:
    """The folder of a new run, which others can see before this one looks at them."""
    folder = Run.create(path, config, tuned=step.writer.ledger.tuned is not None)
    held.enter_context(folder.locked())
    with undone(folder), ExitStack() as failing:
        failing.callback(step.writer.pause)
        if ready.planted:
            folder.write_canaries(ready.planted.record())
        announce(folder, planned)
        step.writer.open(folder.ledger_path)
        approve(planned)
        failing.pop_all()
    return folder


@contextmanager
def _going_on_later(path: Path, tuned: Tuned | None) -> Iterator[None]:
    """Say of what cannot be written how the run goes on when it can be."""
    try:
        yield
    except CannotWrite as error:
        command = f"dpdt train --resume {path}" if tuned is None else "dpdt tune --resume"
        raise InputError(f"{error}; when it can be, {command} goes on") from None


def _fit(ready: Assembled, step: Step, loader: Loader, recorder: Recorder) -> bool:
    """Train to the end; whether it was reached."""
    listens, steps = recorder.on_epoch, recorder.on_step
    try:
        fit(ready.learner, step, loader, on_epoch=listens, on_step=steps, tally=recorder.tally)
    except KeyboardInterrupt:
        return False  # the ledger has all that was done
    return True
