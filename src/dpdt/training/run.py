"""A run from its configuration: data, model, training, and the folder that it leaves."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdt import data, models
from dpdt.accounting import Privacy
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.config import Config
from dpdt.errors import InputError
from dpdt.methods.dpdt import Fitted, accuracy, fit, prepare
from dpdt.training.folder import RunFolder
from dpdt.training.interrupt import Interrupt
from dpdt.training.progress import Display


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


def run(
    config: Config, path: Path, *, show_progress: bool = True, diagnose: bool = False
) -> Outcome:
    """Train as configured. An interrupt ends the run early but leaves its folder complete."""
    facts = data.facts(config.data.name)
    examples = data.load(config.data.name)
    model = models.build(config.model, facts, config.train.seed)
    if config.privacy.unit == "user" and examples.users is None:
        raise InputError(f"privacy.unit: data {config.data.name!r} does not say who owns what")
    # Everything that can be refused is refused here, before the folder exists.
    step, loader = prepare(
        model, examples.train, users=examples.users, using=config, diagnose=diagnose
    )
    folder = RunFolder(path)
    folder.write_config(config)
    step.writer.open(folder.ledger)
    nonfinite, start = 0, time.perf_counter()
    # Privacy-loss distributions take about a second: ten times a run is often enough to look.
    poisson = config.method.sampling == "poisson"
    pause = math.ceil(config.train.epochs / 10) if poisson else 1
    display = Display(loader.steps, config.train.epochs, show_progress)

    def on_epoch(record: dict[str, Any]) -> None:
        epsilon = step.privacy().epsilon if record["epoch"] % pause == 0 else None
        folder.metrics({**record, "epsilon": epsilon, "seconds": time.perf_counter() - start})
        display.epoch(record["accuracy"], epsilon)

    def on_step(result: StepResult, batch: Batch) -> None:
        nonlocal nonfinite
        nonfinite += result.nonfinite
        display.step(batch.epoch, result.loss)
        interrupt.check()

    fitted: Fitted | None = None
    with display, Interrupt() as interrupt:
        try:
            fitted = fit(
                model,
                step,
                loader,
                test=examples.test,
                on_epoch=on_epoch,
                on_step=on_step,
            )
        except KeyboardInterrupt:
            step.writer.close()
    folder.save_model(model)
    ledger = step.writer.ledger
    return Outcome(
        run=path,
        accuracy=accuracy(model, examples.test),
        epochs=ledger.epochs,
        steps=ledger.steps,
        seconds=time.perf_counter() - start,
        nonfinite=nonfinite,
        privacy=step.privacy(),
        finished=fitted is not None,
    )
