"""dpdt calibrate"""

from __future__ import annotations

import json
from decimal import ROUND_CEILING

import click

from dpdt import config
from dpdt.accounting import ACCOUNTANTS, by_name
from dpdt.accounting.calibrate import calibrate
from dpdt.accounting.guarantee import shown
from dpdt.cli import options, paste
from dpdt.errors import InputError


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
    """Find the noise that meets a target ε.

    All noise is scaled by one factor, or only that of some kinds of block (conv, linear, norm, …).
    """
    chosen = config.load(source, overrides, target=epsilon)
    target = chosen.privacy.epsilon if epsilon is None else epsilon
    if target is None or not target > 0:
        raise InputError(f"--epsilon: must be a positive number, found {target}")
    decided, recipe = paste.recipe_of(chosen, "calibrate")
    judge = by_name(accountant or chosen.privacy.accountant)
    blocks, delta = decided.header.blocks, chosen.privacy.delta
    present = sorted({block.kind for block in blocks})
    for kind in kinds:
        if kind not in present:
            raise InputError(f"--kind {kind}: this model has {', '.join(present)}")
    factor = calibrate(decided.ledger(), target, delta, accountant=judge, kinds=kinds or None)
    base = [
        s * factor if not kinds or block.kind in kinds else s
        for block, s in zip(blocks, recipe.noise, strict=True)
    ]
    reached = judge.guarantee(paste.with_values(decided, recipe.clip, base).ledger(), delta).epsilon
    noise = paste.by_kind(blocks, base)
    if as_json:
        printed = {"epsilon": reached, "accountant": judge.name, "noise_scale": factor}
        click.echo(json.dumps({**printed, "noise": noise}))
        return
    bound = shown(reached, ROUND_CEILING)
    click.echo(f"ε ≤ {bound} by {judge.name}, with the noise times {factor:.6g}:")
    click.echo("\n".join(paste.lines(noise=(noise, ROUND_CEILING))))
    given = chosen.privacy.epsilon
    if given not in (None, target):
        click.echo(f"# without privacy.epsilon = {given:g}, which would scale the noise again")
