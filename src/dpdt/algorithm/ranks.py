"""A step of several ranks: each has summed its own contributions, and one exchange adds them up.

The sum is complete before noise is added to it, and every rank adds the same noise (noise.py). So
the noise is drawn once, whatever the number of ranks. The divisor is the number of auxiliaries of
all ranks.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.executor import Executor
from dpdt.distributed.world import World


def arrange(world: World, executor: Executor, batch: Batch) -> None:
    """Choose the flat order of the parameters before the first pass, on all ranks alike.

    A rank without examples in this mini-batch takes it from the others.
    """
    if world.alone or executor.state_dict()["arranged"]:
        executor.arrange(batch)
        return
    if sum(batch.sizes):
        executor.arrange(batch)
    found = world.gather(executor.state_dict())
    executor.load_state_dict(next((s for s in found if s["arranged"]), found[0]))


def everywhere(
    world: World, executor: Executor, batch: Batch, found: tuple[Tensor, Tensor, Tally]
) -> tuple[Tensor, float, Tally]:
    """The sum of all ranks' contributions, the mean loss of all examples, and what was seen."""
    total, losses, tally = found
    weights = losses.new_tensor(batch.sizes)
    theta = total if world.alone else executor.layout.gather()
    numbers = (float(losses @ weights), float(weights.sum()), float(tally.nonfinite))
    total, (loss, examples, nonfinite) = world.sum(total, numbers, theta)
    return total, loss / max(1.0, examples), replace(tally, nonfinite=int(nonfinite))
