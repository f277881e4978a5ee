"""What every method is told besides its own settings: the run's length, and the privacy it owes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dpdt.fields import AUTO, choice, flag, integer, is_integer, key, or_auto, positive

ACCOUNTANTS = ("composition", "hidden-state-convex", "hidden-state-contraction")
DEVICES = ("auto", "cpu", "cuda", "mps")
RELATIONS = ("replace-one", "zero-out", "add-remove")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The section [train]."""

    epochs: int = integer(20, 1)
    batch_size: int = integer(256, 1)
    augment: bool = flag(False)
    views: int = integer(1, 1, most=1024)  # of each image, averaged before bounding
    seed: int = integer(0, 0)
    device: str = choice("auto", DEVICES)  # where to compute; no guarantee depends on it
    precision: str = choice("float32", ("float32", "bfloat16"))  # of gradients, before bounding
    workers: int = integer(0, 0, most=1024)  # processes that read ahead in a torch Dataset
    checkpoint: int | str = or_auto(
        AUTO,
        "a number of steps, or a time such as '90s' or '5m',",
        lambda v: (is_integer(v) and v > 0) or bool(re.fullmatch(r"[1-9][0-9]{0,5}[sm]", str(v))),
    )  # how often a run's folder gets one

    def batches(self, examples: int) -> int:
        """How many mini-batches an epoch has, of so many examples, or users where these count."""
        return max(1, round(examples / self.batch_size))


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """The section [privacy]."""

    delta: float = key(
        1e-5, "a number between 0 and 1", lambda v: isinstance(v, float) and 0.0 < v < 1.0
    )
    allow_large_delta: bool = flag(False)  # δ of 1/n and more, which guarantees next to nothing
    epsilon: float | None = positive(None)  # the target; None: the noise is given
    accountant: str = choice("composition", ACCOUNTANTS)  # whose ε must meet the target
    unit: str = choice("example", ("example", "shard", "user"))
    relation: str | None = key(
        None, f"one of {', '.join(RELATIONS)}", lambda v: v in RELATIONS
    )  # None: the one that the method's sampling allows
    examples: int | None = integer(None, 1)  # a nominal number, where the true one is private
    release: str = choice("all", ("all", "last"))  # "last": nothing but the last iterate leaves
    dataset: str | None = key(
        None, "a name, which is a text", lambda v: isinstance(v, str) and v != ""
    )  # what the data are called across runs, for budgets; None: recognised by their examples
    noise_seed: int | None = integer(None, 0)  # for tests: the run is then not private
