"""What several views of an image bring: the small CNN by the rule, on parts of training sets.

    python benchmarks/views.py cifar10 1,4,8 0,1        data set, numbers of views, seeds

A line of JSON for each run, in benchmarks/out/views.jsonl as well. Runs that are there are left
out. 0 views are images as they are. No test image is looked at.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from dpdt import data, train
from dpdt.models.metrics import accuracy
from dpdt.models.networks import cnn

OUT = Path(__file__).parent / "out" / "views.jsonl"
EXAMPLES, HELD, BATCH, EPOCHS, EPSILON = 4_000, 5_000, 250, 8, 3.0


def run(name: str, views: int, seed: int) -> dict[str, object]:
    x, y = data.load(name).train
    own, held = (x[:EXAMPLES], y[:EXAMPLES]), (x[-HELD:], y[-HELD:])
    torch.manual_seed(seed)
    model = cnn(x.shape[1], tuple(x.shape[2:]), 10)
    start = time.process_time()
    train(
        model, own, epsilon=EPSILON, epochs=EPOCHS, batch_size=BATCH, seed=seed,
        augment=views > 0, views=max(1, views),
    )  # fmt: skip
    taken = round(time.process_time() - start, 1)
    found = round(accuracy(model, held), 4)
    return {"data": name, "views": views, "seed": seed, "accuracy": found, "cpu_seconds": taken}


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, name, views, seeds = sys.argv
    OUT.parent.mkdir(exist_ok=True)
    done = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    keys = {(row["data"], row["views"], row["seed"]) for row in done}
    for seed in map(int, seeds.split(",")):
        for number in map(int, views.split(",")):
            if (name, number, seed) not in keys:
                row = run(name, number, seed)
                with OUT.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
