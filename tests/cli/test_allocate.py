"""dpdt allocate, as a user runs it."""

import json
import tomllib

import pytest

from dpdt import config
from dpdt.accounting import account, by_name

from .test_cli import PASTED, dpdt, planned_epsilon, write

ROW = ["--mode", "joint", "--kind", "conv", "--boost", "1.5"]


def test_rows_of_the_papers_table():
    printed = json.loads(dpdt("allocate", "cifar10", "--json").stdout)
    assert set(printed) == {"accountant", "allocations", "held", "out"}
    assert (printed["accountant"], printed["held"], printed["out"]) == ("composition", False, None)
    rows = printed["allocations"]
    assert len(rows) == 2 * (1 + 3 * 6)
    keys = {"kind", "boost", "mode", "epsilon", "shares", "clip", "noise"}
    keys |= {"proven_epsilon", "claimed_epsilon"}
    assert all(set(row) == keys for row in rows)
    for row in rows:
        assert row["epsilon"] == row["proven_epsilon"]
        values = (
            f"method.{k}={{ " + ", ".join(f"{n} = {v!r}" for n, v in row[k].items()) + " }"
            for k in ("clip", "noise")
        )
        privacy = account(config.plan_of(config.load("cifar10", tuple(values))).ledger(), 1e-5)
        said = {g.accountant: g.epsilon for g in privacy.guarantees}
        assert privacy.epsilon == row["proven_epsilon"]
        assert said["paper"] == row["claimed_epsilon"]
    assert {r["mode"] for r in rows} == {"noise", "joint"}


def test_what_is_printed_is_labelled_and_before_any_schedule():
    text = dpdt("allocate", "cifar10", *ROW).stdout
    first, equal, boosted = text.strip().split("\n\n")
    assert first == "shares are of conv : norm : linear"
    assert equal.startswith("joint  equal          33:33:34  ε ≤ ")
    assert boosted.startswith("joint  conv × 1.5     43:29:28  ε ≤ ")
    assert " proven by composition, ε = 0.7941 claimed by paper\n" in equal
    assert " proven by composition, ε = 0.8658 claimed by paper\n" in boosted
    assert "0.064" not in text  # the clipping threshold of the first epochs
    assert "clip = { conv = 0.004, norm = 0.004, linear = 0.0178885 }" in equal


def test_one_accountant_more_and_one_that_has_nothing_to_say(tmp_path):
    told = dpdt("allocate", "cifar10", "--equal", "--accountant", "paper-per-block").stdout
    assert ", ε = 0.7941 claimed by paper, ε = 0.4577 claimed by paper-per-block\n" in told
    assert told.count("equal") == 1
    rest, noise, clip = PASTED["falling noise"]
    file = write(tmp_path / "f.toml", rest, noise, clip)
    poisson = ["--set", "method.sampling=poisson", "--set", "train.epochs=1", "--equal"]
    told = dpdt("allocate", file, *poisson).stdout
    assert "proven by composition, no ε by paper\n" in told
    row = json.loads(dpdt("allocate", file, *poisson, "--json").stdout)["allocations"][0]
    assert row["claimed_epsilon"] is None
    seeded = ["--equal", "--set", "privacy.noise_seed=1"]
    assert "claimed by composition, ε = " in dpdt("allocate", "cifar10", *seeded).stdout
    printed = json.loads(dpdt("allocate", "cifar10", *seeded, "--json").stdout)
    assert printed["allocations"][0]["proven_epsilon"] is None


@pytest.mark.parametrize("name", PASTED)
@pytest.mark.parametrize("mode", ["noise", "joint"])
def test_what_is_printed_keeps_a_held_total_when_pasted(name, mode, tmp_path):
    rest, noise, clip = PASTED[name]
    file = write(tmp_path / "f.toml", rest, noise, clip)
    row = ["--mode", mode, "--kind", "linear", "--boost", "1.5"]
    told = dpdt("allocate", file, *row, "--hold")
    assert told.returncode == 0, told.stderr
    target = planned_epsilon(file)
    equal, boosted = told.stdout.split("\n\n")[1:]
    for entry in (equal, boosted):
        again = write(tmp_path / "g.toml", rest, *entry.splitlines()[1:])
        assert target * (1 - 1e-3) <= planned_epsilon(again) <= target
    boosted = dpdt("allocate", file, *row).stdout.split("\n\n")[2]
    again = write(tmp_path / "g.toml", rest, *boosted.splitlines()[1:])
    assert planned_epsilon(again) > 1.05 * target


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        (["--equal"], []),
        (ROW, []),
        (ROW, ["--hold", "--accountant", "paper"]),
        (ROW, ["--set", "privacy.epsilon=8.0"]),  # a target would scale the noise again
        (ROW, ["--set", "train.epochs=7"]),
    ],
)
def test_the_file_that_is_written_plans_what_is_printed(row, settings, tmp_path):
    out = tmp_path / "mine.toml"
    done = dpdt("allocate", "cifar10", *row, *settings, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    last = printed["allocations"][-1]
    assert printed["out"] == str(out)
    assert last["boost"] == (1.0 if row == ["--equal"] else 1.5)
    chosen = config.load(str(out))
    ledger = config.plan_of(chosen).ledger()
    assert account(ledger, 1e-5).epsilon == last["proven_epsilon"]
    assert by_name("paper").guarantee(ledger, 1e-5).epsilon == last["claimed_epsilon"]
    # everything else is as it was
    written = tomllib.loads(out.read_text())
    assert "epsilon" not in written["privacy"]
    before = config.load("cifar10", ("train.epochs=7",) if "train.epochs=7" in settings else ())
    expected = before.as_tables()
    expected["method"] |= {"clip": last["clip"], "noise": last["noise"]}
    assert chosen.as_tables() == expected


def test_a_file_that_is_there_is_kept(tmp_path):
    out = tmp_path / "mine.toml"
    told = dpdt("allocate", "cifar10", *ROW, "--out", "mine.toml", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.endswith("mine.toml has the last of these, for dpdt train mine.toml\n")
    before = out.read_text()
    done = dpdt("allocate", "cifar10", "--equal", "--out", "mine.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "dpdt: mine.toml: already exists; choose a new name" in done.stderr
    assert out.read_text() == before
