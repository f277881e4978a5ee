"""Whether the rule for networks is better off if the shared multiplier is not clipped.

    python benchmarks/multiplier.py run      problems on training parts; resumes
    python benchmarks/multiplier.py table    means of both, and where they differ most

The problems are those that benchmarks/rates.py chooses on, after some wide networks. Each is
trained at rates around the rule's, with the clip of Algorithm 1 and without. MNIST and
Fashion-MNIST are found as the package finds them (DPDT_DATA). Results are JSON lines in
benchmarks/out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rates import EPSILONS, OUT, Case, cases, model_of, noise_of, parts, rows_of, steps_of
from simulator import simulate

from dpdt.methods import rate

FACTORS = (0.6, 1.0, 1.6)  # times the rate of the rule
WIDE = [
    Case("fashion-mnist", (512,), 10_000, 512, 5),
    Case("mnist", (256,), 6_000, 250, 5),
    Case("fashion-mnist/2", (512,), 10_000, 128, 2),
]


def run(case: Case) -> list[dict[str, Any]]:
    """A row for every ε: accuracies at all factors, clipped and not clipped."""
    own, held = parts(case.data, case.examples, reported=False)
    noises, steps, found = [], steps_of(case), []
    for epsilon in EPSILONS:
        noises.append(noise_of(case.examples, case.batch, case.epochs, epsilon))
    each = 2 * len(FACTORS)
    for seed in range(case.seeds):
        model = model_of(case, *own, seed)
        shown = rate.typical(own[0] if "*" in case.data else None, own, model)
        reach = rate.reach_of(model, shown, grown=rate.GROWN)
        ruled = [rate.fitting(noise, steps, reach, linear=False) for noise in noises]
        nets, weights = simulate(
            model, own, batch=case.batch, steps=steps,
            lr=torch.tensor([f * lr for lr in ruled for _ in range(2) for f in FACTORS]),
            noise=torch.tensor(noises).repeat_interleave(each), seed=seed,
            bounded=torch.tensor([True, False]).repeat_interleave(len(FACTORS)).repeat(len(noises)),
        )  # fmt: skip
        found.append(nets.accuracy(weights, *held))
    size = sum(p.numel() for p in model.parameters())
    mean = np.array(found).mean(0).reshape(len(EPSILONS), 2, -1).round(4)
    return [
        {
            "case": case.name, "epsilon": epsilon, "parameters": size,
            "noise": noise * size**0.5, "clipped": row[0].tolist(), "free": row[1].tolist(),
        }
        for epsilon, noise, row in zip(EPSILONS, noises, mean, strict=True)
    ]  # fmt: skip


def collect(path: Path) -> None:
    """Run what has not been run yet."""
    path.parent.mkdir(exist_ok=True)
    done = {row["case"] for row in rows_of(path)}
    for case in [*WIDE, *cases(reported=False)]:
        if case.name not in done:
            rows = run(case)
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(case.name, *(f"{r['clipped']} {r['free']};" for r in rows), flush=True)


def table(path: Path) -> None:
    rows = rows_of(path)
    print(len(rows), "rows")
    for key in ("clipped", "free"):
        means = np.array([r[key] for r in rows]).mean(0)
        print(key, *(f"{f} × the rule: {m:.4f}" for f, m in zip(FACTORS, means, strict=True)))
    change = [(r["free"][1] - r["clipped"][1], r["case"], r["epsilon"]) for r in rows]
    print(f"at the rule: {np.mean([c[0] for c in change]):+.4f} in the mean")
    for gain, case, epsilon in [*sorted(change)[:5], *sorted(change)[-5:]]:
        print(f"{gain:+.4f} {case} ε = {epsilon:g}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = OUT / "multiplier.jsonl"
    match sys.argv[1:]:
        case ["run"]:
            collect(found)
        case ["table"]:
            table(found)
