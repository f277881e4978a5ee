"""A run from its configuration: data, model, training, and the folder that it leaves."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdt import data, models
from dpdt.accounting import Privacy, account
from dpdt.accounting.composition import Composition
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.state import fingerprint as fingerprint_of
from dpdt.methods.canaries import CANARIES, Planted, marked, marked_loss
from dpdt.config import Config, Method
from dpdt.errors import InputError
from dpdt.methods.dpdt.engine import state_size
from dpdt.data.access import fingerprint
from dpdt.training.loop import fit, prepare
from dpdt.models.loss import accuracy, default_loss
from dpdt.methods.ram import gigabytes
from dpdt.methods.pate.engine import PateEngine
from dpdt.methods.plan import auxiliaries_of
from dpdt.runs.folder import RunFolder
from dpdt.training.interrupt import Interrupt
from dpdt.training.progress import Display

NOTABLE = 100_000_000  # bytes
PAUSE = 60.0  # seconds between checkpoints, which are taken after an epoch


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
    start = fingerprint_of(model)
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
    depends = depends_on(config, start, [part for part in seen if part is not None])
    nonfinite, began = 0, time.perf_counter()
    if folder is None or state is None:
        folder = RunFolder(path)
        folder.write_config(config)
        if planted:
            folder.write_private(CANARIES, planted.record())
        step.writer.open(folder.ledger)
    else:
        refuse_changes(path, state["depends"], depends)
        step.writer.reopen(folder.ledger)
        step.resume(state["step"], state["secrets"])
        folder.forget_metrics_after(step.engine.steps)
        nonfinite, began = state["nonfinite"], began - state["seconds"]

    def checkpoint() -> None:
        step.check()
        step.writer.sync()
        folder.save_checkpoint(
            {
                "step": step.state_dict(),
                "secrets": step.secrets(),
                "depends": depends,
                "nonfinite": nonfinite,
                "seconds": time.perf_counter() - began,
            }
        )

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
            epsilon = account(step.writer.ledger, step.delta, allow_large_delta=True).epsilon
        elif record["epoch"] % pause == 0:
            bound = coarse.guarantee(step.writer.ledger, step.delta)
            epsilon = bound.epsilon if bound.valid else math.inf
        known = None if epsilon == math.inf else epsilon
        folder.metrics({**record, "epsilon": known, "seconds": time.perf_counter() - began})
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
    shown = finished or config.privacy.release != "last"
    if shown:
        folder.save_model(model)
    if finished:
        folder.remove_checkpoint()
    if isinstance(step.engine, PateEngine):
        folder.write_private("pate.json", step.engine.data_dependent(config.privacy.delta))
    ledger = step.writer.ledger
    return Outcome(
        run=path,
        accuracy=accuracy(learner, examples.test) if shown else None,
        epochs=ledger.epochs,
        steps=ledger.steps,
        seconds=time.perf_counter() - began,
        nonfinite=nonfinite,
        privacy=step.privacy(),
        finished=finished,
    )


def depends_on(config: Config, start: str, seen: list[Any]) -> dict[str, str]:
    """Hashes of everything that a run's numbers depend on, down to the last bit.

    A run that goes on repeats its own noise. If anything else had changed, two runs would have the
    same noise, and their difference would show the data.
    """
    import numpy
    import randomgen
    import torch

    package = Path(__file__).parents[1]
    code = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        code.update(str(source.relative_to(package)).encode() + source.read_bytes())
    versions = [m.__version__ for m in (torch, numpy, randomgen)]
    machine = [
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
    ]
    parts = {
        "configuration": config.as_tables(),
        "version of dpdt": code.hexdigest(),
        "versions of torch, numpy and randomgen": versions,
        "processor or number of threads": machine,
        "start of the model": start,
        "training data or public inputs": [fingerprint(part) for part in seen],
    }
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in parts.items()
    }


def refuse_changes(path: Path, then: dict[str, str], now: dict[str, str]) -> None:
    """Refuse to go on if anything that the run depends on is not what it was."""
    for name, value in now.items():
        if then.get(name) != value:
            raise InputError(
                f"--resume {path}: the {name} changed since the run was interrupted; going on "
                "would repeat its noise in another run, so start a new one"
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
