"""dpdt report"""

from __future__ import annotations

from pathlib import Path

import click

from dpdt.runs import Run


@click.command(epilog="Example: dpdt report runs/first runs/second --out both.html")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Write to this file, which must not exist; otherwise report.html in the folder "
              "of the first RUN is replaced, or the one in its private/.")  # fmt: skip
@click.option("--private", is_flag=True,
              help="Also show losses, accuracy, attacks and diagnostics, which no ε covers. The "
              "page says so in red.")  # fmt: skip
def command(runs: tuple[str, ...], out: Path | None, private: bool) -> None:
    """Write a page about a run, or about several side by side.

    The page is one HTML file. It opens from disk and asks nothing of the network. It shows every ε
    on one axis, ε over epochs, what an attacker can do at most, conditions, release and
    configuration. Without --private it holds nothing that depends on the training data beyond what
    a release publishes.
    """
    from dpdt.report.pages import page, write

    text = page(runs, private=private)
    path = out or Run(runs[0]).report_path(private=private)
    write(path, text, private=private, over=out is None)
    click.echo(f"{path}: open it in a browser{'; never pass it on' if private else ''}")
