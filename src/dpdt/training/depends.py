"""What a run's numbers depend on, down to the last bit.

A run that is resumed repeats its own noise. If anything else had changed meanwhile, two different
runs would have the same noise, and their difference would show the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy
import randomgen
import torch

from dpdt.code import code_hash, version_of
from dpdt.config import Config
from dpdt.data.access import fingerprint
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.training.device import facts

LIBRARIES = ("MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_")  # settings that choose how they compute
RANKS, MACHINE = "number of ranks", "processor or number of threads"


def surroundings() -> dict[str, Any]:
    """What every number depends on besides settings and data."""
    machine = [
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        {name: value for name, value in sorted(os.environ.items()) if name.startswith(LIBRARIES)},
        _tried(),
    ]
    return {
        "version of dpdt": code_hash(Path(__file__).parents[1]),
        "versions of torch, numpy, randomgen, transformers or peft": [
            *(m.__version__ for m in (torch, numpy, randomgen)),
            *map(version_of, ("transformers", "peft", "timm")),
        ],
        MACHINE: machine,
    }


def _tried() -> str:
    """A hash of a few products, which libraries compute by the processor that they find."""
    made = torch.Generator().manual_seed(0)
    digest = hashlib.sha256()
    for kind in (torch.float32, torch.float64):
        for rows, inner, columns in ((7, 65, 10), (64, 777, 33), (1, 3, 130)):
            a = torch.randn(rows, inner, generator=made, dtype=kind)
            b = torch.randn(inner, columns, generator=made, dtype=kind)
            digest.update((a @ b).numpy().data)
        image = torch.randn(2, 3, 9, 9, generator=made, dtype=kind)
        kernel = torch.randn(5, 3, 3, 3, generator=made, dtype=kind)
        digest.update(torch.conv2d(image, kernel).numpy().data)
        digest.update(torch.sigmoid(image).exp().numpy().data)
    return digest.hexdigest()


def depends_on(
    config: Config,
    start: str,
    seen: list[Any],
    device: torch.device,
    world: World | None = None,
) -> dict[str, str]:
    """Hashes of everything that a run's numbers depend on."""
    world = world or World()
    parts = {
        "configuration": config.as_tables(),
        **surroundings(),
        "device": facts(device),
        "start of the model": start,
        "training data or public inputs": [fingerprint(part, world) for part in seen],
        RANKS: world.size,
    }
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in parts.items()
    }


def same_ranks(then: dict[str, str], now: dict[str, str]) -> bool:
    """Whether as many ranks go on. Otherwise sums round differently, and noise must be fresh."""
    return then.get(RANKS) == now[RANKS]


def refuse_changes(path: Path, then: dict[str, str], now: dict[str, str]) -> None:
    """Refuse to go on if anything that the run depends on is not what it was.

    With another number of ranks nothing is repeated bit for bit, so the machine may be another.
    """
    free = () if same_ranks(then, now) else (RANKS, MACHINE)
    for name, value in now.items():
        if name not in free and then.get(name) != value:
            raise InputError(
                f"{path}: the {name} changed since the run was interrupted; going on would repeat "
                "its noise in another run, so start a new one"
            )
