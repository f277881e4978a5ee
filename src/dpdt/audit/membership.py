"""Membership attacks with thresholds from a shadow model (Song & Mittal 2021).

An attack *judges* half of the held-out examples and as many members (or half of the members, if
there are fewer of them). A shadow model is trained on a random part of all other examples, as many
as the run has members that are not judged. The rest are the shadow's outsiders. Thresholds are
learnt on what the shadow says of its own members and outsiders, and then applied to what the run's
model says of the judged.

Guarantees: no judged example is in a shadow or among its outsiders, and who was a member of the run
plays no part in learning a threshold. Public inputs are set aside beforehand. The places of
canaries hold no real members, so they are neither judged nor in a shadow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpdt.audit.metrics import (
    LEAST,
    METRICS,
    Answers,
    check_enough,
    judge,
    mean_and_interval,
    scored,
)
from dpdt.audit.shadows import Targets, join, keep, kept, train_shadow
from dpdt.audit.target import Said, Target, said
from dpdt.data import Examples
from dpdt.data.access import count, take
from dpdt.errors import ArgumentError, one_of

OWN, SHADOW = "own", "shadow"
THRESHOLDS = (OWN, SHADOW)  # whose examples they are learnt on: the run's, or a shadow model's

Pair = tuple[Answers, Answers]  # of members, of others
Interval = tuple[float, float]  # a mean, and half of its 95% interval


@dataclass(frozen=True, kw_only=True)
class Membership:
    """How well members can be told from others, in each evaluation.

    The intervals are about other shadow models and other draws of the judged, but the same run. The
    judged of two evaluations overlap, so for other held-out examples they are too narrow.
    """

    aucs: tuple[float, ...]
    accuracies: tuple[float, ...]
    thresholds: str
    metric: str

    @property
    def auc(self) -> Interval:
        return mean_and_interval(self.aucs)

    @property
    def accuracy(self) -> Interval:
        return mean_and_interval(self.accuracies)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Who is judged in an attack, and who is in and out of its shadow model.

    A shadow's examples are numbers in train, and from the length of train on numbers in test.
    """

    judged: Targets
    inside: np.ndarray
    outside: np.ndarray

    @classmethod
    def draw(
        cls, members: np.ndarray, places: int, others: int, generator: np.random.Generator
    ) -> Split:
        """A split of `members`, which are among the `places` of train, and of all `others`."""
        check_enough(len(members), others, 2 * LEAST)  # half of them is judged
        judged = Targets.draw(members, others, min(len(members), others) // 2, generator)
        rest = np.concatenate(
            [
                np.setdiff1d(members, judged.members),
                places + np.setdiff1d(np.arange(others), judged.others),
            ]
        )
        order = generator.permutation(rest)
        number = len(members) - len(judged.members)
        return cls(judged=judged, inside=np.sort(order[:number]), outside=np.sort(order[number:]))

    @classmethod
    def of(cls, target: Target, number: int) -> Split:
        """The split of a run's attack `number`, by the run's seed."""
        train, test = target.examples.train, target.examples.test
        generator = np.random.default_rng((target.folder.config.train.seed, 10, number))
        return cls.draw(target.members, count(train), count(test), generator)

    def apart(self, target: Target, members: Said, others: Said) -> tuple[Pair, Pair]:
        """What the run's model says of the judged, and what it says of all who are not."""
        inside = np.isin(target.members, self.judged.members)
        outside = np.isin(np.arange(len(others[1])), self.judged.others)
        judged = _some(members, inside), _some(others, outside)
        return judged, (_some(members, ~inside), _some(others, ~outside))


def _some(part: Said, chosen: np.ndarray) -> Answers:
    return Answers.from_logits(part[0][chosen], part[1][chosen])


def shadow_answers(target: Target, split: Split, number: int) -> Pair:
    """What shadow `number` says of its members and outsiders.

    It is trained if it was not before, and its answers are kept in the run's private/shadows.
    """
    folder = target.folder.shadows
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"thresholds-{number}.npz"
    judged = split.judged
    drawn = {"members": judged.members, "others": judged.others}
    drawn |= {"inside": split.inside, "outside": split.outside}
    if not path.is_file():
        inside, outside = (_gather(target.examples, n) for n in (split.inside, split.outside))
        learner = train_shadow(target.folder.config, inside, target.public, number)
        scores, labels = said(learner, inside, target.task)
        out_scores, out_labels = said(learner, outside, target.task)
        keep(
            path,
            **drawn,
            scores=scores,
            labels=labels,
            out_scores=out_scores,
            out_labels=out_labels,
        )
    found = kept(path, **drawn)
    return (
        Answers.from_logits(found["scores"], found["labels"]),
        Answers.from_logits(found["out_scores"], found["out_labels"]),
    )


def _gather(examples: Examples, numbers: np.ndarray) -> Any:
    """Examples of train, and from the length of train on of test."""
    places = count(examples.train)
    first, second = numbers[numbers < places], numbers[numbers >= places] - places
    return join(
        take(examples.train, torch.from_numpy(first)),
        take(examples.test, torch.from_numpy(second)),
    )


def check_word(argument: str, word: str, words: Iterable[str]) -> None:
    if word not in words:
        raise ArgumentError(argument, one_of(word, words))


def membership(
    path: str,
    *,
    evaluations: int = 3,
    thresholds: str = SHADOW,
    metric: str = "modified-entropy",
    per_class: bool = True,
) -> Membership:
    """Attack a run's released model in independent evaluations.

    Each evaluation has judged examples of its own. With thresholds "shadow" it also has a shadow
    model of its own. Those are trained in this process, one after the other, and kept. With "own"
    thresholds are learnt on what the run's model says of its members and of held-out examples that
    are not judged.
    """
    if evaluations < 1:
        raise ArgumentError("evaluations", f"must be at least 1, found {evaluations}")
    check_word("thresholds", thresholds, THRESHOLDS)
    check_word("metric", metric, METRICS)
    target = Target.read(path)
    members, others = target.said()
    rows = []
    for number in range(evaluations):
        split = Split.of(target, number)
        judged, rest = split.apart(target, members, others)
        learn = shadow_answers(target, split, number) if thresholds == SHADOW else rest
        sides = (scored(METRICS[metric], *pair) for pair in (learn, judged))
        rows.append(judge(*sides, per_class=per_class))
    aucs, accuracies, _ = zip(*rows, strict=True)
    return Membership(aucs=aucs, accuracies=accuracies, thresholds=thresholds, metric=metric)
