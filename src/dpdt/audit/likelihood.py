"""LiRA: is the model's answer likelier with the example in or out? (Carlini et al. 2022.)

*Targets* are some members and as many held-out examples. Shadow models are trained with the run's
own settings. Every shadow holds a random half of the targets and all other training examples, so
its training set is as large as the run's own. For each target, the answers of shadows with it and
without it are modelled as two Gaussians:

    online    log N(s; in) − log N(s; out)
    offline   Φ((s − mean out) / deviation out)

The deviation is pooled over targets. With few shadows that is better than one for each target.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_ndtr

from dpdt.audit.metrics import logit
from dpdt.audit.shadows import Targets, join, keep, kept, train_shadow
from dpdt.audit.target import said, task_in
from dpdt.config import Config
from dpdt.data import set_aside
from dpdt.data.access import count, take
from dpdt.errors import ArgumentError
from dpdt.training import pool
from dpdt.training.run import load

LEAST = 4  # shadows


def half(targets: Targets, shadow: int, seed: int) -> np.ndarray:
    """Which targets a shadow holds: half of them, members first."""
    number = len(targets.members)
    inside = np.zeros(2 * number, dtype=bool)
    generator = np.random.default_rng((seed, 7, shadow))
    inside[generator.permutation(2 * number)[:number]] = True
    return inside


def scores(own: np.ndarray, answers: np.ndarray, inside: np.ndarray, *, online: bool) -> np.ndarray:
    """LiRA scores of targets: `own` [targets] of the run, the shadows' `answers` and `inside`.

    Args:
        own: the run's answer on every target.
        answers: [shadows, targets].
        inside: [shadows, targets], whether the shadow held the target.
    """
    out_mean, out_deviation = _gaussian(answers, ~inside)
    if not online:
        return np.asarray(log_ndtr((own - out_mean) / out_deviation))
    in_mean, in_deviation = _gaussian(answers, inside)
    return np.asarray(
        _log_density(own, in_mean, in_deviation) - _log_density(own, out_mean, out_deviation)
    )


def _gaussian(answers: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, float]:
    """The mean of every target's chosen answers, and their pooled deviation.

    A target without a chosen answer has the mean of all.
    """
    number = chosen.sum(0)
    if number.sum() <= chosen.shape[1]:
        raise ArgumentError("shadows", f"too few to see targets in and out, found {len(answers)}")
    everyone = answers[chosen].mean()
    mean = np.where(
        number > 0, np.where(chosen, answers, 0.0).sum(0) / np.maximum(number, 1), everyone
    )
    squares = np.where(chosen, (answers - mean) ** 2, 0.0).sum()
    freedom = np.maximum(number - 1, 0).sum()
    return mean, float(np.sqrt(squares / max(freedom, 1)) + 1e-9)


def _log_density(x: np.ndarray, mean: np.ndarray, deviation: float) -> np.ndarray:
    return np.asarray(-np.log(deviation) - (x - mean) ** 2 / (2 * deviation**2))


def train_shadows(
    config: Config,
    targets: Targets,
    folder: Path,
    number: int,
    *,
    on_done: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Train shadows on all cores, one core each; those in `folder` are not trained again.

    Returns the answers and who was inside, [shadows, targets] each.
    """
    if number < LEAST:
        raise ArgumentError("shadows", f"must be at least {LEAST}, found {number}")
    folder.mkdir(mode=0o700, exist_ok=True)
    left = [i for i in range(number) if not (folder / f"{i}.npz").is_file()]
    done = number - len(left)
    on_done(done)
    arguments = [(targets, folder, i) for i in left]
    for _ in pool.each(_shadow, arguments, initializer=_prepare, initargs=(config,)):
        done += 1
        on_done(done)
    drawn = {"members": targets.members, "others": targets.others}
    records = [kept(folder / f"{i}.npz", **drawn) for i in range(number)]
    return np.stack([r["answers"] for r in records]), np.stack([r["inside"] for r in records])


_AT_HAND: dict[str, Any] = {}  # of a worker process: the configuration and its examples


def _prepare(config: Config) -> None:
    _AT_HAND.update(config=config, examples=load(config))


def _shadow(targets: Targets, folder: Path, shadow: int) -> int:
    """Train one shadow and write down its answers on all targets."""
    config: Config = _AT_HAND["config"]
    public, examples = set_aside(_AT_HAND["examples"], config.data.public)
    pool_members = take(examples.train, torch.from_numpy(targets.members))
    pool_others = take(examples.test, torch.from_numpy(targets.others))
    everyone = join(pool_members, pool_others)
    inside = half(targets, shadow, config.train.seed)
    rest = np.setdiff1d(np.arange(count(examples.train)), targets.members)
    chosen = join(
        take(examples.train, torch.from_numpy(rest)),
        take(everyone, torch.from_numpy(np.flatnonzero(inside))),
    )
    learner = train_shadow(config, chosen, public, shadow)
    keep(
        folder / f"{shadow}.npz",
        answers=logit(*said(learner, everyone, task_in(config))),
        inside=inside,
        members=targets.members,
        others=targets.others,
    )
    return shadow
