"""What is said of a run's memory before it begins."""

from __future__ import annotations

import sys

from dpdt.config import Config, problem_of
from dpdt.fields import AUTO
from dpdt.methods import bands
from dpdt.methods.plan import Plan
from dpdt.ram import gigabytes

NOTABLE = 100_000_000  # bytes


def say_size(config: Config, plan: Plan) -> None:
    """Say how much memory the state takes, if it is much, and what was chosen for the noise."""
    number, earlier = plan.training.method.noise_bands, bands.memory(plan)
    if earlier and (config.method.noise_bands == AUTO or earlier >= NOTABLE):
        print(
            f"noise is correlated over {number} steps; {gigabytes(earlier)} of earlier noise "
            "are kept",
            file=sys.stderr,
        )
    elif config.method.noise_bands == AUTO:
        print("noise is independent over steps, which is best here", file=sys.stderr)
    problem = problem_of(config)
    size = config.method.state_size(problem, config.train)
    if size >= NOTABLE:
        print(
            f"state of the auxiliaries with {problem.size:,} parameters: {gigabytes(size)}",
            file=sys.stderr,
        )
