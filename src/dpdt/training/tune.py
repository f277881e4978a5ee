"""A tune: a random number of runs with settings drawn at random, of which the best leaves.

Guarantees: how many runs there are, with which settings, and the noise on their scores, is drawn
once, from operating-system entropy, and is on the disk before anything is spent. A tune that was
killed goes on with what was drawn. Its runs go on bit for bit. From before the first run on, the
ledger in its folder has the cost of the whole tune. Nothing leaves but the run of the best score:
the others are deleted as soon as they have lost.

A score is how many held-out examples a model gets right. Unless these are public, Gaussian noise
is added, rounded to a whole number: so it moves with the count exactly, and no bit of a float
tells more. Who is added, removed or replaced moves the count by 1 at most. Held-out examples are
none of those that are trained on.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpdt import data
from dpdt.accounting import Privacy, account
from dpdt.config import Config
from dpdt.data.access import count
from dpdt.errors import ArgumentError, InputError
from dpdt.ledger import Ledger
from dpdt.ledger.lines import LONGEST, told
from dpdt.noise import Randomness
from dpdt.runs import Run
from dpdt.runs.place import is_run
from dpdt.runs.plan import undone
from dpdt.runs.tune import Tune, opened
from dpdt.training.candidates import Candidate, planned
from dpdt.training.depends import depends_on, refuse_changes
from dpdt.training.grid import AtHand, refuse_other_metrics
from dpdt.training.run import Assembled, run

LEAST, MOST = 0.1, 1000.0  # runs on average
LOUDEST = 1e9  # noise on a score; beyond, float64 has no whole numbers


@dataclass(frozen=True, kw_only=True)
class Result:
    """What leaves a tune: one run's folder, its setting and its score."""

    path: Path
    status: int  # of a command: 0, or 128 and the number of the signal that interrupted it
    setting: tuple[str, ...] = ()
    score: float | None = None  # share of right answers, with its noise
    spread: float = 0.0  # standard deviation of that noise
    examples: int = 0
    privacy: Privacy | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "finished": self.status == 0,
            "setting": list(self.setting),
            "score": self.score,
            "score_noise": self.spread,
            "examples": self.examples,
            "privacy": self.privacy and self.privacy.as_json(),
        }


Approve = Callable[[Ledger], None]


def tune(
    found: Sequence[Candidate],
    path: Path,
    *,
    runs: float,
    noise: float | None,
    announce: Callable[[str], None],
    approve: Approve,
) -> Result:
    """Tune in a new folder. Without `noise` it is √n/2; with 0, held-out examples are public.

    `approve` is shown the ledger of the tune before anything is spent. If it refuses, no folder is
    left.
    """
    if not LEAST <= runs <= MOST:
        raise ArgumentError("runs", f"must be from {LEAST:g} to {MOST:g}, found {runs:g}")
    if noise is not None and not 0.0 <= noise <= LOUDEST:
        raise ArgumentError("score-noise", f"must be from 0 to {LOUDEST:g}, found {noise:g}")
    if path.exists():
        raise InputError(
            f"{path}: already exists; a tune never overwrites a run, choose a new name"
        )
    refuse_other_metrics(found[0].config)
    if noise != 0.0 and any(one.config.privacy.examples for one in found):
        raise InputError(
            "privacy.examples: the noise on scores follows the number of examples held out, which "
            "is private too; give held-out examples that are public, --public-score"
        )
    examples = AtHand()
    number = _held_out(examples, found[0].config)
    noise = math.sqrt(number) / 2.0 if noise is None else noise
    ready, tuned, epsilon = planned(found, runs, noise)
    if len(json.dumps(told(tuned))) >= LONGEST:
        raise InputError(
            "--try: the plans of all settings together are longer than a ledger's line may be; "
            "try fewer, or without schedules that change at every step"
        )
    first = ready[0].config
    opening = Ledger(tuned.candidates[0].header, data=_seal(examples, first), tuned=tuned)
    shares = sorted({one.config.privacy.epsilon or 0.0 for one in ready})
    announce(
        f"ε = {epsilon:.4g} for the whole tune leaves each run ε = "
        + " to ".join(f"{share:.4g}" for share in dict.fromkeys((shares[0], shares[-1])))
    )
    folder = Run.create(path, first)
    with folder.locked():
        coins = _drawn(len(ready), runs, noise)
        coins["changes"] = [list(one.changes) for one in ready]
        coins["depends"] = _depends(examples, first)
        begun = Tune(folder)
        with undone(folder, *begun.own):
            begun.begin([one.config for one in ready], opening, coins)
            approve(opening)
        return _go_on(begun, examples)


