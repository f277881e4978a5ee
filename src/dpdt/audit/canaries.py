"""How much a released model looks as if each canary had been in."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.audit.metrics import logit
from dpdt.audit.target import Target, said
from dpdt.methods.canaries import Planted, coordinates
from dpdt.methods.dpdt.whitening import Whitened
from dpdt.training.loop import train


def scores(target: Target, planted: Planted) -> np.ndarray:
    """A score for each canary; none looks at the coins.

    A gradient canary is judged by where its coordinate of the released model lies, against a
    reference: what the run would have come to without canaries and without noise. Differential
    privacy allows an adversary to know as much. Otherwise a canary would drown in what the model
    has learnt from everybody else.
    """
    if planted.pulls is None:
        return logit(*said(target.learner, planted.canaries, target.task))
    models = [target.learner, reference(target)]
    if target.whitened:  # canaries pull in the coordinates that were trained
        whitened = Whitened(target.start, target.public)
        models = [whitened.seen_from(model) for model in models]
    moved = _flat(models[0]) - _flat(models[1])
    chosen = coordinates(len(moved), planted.pulls.number, planted.pulls.seed)
    return np.asarray(-moved[chosen].double().numpy())  # descent goes against the pull


def reference(target: Target) -> nn.Module:
    """The model that the run's settings give on the real examples, without noise."""
    config, model = target.folder.config, copy.deepcopy(target.start)
    quiet = replace(
        config.training,
        method=config.method.without_noise(target.ledger.runs[0].setting),
        privacy=replace(config.privacy, epsilon=None),
    )
    examples = target.examples
    train(
        model,
        examples.train,
        public=target.public,
        using=quiet,
        task=target.task.name,
        quiet=True,
    )
    return model


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
