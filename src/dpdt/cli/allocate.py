"""dpdt allocate"""

from __future__ import annotations

import json
from dataclasses import asdict
from decimal import ROUND_CEILING

import click

from dpdt import config
from dpdt.accounting import ACCOUNTANTS, by_name
from dpdt.accounting.allocate import BOOSTS, MODES, allocate
from dpdt.accounting.guarantee import shown
from dpdt.cli import options
from dpdt.cli.source import planned


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

    The equal baseline, then each kind boosted by a factor r, by noise alone and jointly with clip.
    """
    chosen = config.load(source, overrides)
    ledger, delta, judge = planned(chosen), chosen.privacy.delta, by_name(accountant)
    equal = allocate(ledger, delta, accountant=judge, mode=MODES[0])
    present = list(equal.shares)
    kinds = [kind] if kind else present
    boosts = [boost] if boost else [b for b in BOOSTS if b != 1.0]
    rows = []
    for m in [mode] if mode else MODES:
        rows.append(allocate(ledger, delta, accountant=judge, mode=m))
        for k in kinds:
            for b in boosts:
                rows.append(allocate(ledger, delta, accountant=judge, mode=m, kind=k, boost=b))
    if as_json:
        click.echo(json.dumps({"accountant": accountant, "allocations": [asdict(r) for r in rows]}))
        return
    click.echo(f"ε by {accountant}; shares, σ and C are of {' : '.join(present)}\n")
    for r in rows:
        name = "equal" if r.kind is None else f"{r.kind} × {r.boost:g}"
        shares = ":".join(str(r.shares[k]) for k in present)
        noise = ", ".join(f"{r.noise[k]:.4g}" for k in present)
        clip = ", ".join(f"{r.clip[k]:.4g}" for k in present)
        epsilon = shown(r.epsilon, ROUND_CEILING)
        click.echo(f"{r.mode:6} {name:14} ε {epsilon:9} {shares:9}  σ {noise:28}  C {clip}")
