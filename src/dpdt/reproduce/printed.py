"""What the paper prints, from one file."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def _all() -> dict[str, Any]:
    return tomllib.loads((resources.files("dpdt.reproduce") / "paper.toml").read_text("utf-8"))


def printed(*path: str) -> dict[str, Any]:
    """The part of the paper's numbers below a path, such as "main-results", "cifar10"."""
    found = _all()
    for part in path:
        found = found.get(part, {})
    return found
