"""dpdt train"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdt import config
from dpdt.algorithm import diagnostics
from dpdt.cli import console, options
from dpdt.cli.console import OutputError
from dpdt.cli.table import left_out
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.releasing.budget import around, check_limit, refuse_beyond
from dpdt.runs import Run
from dpdt.runs.place import default_path

if TYPE_CHECKING:
    from dpdt.distributed.world import World
    from dpdt.training.outcome import Outcome


@click.command(
    epilog="Example: dpdt train digits --set privacy.epsilon=3 --out runs/first",
)
@options.source()
@options.overrides
@options.method
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; must not exist.")
@click.option("--resume", help="Continue this run's folder after an interruption.")
@click.option(
    "--diagnose",
    is_flag=True,
    help="Record the convergence theory's quantities in private/, and say what limits the run.",
)
@options.limit
@options.paid
@options.as_json
def command(
    source: str | None,
    overrides: tuple[str, ...],
    method: str | None,
    out: Path | None,
    resume: str | None,
    diagnose: bool,
    limit: float | None,
    paid: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Train a model, then print its accuracy (or the metric of its task) and what it guarantees.

    The configuration is a preset's name or a TOML file. A data file of your own starts from the
    default of every key (docs/files.md). The run's folder is runs/NAME-TIME unless
    --out names another. Ctrl-C or SIGTERM ends the run after its current step. What it spent is
    accounted, and --resume continues it. Several processes train one model by torchrun -m dpdt
    train: see docs/scaling.md.
    """
    if resume and (source or overrides or method or out):
        raise InputError(f"--resume {resume}: goes on as the run began; give nothing else")
    from dpdt.distributed.world import World
    from dpdt.training.run import run

    if limit is not None:
        check_limit(limit)
    elif paid:
        raise InputError("--paid: counts for --limit, which is missing")
    world = World.join()
    with world.telling():
        begun = resume is not None or _restarted(out, world)
        if resume:
            path = Path(resume)
            chosen = world.from_first(Run.open(path).config if world.first else None)
        else:
            source = source or config.default(overrides)
            chosen = config.load(source, overrides, method)
            path = world.from_first(out or default_path(source))
        outcome = run(
            chosen,
            path,
            show_progress=not as_json,
            diagnose=diagnose,
            resume=begun,
            world=world,
            approve=partial(_within, limit, path, paid, chosen),
        )
    if world.first:
        try:
            _tell(outcome, path, diagnose=diagnose, as_json=as_json)
        except (OSError, OutputError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{path}: has the whole run, but its result cannot be written ({reason}); dpdt "
                f"account {path} says again what it guarantees"
            ) from None
    return outcome.status


def _within(
    limit: float | None, path: Path, paid: tuple[Path, ...], chosen: config.Config, ledger: Ledger
) -> None:
    """Refuse a run by which its data would have paid more than the limit."""
    if limit is not None:
        folders = [*around(path), *paid]
        refuse_beyond(limit, ledger, folders, delta=chosen.privacy.delta, own=path)


def _restarted(out: Path | None, world: World) -> bool:
    """Whether torchrun has started the ranks again, and the run goes on in its folder."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return False
    if out is None:
        raise InputError("--out: must be given with --max-restarts, to find the run again")
    return bool(world.from_first(world.first and Run(out).has_checkpoint))


def _tell(outcome: Outcome, path: Path, *, diagnose: bool, as_json: bool) -> None:
    """Print what a run came to."""
    if diagnose:
        if not as_json:
            click.echo("\n".join(f"computed: {way}" for way in outcome.ways), err=True)
        _diagnosed(Run(path), quiet=as_json)
    if as_json:
        click.echo(json.dumps(outcome.as_json()))
        return
    if outcome.value is not None:
        click.echo(f"{outcome.metric} {outcome.value:.4f} on held-out examples")
    elif outcome.shown:
        click.echo("no held-out examples, so nothing was measured")
    click.echo(
        f"{outcome.steps} steps, {outcome.epochs:g} epochs, {outcome.seconds:.1f} s"
        + ("" if outcome.finished else f" (interrupted; dpdt train --resume {path} continues)")
    )
    if outcome.nonfinite and console.on_terminal():  # in a log it could be published
        click.echo(
            "some contributions were not finite and counted as 0: this is private, and how many "
            f"stands in {Run(outcome.run).metrics_path}",
            err=True,
        )
    click.echo(f"run folder {outcome.run}\n")
    click.echo(str(outcome.privacy))
    left_out(outcome.privacy, f"dpdt account {outcome.run} --all")


def _diagnosed(run: Run, *, quiet: bool) -> None:
    """Draw the diagnostics, and say what they come to: to the person who trains, not to a file."""
    from dpdt.report.diagnostics import draw

    records, ledger = run.diagnostics(), run.ledger()
    if not records:
        click.echo(f"--diagnose: {ledger.header.method} has no diagnostics", err=True)
        return
    draw(records, run.diagram_path)
    if not quiet:
        settings = [stretch.setting for stretch in ledger.runs]
        click.echo(
            f"private, not to be published: {diagnostics.summary(records).words()}\n"
            f"{diagnostics.conditions(records, settings, ledger.header.memory)}\n"
            f"All of it is in {run.diagram_path.parent}.",
            err=True,
        )
