"""Presets and models of every family train with as many threads as users have.

The suite computes on one thread, users do not, and a kernel of torch can end a process with several
threads alone. So each run here is a process of its own, without OMP_NUM_THREADS.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training.threaded import FAMILIES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("threads_of_users")
PATIENCE = 300.0  # seconds; a kernel may hang
SMALL = ("train.epochs=1", "data.limit=126", "train.batch_size=126", "method.auxiliaries=2")


def run(*words, **environment):
    """Run Python in a process of its own."""
    env = {**os.environ, **environment}
    try:
        done = subprocess.run(
            [sys.executable, *words], env=env, cwd=ROOT, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.fail(f"{words} hangs")
    how = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "an error"
    assert not done.returncode, f"{words} ended by {how}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images that are no photographs, in the files that presets read."""
    made = tmp_path_factory.mktemp("data")
    drawn = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
    for name, number, classes in (("cifar10", 50_000, 10), ("cifar100-small", 10_000, 100)):
        parts = {}
        for part, n in (("train", number), ("test", 100)):
            parts |= {f"x_{part}": np.resize(drawn, (n, 3, 32, 32))}
            parts |= {f"y_{part}": np.arange(n) % classes}
        np.savez(made / f"{name}.npz", **parts)
    return made


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("digits", ("train.epochs=1",)),
        ("paper-small", ("train.epochs=1",)),
        ("cifar10-small", SMALL),
        ("cifar10", (*SMALL, "data.public=0", "model.width=0.0625")),
        ("cifar100-small", SMALL),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_preset_trains_with_several_threads(preset, settings, folder, tmp_path):
    sets = [word for setting in settings for word in ("--set", setting)]
    out = ("--out", str(tmp_path / "run"))
    assert "ε" in run("-m", "dpdt", "train", preset, *sets, *out, DPDT_DATA=str(folder))


@pytest.mark.parametrize(
    ("family", "threads"),
    [*((family, ()) for family in FAMILIES), ("shortcuts", ("3",)), ("shortcuts", ("4",))],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_model_of_every_family_trains_with_several_threads(family, threads):
    if family == "bert":
        pytest.importorskip("transformers")
    run("-m", "tests.training.threaded", family, *threads)


def test_a_process_that_dies_is_named_by_its_signal():
    with pytest.raises(AssertionError, match="ended by signal SIGABRT"):
        run("-c", "import os; os.abort()")
