"""The engine of Algorithm 1, from a method's settings; refused if its state does not fit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dpdt.algorithm.engine import Decoupled
from dpdt.errors import InputError
from dpdt.methods.method import Job
from dpdt.ram import available, gigabytes

if TYPE_CHECKING:
    from dpdt.methods.dpdt import Dpdt


def engine(method: Dpdt, job: Job) -> Decoupled:
    """The engine. Its state for every auxiliary is checked against the free memory first."""
    recipe, train = job.plan.recipe, job.plan.training.train
    assert recipe is not None
    here = min(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), job.world.size)  # on this machine
    needed = method.state_size(job.plan.problem, train) * here // job.world.size
    free = available()
    if free is not None and needed > free:
        raise InputError(
            f"method.auxiliaries: {recipe.auxiliaries} auxiliaries that remember "
            f"{job.plan.problem.size:,} parameters need {gigabytes(needed)} of memory, found "
            f'{gigabytes(free)} free; give fewer, a narrower model, or memory = "shared"'
        )
    return Decoupled(
        job.model,
        job.loss,
        recipe,
        granularity=method.granularity,
        noise=job.noise,
        seed=job.seed,
        diagnose=job.diagnose,
        expected=max(1, round(train.batch_size / recipe.auxiliaries)),
        world=job.world,
    )
