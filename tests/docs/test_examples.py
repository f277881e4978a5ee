"""Each script in examples/ runs from anywhere, and says what it promises."""

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SCRIPTS.remove(ROOT / "examples" / "torchrun.py")  # docs/scaling.md runs it, by two processes
SAYS = {"audit": "refuted", "lora": "trained parameters\nε ≤ 8 ", "users": "replace one user"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert SAYS.get(path.stem, "proven") in done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
