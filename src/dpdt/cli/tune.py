"""dpdt tune"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdt import config
from dpdt.cli import options
from dpdt.cli.table import left_out
from dpdt.errors import ArgumentError, InputError
from dpdt.ledger import Ledger
from dpdt.releasing.budget import around, check_limit, refuse_beyond
from dpdt.runs.place import default_path
from dpdt.runs.tune import opened

if TYPE_CHECKING:
    from dpdt.training.tune import Result

RUNS = 8.0


@click.command(
    epilog="Example: dpdt tune digits --method dpsgd --try method.lr=0.5,1.8,6 --epsilon 3"
)
@options.source()
@options.overrides
@options.method
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="KEY=A,B,…",
    help="Values to choose from. May be repeated: all combinations are settings.",
)
@click.option("--epsilon", type=float, help="ε of the whole tune; otherwise the configuration's.")
@click.option("--runs", type=float, help=f"How many, on average; {RUNS:g} unless given.")
@click.option(
    "--score-noise",
    type=float,
    help="Standard deviation of the noise on right answers; otherwise √n/2 of n held-out examples.",
)
@click.option("--public-score", is_flag=True, help="Held-out examples are public: score exactly.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; must not exist.")
@click.option("--resume", help="Continue this tune's folder after an interruption.")
@options.limit
@options.paid
@options.as_json
def command(
    source: str | None,
    overrides: tuple[str, ...],
    method: str | None,
    tries: tuple[str, ...],
    epsilon: float | None,
    runs: float | None,
    score_noise: float | None,
    public_score: bool,
    out: Path | None,
    resume: str | None,
    limit: float | None,
    paid: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Choose settings on private data, and count what it costs.

    A random number of runs is made, each with one of the settings, drawn by secret coins. The run
    that gets most held-out examples right leaves, and only that one. ε is what all of it costs.
    The noise of each run is found beforehand, so that ε is met. Held-out examples are protected
    too, by noise on the scores, unless --public-score. What this costs in accuracy, and when it
    is better not to tune, is in docs/tuning.md.
    """
    if limit is not None:
        check_limit(limit)
    elif paid:
        raise InputError("--paid: counts for --limit, which is missing")
    given = (source, overrides, method, tries, out, public_score)
    _refuse(resume, given, (epsilon, runs, score_noise), public_score, score_noise)
    from dpdt.training import tune as tuning
    from dpdt.training.candidates import candidates

    if resume:
        path = Path(resume)
        delta = opened(path).run.config.privacy.delta
        result = tuning.resume(path, approve=partial(_within, limit, path, paid, delta))
    else:
        source = source or config.default(overrides)
        chosen = config.load(source, overrides, method, target=epsilon)
        target = chosen.privacy.epsilon if epsilon is None else epsilon
        if target is None or not 0.0 < target < float("inf"):
            raise ArgumentError("epsilon", f"must be a positive number, found {target}")
        path = out or default_path(f"{Path(source).stem}-tuned")
        result = tuning.tune(
            candidates(source, overrides, method, tries, target),
            path,
            runs=RUNS if runs is None else runs,
            noise=0.0 if public_score else score_noise,
            announce=lambda text: click.echo(text, err=True),
            approve=partial(_within, limit, path, paid, chosen.privacy.delta),
        )
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        _tell(result)
    return result.status


def _refuse(
    resume: str | None,
    given: tuple[object, ...],
    numbers: tuple[float | None, ...],
    public: bool,
    noise: float | None,
) -> None:
    """Refuse arguments that do not go together."""
    if resume:
        if any(given) or any(number is not None for number in numbers):
            raise InputError(f"--resume {resume}: goes on as the tune began; give nothing else")
    elif public and noise is not None:
        raise ArgumentError("score-noise", "is for scores on private examples")
    elif noise == 0:
        raise ArgumentError(
            "score-noise", "must be above 0; --public-score says that held-out examples are public"
        )


def _within(
    limit: float | None, path: Path, paid: tuple[Path, ...], delta: float, ledger: Ledger
) -> None:
    """Refuse a tune by which its data would have paid more than the limit."""
    if limit is not None:
        folders = [*around(path), *paid]
        refuse_beyond(limit, ledger, folders, delta=delta, what="tune", own=path)


def _tell(result: Result) -> None:
    """Print what leaves the tune."""
    if result.privacy is None:
        click.echo(f"interrupted; dpdt tune --resume {result.path} continues")
        return
    click.echo(f"chosen: {', '.join(result.setting)}")
    spread = f" ± {result.spread:.4f} of noise" if result.spread else ""
    click.echo(f"score {result.score:.4f}{spread}, on {result.examples} held-out examples")
    if not result.spread:
        click.echo("(held-out examples are public, so scores cost nothing; the runs did)")
    click.echo("(the best score of several is too high by chance; how many is secret)")
    click.echo(f"run folder {result.path}\n")
    click.echo(str(result.privacy))
    left_out(result.privacy, f"dpdt account {result.path} --all")
