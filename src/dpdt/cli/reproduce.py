"""dpdt reproduce"""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="Example: dpdt reproduce privacy-over-epochs --out privacy.png")
@click.argument("what", type=click.Choice(["privacy-over-epochs"]))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file to write; otherwise WHAT.png."
)
@click.option("--epochs", type=click.IntRange(2, 1000), default=60, show_default=True)
def command(what: str, out: Path | None, epochs: int) -> None:
    """Draw a figure of the paper.

    privacy-over-epochs: the paper's bound for constant and adaptive noise over epochs, and the part
    of each epoch in it for E = 20, with the paper's parameters. The bound does not hold for a run
    with resets; docs/what-epsilon-means.md says why.
    """
    from dpdt.report.privacy import draw_paper

    path = out or Path(f"{what}.png")
    draw_paper(path, epochs)
    click.echo(f"wrote {path}")
