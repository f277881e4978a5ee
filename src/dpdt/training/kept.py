"""A run's folder from Python, as the command line makes it: ledger, metrics, checkpoints, model.

A run that goes on does so with fresh noise. To repeat its noise everything that its numbers depend
on would have to be the same, and nobody can compare a model, loss and data that are code. Steps
after the last checkpoint are taken again, and counted again. Ctrl-C writes a checkpoint, so there
are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from dpdt import config, fields
from dpdt.data import GIVEN
from dpdt.methods.method import Training
from dpdt.models.metrics import Judge
from dpdt.models.settings import ModelSettings
from dpdt.runs import Run
from dpdt.runs.plan import announce
from dpdt.tasks import AUTO
from dpdt.training import earlier
from dpdt.training.depends import RANKS
from dpdt.training.interrupt import Interrupt
from dpdt.training.progress import Display
from dpdt.training.recorded import continued
from dpdt.training.recorder import Recorder, expected
from dpdt.training.step import Step


def configured(training: Training, judge: Judge) -> config.Config:
    """The configuration of a run whose model and data were given in Python."""
    task = AUTO if judge.task is None else judge.task.name
    return config.Config(
        method=training.method,
        train=training.train,
        privacy=training.privacy,
        data=config.DataSettings(name=GIVEN),
        model=ModelSettings(name=GIVEN, task=task),
    )


@contextmanager
def keeping(
    path: Path, step: Step, display: Display, interrupt: Interrupt, *, resume: bool
) -> Iterator[Recorder]:
    """Record a run in its folder. With `resume` it goes on, if the folder has an interrupted run.

    The model is kept when the run has ended. The checkpoint is removed last.
    """
    world = step.world
    begun = bool(world.from_first(resume and world.first and path.exists()))
    folder = None
    if world.first:
        chosen = configured(step.plan.training, step.held.judge)
        folder = Run.open(path) if begun else Run.create(path, chosen)
    with nullcontext() if folder is None else folder.locked():
        state = folder.load_checkpoint() if folder is not None and begun else None
        depends = {RANKS: str(world.size)}
        if folder is not None and not begun:
            announce(folder, expected(step, None, None, depends))
            step.writer.open(folder.ledger_path)
        recorder = Recorder(
            folder, step, depends, display=display, interrupt=interrupt, repeats=False
        )
        if begun:
            step.writer.ledger.voids.clear()  # of the start; what still holds is said below
            recorder.resume(state)
            if folder is not None and state is not None:
                announce(folder, continued(step.plan, folder.ledger(), state["step"], exact=False))
            for why in filter(None, world.gather(_why_not(step))):
                step.writer.void(why)
        else:
            recorder.checkpoint()
        yield recorder
        if folder is not None:
            folder.save_model(step.whole)
            folder.keep_tail(step.writer.tail)
            training = step.plan.training
            if found := training.method.findings(step.engine, training.privacy.delta):
                folder.write_findings(found)
            folder.remove_checkpoint()


def _why_not(step: Step) -> str | None:
    """Why a run that goes on guarantees nothing from its start, if the checkpoint left that there.

    It takes the place of what is trained. Before the first step, a learning rate that was measured
    on what was there stays.
    """
    measured = step.plan.training.method.lr == fields.AUTO and not step.writer.ledger.runs
    return earlier.why_not(step.whole, step.seen, replaced=not measured)
