"""The settings of training as keyword arguments, typed so that an editor completes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from dpdt.config.tables import DEFAULT, check_method, section, spread
from dpdt.methods.method import Training

Auto = Literal["auto"]
Schedule = str | Mapping[str, Any]


class Options(TypedDict, total=False):
    """Every setting of every method, of [train] and of [privacy].

    docs/configuration.md describes each. A method refuses the settings of other methods.
    tests/config/test_options.py keeps this list complete.
    """

    method: Literal["dpdt", "dpsgd", "gep", "pate", "plain"]
    # [train]
    epochs: int
    batch_size: int
    augment: bool
    views: int
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    precision: Literal["float32", "bfloat16"]
    workers: int
    checkpoint: int | str
    # [privacy]
    delta: float
    allow_large_delta: bool
    epsilon: float | None
    accountant: Literal["composition", "hidden-state-convex", "hidden-state-contraction"]
    unit: Literal["example", "shard", "user"]
    relation: Literal["replace-one", "zero-out", "add-remove"] | None
    examples: int | None
    release: Literal["all", "last"]
    dataset: str | None
    noise_seed: int | None
    # several methods
    sampling: Literal["partition", "poisson", "cyclic-poisson"]
    noise_bands: int | Auto
    lr: float | Auto
    clip: float | Auto | Mapping[str, float]
    noise: float | Mapping[str, float] | None
    weight_decay: float
    optimizer: Literal["sgd", "adamw", "own"] | Callable[[Any], Any]  # makes a torch optimizer
    momentum: float
    # dpdt
    auxiliaries: int | Literal["per-example"]
    memory: Literal["auxiliary", "shared", "none"]
    reshuffle: bool
    preconditioner: Literal["identity", "rmsprop", "adam", "public", "auto"]
    preconditioner_decay: float | None
    preconditioner_power: float
    floor: float
    global_lr: float
    penalty: float | Auto | Sequence[float] | Mapping[str, Any]
    clip_schedule: Schedule
    noise_schedule: Schedule
    penalty_schedule: Schedule | Sequence[Schedule]
    regularizer: Literal["none", "l2", "l1"]
    auxiliary_weight_decay: float
    granularity: Literal["layer", "tensor", "kind", "model"]
    averaging: float | Auto
    # dpsgd
    clipping: Literal["flat", "layer", "automatic"]
    stability: float
    # gep
    directions: int
    groups: int
    power_iterations: int
    residual_clip: float
    # pate
    teachers: int
    teacher_epochs: int
    queries: int | None
    answers: int | None
    threshold: float
    threshold_noise: float
    # plain
    lr_schedule: Literal["cosine", "constant"]


def training(**options: Unpack[Options]) -> Training:
    """What training is told, from flat keyword arguments: epochs=…, clip=…, epsilon=…"""
    given: dict[str, Any] = dict(options)
    method = given.pop("method", DEFAULT)
    check_method(method)
    tables: dict[str, dict[str, Any]] = {"method": {"name": method}, "train": {}, "privacy": {}}
    spread(given, tables, "")
    return Training(**{name: section(name, table) for name, table in tables.items()})
