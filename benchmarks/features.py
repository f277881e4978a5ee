"""Time of scattering features, of finding them again on disk, and what whitening takes of memory.

python benchmarks/features.py         made-up images of the size of CIFAR's; a minute on two cores

Each part runs in a process of its own: peak memory is that of a process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from dpdt import data, models, train
from dpdt.data import cache
from dpdt.models import frozen
from dpdt.models.settings import ModelSettings

OUT = Path(__file__).parent / "out" / "features.json"
IMAGES, ALL = 5_000, 50_000
EXAMPLES, INPUTS, PUBLIC = 10_000, 4_000, 1_000


def features(threads: int) -> dict[str, float]:
    """Seconds for ALL images, from some of them."""
    torch.set_num_threads(threads)
    settings = ModelSettings(name="scatter", pool=2)
    facts = data.Facts(examples=IMAGES, shape=(3, 32, 32), classes=10)
    model = models.build(settings, facts, 0)
    part = (torch.rand(IMAGES, 3, 32, 32) * 2.0 - 1.0, torch.arange(IMAGES) % 10)
    frozen.features(model, (part[0][:64], part[1][:64]))  # the first call makes the matrices
    wall, cpu = time.perf_counter(), time.process_time()
    x, y = frozen.features(model, part)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    key = frozen.key_of(model, settings, part)
    cache.write(key, {"features": x, "labels": y})
    again = time.perf_counter()
    assert cache.read(frozen.key_of(model, settings, part)) is not None
    again = time.perf_counter() - again
    times = {"seconds": wall, "cpu_seconds": cpu, "seconds_again": again}
    return {name: round(value * ALL / IMAGES, 2) for name, value in times.items()}


def whitening(overwrite: int) -> dict[str, float]:
    """Memory that training takes beyond its data and model, and its time."""
    torch.set_num_threads(1)
    x, public = torch.randn(EXAMPLES, INPUTS), torch.randn(PUBLIC, INPUTS)
    model, y = nn.Linear(INPUTS, 10), torch.arange(EXAMPLES) % 10
    before, start = _peak(), time.process_time()
    train(
        model,
        (x, y),
        public=public,
        overwrite=bool(overwrite),
        preconditioner="public",
        epochs=4,
        batch_size=2500,
        noise=1.0,
    )
    found = {"gigabytes": _peak() - before, "cpu_seconds": time.process_time() - start}
    return {name: round(value, 2) for name, value in found.items()}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # in kilobytes on Linux


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(globals()[sys.argv[1]](int(sys.argv[2]))))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, argument in (
            ("features", 1),
            ("features", os.cpu_count()),
            ("whitening", 0),
            ("whitening", 1),
        ):
            command = [sys.executable, __file__, name, str(argument)]
            environment = {**os.environ, cache.VARIABLE: folder}
            printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            found[f"{name} {argument}"] = json.loads(printed.stdout)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1))
    print(OUT.read_text())


if __name__ == "__main__":
    main()
