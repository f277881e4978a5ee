"""Time of one training step, as a ratio to plain SGD on the same model and batch.

All methods run in one process and take turns, so that whatever else the machine does hits them
alike. Each round gives one ratio a method; the median over rounds is reported, and the quartiles.

    make bench      or      python benchmarks/step.py [--case NAME] [--rounds N] [--threads N]

With --profile it says instead where the time of a step goes: torch's operations by their own time,
and the rest, which is Python, numpy and waiting for noise.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Batch, tree_map
from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.algorithm.recipe import Recipe
from dpdt.lattice import on_lattice
from dpdt.models import pretrained
from dpdt.models.classifier import Classifier
from dpdt.models.networks import ResNet18, cnn, mlp
from dpdt.models.settings import ModelSettings
from dpdt.training.loop import prepare

OUT = Path(__file__).parent / "out" / "step.json"
TOKENS = 64
PROFILED = 16  # lines of a profile
Step = Callable[[], None]


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def minilm() -> nn.Module:
    """The architecture of all-MiniLM-L6-v2 with LoRA of rank 16; the weights do not matter here."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    backbone = transformers.BertModel(config, add_pooling_layer=False)
    settings = ModelSettings(name="minilm", trained="lora", lora_rank=16)
    adapted = pretrained._with_lora(backbone, settings)
    return Classifier(adapted, 384, 10, "mean", True, settings)


def images(*shape: int) -> Callable[[int], Any]:
    return lambda number: (torch.randn(number, *shape), torch.randint(0, 10, (number,)))


def texts(number: int, tokens: int = TOKENS) -> Any:
    ids = torch.randint(0, 30000, (number, tokens))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, torch.randint(
        0, 10, (number,)
    )


@dataclass(frozen=True)
class Case:
    """A model, its data, and how a batch of them is split. 0 auxiliaries: one for each example."""

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[int], Any]
    batch: int
    auxiliaries: int = 0


CASES = {
    "head": Case("linear 3969-10", lambda: nn.Linear(3969, 10), images(3969), 2500),
    "mlp": Case("mlp 784-512-10", lambda: mlp(784, (512,), 10), images(784), 512),
    "cnn": Case("small cnn", lambda: cnn(1, (28, 28), 10), images(1, 28, 28), 512),
    "resnet": Case("resnet18 × 0.25", lambda: ResNet18(width=0.25), images(3, 32, 32), 64),
    "minilm": Case("minilm + lora 16", minilm, texts, 32),
    "resnet-40": Case("resnet18 × 0.25", lambda: ResNet18(width=0.25), images(3, 32, 32), 240, 40),
    "resnet-wide": Case("resnet18 × 1", ResNet18, images(3, 32, 32), 250, 4),
    "minilm-16": Case("minilm + lora 16", minilm, texts, 64, 16),
}


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def plain(model: nn.Module, data: Any, micro: int) -> Step:
    """SGD; with `micro`, gradients are accumulated over micro-batches of that size."""
    optimizer = torch.optim.SGD(trained(model), lr=1e-4)
    number = len(data[1])
    parts = [
        tree_map(lambda t, a=a: t[a : a + micro], data) for a in range(0, number, micro or number)
    ] if micro else [data]  # fmt: skip

    def step() -> None:
        optimizer.zero_grad()
        for part in parts:
            (loss_of(model, part) * (len(part[1]) / number)).backward()
        optimizer.step()

    return step


def plain_last(model: nn.Module, data: Any) -> Step:
    """SGD on images whose channels lie side by side, as dpdt lays them out where it is faster."""
    x, y = data
    last = torch.channels_last
    return plain(model.to(memory_format=last), (x.contiguous(memory_format=last), y), 0)


