"""dpdt account"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from dpdt import config
from dpdt.accounting import account
from dpdt.cli import options
from dpdt.cli.source import ledger_of, measured_of
from dpdt.cli.table import left_out
from dpdt.runs.place import is_run


@click.command(epilog="Example: dpdt account cifar10 --set method.memory=shared")
@options.source("[PRESET|FILE|RUN]")
@options.overrides
@options.method
@click.option("--delta", type=float, help="δ; otherwise the configuration's.")
@click.option("--allow-large-delta", is_flag=True, help="Accept a δ of 1/n or more.")
@click.option("--all", "everything", is_flag=True, help="Also list what does not apply, and why.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw ε over epochs to this file.")
@options.as_json
def command(
    source: str | None,
    overrides: tuple[str, ...],
    method: str | None,
    delta: float | None,
    allow_large_delta: bool,
    everything: bool,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Say what a run guarantees.

    A preset or file is accounted as if it were run. A run's folder is accounted as the run was.
    """
    source = source or config.default(overrides)
    if allow_large_delta and not is_run(source):
        overrides += ("privacy.allow_large_delta=true",)
    ledger, chosen = ledger_of(source, overrides, method)
    delta = chosen.privacy.delta if delta is None else delta
    allow = allow_large_delta or chosen.privacy.allow_large_delta
    privacy = account(ledger, delta, allow_large_delta=allow)
    privacy = replace(privacy, measured=measured_of(source))
    if figure is not None:
        from dpdt.report.privacy import draw_over_epochs

        draw_over_epochs(ledger, delta, figure)
        click.echo(f"picture: {figure}", err=True)
    if as_json:
        click.echo(json.dumps(privacy.as_json()))
        return
    click.echo(privacy.table(all=everything))
    if not everything:
        rest = "".join(f" --set {o}" for o in overrides) + (f" --method {method}" if method else "")
        left_out(privacy, f"dpdt account {source}{rest} --all")
