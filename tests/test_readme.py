"""README's commands and code, as they are written there, by a shell and a Python of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs import make_picture

from tests.docs.pages import blocks, wrapper

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_from_data_to_a_model_that_can_be_handed_over(tmp_path):
    (block,) = [block.text for block in blocks(README) if block.language == "sh"]
    verbs = [command.split()[1] for command in block.splitlines()]
    assert verbs == ["train", "audit", "release", "verify", "predict"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    wrapper(tmp_path)
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


def test_eight_lines_of_python(tmp_path):
    (block,) = [block.text for block in blocks(README) if block.language == "python"]
    assert len([line for line in block.splitlines() if line]) <= 8
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    accuracy, epsilon, *_ = done.stdout.splitlines()
    assert float(accuracy) > 0.9
    assert re.match(r"ε ≤ 8 +proven +composition · blank out one example", epsilon)


def test_it_fits_on_a_screen():
    assert README.read_text("utf-8").count("\n") <= 80


def test_the_picture_is_the_one_that_its_command_draws(tmp_path):
    drawn = tmp_path / "picture.svg"
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    make_picture.draw(results, drawn)
    found = make_picture.PICTURE.read_text("utf-8")
    assert drawn.read_text("utf-8") == found, "python docs/make_picture.py draws it anew"
    assert make_picture.table(results).keys() >= make_picture.ROWS.keys()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)", README.read_text("utf-8")))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()