def dpdt(model: nn.Module, data: Any, auxiliaries: int, memory: str) -> Step:
    """Algorithm 1; RMSProp where an auxiliary holds several examples, as in the paper."""
    number = len(data[1])
    few = bool(auxiliaries)
    blocks = Layout(model, "layer" if few else "model").count
    auxiliaries = auxiliaries or number
    recipe = Recipe(
        auxiliaries=auxiliaries,
        clip=(0.004,) * blocks,
        noise=(0.0045,) * blocks,
        lr=1e-4,
        penalty=(10.0,),
        memory=memory,
        preconditioner=Preconditioner(name="rmsprop", decay=0.99) if few else Preconditioner(),
        weight_decay=5e-5,
    )
    engine = Decoupled(
        model, loss_of, recipe, granularity="layer" if few else "model",
        expected=number // auxiliaries,
    )  # fmt: skip
    sizes = (number // auxiliaries,) * (auxiliaries - 1)
    sizes += (number - sum(sizes),)
    setting = on_lattice(recipe.at(0), engine.layout.blocks.blocks, auxiliaries, auxiliaries)

    def step() -> None:
        batch = Batch(step=engine.steps, epoch=0, data=data, sizes=sizes)
        engine.step(batch, setting)

    return step


def dpsgd(model: nn.Module, data: Any) -> Step:
    """DP-SGD as a method of dpdt; Opacus is its rival."""
    number = len(data[1])
    prepared, _ = prepare(
        model, data, loss=loss_of, method="dpsgd", clip=1.0, noise=1.0, lr=1e-4, momentum=0.0,
        batch_size=number,
    )  # fmt: skip
    engine, setting = prepared.engine, prepared.plan.at(0)

    def step() -> None:
        batch = Batch(
            step=engine.steps, epoch=0, data=data, sizes=(1,) * number, keys=tuple(range(number)),
            fixed=False,
        )  # fmt: skip
        engine.step(batch, setting)

    return step


def opacus(model: nn.Module, data: Any, mode: str) -> Step:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    x, y = data
    loader = DataLoader(TensorDataset(y), batch_size=len(y))
    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model.train(),
        optimizer=torch.optim.SGD(trained(model), lr=1e-4),
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


def peak_mb(make: Callable[[], Step]) -> int:
    """The most memory that two steps take over what is held before them, in a process of its own.

    The process begins with what freed memory there is given back, and ends with its answer.
    """
    read, write = os.pipe()
    if os.fork() == 0:
        told = "nan"
        try:
            ctypes.CDLL(None).malloc_trim(0)
            told = str(_peak(make()))
        finally:
            os.write(write, told.encode())
            os._exit(0)
    os.wait()
    return round(float(os.read(read, 100)))


def _peak(step: Step) -> float:
    before, peak, stop = resident_mb(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.002):
            peak = max(peak, resident_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2):
        step()
    stop.set()
    watcher.join()
    return max(0.0, peak - before)


def makers(case: Case, data: Any, rivals: bool) -> dict[str, Callable[[], Step]]:
    """The steps that take turns, by name."""
    made: dict[str, Callable[[], Step]] = {"plain": lambda: plain(case.model(), data, 0)}
    if any(isinstance(m, nn.Conv2d) for m in case.model().modules()):
        made["plain-channels-last"] = lambda: plain_last(case.model(), data)
    if case.auxiliaries:
        micro = case.batch // case.auxiliaries
        made["plain-accumulated"] = lambda: plain(case.model(), data, micro)
        made["dpdt"] = lambda: dpdt(case.model(), data, case.auxiliaries, "auxiliary")
        made["dpdt-shared"] = lambda: dpdt(case.model(), data, case.auxiliaries, "shared")
        return made
    made["dpdt"] = lambda: dpdt(case.model(), data, 0, "shared")
    made["dpsgd"] = lambda: dpsgd(case.model(), data)
    if rivals:
        for mode in ("hooks", "functorch", "ghost"):
            made[f"opacus-{mode}"] = lambda m=mode: opacus(case.model(), data, m)
    return made


def measure(case: Case, rounds: int, rivals: bool) -> dict[str, Any]:
    """Times alone: a process that has forked writes to copies of its pages for a while."""
    data = case.data(case.batch)
    steps: dict[str, Step] = {}
    failed = {}
    for name, make in makers(case, data, rivals).items():
        try:
            step = make()
            step()  # the first step allocates and learns
            step()
        except Exception as error:
            if not name.startswith("opacus"):
                raise
            failed[name] = f"{type(error).__name__}: {error}".split("\n")[0][:160]
            continue
        steps[name] = step
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    ratios = {
        name: sorted(t / p for t, p in zip(times, seconds["plain"], strict=True))
        for name, times in seconds.items()
        if name != "plain"
    }
    result = {
        "model": case.name,
        "batch": case.batch,
        "auxiliaries": case.auxiliaries or case.batch,
        "seconds": {n: round(statistics.median(t), 4) for n, t in seconds.items()},
        "ratio": {n: round(statistics.median(r), 3) for n, r in ratios.items()},
        "quartiles": {
            n: [round(r[len(r) // 4], 3), round(r[(3 * len(r)) // 4], 3)] for n, r in ratios.items()
        },
        "peak_memory_mb": {},  # filled in when everything is timed
        "rounds": rounds,
        "failed": failed,
    }
    shown = ", ".join(f"{n} {statistics.median(r):.2f}" for n, r in ratios.items())
    split = f"K = {case.auxiliaries}" if case.auxiliaries else "per example"
    print(f"{case.name}, batch {case.batch}, {split}: ratio to plain SGD: {shown}", flush=True)
    for name, why in failed.items():
        print(f"  {name} failed: {why}", flush=True)
    return result


def weigh(case: Case, rivals: bool, result: dict[str, Any]) -> None:
    """Fill in the memory of every step that was timed."""
    data = case.data(case.batch)
    for name, make in makers(case, data, rivals).items():
        if name not in result["failed"]:
            result["peak_memory_mb"][name] = peak_mb(make)


def profile(case: Case, rounds: int) -> None:
    """Print what each step of ours takes beside plain SGD, in milliseconds, operation by operation.

    Being watched costs each operation about a microsecond.
    """
    columns = {}
    for name, make in makers(case, case.data(case.batch), rivals=False).items():
        step = make()
        step()
        step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            start = time.perf_counter()
            for _ in range(rounds):
                step()
            whole = 1e3 * (time.perf_counter() - start) / rounds
        own = {e.key: e.self_cpu_time_total / 1e3 / rounds for e in seen.key_averages()}
        columns[name] = {"all": whole, "not torch": max(0.0, whole - sum(own.values())), **own}
    most = {
        op: max(own.get(op, 0.0) for own in columns.values())
        for own in columns.values()
        for op in own
    }
    split = f"K = {case.auxiliaries}" if case.auxiliaries else "per example"
    print(f"\n{case.name}, batch {case.batch}, {split}: ms a step")
    print(f"{'':36}" + "".join(f"{name:>20}" for name in columns))
    for op in sorted(most, key=lambda op: -most[op])[:PROFILED]:
        print(f"{op[:35]:36}" + "".join(f"{own.get(op, 0.0):20.2f}" for own in columns.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="that torch may use; default 1")
    parser.add_argument("--no-rivals", action="store_true", help="leave Opacus out")
    parser.add_argument("--profile", action="store_true", help="say where the time goes instead")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.profile:
        for name in options.case or CASES:
            profile(CASES[name], options.rounds)
        return
    OUT.parent.mkdir(exist_ok=True)
    results = []
    names = options.case or list(CASES)
    for name in names:
        rounds = max(3, options.rounds // 3) if name == "resnet-wide" else options.rounds
        results.append(measure(CASES[name], rounds, not options.no_rivals))
    for name, result in zip(names, results, strict=True):
        weigh(CASES[name], not options.no_rivals, result)
    OUT.write_text(json.dumps({"cases": results, "threads": options.threads}, indent=1))
    print(f"wrote {OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT}")


if __name__ == "__main__":
    main()
