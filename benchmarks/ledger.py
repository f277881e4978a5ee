"""What it costs that every step is on the disk before it is taken: times with it, as a ratio.

Steps of a linear model on digits, with a ledger's file, with and without `fdatasync`. Both take
turns in one process. Without it a power cut could lose steps that were taken: that way is for this
measurement alone. It depends on the disk of the folder for temporary files.

    python benchmarks/ledger.py [--steps N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

import dpdt
from dpdt.data import load
from dpdt.ledger import writer


def ratios(steps: int, folder: Path) -> list[float]:
    """Of neighbouring steps, one with and one without waiting for the disk."""
    synced: Any = writer.sync_data
    step, loader = dpdt.prepare(
        nn.Linear(64, 10), load("digits").train, epochs=steps, batch_size=1437, epsilon=8.0,
        ledger=folder / "ledger.jsonl",
    )  # fmt: skip
    times, batches = [], iter(loader)
    for number in range(steps):
        writer.sync_data = (lambda file: None) if number % 2 else synced
        began = time.perf_counter()
        step(next(batches))
        times.append(time.perf_counter() - began)
    writer.sync_data = synced
    return [a / b for a, b in zip(times[10::2], times[11::2], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    with TemporaryDirectory() as folder:
        found = ratios(2 * (parser.parse_args().steps // 2), Path(folder))
    print(json.dumps({"ratio quartiles": statistics.quantiles(found, n=4)}))


if __name__ == "__main__":
    main()
