"""A run from its configuration: data, model, training, and the folder that it leaves."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdt import data, models
from dpdt.accounting import Privacy
from dpdt.accounting.composition import Composition
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.audit.canaries import CANARIES, Planted, marked, marked_loss
from dpdt.config import Config, Method
from dpdt.errors import InputError
from dpdt.methods.dpdt import state_size
from dpdt.methods.loader import fingerprint
from dpdt.methods.loop import fit, prepare
from dpdt.methods.loss import accuracy, default_loss
from dpdt.methods.memory import gigabytes
from dpdt.methods.pate import PateEngine
from dpdt.methods.plan import auxiliaries_of
from dpdt.training.folder import RunFolder
from dpdt.training.interrupt import Interrupt
from dpdt.training.progress import Display

NOTABLE = 100_000_000  # bytes
PAUSE = 60.0  # seconds between checkpoints, which are taken after an epoch


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to; `finished` is false if it was interrupted."""

    run: Path
    accuracy: float
    epochs: float
    steps: int
    seconds: float
    nonfinite: int
    privacy: Privacy
    finished: bool

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


def load(config: Config) -> data.Examples:
    """The examples of a configuration, as its model reads them."""
    facts = data.facts(config.data.name, config.data.limit)
    models.check(config.model, facts)
    loaded = data.load(config.data.name, config.data.limit)
    model = models.build(config.model, facts, config.train.seed)
    return models.inputs(model, config.model, loaded, augment=config.train.augment)


def run(
    config: Config,
    path: Path,
    *,
    show_progress: bool = True,
    diagnose: bool = False,
    examples: data.Examples | None = None,
    resume: bool = False,
) -> Outcome:
    """Train as configured. An interrupt ends the run early, with a checkpoint and a folder that
    accounts for what was done; with `resume` it goes on from there, as if nothing had happened.

    `examples` are those of `load`, if they are at hand already.
    """
    folder = RunFolder.existing(path) if resume else None
    state = folder.load_checkpoint() if folder else None
    facts = data.facts(config.data.name, config.data.limit)
    public, examples = data.set_aside(examples or load(config), config.data.public)
    model = models.build(config.model, facts, config.train.seed)
    learner = models.learner(model, config.model, config.train.augment)
    if config.privacy.unit == "user" and examples.users is None:
        raise InputError(f"privacy.unit: data {config.data.name!r} does not say who owns what")
    _say_size(config, sum(p.numel() for p in learner.parameters() if p.requires_grad), facts)
    # Everything that can be refused is refused here, before the folder exists.
    planted = None
    if config.audit.canaries and folder:
        planted = Planted.again(examples.train, config, folder.read_private(CANARIES))
    elif config.audit.canaries:
        planted = Planted.plant(examples.train, config)
    step, loader = prepare(
        marked(learner, config) if config.audit.gradient else learner,
        planted.data if planted else examples.train,
        loss=marked_loss if config.audit.gradient else default_loss,
        users=examples.users,
        public=public,
        absent=planted.absent if planted else None,
        using=config,
        diagnose=diagnose,
    )
    seen = (planted.data if planted else examples.train, public)
    trained_on = [fingerprint(part) for part in seen if part is not None]
    nonfinite, start = 0, time.perf_counter()
    if folder is None or state is None:
        folder = RunFolder(path)
        folder.write_config(config)
        if planted:
            folder.write_private(CANARIES, planted.record())
        step.writer.open(folder.ledger)
    else:
        if state["data"] != trained_on:  # the same noise on other data would give both away
            raise InputError(
                f"--resume {path}: the training data or the public inputs have changed since"
            )
        step.writer.reopen(folder.ledger)
        step.load_state_dict(state["step"])
        folder.forget_metrics_after(step.engine.steps)
        nonfinite, start = state["nonfinite"], start - state["seconds"]

    def checkpoint() -> None:
        seconds = time.perf_counter() - start
        record = {"step": step.state_dict(), "data": trained_on, "nonfinite": nonfinite}
        folder.save_checkpoint({**record, "seconds": seconds})

    latest = time.perf_counter()
    # Privacy-loss distributions take time: ten looks a run are enough, coarse ones but the last.
    poisson = step.plan.header.sampling == "poisson"
    pause = math.ceil(config.train.epochs / 10) if poisson else 1
    coarse = Composition(coarse=True)
    display = Display(loader.steps, config.train.epochs, show_progress)

    def on_epoch(record: dict[str, Any]) -> None:
        epsilon = None
        last = record["epoch"] == config.train.epochs
        if last or not poisson:
            epsilon = step.privacy().epsilon
        elif record["epoch"] % pause == 0:
            bound = coarse.guarantee(step.writer.ledger, step.delta)
            epsilon = bound.epsilon if bound.valid else math.inf
        known = None if epsilon == math.inf else epsilon
        folder.metrics({**record, "epsilon": known, "seconds": time.perf_counter() - start})
        display.epoch(record["accuracy"], epsilon)
        nonlocal latest
        if time.perf_counter() - latest > PAUSE:
            checkpoint()
            latest = time.perf_counter()

    def on_step(result: StepResult, batch: Batch) -> None:
        nonlocal nonfinite
        nonfinite += result.nonfinite
        display.step(batch.epoch, result.loss)
        if interrupt.asked:
            checkpoint()
            raise KeyboardInterrupt

    finished = False
    with display, Interrupt() as interrupt:
        try:
            fit(
                learner,
                step,
                loader,
                test=examples.test,
                on_epoch=on_epoch,
                on_step=on_step,
            )
            finished = True
        except KeyboardInterrupt:
            pass  # the ledger has all that was done, which is told below
    folder.save_model(model)
    if finished:
        folder.remove_checkpoint()
    if isinstance(step.engine, PateEngine):
        folder.write_private("pate.json", step.engine.data_dependent(config.privacy.delta))
    ledger = step.writer.ledger
    return Outcome(
        run=path,
        accuracy=accuracy(learner, examples.test),
        epochs=ledger.epochs,
        steps=ledger.steps,
        seconds=time.perf_counter() - start,
        nonfinite=nonfinite,
        privacy=step.privacy(),
        finished=finished,
    )


def _say_size(config: Config, parameters: int, facts: data.Facts) -> None:
    """Say how much memory the auxiliaries' state takes, before it is allocated, if it is much."""
    if not isinstance(config.method, Method):
        return
    number = auxiliaries_of(config.method, config.train, facts.examples)
    size = state_size(parameters, number, config.method)
    if size >= NOTABLE:
        print(
            f"state of {number} auxiliaries with {parameters:,} parameters: {gigabytes(size)}",
            file=sys.stderr,
        )
