"""dpdt release"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdt.cli import options


@click.command(epilog="Example: dpdt release runs/first --description 'handwritten digits'")
@click.argument("run", metavar="RUN")
@click.option("--to", type=click.Path(path_type=Path),
              help="The folder to write; must not exist. Otherwise RUN/release.")  # fmt: skip
@click.option("--sign", type=click.Path(path_type=Path), metavar="KEY",
              help="Sign with this Ed25519 private key, in PEM or OpenSSH format.")  # fmt: skip
@click.option("--description", metavar="TEXT", help="What the training data are, for the card.")
@click.option("--license", metavar="ID", help="The model's license, such as apache-2.0.")
@click.option("--public-test", is_flag=True,
              help="The held-out data are public: measure accuracy, and print it.")  # fmt: skip
@options.limit
@options.paid
@click.option("--forget", is_flag=True,
              help="Then delete everything in the run's private/.")  # fmt: skip
@options.as_json
def command(
    run: str,
    to: Path | None,
    sign: Path | None,
    description: str | None,
    license: str | None,
    public_test: bool,
    limit: float | None,
    paid: tuple[Path, ...],
    forget: bool,
    as_json: bool,
) -> None:
    """Write a folder with a run's model and a certificate of what it guarantees.

    RUN is the folder of a finished run with a proven ε. The release holds the model, what is needed
    to rebuild it, a certificate with the whole ledger, and a model card. dpdt verify checks it.
    """
    from dpdt.releasing.making import release

    done = release(
        run,
        to=to,
        sign=sign,
        description=description,
        license=license,
        public_test=public_test,
        limit=limit,
        paid=paid,
        forget=forget,
        ask=lambda: click.prompt(f"Passphrase of {sign}", hide_input=True, err=True),
    )
    click.echo(json.dumps(done.as_json()) if as_json else str(done))
