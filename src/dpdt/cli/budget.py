"""dpdt budget"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdt.cli import options
from dpdt.releasing.budget import budget, check_limit


@click.command(epilog="Example: dpdt budget runs released --limit 8")
@click.argument("folders", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--limit", type=float, help="Exit with status 1 if any data set has paid more.")
@click.option("--delta", type=float, help="δ; otherwise the smallest that a run was meant for.")
@options.as_json
def command(
    folders: tuple[Path, ...], limit: float | None, delta: float | None, as_json: bool
) -> int:
    """Add up what each data set has paid.

    Every run and release below the folders (runs unless given) counts, released or not. Runs on the
    same data are found by the sealed identity in their ledgers, which this user's key opens. What
    is printed tells which runs used the same data: it is not for publication.
    """
    if limit is not None:
        check_limit(limit)
    where = folders or (Path("runs"),)
    found = budget(where, delta)
    if as_json:
        click.echo(json.dumps(found.as_json(limit)))
    elif found.data:
        click.echo(found.table(limit))
    else:
        click.echo(f"no runs below {', '.join(map(str, where))}")
    return int(limit is not None and found.exceeds(limit))