def resume(path: Path, *, approve: Approve) -> Result:
    """Go on with a tune that was interrupted."""
    begun = opened(path)
    with begun.run.locked():
        if begun.ended:
            begun.forget()
            return _result(begun)
        examples, ledger = AtHand(), begun.run.ledger()
        refuse_changes(path, begun.coins()["depends"], _depends(examples, begun.run.config))
        approve(ledger)
        return _go_on(begun, examples)


def _held_out(examples: AtHand, config: Config) -> int:
    number = count(data.set_aside(examples.of(config), config.data.public)[1].test)
    if not number:
        raise InputError("data.name: has no held-out examples, by which runs could be compared")
    return number


def _seal(examples: AtHand, config: Config) -> str:
    """The sealed identity of the data, as the ledger of any of the runs would have it."""
    step, _ = Assembled.of(config, examples.of(config), None).prepare(config, False, quiet=True)
    return step.writer.ledger.data


def _depends(examples: AtHand, config: Config) -> dict[str, str]:
    """Hashes of all that scores depend on besides models: their noise is drawn once."""
    found = examples.of(config)
    parts = [part for part in (found.train, found.test) if part is not None]
    nowhere = torch.device("cpu")
    return depends_on(config, "", parts, nowhere)


def _drawn(settings: int, runs: float, noise: float) -> dict[str, Any]:
    """The secret coins of a tune."""
    source, number = Randomness(), 0
    while not number:
        number = source.poisson(runs)
    added = np.rint(source.gaussian(number) * noise)
    choices = source.choices(number, settings)
    return {
        "choices": [int(choice) for choice in choices],
        "noise": [int(one) for one in added],
        "begun": -1,  # the last run that was begun
        "done": 0,  # how many have their score
        "best": None,  # the number of the best run so far, and its score
    }


def _go_on(begun: Tune, examples: AtHand) -> Result:
    """Make the runs that are left, and choose."""
    coins, opening = begun.coins(), begun.run.ledger()
    for number in range(coins["done"], len(coins["choices"])):
        begun.drop_all_but(number, coins["best"] and coins["best"][0])
        config = begun.candidate(coins["choices"][number])
        status = _make(begun, coins, number, config, opening, examples)
        if status:
            return Result(path=begun.run.path, status=status)
        held_out = _held_out(examples, config)
        accuracy = (begun.folder(number).result() or {})["accuracy"]
        score = round(accuracy * held_out) + coins["noise"][number]
        if coins["best"] is None or score > coins["best"][1]:
            coins["best"] = [number, score]
        coins["done"] = number + 1
        begun.keep(coins)
    number, score = coins["best"]
    begun.drop_all_but(number)
    ledger, tuned = begun.folder(number).ledger(), opening.tuned
    assert tuned is not None
    ledger = replace(ledger, data=opening.data, tuned=replace(tuned, chosen=True))
    record = {
        "setting": coins["changes"][coins["choices"][number]],
        "right": score,
        "examples": _held_out(examples, begun.candidate(coins["choices"][number])),
    }
    begun.choose(number, ledger, record)
    begun.forget()
    return _result(begun)


def _make(
    begun: Tune,
    coins: dict[str, Any],
    number: int,
    config: Config,
    opening: Ledger,
    examples: AtHand,
) -> int:
    """Make a run of the tune, or go on with it; its status."""
    folder = begun.folder(number)
    there = is_run(folder.path)
    goes_on = there and folder.has_checkpoint
    if not goes_on and coins["begun"] == number and not (there and folder.unspent):
        if there and folder.result() is not None:
            return 0  # it has ended, and was not scored yet
        raise InputError(
            f"{folder.path}: was begun and has lost what it would go on from, so the tune cannot "
            "go on: with other noise it would be another run; the ledger says what was spent"
        )
    if not goes_on:  # what is there stopped before it began
        shutil.rmtree(folder.path, ignore_errors=True)

    def begin(_: Ledger) -> None:
        coins["begun"] = number
        begun.keep(coins)

    outcome = run(
        config,
        folder.path,
        show_progress=False,
        examples=examples.of(config),
        resume=goes_on,
        tuned=opening.tuned,
        approve=begin,
        kept=lambda done: folder.write_result(done.as_json()),
    )
    return outcome.status


def _result(begun: Tune) -> Result:
    folder, record = begun.run, begun.chosen()
    ledger, privacy = folder.ledger(), folder.config.privacy
    number, noise = record["examples"], ledger.tuned.noise if ledger.tuned else 0.0
    return Result(
        path=folder.path,
        status=0,
        setting=tuple(record["setting"]),
        score=record["right"] / number,
        spread=noise / number,
        examples=number,
        privacy=account(ledger, privacy.delta, allow_large_delta=privacy.allow_large_delta),
    )
