"""dpdt compare, as a user runs it."""

import json
import os
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from dpdt import config, data
from dpdt.cli.main import cli
from dpdt.training.compare import _configuration, cells

SETS = ["train.epochs=2", "data.limit=300", "train.batch_size=100", "data.public=60"]


def dpdt(*arguments, cwd):
    sets = [a for s in SETS for a in ("--set", s)]
    command = [sys.executable, "-m", "dpdt", "compare", "digits", *sets, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=os.environ)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    arguments = ["--epsilon", "2,8", "--seeds", "2", "--out", "c", "--json"]
    done = dpdt(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)["rows"], arguments


def test_every_method_has_its_rows(compared):
    folder, rows, _ = compared
    targets = {(r["method"], r["target_epsilon"]) for r in rows}
    private = {(m, e) for m in ("dpdt", "dpsgd", "gep", "pate") for e in (2.0, 8.0)}
    assert targets == private | {("plain", None)}
    for row in rows:
        assert set(row) == {
            "method", "target_epsilon", "accuracy_mean", "accuracy_spread", "seeds",
            "proven_epsilon", "relation", "claimed_epsilon", "seconds", "peak_memory_mb",
        }  # fmt: skip
        assert row["seeds"] == 2
        assert row["peak_memory_mb"] > 50
        if row["method"] != "plain":
            assert 0.98 * row["target_epsilon"] < row["proven_epsilon"] <= row["target_epsilon"]
        assert row["claimed_epsilon"] is None  # nothing is claimed under Poisson sampling
    assert (folder / "c" / "trade-off.png").read_bytes()[:4] == b"\x89PNG"


def test_all_methods_are_judged_under_one_relation(compared):
    folder, _, _ = compared
    for result in (folder / "c").glob("*/result.json"):
        privacy = json.loads(result.read_text())["privacy"]
        if not result.parent.name.startswith("plain"):
            assert (privacy["unit"], privacy["relation"]) == ("example", "zero-out")


def test_what_depends_on_votes_is_kept_private(compared):
    folder, _, _ = compared
    told = json.loads((folder / "c" / "pate-8-0" / "private" / "pate.json").read_text())
    assert "not to be published" in told["caveat"]


def test_all_runs_together_are_told(compared):
    folder, _, arguments = compared
    told = dpdt(*arguments[:-1], cwd=folder).stdout.splitlines()[-1]
    assert told.startswith("all 18 runs together: ε = ∞, by 2 runs without privacy; the other 16:")
    assert told.endswith("the table was chosen from all of them")
    (data,) = json.loads(dpdt(*arguments, cwd=folder).stdout)["budget"]["data"]
    assert len(data["runs"]) == 18
    assert data["bounded_epsilon"] > 8.0


def test_a_target_is_enough_for_a_file_that_leaves_the_rest_to_the_rule(tmp_path):
    (tmp_path / "f.toml").write_text("[train]\nepochs = 2\nbatch_size = 200\n")
    command = [sys.executable, "-m", "dpdt", "compare", "f.toml", "--methods", "dpdt", "--epsilon"]
    done = subprocess.run(
        [*command, "2", "--seeds", "1"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "dpdt            2" in done.stdout


def test_it_continues_where_it_stopped(compared):
    folder, rows, arguments = compared
    lost = folder / "c" / "dpdt-2-1"
    before = json.loads((folder / "c" / "dpdt-2-0" / "result.json").read_text())
    (lost / "result.json").unlink()
    refused = dpdt(*arguments, cwd=folder)  # a finished run is not deleted
    assert refused.returncode == 2
    assert "dpdt-2-1: is a finished run that no comparison made" in refused.stderr
    lines = (lost / "ledger.jsonl").read_text().splitlines(keepends=True)
    (lost / "ledger.jsonl").write_text("".join(lines[:-1]))  # as if it had been interrupted
    (lost / "private" / "tail.json").unlink()  # which knows better
    again = dpdt(*arguments, "--figure", "f.svg", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "<svg" in (folder / "f.svg").read_text()
    assert again.stderr.count("seed") == 1
    assert before == json.loads((folder / "c" / "dpdt-2-0" / "result.json").read_text())
    assert len(json.loads(again.stdout)["rows"]) == len(rows)
    other = dpdt(*arguments, "--set", "train.epochs=3", cwd=folder)
    assert other.returncode == 2
    assert "was run with other settings; choose a new folder" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "dpdt,sgd"], "--methods: must be one of dpdt, dpsgd, gep, pate, plain"),
        (["--epsilon", "one"], "--epsilon: must be numbers such as 1,3,8"),
        (["--epsilon", "-1"], "--epsilon: must be positive numbers"),
        (["--methods", "pate", "--set", "data.public=0"], "data.public: pate needs public"),
        (["--set", "data.public=400"], "data.public: must leave some of the 360 held-out"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments, message):
    done = dpdt(*arguments, "--seeds", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_the_small_cifar10_is_compared_without_switches(tmp_path, monkeypatch):
    chosen = config.load("cifar10-small", target=3.0)
    todo = cells(chosen, (), [3.0], 1)
    assert [cell.method for cell in todo] == ["dpdt", "dpsgd", "plain"]
    for cell in todo:
        made = _configuration("cifar10-small", (), cell)
        plan = config.plan_of(made)  # every run that is to be made can be
        assert (plan.header.examples, plan.epochs) == (50_000, 5)

    def made_up(name, limit, table):
        images, labels = torch.rand(limit + 20, 3, 32, 32), torch.arange(limit + 20) % 10
        parts = slice(limit), slice(limit, None)
        return data.Examples(**{
            part: (images[s], labels[s]) for part, s in zip(("train", "test"), parts, strict=True)
        })  # fmt: skip

    monkeypatch.setattr(data, "load", made_up)
    sets = ("data.limit=80", "train.batch_size=40", "train.epochs=1", "privacy.delta=1e-3",
            "model.width=0.05")  # fmt: skip
    switches = [a for s in sets for a in ("--set", s)]
    arguments = [
        "compare",
        "cifar10-small",
        *switches,
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "c"),
    ]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None, done.exception
    assert "dpdt replace one, dpsgd blank out one" in done.output  # which is not the same
    assert (tmp_path / "c" / "trade-off.png").is_file()
