"""Arguments that several commands share."""

from __future__ import annotations

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
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
