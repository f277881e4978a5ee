"""docs/readings.md: every reading can be asked for, and changes the ε that the table says."""

import re
import shlex
from pathlib import Path

import pytest

from dpdt import account, config

TEXT = (Path(__file__).parents[1] / "docs" / "readings.md").read_text("utf-8")


def rows():
    """(overrides, claimed, proven) of every reading that is asked for by --set."""
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        commands = re.findall(r"`(--set [^`]+)`", line)
        if len(cells) == 6 and commands and "…" not in commands[0]:
            words = shlex.split(commands[0])
            yield tuple(w for w in words if w != "--set"), cells[4], cells[5]


def spent(overrides=()):
    chosen = config.load("cifar10", tuple(overrides))
    found = account(config.plan_of(chosen).ledger(), chosen.privacy.delta)
    return found.claimed, found.epsilon


FOUND = list(rows())


def test_the_table_is_read():
    assert len(FOUND) == 10
    assert "0.6343 claimed (the paper prints 0.64) and 12,167 proven" in TEXT


@pytest.mark.parametrize(("overrides", "claimed", "proven"), FOUND)
def test_a_reading_changes_what_the_table_says(overrides, claimed, proven):
    base, found = spent(), spent(overrides)
    for told, own, other in zip((claimed, proven), base, found, strict=True):
        if told == "same":
            assert other == pytest.approx(own, rel=1e-6)
        else:
            assert other == pytest.approx(float(told.replace(",", "")), rel=2e-3)


def test_the_other_data_sets():
    claims = {
        name: account(
            config.plan_of(config.load(name)).ledger(), 1e-5, allow_large_delta=True
        ).claimed
        for name in ("cifar100", "imagenet100", "sst2")
    }
    assert claims == pytest.approx({"cifar100": 1.067, "imagenet100": 4.04, "sst2": 1.33}, rel=2e-3)
