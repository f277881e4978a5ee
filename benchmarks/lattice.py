"""What rounding to the lattice costs: CPU time of steps with it, as a ratio to steps without.

Both take turns in one process, on one thread. Without a lattice noise would leak through its low
bits (docs/noise.md): that way is for this measurement alone.

    python benchmarks/lattice.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import step as steps
import torch
from torch import Tensor

from dpdt.algorithm import publish
from dpdt.mechanism import perturbed


def unrounded(total: Tensor, *, divisor: int, noise: Any, spacing: Any, source: Any) -> Tensor:
    z = torch.from_numpy(source.gaussian(len(total)))
    return z.mul_(noise).add_(total / divisor)


def timed(step: steps.Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def ratios(case: steps.Case, rounds: int) -> list[float]:
    step = steps.dpdt(case.model(), case.data(case.batch), case.auxiliaries, "shared")
    found = []
    for _ in range(rounds + 3):
        times = []
        for release in (perturbed, unrounded):
            publish.perturbed = release
            times.append(timed(step))
        found.append(times[0] / times[1])
    return found[3:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name in ("mlp", "cnn"):
        found = statistics.quantiles(ratios(steps.CASES[name], rounds), n=4)
        print(json.dumps({"case": steps.CASES[name].name, "ratio quartiles": found}))


if __name__ == "__main__":
    main()
