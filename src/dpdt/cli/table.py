"""The line below a privacy table that leaves accountants out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dpdt.accounting import Privacy


def left_out(privacy: Privacy, command: str) -> None:
    """Print how many accountants the table leaves out, and the command that says why."""
    number = privacy.hidden
    if number:
        subject = "1 accountant does" if number == 1 else f"{number} accountants do"
        click.echo(f"{subject} not apply; {command} shows why")
