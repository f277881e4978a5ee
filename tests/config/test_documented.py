"""docs/configuration.md has every key of dpdt and of the common sections, with its one default."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from dpdt.config.sections import SECTIONS
from dpdt.methods.dpdt import Dpdt

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text().split("\n## ")[1]
CELLS = [[cell.strip() for cell in line.split("|")] for line in TEXT.splitlines()]
ROWS = [cells[1:3] for cells in CELLS if len(cells) > 3 and re.match(r"`[a-z]+\.", cells[1])]
TOLD = {
    key: default
    for keys, defaults in ROWS
    for key, default in zip(
        re.findall(r"`(.*?)`", keys),
        defaults.split(", ") if "`, `" in keys else [defaults],
        strict=True,
    )
}
CLASSES = {**SECTIONS, "method": Dpdt}
KEYS = {f"{name}.{f.name}": f.default for name, kind in CLASSES.items() for f in fields(kind)}


def test_every_key_is_described_and_no_other():
    assert set(TOLD) == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_the_default_is_the_one_that_is_told(key):
    told = re.search(r"`(.*)`", TOLD[key])
    if KEYS[key] is None:
        assert told is None
        return
    try:
        value = tomllib.loads(f"x = {told[1]}")["x"]
    except tomllib.TOMLDecodeError:
        value = told[1]
    assert KEYS[key] == (tuple(value) if isinstance(value, list) else value)
