"""The plan that DP-SGD and GEP share: Poisson sampling, and noise in units of the clip."""

from __future__ import annotations

import math

from dpdt.bands import Smoothing
from dpdt.ledger import Block, Header, Setting
from dpdt.methods.method import Training
from dpdt.methods.plan import Plan
from dpdt.methods.problem import Problem


def plan(
    training: Training,
    problem: Problem,
    blocks: tuple[Block, ...],
    clips: tuple[float, ...],
    *,
    momentum: float = 0.0,
    sampling: str = "poisson",
) -> Plan:
    """A sum of clipped gradients with noise. A multiplier that is not given starts at 1."""
    method, train = training.method, training.train
    batches, poisson = train.batches(problem.examples), sampling == "poisson"
    expected = train.batch_size if poisson else math.ceil(problem.examples / batches)
    header = Header(
        method=method.name,
        examples=problem.examples,
        auxiliaries=expected,
        batches=batches,
        memory="none",
        sampling=sampling,
        unit="example",
        relation=method.relation(training.privacy),
        blocks=blocks,
        per_example=True,
        rate=train.batch_size / problem.examples if poisson else 1.0,
        private=training.privacy.noise_seed is None,
    )
    multiplier = 1.0 if method.noise is None else method.noise
    noise = tuple(multiplier * clip / expected for clip in clips)
    setting = equal_step(clip=clips, noise=noise, lr=method.lr)
    return Plan(
        training=training,
        problem=problem,
        header=header,
        epochs=train.epochs,
        equal=((setting, train.epochs * batches),),
        smoothing=Smoothing(momentum=momentum),
    )


def equal_step(*, clip: tuple[float, ...], noise: tuple[float, ...], lr: float) -> Setting:
    """A step of a method without auxiliaries' learning rates and penalties."""
    return Setting(
        clip=clip, noise=noise, penalty=1.0, lr=lr, global_lr=1.0, step_size=lr, contraction=1.0
    )
