"""Throughput of two ranks with one thread each, as a ratio to one such rank on the same batch.

The two ranks are two processes on this machine, which meet on loopback. One of them also takes the
steps of a run alone. And both take steps of runs of their own at the same time, each on half of the
batch: these share nothing but the machine, so they are the most that two ranks can reach on it
(`ceiling`). All take turns, so that whatever else the machine does hits them alike. Each round
gives one ratio a case; the median over rounds is reported, with quartiles.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py [--case NAME] [--rounds N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
import warnings
from collections.abc import Sequence
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


def steps_of(case: Case, world: World, number: int, share: int = 1) -> Any:
    """A run on one part in `share` of the batch that is ready, and what takes its next step."""
    torch.manual_seed(0)
    batch, auxiliaries = case.batch // share, case.auxiliaries // share
    step, loader = prepare(
        case.model(), case.data(batch), loss=loss_of, world=world, epochs=number,
        batch_size=batch, auxiliaries=auxiliaries or "per-example", memory="shared",
        sampling="partition", lr=1e-3, penalty=1.0, clip=1.0, noise=1.0,
        preconditioner="identity", averaging=0.0,
    )  # fmt: skip
    batches = iter(loader)
    return lambda: step(next(batches))


def work(rank: int, port: int, names: Sequence[str], rounds: int, steps: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    found = []
    for case in (CASES[name] for name in names):
        number = rounds * steps + 1
        runs = {"two": steps_of(case, World.join(), number)}
        runs["ceiling"] = steps_of(case, World(), number, RANKS)
        if rank == 0:
            runs["one"] = steps_of(case, World(), number)
        for run in runs.values():
            run()  # the first step finds out how to compute
        times: dict[str, list[float]] = {name: [] for name in ("one", "two", "ceiling")}
        for _ in range(rounds):
            for name, taken in times.items():
                dist.barrier()
                began = time.perf_counter()
                for _ in range(steps if name in runs else 0):
                    runs[name]()
                dist.barrier()  # both are done
                taken.append(time.perf_counter() - began)
        if rank == 0:
            ratios = {
                name: sorted(a / b for a, b in zip(times["one"], times[name], strict=True))
                for name in ("two", "ceiling")
            }
            middle = {name: statistics.median(r) for name, r in ratios.items()}
            found.append(
                {
                    "model": case.name,
                    "batch": case.batch,
                    "auxiliaries": case.auxiliaries or case.batch,
                    "ranks": RANKS,
                    "seconds": {n: statistics.median(t) / steps for n, t in times.items()},
                    "throughput": middle["two"],
                    "ceiling": middle["ceiling"],
                    "quartiles": {
                        n: [r[len(r) // 4], r[(3 * len(r)) // 4]] for n, r in ratios.items()
                    },
                }
            )
    if rank == 0:
        text = json.dumps({"cases": found, "load": os.getloadavg()[0]}, indent=2)
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(text + "\n")
        print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=NAMES, help="default: all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port, given.case or NAMES, given.rounds, given.steps), nprocs=RANKS)


if __name__ == "__main__":
    main()
