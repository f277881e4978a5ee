"""Small problems that several tests share."""

import torch
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.recipe import Recipe
from dpdt.noise import Randomness


def cross_entropy(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def engine_for(model, loss=cross_entropy, *, granularity="layer", seed=0, engine=None, **options):
    """An engine with sensible settings; clip and noise are the same in every block."""
    blocks = Layout(model, granularity).count
    defaults = {"auxiliaries": 4, "clip": 1.0, "noise": 0.0, "lr": 0.1, "memory": "none"}
    defaults |= options
    defaults["clip"] = (defaults["clip"],) * blocks
    defaults["noise"] = (defaults["noise"],) * blocks
    return Decoupled(
        model,
        loss,
        Recipe(**defaults),
        granularity=granularity,
        noise=Randomness(seed),
        **(engine or {}),
    )


def take_step(engine, batch):
    """One step, with the setting that the recipe has for its epoch."""
    return engine.step(batch, engine.recipe.at(batch.epoch))


def batch_of(data, sizes, step=0, epoch=0):
    return Batch(step=step, epoch=epoch, data=data, sizes=tuple(sizes))


def classification(n, inputs=6, classes=3, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator, dtype=dtype)
    y = torch.randint(0, classes, (n,), generator=generator)
    return x, y


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class Constant(nn.Module):
    """Parameters whose loss has gradient 0, in blocks of the given sizes: only noise moves them."""

    def __init__(self, *sizes):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(s)) for s in sizes])

    def forward(self, x):
        return sum(p.sum() for p in self.parts) * 0.0 + x.sum() * 0.0
