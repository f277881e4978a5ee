"""dpdt allocate"""

from __future__ import annotations

import json
from decimal import ROUND_CEILING, ROUND_FLOOR
from pathlib import Path
from typing import Any

import click
import tomli_w

from dpdt import config
from dpdt.accounting import ACCOUNTANTS, Guarantee, by_name
from dpdt.accounting.allocate import BOOSTS, MODES
from dpdt.accounting.guarantee import shown
from dpdt.cli import options, paste
from dpdt.errors import ArgumentError, InputError
from dpdt.methods.allocation import Allocated, allocated
from dpdt.methods.values import told

PROVEN, CLAIMED = "composition", "paper"


@click.command(
    epilog="Example: dpdt allocate cifar10 --mode joint --kind conv --boost 1.5 --out conv.toml"
)
@options.source()
@options.overrides
@click.option("--mode", type=click.Choice(list(MODES)), help="Change noise alone, or clip too.")
@click.option("--equal", is_flag=True, help="Only the equal baseline.")
@click.option("--kind", help="Boost only this kind.")
@click.option("--boost", type=click.FloatRange(0.01, 100), help="Its factor r; otherwise 0.5 to 2.")
@click.option("--hold", is_flag=True, help="Scale all noise until ε is the configuration's again.")
@click.option(
    "--accountant",
    type=click.Choice([a.name for a in ACCOUNTANTS]),
    default=PROVEN,
    show_default=True,
    help="Whose ε is held, and printed too.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write one allocation (--equal, or --mode, --kind and --boost) to this new file.",
)
@options.as_json
def command(
    source: str | None,
    overrides: tuple[str, ...],
    mode: str | None,
    equal: bool,
    kind: str | None,
    boost: float | None,
    hold: bool,
    accountant: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Split the privacy budget over conv, norm and linear blocks, as the paper does.

    First comes the equal baseline, then each kind boosted by a factor r: by noise alone, and by
    noise and clip together. A boost costs privacy, unless --hold. Clip and noise are those of
    [method], before any schedule. --out writes a whole configuration, for dpdt train.
    """
    if equal and (kind or boost):
        raise ArgumentError("equal", "is the baseline, in which no kind is boosted")
    if out and not (equal or (mode and kind and boost)):
        raise ArgumentError("out", "takes one allocation: --equal, or --mode, --kind and --boost")
    chosen = config.load(source or config.default(overrides, "cifar10"), overrides)
    plan, held = config.plan_of(chosen), accountant if hold else None
    found = []
    for m in [mode] if mode else list(MODES)[: 1 if equal else None]:
        found.append(allocated(plan, mode=m, hold=held))
        boosts = [] if equal else [boost] if boost else BOOSTS
        kinds = [kind] if kind else list(found[0].shares)
        found += [
            allocated(plan, mode=m, kind=k, boost=b, hold=held) for k in kinds for b in boosts
        ]
    said = [_guarantees(f, accountant) for f in found]
    if out:
        _write(out, told(chosen, found[-1].clip, found[-1].noise))
    if as_json:
        rows = [_row(f, g, accountant) for f, g in zip(found, said, strict=True)]
        about = {"accountant": accountant, "held": hold, "out": out and str(out)}
        click.echo(json.dumps({**about, "allocations": rows}))
        return
    click.echo(f"shares are of {' : '.join(found[0].shares)}")
    for f, g in zip(found, said, strict=True):
        _show(f, g)
    if out:
        click.echo(f"\n{out} has the last of these, for dpdt train {out}")


def _guarantees(found: Allocated, accountant: str) -> dict[str, Guarantee]:
    """What is proven, what the paper claims, and what the chosen accountant says, by name."""
    ledger, delta = found.plan.ledger(), found.plan.training.privacy.delta
    names = dict.fromkeys((PROVEN, CLAIMED, accountant))
    said = {name: by_name(name).guarantee(ledger, delta) for name in names}
    if not said[accountant].applies:
        raise InputError(f"accountant {accountant!r} gives no ε for this run")
    return said


def _row(found: Allocated, said: dict[str, Guarantee], accountant: str) -> dict[str, Any]:
    proven, claimed = said[PROVEN], said[CLAIMED]
    return {
        "kind": found.kind,
        "boost": found.boost,
        "mode": found.mode,
        "epsilon": said[accountant].epsilon,
        "proven_epsilon": proven.epsilon if proven.valid and proven.applies else None,
        "claimed_epsilon": claimed.epsilon if claimed.applies else None,
        "shares": found.shares,
        "clip": found.clip,
        "noise": found.noise,
    }


def _show(found: Allocated, said: dict[str, Guarantee]) -> None:
    name = "equal" if found.kind is None else f"{found.kind} × {found.boost:g}"
    shares = ":".join(str(share) for share in found.shares.values())
    numbers = ", ".join(_number(g) for g in said.values())
    click.echo(f"\n{found.mode:6} {name:14} {shares:9} {numbers}")
    values = {"noise": (found.noise, ROUND_CEILING), "clip": (found.clip, ROUND_FLOOR)}
    click.echo("\n".join(paste.lines(**values)))


def _number(g: Guarantee) -> str:
    if not g.applies:
        return f"no ε by {g.accountant}"
    if g.valid:
        return f"ε ≤ {shown(g.epsilon, ROUND_CEILING)} proven by {g.accountant}"
    return f"ε = {shown(g.epsilon)} claimed by {g.accountant}"


def _write(path: Path, chosen: config.Config) -> None:
    """The configuration as a new file, with every digit of its values."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(tomli_w.dumps(chosen.as_tables()))
    except FileExistsError:
        raise InputError(f"{path}: already exists; choose a new name") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
