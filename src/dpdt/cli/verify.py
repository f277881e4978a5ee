"""dpdt verify"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdt.cli import options
from dpdt.releasing.verify import verify


@click.command(epilog="Example: dpdt verify runs/first/release --key signer.pub")
@click.argument("folder", metavar="DIR")
@click.option("--key", type=click.Path(path_type=Path),
              help="A public key: fail unless its owner has signed.")  # fmt: skip
@options.as_json
def command(folder: str, key: Path | None, as_json: bool) -> int:
    """Say whether a release is what its certificate says.

    Every hash, the ledger and ε are computed anew, and the signature is checked. Nothing from the
    folder is run. The exit status is 0 if all is right, 1 if something is not, and 2 if DIR is no
    release.
    """
    verdict = verify(folder, key=key)
    click.echo(json.dumps(verdict.as_json()) if as_json else str(verdict))
    return 0 if verdict.ok else 1
