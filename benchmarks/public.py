"""What few public inputs bring a linear model on pixels, on training parts alone.

    python benchmarks/public.py run 0,1        seeds; resumes
    python benchmarks/public.py table

Every case is a data set as it is, or with the mean of every pixel taken off: then centring brings
nothing. `none` has no public inputs. `none, clip by R` has none, and a clip of 0.1·R/√2, with R the
norm of a random input from −1 to 1 with its bias. The others have 270 public inputs. `public` is
the package: inputs have norm 4. `norm 1` is the same with inputs of norm 1 and a clip of 0.1.
`centred` takes the mean of public inputs alone. Lines of JSON are in benchmarks/out/public.jsonl.
No test image is looked at.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from dpdt import data, train
from dpdt.methods.dpdt.whitening import NORM, Whitening
from dpdt.models.metrics import accuracy

OUT = Path(__file__).parent / "out" / "public.jsonl"
PUBLIC, HELD, DELTA = 270, 6_000, 1e-5
EPOCHS, RATE = 40, 0.1  # of the examples in a mini-batch
WAYS = ("none", "none, clip by R", "norm 1", "centred", "public")
WHITENED = Whitening.of


@dataclass(frozen=True)
class Case:
    """A data set, whether it is centred before, its classes (none: all), its size, and ε."""

    data: str
    centred: bool
    classes: tuple[int, ...]
    examples: int
    epsilon: float


SETS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("fashion-mnist", ()),
    ("mnist", ()),
    ("fashion-mnist", (0, 6)),
)
CASES = [
    Case(name, centred, classes, 4_000, epsilon)
    for epsilon in (1.0, 8.0)
    for name, classes in SETS
    for centred in (False, True)
]


@lru_cache(1)
def parts(case: Case) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Training, held-out and public examples, all of the training part."""
    x, y = data.load(case.data).train
    x = x.flatten(1)
    if case.classes:
        chosen = torch.tensor(case.classes)
        rows = torch.isin(y, chosen)
        x, y = x[rows], torch.searchsorted(chosen, y[rows])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    x, y = x[order], y[order]
    if case.centred:
        x = x - x.mean(0)
    n = case.examples
    held = slice(n, n + min(HELD, len(x) - n - 1_000))
    return (x[:n], y[:n]), (x[held], y[held]), x[held.stop :]


def _centring(cls: type[Whitening], public: Tensor) -> Whitening:
    found = WHITENED(public)
    found = replace(found, factors=torch.ones_like(found.factors), scale=1.0)
    length = float(torch.linalg.vector_norm(found.apply(public.flatten(1)), dim=1).mean())
    return replace(found, scale=NORM / length)


def _short(cls: type[Whitening], public: Tensor) -> Whitening:
    found = WHITENED(public)
    return replace(found, scale=found.scale / NORM)


def run(case: Case, way: str, seed: int) -> dict[str, Any]:
    own, held, others = parts(case)
    width = own[0].shape[1]
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed + 100))
    public = None if way.startswith("none") else others[order[:PUBLIC]]
    by_reach = 0.1 * math.sqrt((width / 3.0 + 1.0) / 2.0)
    clip: Any = {"none, clip by R": by_reach, "norm 1": 0.1}.get(way, "auto")
    other = {"norm 1": classmethod(_short), "centred": classmethod(_centring)}
    Whitening.of = other.get(way, WHITENED)
    torch.manual_seed(seed)
    model = nn.Linear(width, len(case.classes) or 10)
    train(
        model, own, public=public, clip=clip, epsilon=case.epsilon, delta=DELTA, epochs=EPOCHS,
        batch_size=round(RATE * case.examples), seed=seed,
    )  # fmt: skip
    return {**_key(case, way, seed), "accuracy": round(accuracy(model, held), 4)}


def _key(case: Case, way: str, seed: int) -> dict[str, Any]:
    return {**asdict(case), "classes": list(case.classes), "way": way, "seed": seed}


def _done() -> list[dict[str, Any]]:
    return [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []


def todo(seeds: list[int]) -> Iterator[tuple[Case, str, int]]:
    """Runs that are not there yet."""
    there = [{k: v for k, v in row.items() if k != "accuracy"} for row in _done()]
    for seed in seeds:
        for case in CASES:
            for way in WAYS:
                if _key(case, way, seed) not in there:
                    yield case, way, seed


def table() -> None:
    rows = _done()
    print("| data | classes | ε |" + "".join(f" {way} |" for way in WAYS) + " seeds |")
    print("|---|---|---|" + "---|" * (len(WAYS) + 1))
    for case in CASES:
        cells, seeds = [], 0
        for way in WAYS:
            found = [r["accuracy"] for r in rows if _key(case, way, r["seed"]).items() <= r.items()]
            seeds = len(found)
            cells.append(f"{mean(found):.3f}" if found else "–")
        name = case.data + (", centred before" if case.centred else "")
        facts = [name, f"{len(case.classes) or 10}", f"{case.epsilon:g}", *cells, f"{seeds}"]
        print("| " + " | ".join(facts) + " |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    OUT.parent.mkdir(exist_ok=True)
    if sys.argv[1] == "table":
        table()
    else:
        for case, way, seed in todo([int(s) for s in sys.argv[2].split(",")]):
            row = run(case, way, seed)
            with OUT.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
