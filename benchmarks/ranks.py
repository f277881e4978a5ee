"""Throughput of two ranks with one thread each, as a ratio to one such rank on the same batch.

The two ranks are two processes on this machine, which meet on loopback. One of them also takes the
steps of a run alone. Both take turns, so that whatever else the machine does hits them alike. Each
round gives one ratio a case; the median over rounds is reported. On a machine with fewer free cores
than ranks the ratio says more about the machine than about the library.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py [--rounds N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from step import CASES, Case, loss_of

from dpdt.distributed.world import World
from dpdt.training.loop import prepare

OUT = Path(__file__).parent / "out" / "ranks.json"
RANKS = 2


NAMES = ("resnet", "resnet-40", "minilm", "minilm-16")


def steps_of(case: Case, world: World, number: int) -> Any:
    """A run that is ready, and what takes its next step."""
    torch.manual_seed(0)
    step, loader = prepare(
        case.model(), case.data(case.batch), loss=loss_of, world=world, epochs=number,
        batch_size=case.batch, auxiliaries=case.auxiliaries or "per-example", memory="shared",
        sampling="partition", lr=1e-3, penalty=1.0, clip=1.0, noise=1.0,
        preconditioner="identity", averaging=0.0,
    )  # fmt: skip
    batches = iter(loader)
    return lambda: step(next(batches))


def work(rank: int, port: int, rounds: int, steps: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    found = []
    for case in (CASES[name] for name in NAMES):
        number = rounds * steps + 1
        together = steps_of(case, World.join(), number)
        alone = steps_of(case, World(), number) if rank == 0 else None
        together()  # the first step finds out how to compute
        if alone is not None:
            alone()
        times: dict[str, list[float]] = {"one": [], "two": []}
        for _ in range(rounds):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(steps):
                together()
            times["two"].append(time.perf_counter() - began)
            dist.barrier()
            if alone is not None:
                began = time.perf_counter()
                for _ in range(steps):
                    alone()
                times["one"].append(time.perf_counter() - began)
        if rank == 0:
            ratios = [a / b for a, b in zip(times["one"], times["two"], strict=True)]
            found.append(
                {
                    "model": case.name,
                    "batch": case.batch,
                    "auxiliaries": case.auxiliaries or case.batch,
                    "ranks": RANKS,
                    "seconds": {n: statistics.median(t) / steps for n, t in times.items()},
                    "throughput": statistics.median(ratios),
                    "spread": [min(ratios), max(ratios)],
                }
            )
    if rank == 0:
        text = json.dumps({"cases": found, "load": os.getloadavg()[0]}, indent=2)
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(text + "\n")
        print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port, given.rounds, given.steps), nprocs=RANKS)


if __name__ == "__main__":
    main()
