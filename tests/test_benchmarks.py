"""Benchmarks take too long to run here. But they must start: what they import is there."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_starts(path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    runpy.run_path(str(path))
