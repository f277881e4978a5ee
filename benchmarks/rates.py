"""How the learning-rate rule for networks was chosen: small problems, a grid of rates for each.

    python benchmarks/rates.py check      the simulator against the package, without noise
    python benchmarks/rates.py choose     problems on training parts; resumes
    python benchmarks/rates.py fit        the formula that loses least on them
    python benchmarks/rates.py report     problems that were not touched; resumes
    python benchmarks/rates.py table      what the rule loses on each, against the best of the grid

MNIST and Fashion-MNIST are found as the package finds them (DPDT_DATA). Results are JSON lines in
benchmarks/out. A line is one problem at one ε: facts, rates η·R, and the accuracy of each.

Training is simulated (simulator.py), which is some ten times as fast as the package.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from simulator import simulate
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt import config, data
from dpdt.methods import rate
from dpdt.methods.plan import decide
from dpdt.methods.problem import Problem
from dpdt.models.loss import default_loss
from dpdt.models.networks import cnn, mlp
from dpdt.training.loop import train

OUT = Path(__file__).parent / "out"
GRID = [0.04 * 2.5**k for k in range(8)]  # of η·R
EPSILONS = (1.0, 3.0, 8.0)
HELD = 4_000  # examples that accuracy is measured on, at most

Part = tuple[Tensor, Tensor]
Law = tuple[float, float, float, str]  # exponents of σ, T and R, and which R


@dataclass(frozen=True)
class Case:
    """A problem: data by name, a network, and how long it is trained."""

    data: str
    hidden: tuple[int, ...]  # of an MLP; () is the small CNN
    examples: int
    batch: int
    epochs: int
    seeds: int = 1

    @property
    def name(self) -> str:
        layers = "-".join(map(str, self.hidden)) or "cnn"
        return f"{self.data} {layers} n{self.examples} b{self.batch} e{self.epochs}"


# data


def _generated(name: str, seed: int) -> Part:
    """Tables from generators, standardised as tables usually are."""
    rows, draw = 30_000, np.random.default_rng(seed)
    kind, width = name.split("-")[0], int(name.split("-")[1])
    if kind == "friedman":  # above or below the median of Friedman's function
        x, value = datasets.make_friedman1(rows, width, noise=1.0, random_state=seed)
        y = value > np.median(value)
    elif kind == "cover":  # as forest cover: ten numbers, the rest one of several; rare classes
        numbers = draw.normal(size=(rows, 10))
        kinds = np.eye(width - 10)[draw.integers(0, width - 10, rows)]
        x = np.concatenate([numbers, kinds], 1)
        hidden = np.tanh(x @ draw.normal(size=(width, 16)))
        y = (hidden @ draw.normal(size=(16, 7)) + np.linspace(0, 3, 7)).argmax(1)
    elif kind == "teacher":  # labels of a random network, some of them wrong
        x = draw.normal(size=(rows, width)) @ draw.normal(size=(width, width)) / math.sqrt(width)
        hidden = np.tanh(x @ draw.normal(size=(width, 12)))
        y = hidden @ draw.normal(size=12) + 0.5 * draw.normal(size=rows) > 0.7
    else:
        classes = int(name.split("-")[2])
        x, y = datasets.make_classification(
            rows, width, n_informative=width // 2, n_redundant=width // 4, n_classes=classes,
            n_clusters_per_class=2, flip_y=0.1, class_sep=1.0, random_state=seed,
        )  # fmt: skip
    x = (x - x.mean(0)) / (x.std(0) + 1e-9)
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()


@cache
def parts(name: str, examples: int, reported: bool) -> tuple[Part, Part]:
    """What is trained on, and what accuracy is measured on.

    To choose, both are from the training part. To report, the latter is the test part of images,
    and tables are drawn anew from another seed. "name*4" has inputs that are four times as large.
    """
    if "*" in name:
        name, times = name.split("*")
        return tuple((x * float(times), y) for x, y in parts(name, examples, reported))
    if name.split("-")[0] in ("friedman", "cover", "teacher", "classes"):
        x, y = _generated(name, 1 if reported else 0)
        return (x[:examples], y[:examples]), (x[examples:][:HELD], y[examples:][:HELD])
    whole = name.removesuffix("/2")
    found = data.load(whole)
    x, y = found.train
    test = found.test if reported else (x[examples:], y[examples:])
    if reported and whole != "digits":  # images that were not chosen on
        x, y = x[20_000:], y[20_000:]
    pairs = [(x[:examples], y[:examples]), (test[0][: HELD * 3], test[1][: HELD * 3])]
    if name.endswith("/2"):
        pairs = [(F.avg_pool2d(a, 2), b) for a, b in pairs]
    if not reported:
        pairs[1] = (pairs[1][0][:HELD], pairs[1][1][:HELD])
    return pairs[0], pairs[1]


def model_of(case: Case, x: Tensor, y: Tensor, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    classes = int(y.max()) + 1
    if not case.hidden:
        return cnn(x.shape[1], tuple(x.shape[2:]), classes)
    return mlp(x[0].numel(), case.hidden, classes)


# cases


def steps_of(case: Case) -> int:
    return case.epochs * max(1, round(case.examples / case.batch))


@cache
def noise_of(examples: int, batch: int, epochs: int, epsilon: float) -> float:
    """σ of the mean contribution, as the package calibrates it."""
    told = config.training(epsilon=epsilon, batch_size=batch, epochs=epochs)
    like = torch.zeros(examples, 2), torch.zeros(examples).long()
    plan = decide(told, Problem.of(nn.Linear(2, 2), like, None, default_loss))
    assert plan.recipe is not None
    return plan.recipe.noise[0]


def before(noise: float, steps: int, reach: float) -> float:
    """η of the rule that was there before, with the reach as it is at the start."""
    allowed = 2 * rate.FORGOTTEN**2 / (noise * math.sqrt(steps))
    return min(5.0, max(0.375 * allowed, 200.0 / steps)) / reach


def run(case: Case, reported: bool) -> Iterator[dict[str, Any]]:
    """A row for every ε: the grid, and to report also the rule and the one before."""
    own, held = parts(case.data, case.examples, reported)
    noises = [noise_of(case.examples, case.batch, case.epochs, e) for e in EPSILONS]
    steps, found, reaches, grown = steps_of(case), [], [], []
    for seed in range(case.seeds):
        model = model_of(case, *own, seed)
        reaches.append(rate.reach_of(model, rate.typical(None, own, model)))
        shown = rate.typical(own[0] if "*" in case.data else None, own, model)
        grown.append(rate.reach_of(model, shown, grown=rate.GROWN))
        lr = []
        for s in noises:
            lr += [r / reaches[-1] for r in GRID]
            if reported:
                lr.append(rate.fitting(s, steps, grown[-1], linear=False))
                lr.append(before(s, steps, reaches[-1]))
        repeated = torch.tensor(noises).repeat_interleave(len(lr) // len(noises))
        nets, weights = simulate(
            model, own, batch=case.batch, steps=steps, lr=torch.tensor(lr), noise=repeated,
            seed=seed + 100 * reported,
        )  # fmt: skip
        found.append(nets.accuracy(weights, *held))
    mean = np.array(found).mean(0).reshape(len(EPSILONS), -1)
    for epsilon, noise, row in zip(EPSILONS, noises, mean.round(4).tolist(), strict=True):
        ruled = {"rule": row[len(GRID)], "before": row[len(GRID) + 1]} if reported else {}
        yield {
            "case": case.name,
            **asdict(case),
            "epsilon": epsilon,
            "noise": noise,
            "steps": steps,
            "parameters": sum(p.numel() for p in model.parameters()),
            "reach": float(np.mean(reaches)),
            "grown": float(np.mean(grown)),
            "accuracy": row[: len(GRID)],
            **ruled,
        }


def cases(reported: bool) -> list[Case]:
    """Problems to choose on, and others to report on."""
    if reported:
        return [
            Case("teacher-23", (64,), 24_000, 2_400, 30),  # the shape that the last rule lost on
            Case("friedman-23", (64,), 24_000, 2_400, 30),
            Case("digits", (128,), 1_437, 144, 40, 2),
            Case("teacher-30", (48, 48, 48), 8_000, 256, 12),
            Case("classes-40-3", (100,), 10_000, 500, 15),
            Case("fashion-mnist/2", (100, 100), 5_000, 250, 8),
            Case("mnist/2", (200,), 5_000, 250, 10),
            Case("cover-54", (128, 64), 10_000, 500, 10),
            Case("mnist", (), 2_000, 200, 10),
            Case("fashion-mnist", (), 2_000, 200, 10),
        ]
    long, many, few = (2_000, 128, 30), (6_000, 256, 10), (6_000, 1_000, 40)
    wide, huge, short = (6_000, 512, 20), (20_000, 2_000, 40), (20_000, 500, 5)
    longest, small, all_ = (4_000, 100, 40), (1_000, 100, 20), (1_000, 250, 60)
    chosen = [  # in an order in which any beginning is a fair mixture
        ("digits", (128,), small),
        ("friedman-20", (64,), huge),
        ("mnist/2", (32,), many),
        ("classes-20-2", (32,), long),
        ("teacher-25", (64, 64), many),
        ("fashion-mnist/2", (64,), wide),
        ("cover-44", (64,), short),
        ("digits", (64, 64, 64), small),
        ("classes-50-5", (128,), short),
        ("teacher-25", (32,), longest),
        ("fashion-mnist/2", (32, 32), many),
        ("digits", (512,), small),
        ("friedman-50", (64,), few),
        ("mnist/2", (64,), long),
        ("classes-20-2", (64,), huge),
        ("teacher-40", (64, 64, 64), short),
        ("digits", (64,), all_),
        ("fashion-mnist/2", (32,), longest),
        ("cover-44", (128,), few),
        ("friedman-20", (256,), short),
        ("mnist/2", (64, 64, 64), many),
        ("classes-30-2", (64,), longest),
        ("digits", (128, 128), all_),
        ("teacher-25", (64,), huge),
        ("mnist", (), (3_000, 150, 5)),
        ("friedman-50", (512,), many),
        ("mnist/2", (64,), few),
        ("classes-50-5", (64, 64, 64), few),
        ("fashion-mnist", (), (2_500, 250, 10)),
        ("friedman-20", (32, 32), long),
        ("mnist/2", (256,), long),
        ("cover-44", (64, 64), huge),
        ("teacher-40", (512,), many),
        ("fashion-mnist/2", (64, 64, 64), wide),
        ("mnist/2", (32, 32), longest),
        ("classes-20-2", (128, 128), many),
        ("teacher-25*5", (64, 64), many),
        ("teacher-25*0.2", (64, 64), many),
        ("mnist/2*5", (32,), many),
        ("mnist/2*0.2", (32,), many),
        ("classes-20-2*5", (32,), long),
        ("classes-20-2*0.2", (32,), long),
    ]
    return [Case(d, h, *t, 2 if d == "digits" else 1) for d, h, t in chosen]


def collect(reported: bool, path: Path) -> None:
    """Run what has not been run yet."""
    path.parent.mkdir(exist_ok=True)
    done = {row["case"] for row in rows_of(path)}
    for case in cases(reported):
        if case.name not in done:
            rows = list(run(case, reported))
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(case.name, *(max(row["accuracy"]) for row in rows), flush=True)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def check() -> None:
    """All examples, hardly any noise: the simulator must leave the package's weights."""
    for case in (Case("teacher-25", (16, 8), 200, 200, 30), Case("mnist", (), 100, 100, 10)):
        own, _ = parts(case.data, case.examples, False)
        model, twin = model_of(case, *own, 0), model_of(case, *own, 0)
        start = torch.cat([p.detach().flatten() for p in model.parameters()])
        train(
            model, own, lr=0.7, penalty=0.1 / 0.7, noise=1e-9, epochs=case.epochs,
            batch_size=case.batch, preconditioner="identity", noise_seed=0,
        )  # fmt: skip
        theirs = torch.cat([p.detach().flatten() for p in model.parameters()])
        _, mine = simulate(
            twin, own, batch=case.batch, steps=steps_of(case), lr=torch.tensor([0.7]),
            noise=torch.tensor([0.0]), seed=0,
        )  # fmt: skip
        apart = float((mine[0] - theirs).norm() / (theirs - start).norm())
        print(f"{case.name}: the weights are {apart:.1e} apart, as a share of their way")


