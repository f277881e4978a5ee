"""dpdt data"""

from __future__ import annotations

import json

import click

from dpdt import data
from dpdt.cli import options


@click.command(epilog="Example: DPDT_DATA=~/data dpdt data")
@options.as_json
def command(as_json: bool) -> None:
    """Say which data sets are here, where each is looked for, and how to get the rest."""
    rows = [
        {
            "name": name,
            "present": not data.missing(name),
            "examples": entry.facts.examples,
            "missing": [str(path) for path in data.missing(name)],
            "source": entry.source,
        }
        for name, entry in data.DATA.items()
    ]
    kept, (files, size) = data.cache.folder(), data.cache.size()
    if as_json:
        cache = {"folder": str(kept) if kept else None, "files": files, "bytes": size}
        click.echo(json.dumps({"folder": str(data.folder()), "data": rows, "cache": cache}))
        return
    click.echo(f"looked in {data.folder()} (DPDT_DATA names another folder)\n")
    for row in rows:
        click.echo(f"{row['name']:14} " + ("here" if row["present"] else "not here"))
        if not row["present"]:
            click.echo(f"{'':14} to get it: {row['source']}")
    if kept is None:
        click.echo("\nno features are kept for the next time (DPDT_CACHE is off)")
    else:
        click.echo(
            f"\nfeatures that were computed before: {files} files, {size / 1e9:.1f} GB in {kept}; "
            "delete them to free the space (DPDT_CACHE names another folder, or off)"
        )
