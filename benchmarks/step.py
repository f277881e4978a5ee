"""Time of one training step, as a ratio to plain SGD on the same model and batch.

All methods run in one process and take turns, so that whatever else the machine does hits them
alike. Each round gives one ratio a method; the median over rounds is reported.

    make bench            or    python benchmarks/step.py [--rounds N] [--small]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.algorithm.recipe import Recipe
from dpdt.models.networks import ResNet18
from dpdt.training.loop import prepare

OUT = Path(__file__).parent / "out" / "step.json"


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, (x, y)).backward()
        optimizer.step()

    return step


def naive(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, auxiliaries: int
) -> Callable[[], None]:
    """Only the gradients of the micro-batches, one after the other: what to improve on."""
    parameters = list(model.parameters())
    chunks = list(zip(x.chunk(auxiliaries), y.chunk(auxiliaries), strict=True))

    def step() -> None:
        for micro in chunks:
            torch.autograd.grad(loss_of(model, micro), parameters)

    return step


def dpdt(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, auxiliaries: int, memory: str
) -> Callable[[], None]:
    blocks = Layout(model).count
    recipe = Recipe(
        auxiliaries=auxiliaries,
        clip=(0.004,) * blocks,
        noise=(0.0045,) * blocks,
        lr=1e-4,
        penalty=(10.0,),
        memory=memory,
        preconditioner=Preconditioner(name="rmsprop", decay=0.99),
        weight_decay=5e-5,
    )
    engine = Decoupled(model, loss_of, recipe)
    sizes = (len(x) // auxiliaries,) * (auxiliaries - 1)
    sizes += (len(x) - sum(sizes),)

    def step() -> None:
        batch = Batch(step=engine.steps, epoch=0, data=(x, y), sizes=sizes)
        engine.step(batch, recipe.at(0))

    return step


def dpsgd(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """DP-SGD as a method of dpdt; Opacus is its rival."""
    prepared, _ = prepare(
        model, (x, y), method="dpsgd", clip=1.0, noise=1.0, lr=1e-4, momentum=0.0,
        batch_size=len(x),
    )  # fmt: skip
    engine, setting = prepared.engine, prepared.plan.at(0)
    sizes, keys = (1,) * len(x), tuple(range(len(x)))

    def step() -> None:
        number = engine.steps
        batch = Batch(step=number, epoch=0, data=(x, y), sizes=sizes, keys=keys, fixed=False)
        engine.step(batch, setting)

    return step


def opacus(model: nn.Module, x: torch.Tensor, y: torch.Tensor, mode: str) -> Callable[[], None]:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **({"criterion": criterion} if mode == "ghost" else {}),
    )
    private, optimizer = made[0], made[1]
    if mode == "ghost":
        criterion = made[2]

    def step() -> None:
        criterion(private(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()  # lets go of the gradient of every example

    return step


def resident_mb() -> float:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mb(step: Callable[[], None]) -> float:
    """The most memory the process held during a step, over what it held before."""
    before, peak, stop = resident_mb(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.005):
            peak = max(peak, resident_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    stop.set()
    watcher.join()
    return max(0.0, peak - before)


def case(
    width: float, batch: int, auxiliaries: int, rounds: int, rivals: bool
) -> dict[str, object]:
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        "plain": lambda: plain(ResNet18(width=width), x, y),
        "naive-gradients": lambda: naive(ResNet18(width=width), x, y, auxiliaries),
        "dpdt": lambda: dpdt(ResNet18(width=width), x, y, auxiliaries, "auxiliary"),
        "dpdt-shared": lambda: dpdt(ResNet18(width=width), x, y, auxiliaries, "shared"),
    }
    if rivals:
        makers["dpsgd"] = lambda: dpsgd(ResNet18(width=width), x, y)
        for mode in ("hooks", "functorch", "ghost"):
            makers[f"opacus-{mode}"] = lambda m=mode: opacus(ResNet18(width=width), x, y, m)
    steps, memory = {}, {}
    for name, make in makers.items():
        steps[name] = make()
        steps[name]()  # the first step allocates and learns
        memory[name] = round(peak_mb(steps[name]))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    ratio = {
        name: statistics.median(t / p for t, p in zip(times, seconds["plain"], strict=True))
        for name, times in seconds.items()
        if name != "plain"
    }
    result = {
        "model": f"resnet18 × {width:g}",
        "batch": batch,
        "auxiliaries": auxiliaries,
        "seconds": {n: round(statistics.median(t), 4) for n, t in seconds.items()},
        "ratio": {n: round(r, 3) for n, r in ratio.items()},
        "peak_memory_mb": memory,
    }
    shown = ", ".join(f"{n} {r:.2f}" for n, r in ratio.items())
    print(
        f"{result['model']}, batch {batch}, K = {auxiliaries}: ratio to plain SGD: {shown}",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="only the quarter-width case")
    parser.add_argument("--no-rivals", action="store_true", help="leave DP-SGD and Opacus out")
    options = parser.parse_args()
    cases = [(0.25, 240, 40)] if options.small else [(0.25, 240, 40), (1.0, 250, 4)]
    OUT.parent.mkdir(exist_ok=True)
    results = []
    for width, batch, auxiliaries in cases:
        rounds = options.rounds if width < 1 else max(1, options.rounds // 2)  # these take minutes
        results.append(case(width, batch, auxiliaries, rounds, not options.no_rivals))
        OUT.write_text(json.dumps({"cases": results, "threads": torch.get_num_threads()}, indent=1))
    print(f"wrote {OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT}")


if __name__ == "__main__":
    main()
