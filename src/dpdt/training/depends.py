"""What a run's numbers depend on, down to the last bit.

A run that is resumed repeats its own noise. If anything else had changed meanwhile, two different
runs would have the same noise, and their difference would show the data.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy
import randomgen
import torch

from dpdt.config import Config
from dpdt.data.access import fingerprint
from dpdt.errors import InputError
from dpdt.training.device import facts


def depends_on(config: Config, start: str, seen: list[Any], device: torch.device) -> dict[str, str]:
    """Hashes of everything that a run's numbers depend on."""
    package = Path(__file__).parents[1]
    code = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        code.update(str(source.relative_to(package)).encode() + source.read_bytes())
    machine = [
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
    ]
    parts = {
        "configuration": config.as_tables(),
        "version of dpdt": code.hexdigest(),
        "versions of torch, numpy and randomgen": [
            m.__version__ for m in (torch, numpy, randomgen)
        ],
        "processor or number of threads": machine,
        "device": facts(device),
        "start of the model": start,
        "training data or public inputs": [fingerprint(part) for part in seen],
    }
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in parts.items()
    }


def refuse_changes(path: Path, then: dict[str, str], now: dict[str, str]) -> None:
    """Refuse to go on if anything that the run depends on is not what it was."""
    for name, value in now.items():
        if then.get(name) != value:
            raise InputError(
                f"{path}: the {name} changed since the run was interrupted; going on would repeat "
                "its noise in another run, so start a new one"
            )