def lost(row: dict[str, Any], lr: float) -> float:
    """What a learning rate loses against the best of the grid, by interpolation."""
    return max(row["accuracy"]) - float(
        np.interp(math.log(lr * row["reach"]), np.log(GRID), row["accuracy"])
    )


def fit(rows: list[dict[str, Any]]) -> None:
    """What laws η = c · σ^-a · T^-b · R^-g lose in the mean, each at its best c."""
    near = [(*exponents, "grown") for exponents in product((0.25, 0.5, 0.75), repeat=3)]
    others = [
        (0.5, 0.5, 0.5, "reach"),  # as it is at the start
        (0.5, 0.5, 0.0, "grown"),
        (1.0, 0.5, 1.0, "grown"),  # a fixed amount of noise
        (0.0, 1.0, 1.0, "grown"),  # a fixed way
    ]
    for laws in (near, others):
        for mean, worst, c, (a, b, g, key) in sorted(_best(rows, law) for law in laws)[:8]:
            law = f"σ^-{a} T^-{b} R^-{g} ({key})"
            print(f"{law}: c = {c:.3f}, mean {mean:.4f}, worst {worst:.3f}")
    rule = [lost(r, rate.fitting(r["noise"], r["steps"], r["grown"], linear=False)) for r in rows]
    old = [lost(r, before(r["noise"], r["steps"], r["reach"])) for r in rows]
    for name, values in (("the rule", rule), ("the rule before", old)):
        print(f"{name}: mean {np.mean(values):.4f}, worst {max(values):.3f}; {len(rows)} rows")


