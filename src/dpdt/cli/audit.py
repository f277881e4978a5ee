"""dpdt audit"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdt.cli import options
from dpdt.cli.table import left_out
from dpdt.errors import InputError, one_of
from dpdt.runs import Run

if TYPE_CHECKING:
    from dpdt.audit.worst_case import Case

WORST_CASE = "worst-case"


@click.command(
    epilog="Examples: dpdt audit runs/first --shadows 16; dpdt audit worst-case --figure worst.png"
)
@click.argument("target", metavar="RUN|worst-case")
@click.option("--repeats", type=click.IntRange(2), default=100, show_default=True,
              help="Evaluations that intervals span.")  # fmt: skip
@click.option("--thresholds", type=click.Choice(["own", "shadow"]), default="own",
              show_default=True, help="What metric attacks learn thresholds on: half of the run's "
              "own examples, which needs no training, or the examples of one shadow model, which "
              "is trained first and kept.")  # fmt: skip
@click.option("--shadows", type=click.IntRange(0), default=0, show_default=True,
              help="Shadow models to train for LiRA; goes on where it stopped.")  # fmt: skip
@click.option("--targets", type=click.IntRange(20), default=500, show_default=True,
              help="LiRA: members under attack, and as many others.")  # fmt: skip
@click.option("--memory", "memories", default="auxiliary,shared,none", show_default=True,
              help="Worst case: memories to try, comma-separated.")  # fmt: skip
@click.option("--epochs", type=click.IntRange(1), default=200, show_default=True,
              help="Worst case: epochs to run.")  # fmt: skip
@click.option("--trials", type=click.IntRange(100), default=3000, show_default=True,
              help="Worst case: independent trials on each side.")  # fmt: skip
@click.option("--confidence", type=click.FloatRange(0.5, 1, True, True), default=0.95,
              show_default=True)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 if a valid guarantee is refuted.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw to this file.")
@options.as_json
def command(
    target: str,
    repeats: int,
    thresholds: str,
    shadows: int,
    targets: int,
    memories: str,
    epochs: int,
    trials: int,
    confidence: float,
    strict: bool,
    figure: Path | None,
    as_json: bool,
) -> int:
    """Try to break a guarantee.

    RUN is the folder of a finished run. Its model is attacked by membership inference. Canaries
    that were planted by dpdt train --set audit.canaries=… give a lower bound on ε. The results are
    private. They are kept in the run's private/ and shown by dpdt account.

    worst-case runs the instance that refutes the paper's bound through the real engine.
    """
    if target == WORST_CASE:
        cases = _worst_case(
            [word.strip() for word in memories.split(",")],
            epochs,
            trials,
            confidence,
            show=not as_json,
        )
        return _tell(cases, confidence, strict=strict, figure=figure, as_json=as_json)
    from dpdt.audit.run import audit
    from dpdt.report.audit import draw, table
    from dpdt.training.progress import counting

    total = shadows + (thresholds == "shadow")
    with (
        Run.open(target).locked(),
        counting("shadow models", total, enabled=not as_json) as advance,
    ):
        report = audit(
            target,
            repeats=repeats,
            thresholds=thresholds,
            confidence=confidence,
            shadows=shadows,
            targets=targets,
            on_shadow=advance,
        )
    picture = figure or Run(target).curves_path
    draw(report.curves, picture)
    click.echo(f"picture: {picture}", err=True)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        click.echo(table(report))
        left_out(report.privacy, f"dpdt account {target} --all")
    return 1 if strict and report.refuted else 0


def _worst_case(
    memories: list[str], epochs: int, trials: int, confidence: float, *, show: bool
) -> list[Case]:
    from dpdt.audit.worst_case import AUXILIARIES, Instance, audit
    from dpdt.training.progress import counting

    for memory in memories:
        if memory not in AUXILIARIES:
            raise InputError(f"--memory: {one_of(memory, AUXILIARIES)}")
    looks = tuple(e for e in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if e < epochs)
    instance = Instance(epochs=(*looks, epochs))
    steps = epochs * instance.batches
    with counting("steps", len(memories) * steps, enabled=show) as advance:
        return audit(
            memories,
            instance=instance,
            trials=trials,
            beta=1 - confidence,
            on_step=lambda memory, step: advance(memories.index(memory) * steps + step),
        )


def _tell(
    cases: list[Case], confidence: float, *, strict: bool, figure: Path | None, as_json: bool
) -> int:
    from dpdt.report.audit import draw_worst_case, worst_case_table

    if figure is not None:
        draw_worst_case(cases, figure)
        click.echo(f"picture: {figure}", err=True)
    if as_json:
        record = {"confidence": confidence, "cases": [case.as_json() for case in cases]}
        click.echo(json.dumps(record))
    else:
        click.echo(worst_case_table(cases))
        click.echo(
            f"\nAll at once with {confidence:.0%} confidence; only the last iterate is seen."
        )
    broken = [c for c in cases for g in c.privacy.guarantees if g.valid and c.refutes(g.accountant)]
    return 1 if strict and broken else 0
