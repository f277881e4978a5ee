"""dpdt train"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdt import config
from dpdt.cli import options


@click.command(
    epilog="Example: dpdt train digits --set privacy.epsilon=3 --out runs/first",
)
@click.argument("source", metavar="[PRESET|FILE]", default="digits")
@options.overrides
@options.method
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; must not exist.")
@click.option(
    "--diagnose", is_flag=True, help="Record the convergence theory's quantities in private/."
)
@options.as_json
def command(
    source: str,
    overrides: tuple[str, ...],
    method: str | None,
    out: Path | None,
    diagnose: bool,
    as_json: bool,
) -> int:
    """Train a model, then print its accuracy and what it guarantees.

    The configuration is a preset's name or a TOML file. The run's folder is runs/NAME-TIME unless
    --out names another. Ctrl-C ends the run after its current step; what it spent is accounted.
    """
    chosen = config.load(source, overrides, method)
    from dpdt.training.folder import default_path
    from dpdt.training.run import run

    outcome = run(chosen, out or default_path(source), show_progress=not as_json, diagnose=diagnose)
    if as_json:
        click.echo(json.dumps(outcome.as_json()))
    else:
        click.echo(f"accuracy {outcome.accuracy:.4f} on held-out examples")
        click.echo(
            f"{outcome.steps} steps, {outcome.epochs:g} epochs, {outcome.seconds:.1f} s"
            + ("" if outcome.finished else " (interrupted)")
        )
        if outcome.nonfinite:
            click.echo(
                f"{outcome.nonfinite} contributions were not finite and counted as 0 "
                "(this number is private)"
            )
        click.echo(f"run folder {outcome.run}\n")
        click.echo(str(outcome.privacy))
    return 0 if outcome.finished else 130
