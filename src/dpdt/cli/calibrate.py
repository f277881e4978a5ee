"""dpdt calibrate"""

from __future__ import annotations

import json
from decimal import ROUND_CEILING

import click

from dpdt import config
from dpdt.accounting import ACCOUNTANTS, Guarantee, by_name
from dpdt.accounting.calibrate import calibrate
from dpdt.accounting.composition import Composition
from dpdt.accounting.guarantee import shown
from dpdt.accounting.paper import Paper
from dpdt.cli import options, paste
from dpdt.errors import InputError
from dpdt.methods.values import by_kind, recipe_of, with_values


@click.command(epilog="Example: dpdt calibrate cifar10 --epsilon 3 --kind conv")
@options.source()
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
    source: str | None,
    overrides: tuple[str, ...],
    epsilon: float | None,
    kinds: tuple[str, ...],
    accountant: str | None,
    as_json: bool,
) -> None:
    """Find the noise that meets a target ε.

    All noise is scaled by one factor, or only that of some kinds of block (conv, linear, norm, …).
    By the accountants paper and paper-per-block the target is only claimed to be met. What is
    proven of the same noise is printed beside it.
    """
    chosen = config.load(source or config.default(overrides), overrides, target=epsilon)
    target = chosen.privacy.epsilon if epsilon is None else epsilon
    if target is None or not target > 0:
        raise InputError(f"--epsilon: must be a positive number, found {target}")
    decided = config.plan_of(chosen)
    recipe, blocks = recipe_of(decided, "calibrate"), decided.header.blocks
    judge, delta = by_name(accountant or chosen.privacy.accountant), chosen.privacy.delta
    present = sorted({block.kind for block in blocks})
    for kind in kinds:
        if kind not in present:
            raise InputError(f"--kind {kind}: this model has {', '.join(present)}")
    factor = calibrate(
        decided.ledger(),
        target,
        delta,
        accountant=judge,
        kinds=kinds or None,
        claimed=isinstance(judge, Paper),  # never valid, so who names it asks for a claim
    )
    base = [
        s * factor if not kinds or block.kind in kinds else s
        for block, s in zip(blocks, recipe.noise, strict=True)
    ]
    ledger = with_values(decided, recipe.clip, base).ledger()
    reached = proven = judge.guarantee(ledger, delta)
    if judge.name != Composition.name:
        proven = Composition().guarantee(ledger, delta)
    noise, claimed = by_kind(blocks, base), not reached.valid
    if as_json:
        printed = {"epsilon": reached.epsilon, "accountant": judge.name, "noise_scale": factor}
        printed |= {"claimed": claimed, "proven_epsilon": proven.epsilon if proven.valid else None}
        click.echo(json.dumps({**printed, "noise": noise}))
        return
    said = f"ε ≤ {shown(reached.epsilon, ROUND_CEILING)} by {judge.name}"
    if claimed:
        said = f"claimed, not proven: {said}; proven: {_proven(proven)}"
    click.echo(f"{said}, with the noise times {factor:.6g}:")
    click.echo("\n".join(paste.lines(noise=(noise, ROUND_CEILING))))
    given = chosen.privacy.epsilon
    if given not in (None, target):
        click.echo(f"# without privacy.epsilon = {given:g}, which would scale the noise again")


def _proven(g: Guarantee) -> str:
    if not g.valid:
        return f"no ε, since {g.why_not}"
    return f"ε ≤ {shown(g.epsilon, ROUND_CEILING)} by {g.accountant}"
