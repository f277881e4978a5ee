"""dpdt allocate"""

from __future__ import annotations

import json
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Any

import click

from dpdt import config
from dpdt.accounting import ACCOUNTANTS, by_name
from dpdt.accounting.allocate import BOOSTS, MODES, allocate
from dpdt.accounting.guarantee import shown
from dpdt.cli import options, paste


@click.command(epilog="Example: dpdt allocate cifar10 --mode joint --kind conv --boost 1.5")
@click.argument("source", metavar="[PRESET|FILE]", default="cifar10")
@options.overrides
@click.option("--mode", type=click.Choice(MODES), help="Change noise alone, or clip too.")
@click.option("--kind", help="Boost only this kind.")
@click.option("--boost", type=click.FloatRange(0.01, 100), help="Its factor r; otherwise 0.5 to 2.")
@click.option(
    "--accountant",
    type=click.Choice([a.name for a in ACCOUNTANTS]),
    default="composition",
    show_default=True,
    help="Whose total ε is held.",
)
@options.as_json
def command(
    source: str,
    overrides: tuple[str, ...],
    mode: str | None,
    kind: str | None,
    boost: float | None,
    accountant: str,
    as_json: bool,
) -> None:
    """Split the privacy budget over conv, norm and linear blocks, at the same total ε.

    First comes the equal baseline, then each kind boosted by a factor r: by noise alone, and by
    noise and clip together. What is printed can be pasted into [method].
    """
    chosen = config.load(source, overrides)
    decided, recipe = paste.recipe_of(chosen, "allocate")
    ledger, delta, judge = decided.ledger(), chosen.privacy.delta, by_name(accountant)
    blocks = decided.header.blocks

    def row(m: str, k: str | None, b: float) -> dict[str, Any]:
        found = allocate(ledger, delta, accountant=judge, mode=m, kind=k, boost=b)
        clip, noise = (
            [value * scale[block.kind] for value, block in zip(values, blocks, strict=True)]
            for values, scale in (
                (recipe.clip, found.clip_scale),
                (recipe.noise, found.noise_scale),
            )
        )
        pasted = paste.with_values(decided, clip, noise).ledger()
        return {
            "kind": k,
            "boost": b,
            "mode": m,
            "epsilon": judge.guarantee(pasted, delta).epsilon,
            "shares": found.shares,
            "clip": paste.by_kind(blocks, clip),
            "noise": paste.by_kind(blocks, noise),
        }

    boosts = [boost] if boost else [b for b in BOOSTS if b != 1.0]
    rows = []
    for m in [mode] if mode else MODES:
        rows.append(row(m, None, 1.0))
        kinds = [kind] if kind else list(rows[0]["shares"])
        rows += [row(m, k, b) for k in kinds for b in boosts]
    if as_json:
        click.echo(json.dumps({"accountant": accountant, "allocations": rows}))
        return
    click.echo(f"ε by {accountant}; shares are of {' : '.join(rows[0]['shares'])}")
    for r in rows:
        name = "equal" if r["kind"] is None else f"{r['kind']} × {r['boost']:g}"
        shares = ":".join(str(share) for share in r["shares"].values())
        click.echo(f"\n{r['mode']:6} {name:14} ε {shown(r['epsilon'], ROUND_CEILING):9} {shares}")
        values = {"noise": (r["noise"], ROUND_CEILING), "clip": (r["clip"], ROUND_FLOOR)}
        click.echo("\n".join(paste.lines(**values)))
