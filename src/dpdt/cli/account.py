"""dpdt account"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdt import config, data, models
from dpdt.accounting import account
from dpdt.algorithm.blocks import Blocks
from dpdt.cli import options
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.methods.plan import plan
from dpdt.training.folder import LEDGER, is_run


@click.command(epilog="Example: dpdt account cifar10 --set method.memory=shared")
@click.argument("source", metavar="[PRESET|FILE|RUN]", default="digits")
@options.overrides
@click.option("--delta", type=float, help="δ; otherwise the configuration's.")
@options.as_json
def command(source: str, overrides: tuple[str, ...], delta: float | None, as_json: bool) -> None:
    """Say what a run guarantees: of a preset or file if it were run, of a run folder as it was."""
    if is_run(source):
        if overrides:
            raise InputError(f"--set {overrides[0]}: {source} has been run and cannot be changed")
        ledger = Ledger.read(Path(source) / LEDGER)
        chosen = config.load(str(Path(source) / "config.toml"))
    else:
        chosen = config.load(source, overrides)
        ledger = planned(chosen)
    privacy = account(ledger, chosen.privacy.delta if delta is None else delta)
    click.echo(json.dumps(privacy.as_json()) if as_json else str(privacy))


def planned(chosen: config.Config) -> Ledger:
    """The ledger that a configuration's run would have."""
    facts = data.facts(chosen.data.name)
    blocks = Blocks.group(models.parameters(chosen.model, facts), chosen.method.granularity)
    return plan(chosen, blocks, facts.examples).ledger()
