"""dpdt explore"""

from __future__ import annotations

import click

from dpdt.cli import options
from dpdt.errors import InputError


@click.command(epilog="Example: dpdt explore cifar10 --set method.memory=shared")
@click.argument("source", metavar="[PRESET|FILE]", default="digits")
@options.overrides
@options.method
@click.option("--port", type=click.IntRange(0, 65535), default=0,
              help="Listen at this port of 127.0.0.1; otherwise at any that is free.")  # fmt: skip
def command(source: str, overrides: tuple[str, ...], method: str | None, port: int) -> None:
    """Move a setting, and see every ε move.

    Serves a page on this computer alone, at the address that is printed, until Ctrl-C. Nothing is
    trained, and no example is read. The page says what each choice costs, and gives the settings as
    a command or as TOML.
    """
    try:
        from dpdt.report import explorer, loopback
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in ("dash", "flask", "werkzeug"):
            raise
        raise InputError("explore: its page needs Dash; pip install 'dpdt[explore]'") from None
    from dpdt.report.choices import Source

    token = loopback.new_token()
    page = explorer.application(Source(name=source, overrides=overrides, method=method), token)
    with loopback.server(page, port) as server:
        address = f"http://{loopback.HOST}:{server.port}/{token}/"
        click.echo(f"{address} : open it in a browser; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("ended", err=True)
