"""dpdt compare"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdt import config
from dpdt.cli import options
from dpdt.errors import InputError
from dpdt.releasing.budget import budget


def _epsilons(texts: tuple[str, ...]) -> list[float]:
    try:
        values = [float(part) for text in texts for part in text.split(",")]
    except ValueError:
        raise InputError(f"--epsilon: must be numbers such as 1,3,8, found {texts}") from None
    for value in values:
        if not 0 < value < float("inf"):
            raise InputError(f"--epsilon: must be positive numbers, found {value}")
    return values


@click.command(epilog="Example: dpdt compare digits --methods dpdt,dpsgd --epsilon 1,3,8 --seeds 3")
@options.source()
@options.overrides
@click.option("--methods", help="Comma-separated; otherwise all that the data allow.")
@click.option(
    "--epsilon", "epsilons", multiple=True, help="Target ε, or several: 1,3,8. May be repeated."
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the runs; continued if it exists."
)
@click.option(
    "--figure", type=click.Path(path_type=Path), help="Picture; in the runs' folder unless given."
)
@options.as_json
def command(
    source: str | None,
    overrides: tuple[str, ...],
    methods: str | None,
    epsilons: tuple[str, ...],
    seeds: int,
    out: Path | None,
    figure: Path | None,
    as_json: bool,
) -> int:
    """Compare methods on the same data at the same proven ε.

    The configuration's own method has the values of [method], every other those of its table
    [peers.NAME]. Each run has a folder below --out (compare/NAME unless given). Runs that are there
    already are not made again, so an interrupted comparison continues. Accuracy is a mean over
    seeds ± standard deviation. A picture shows it over ε, or by method if there is one ε.
    """
    targets, source = _epsilons(epsilons), source or config.default(overrides)
    chosen = config.load(source, overrides, target=targets[0] if targets else 3.0)
    targets = targets or [chosen.privacy.epsilon or 3.0]
    from dpdt.report.comparison import draw, table
    from dpdt.training.compare import cells, compare
    from dpdt.training.grid import Interrupted

    folder = out or Path("compare") / Path(source).stem
    todo = cells(chosen, options.words(methods), targets, seeds)
    try:
        rows = compare(
            source,
            overrides,
            todo,
            folder,
            announce=lambda text: click.echo(text, err=True),
            show_progress=not as_json,
        )
    except Interrupted:
        click.echo("dpdt: interrupted; the same command continues where it stopped", err=True)
        return 130
    spent = budget([folder])
    if as_json:
        click.echo(json.dumps({"rows": rows, "budget": spent.as_json()}))
    else:
        click.echo("\n".join([table(rows), *spent.lines()]))
    picture = figure or folder / "trade-off.png"
    draw(rows, picture)
    click.echo(f"picture: {picture}", err=True)
    return 0