def _best(rows: list[dict[str, Any]], law: Law) -> tuple[float, float, float, Law]:
    """Mean and worst loss of a law at the c that loses least, and that c."""
    a, b, g, key = law
    logs = [
        a * math.log(r["noise"]) + b * math.log(r["steps"]) + g * math.log(r[key]) for r in rows
    ]
    found = []
    for c in np.geomspace(1e-3, 1e3, 241).tolist():
        values = [lost(r, c * math.exp(-x)) for r, x in zip(rows, logs, strict=True)]
        found.append((float(np.mean(values)), max(values), c, law))
    return min(found)


def table(rows: list[dict[str, Any]]) -> None:
    """What the rule and the one before reach, against the best of the grid."""
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        cells = [" / ".join(f"{v:.3f}" for v in values) for values in (
            [max(r["accuracy"]) for r in own], [r["rule"] for r in own], [r["before"] for r in own]
        )]  # fmt: skip
        print(f"| {name} | " + " | ".join(cells) + " |")
    for key in ("rule", "before"):
        losses = [max(row["accuracy"]) - row[key] for row in rows]
        print(f"{key}: loses {np.mean(losses):.4f} in the mean, {max(losses):.4f} at worst")


if __name__ == "__main__":
    torch.set_num_threads(1)
    choose, report = OUT / "rates-choose.jsonl", OUT / "rates-report.jsonl"
    match sys.argv[1:]:
        case ["check"]:
            check()
        case ["choose"]:
            collect(False, choose)
        case ["fit"]:
            fit(rows_of(choose))
        case ["report"]:
            collect(True, report)
        case ["table"]:
            table(rows_of(report))
        case _:
            sys.exit(__doc__)
