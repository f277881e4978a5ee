"""Each script in examples/ runs from anywhere, and says what it promises."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.usefixtures("threads_of_users")
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SCRIPTS.remove(ROOT / "examples" / "torchrun.py")  # docs/scaling.md runs it, by two processes
LIGHTNING = ROOT / "examples" / "with_lightning.py"
SCRIPTS.remove(LIGHTNING)
# What Lightning does with a module that optimizes by itself, and nothing else.
STAND_IN = """
from torch.nn import Module as LightningModule

class Trainer:
    def __init__(self, *, max_epochs, logger, enable_checkpointing):
        self.epochs = max_epochs

    def fit(self, module):
        assert not module.automatic_optimization and module.configure_optimizers() is None
        loader = module.train_dataloader()
        for _ in range(self.epochs):
            for i, batch in enumerate(loader):
                assert i < len(loader)
                module.training_step(module.transfer_batch_to_device(batch, "cpu", 0))
"""
SAYS = {"audit": "refuted", "lora": "trained parameters\nε ≤ 8 ", "users": "replace one user"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert SAYS.get(path.stem, "proven") in done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("real", [True, False], ids=["lightning", "stand-in"])
def test_a_run_inside_lightning(real, tmp_path):
    if real and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed; it is no dependency, and a stand-in is tried")
    (tmp_path / "lightning.py").write_text(STAND_IN)
    folders = [os.environ.get("PYTHONPATH", ""), *([] if real else [str(tmp_path)])]
    done = subprocess.run(
        [sys.executable, str(LIGHTNING)], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "in 12 steps (3 epochs)\nε ≤ 3 " in done.stdout
    assert len(list(filter(str.strip, LIGHTNING.read_text().splitlines()))) <= 30
