"""dpdt reproduce"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from dpdt.cli import options
from dpdt.errors import InputError, one_of
from dpdt.releasing.budget import budget

ALL = "all"


@click.command(epilog="Example: dpdt reproduce main-results --out paper")
@click.argument("name", required=False)
@options.overrides
@click.option("--scale", type=click.Choice(["small", "full"]), default="small", show_default=True)
@click.option("--seeds", type=click.IntRange(1), help="Otherwise 3 for small, 1 for full.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; otherwise one a core.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder; otherwise reproduce/SCALE. Continued."
)
@options.as_json
def command(
    name: str | None,
    overrides: tuple[str, ...],
    scale: str,
    seeds: int | None,
    jobs: int | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Make a table or figure of the paper, beside the paper's own numbers.

    Without NAME, list what there is. NAME "all" makes everything. Each writes table.txt, table.csv,
    table.json and figure.png below --out. Every run has a folder there. Runs that are there already
    are not made again, so an interrupted reproduction continues with the same command.

    "small" trains a small network on scikit-learn's digits with the paper's K, clip, noise and
    schedules. "full" is the paper's own scale. --set changes every configuration.

    In privacy-over-epochs, the noise and its growth are ours: the paper does not give them.
    """
    from dpdt.reproduce import REPRODUCTIONS, SCALES, Asked, reproduce
    from dpdt.training.grid import Interrupted
    from dpdt.training.progress import counting

    if name is None:
        for found in REPRODUCTIONS.values():
            click.echo(f"{found.name:24} {found.title} (small: about {found.minutes} min)")
        click.echo("small: on two cores, each by itself; full: days on a large machine")
        return 0
    if name not in (ALL, *REPRODUCTIONS):
        raise InputError(f"NAME: {one_of(name, (*REPRODUCTIONS, ALL))}")
    asked = Asked(scale=SCALES[scale], sets=overrides, seeds=seeds)
    folder = out or Path("reproduce") / scale
    names = list(REPRODUCTIONS) if name == ALL else [name]
    for each in names:
        REPRODUCTIONS[each].cells(asked)  # refused, if at all, before the first run
    for number, each in enumerate(names):
        parts = ["dpdt", "reproduce", each, "--scale", scale]
        parts += ["--seeds", str(seeds)] if seeds else []
        parts += [p for text in overrides for p in ("--set", text)]
        try:
            with counting(each, 1, enabled=not as_json) as advance:
                table = reproduce(
                    each, asked, folder, command=shlex.join(parts), on_done=advance, jobs=jobs
                )
        except Interrupted:
            click.echo("dpdt: interrupted; the same command continues where it stopped", err=True)
            return 130
        spent = budget([runs for runs in [folder / "runs"] if runs.is_dir()])  # some need none
        if as_json:
            click.echo(json.dumps({**table.as_json(), "budget": spent.as_json()}))
            continue
        click.echo("\n".join([*([""] if number else []), table.text(), *spent.lines()]))
        click.echo(f"\nwritten to {folder / each}", err=True)
    return 0
