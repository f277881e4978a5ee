"""dpdt calibrate"""

from __future__ import annotations

import json
from decimal import ROUND_CEILING, Context

import click

from dpdt import config
from dpdt.accounting import ACCOUNTANTS, by_name
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.accounting.guarantee import shown
from dpdt.cli import options
from dpdt.cli.source import planned
from dpdt.errors import InputError
from dpdt.keys import AUTO


@click.command(epilog="Example: dpdt calibrate cifar10 --epsilon 3 --kind conv")
@click.argument("source", metavar="[PRESET|FILE]", default="digits")
@options.overrides
@click.option("--epsilon", type=float, help="The target; otherwise the configuration's.")
@click.option("--kind", "kinds", multiple=True, help="Scale only this kind's noise. Repeatable.")
@click.option(
    "--accountant",
    type=click.Choice([a.name for a in ACCOUNTANTS]),
    help="Whose ε must meet the target; otherwise the configuration's.",
)
@options.as_json
def command(
    source: str,
    overrides: tuple[str, ...],
    epsilon: float | None,
    kinds: tuple[str, ...],
    accountant: str | None,
    as_json: bool,
) -> None:
    """Find the noise that meets a target ε: a common factor, or one for some kinds of block."""
    chosen = config.load(source, overrides, target=epsilon)
    if not isinstance(chosen.method, config.Method):
        raise InputError(
            f"method.name: calibrate is for dpdt, found {chosen.method.name!r}; give it a target "
            "privacy.epsilon, from which its noise follows"
        )
    target = chosen.privacy.epsilon if epsilon is None else epsilon
    if target is None or not target > 0:
        raise InputError(f"--epsilon: must be a positive number, found {target}")
    judge = by_name(accountant or chosen.privacy.accountant)
    ledger = planned(chosen)
    present = sorted({block.kind for block in ledger.header.blocks})
    for kind in kinds:
        if kind not in present:
            raise InputError(f"--kind {kind}: this model has {', '.join(present)}")
    factor = calibrate(ledger, target, chosen.privacy.delta, accountant=judge, kinds=kinds or None)
    result = scaled(ledger, factor, kinds or None)
    setting = result.runs[0].setting
    noise = {b.kind: s for b, s in zip(result.header.blocks, setting.noise, strict=True)}
    reached = judge.guarantee(result, chosen.privacy.delta).epsilon
    if as_json:
        printed = {"epsilon": reached, "accountant": judge.name, "noise_scale": factor}
        click.echo(json.dumps({**printed, "noise": noise}))
        return
    bound = shown(reached, ROUND_CEILING)
    click.echo(f"ε ≤ {bound} by {judge.name}, with the noise times {factor:.6g}:")
    up = Context(prec=6, rounding=ROUND_CEILING).create_decimal_from_float  # so that ε stays below
    click.echo("noise = { " + ", ".join(f"{k} = {float(up(v))}" for k, v in noise.items()) + " }")
    if chosen.method.lr == AUTO:
        click.echo('lr = "auto"')
