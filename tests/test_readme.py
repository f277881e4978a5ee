"""README's five commands, as they are written there."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_from_data_to_a_model_that_can_be_handed_over(tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    commands = block.splitlines()
    verbs = [command.split()[1] for command in commands]
    assert verbs == ["train", "audit", "release", "verify", "predict"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "dpdt").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpdt "$@"\n')
    (tmp_path / "dpdt").chmod(0o755)
    done = subprocess.run(
        ["sh", "-e", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert re.search(r"ε ≤ 8 +proven", said)
    assert "ok: every hash, the ledger and ε were computed anew" in said
    rows = said[said.index("row,class,") :].splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2", "3", "4", "5"]
    assert {p.name for p in (tmp_path / "runs" / "first" / "release").iterdir()} == {
        "README.md", "certificate.json", "config.json", "model.safetensors",
    }  # fmt: skip
    card = (tmp_path / "runs" / "first" / "release" / "README.md").read_text("utf-8")
    assert "It survived" in card
