"""dpdt train"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdt import config
from dpdt.algorithm import diagnostics
from dpdt.cli import options
from dpdt.cli.table import left_out
from dpdt.errors import InputError
from dpdt.runs import Run, default_path


@click.command(
    epilog="Example: dpdt train digits --set privacy.epsilon=3 --out runs/first",
)
@click.argument("source", metavar="[PRESET|FILE]", required=False)
@options.overrides
@options.method
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; must not exist.")
@click.option("--resume", help="Continue this run's folder after an interruption.")
@click.option(
    "--diagnose",
    is_flag=True,
    help="Record the convergence theory's quantities in private/, and say what limits the run.",
)
@options.as_json
def command(
    source: str | None,
    overrides: tuple[str, ...],
    method: str | None,
    out: Path | None,
    resume: str | None,
    diagnose: bool,
    as_json: bool,
) -> int:
    """Train a model, then print its accuracy and what it guarantees.

    The configuration is a preset's name or a TOML file. The run's folder is runs/NAME-TIME unless
    --out names another. Ctrl-C ends the run after its current step. What it spent is accounted, and
    --resume continues it.
    """
    if resume:
        if source or overrides or method or out:
            raise InputError(f"--resume {resume}: goes on as the run began; give nothing else")
        chosen, path = Run.open(resume).config, Path(resume)
    else:
        chosen = config.load(source or "digits", overrides, method)
        path = out or default_path(source or "digits")
    from dpdt.training.run import run

    outcome = run(
        chosen, path, show_progress=not as_json, diagnose=diagnose, resume=resume is not None
    )
    if diagnose:
        _diagnosed(Run(path), quiet=as_json)
    if as_json:
        click.echo(json.dumps(outcome.as_json()))
    else:
        if outcome.accuracy is not None:
            click.echo(f"accuracy {outcome.accuracy:.4f} on held-out examples")
        click.echo(
            f"{outcome.steps} steps, {outcome.epochs:g} epochs, {outcome.seconds:.1f} s"
            + ("" if outcome.finished else f" (interrupted; dpdt train --resume {path} continues)")
        )
        if outcome.nonfinite:
            click.echo(
                "some contributions were not finite and counted as 0: how many is private, and "
                f"stands in {Run(outcome.run).metrics_path}",
                err=True,
            )
        click.echo(f"run folder {outcome.run}\n")
        click.echo(str(outcome.privacy))
        left_out(outcome.privacy, f"dpdt account {outcome.run} --all")
    return 0 if outcome.finished else 130


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
