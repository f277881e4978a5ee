"""Throughput of two ranks with one thread each, as a ratio to one such rank on the same batch.

The two ranks are two processes on this machine, which meet on loopback. One of them also takes the
steps of a run alone. Both take turns, so that whatever else the machine does hits them alike. Each
round gives one ratio a case; the median over rounds is reported. On a machine with fewer free cores
than ranks the ratio says more about the machine than about the library.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py [--rounds N] [--steps N] [--small]
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
from torch import nn
from torch.nn import functional as F

from dpdt.distributed.world import World
from dpdt.models.networks import ResNet18
from dpdt.training.loop import prepare

OUT = Path(__file__).parent / "out" / "ranks.json"
RANKS = 2


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def cases(small: bool) -> list[dict[str, Any]]:
    width = 0.125 if small else 0.25
    return [
        {
            "model": f"resnet18 ×{width:g}",
            "width": width,
            "batch": 64,
            "auxiliaries": "per-example",
        },
        {"model": f"resnet18 ×{width:g}", "width": width, "batch": 240, "auxiliaries": 40},
    ]


def steps_of(case: dict[str, Any], world: World, number: int) -> Any:
    """A run that is ready, and an iterator over its steps."""
    torch.manual_seed(0)
    model = ResNet18(classes=10, width=case["width"])
    x, y = torch.randn(case["batch"], 3, 32, 32), torch.randint(0, 10, (case["batch"],))
    step, loader = prepare(
        model, (x, y), loss=loss_of, world=world, epochs=number, batch_size=case["batch"],
        auxiliaries=case["auxiliaries"], memory="shared", sampling="partition", lr=1e-3,
        penalty=1.0, clip=1.0, noise=1.0, preconditioner="identity", averaging=0.0,
    )  # fmt: skip
    batches = iter(loader)
    return lambda: step(next(batches))


def work(rank: int, port: int, rounds: int, steps: int, small: bool) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    found = []
    for case in cases(small):
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
                    **{k: v for k, v in case.items() if k != "width"},
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
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port, given.rounds, given.steps, given.small), nprocs=RANKS)


if __name__ == "__main__":
    main()
