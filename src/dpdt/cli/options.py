"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, such as train.epochs=5. May be repeated.",
)
method = click.option(
    "--method", help="Another method than the file's own, with the file's values for it, if any."
)
limit = click.option(
    "--limit",
    type=float,
    help="Refuse if the data would have paid more than this ε in all, by runs beside this one.",
)
paid = click.option(
    "--paid",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Another folder of runs to count for --limit. May be repeated.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
