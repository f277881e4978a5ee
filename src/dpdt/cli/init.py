"""dpdt init"""

from __future__ import annotations

import os
from pathlib import Path

import click

from dpdt.config.starting import starting
from dpdt.errors import InputError
from dpdt.files import write_atomically


@click.command(epilog="Example: dpdt init people.csv --target income --out people.toml")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--target", help="The column that is to be predicted.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Otherwise beside FILE, as .toml.",
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def command(file: Path, target: str | None, out: Path | None, force: bool) -> None:
    """Write a configuration for a data file of your own.

    FILE is a .csv with the names of its columns on the first line, a .parquet, or an .npz. Only
    names and declared types are looked at, never a value. What you have to fill in stands as "?".
    """
    path = out or file.with_suffix(".toml")
    text = starting(file, target)
    if os.path.lexists(path) and not force:
        raise InputError(f"{path}: already exists; --force writes over it, --out names another")
    write_atomically(path, text.encode())
    left = text.count(' = "?"')
    todo = f'fill in what stands as "?" ({left} lines), then ' if left else ""
    click.echo(f"written to {path}; {todo}dpdt train {path}")
