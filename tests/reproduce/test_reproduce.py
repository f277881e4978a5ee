"""The paper's tables and figures: the right runs, and their numbers in the right cells."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dpdt import config, reproduce
from dpdt.errors import InputError
from dpdt.methods.allocation import allocated
from dpdt.reproduce import REPRODUCTIONS, SCALES, Asked, allocation, attacks, auxiliaries, readings
from dpdt.reproduce.printed import printed
from dpdt.reproduce.scale import NOISES
from dpdt.training import grid, pool
from tests.cli.test_cli import dpdt

SMALL, FULL = Asked(scale=SCALES["small"]), Asked(scale=SCALES["full"])
TRAINED = [name for name in REPRODUCTIONS if name != "privacy-over-epochs"]


def accuracy_of(folder):
    """A number that only this run has."""
    return (sum(ord(c) * (i + 1) ** 2 for i, c in enumerate(folder)) % 10_007) / 10_007


@pytest.fixture
def made_up(monkeypatch):
    """Every run is there, with an accuracy of its own; attacks answer likewise."""

    def make(cells, out, *, on_done, jobs=None):
        on_done(len(cells))
        assert len({cell.folder for cell in cells}) == len(cells)
        return {cell.folder: record(cell) for cell in cells}

    def record(cell):
        epsilon = cell.config.privacy.epsilon
        proven = {"epsilon": epsilon} if epsilon else None
        privacy = {"proven": proven, "guarantees": [], "relation": "replace-one"}
        more = {"seconds": 2.0, "peak_memory_mb": 1, "privacy": privacy}
        return {"accuracy": accuracy_of(cell.folder), **more}

    def attack(path, *, evaluations, thresholds):
        value = accuracy_of(Path(path).name)
        return attacks.Membership(
            aucs=(value,) * evaluations,
            accuracies=(1 - value,) * evaluations,
            thresholds=thresholds,
            metric="modified-entropy",
        )

    def here(function, items, **_):
        return (function(*arguments) for arguments in items)

    epochs = [{"accuracy": 0.1 * e, "claimed": 0.2 * e} for e in range(1, 6)]
    monkeypatch.setattr(grid, "make_on_all_cores", make)
    monkeypatch.setattr(attacks, "membership", attack)
    monkeypatch.setattr(pool, "each", here)
    monkeypatch.setattr(auxiliaries.Run, "private_metrics", lambda self: epochs)
    monkeypatch.setattr(auxiliaries.Run, "diagnostics", lambda self: [])


def made(name, asked, out):
    return reproduce.reproduce(name, asked, out, command="dpdt reproduce …", jobs=1)


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_table_is_written_with_its_figure(name, scale, tmp_path):
    asked = Asked(scale=SCALES[scale], seeds=2)
    table = made(name, asked, tmp_path)
    folder = tmp_path / name
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    kept = json.loads((folder / "table.json").read_text())
    assert kept["command"] == "dpdt reproduce …"
    assert (kept["scale"], kept["rows"]) == (scale, table.rows)
    one = ("allocation-sweep", "auxiliaries-and-batches")
    assert kept["seeds"] == (1 if name in one else 0 if name == "privacy-over-epochs" else 2)
    with open(folder / "table.csv") as file:
        assert len(list(csv.DictReader(file))) == len(table.rows)
    text = (folder / "table.txt").read_text()
    assert text.count("\n| ") >= len(table.rows)
    assert all(head.title in text for head in table.heads)


@pytest.mark.usefixtures("made_up")
def test_table_1(tmp_path):
    rows = {r["method"]: r for r in made("main-results", SMALL, tmp_path).rows}
    assert list(rows) == ["plain", "dpsgd", "pate", "gep", "dpdt", "dpdt-proven"]
    for method, row in rows.items():
        runs = [accuracy_of(f"cifar10-{method}-{seed}") for seed in range(3)]
        assert row["accuracy"] == pytest.approx(sum(runs) / 3)
        assert row["seeds"] == 3
    assert {m: r["paper_accuracy"] for m, r in rows.items()} == pytest.approx(
        {"plain": 0.9285, "dpsgd": 0.4364, "pate": 0.462, "gep": 0.566, "dpdt": 0.8259,
         "dpdt-proven": None}
    )  # fmt: skip
    assert {m: r["proven_epsilon"] for m, r in rows.items()} == {
        "plain": None, "dpsgd": 1.0, "pate": 2.0, "gep": 2.0, "dpdt": None, "dpdt-proven": 1.0
    }  # fmt: skip
    for reading in NOISES:
        runs = [accuracy_of(f"cifar10-dpdt-{reading}-{seed}") for seed in range(3)]
        assert rows["dpdt"][reading] == pytest.approx(sum(runs) / 3)
    row = rows["dpdt"]
    assert row["lost_to_noise"] == row["without_noise"] - row["accuracy"]
    assert row["lost_to_bounds"] == rows["plain"]["accuracy"] - row["without_noise"]


@pytest.mark.usefixtures("made_up")
def test_table_2(tmp_path):
    rows = made("allocation", replace(FULL, seeds=2), tmp_path).rows
    assert len(rows) == 16
    row = next(
        r for r in rows if (r["data"], r["mode"], r["kind"]) == ("CIFAR-100", "joint", "linear")
    )
    assert row["shares"] == "29:29:42"
    assert (row["paper_epsilon"], row["paper_accuracy"]) == (1.13, pytest.approx(0.4629))
    assert row["paper_attack"] == pytest.approx(0.5574)
    folders = [f"cifar100-allocation-joint-linear-1.5-{seed}" for seed in range(2)]
    mean = sum(map(accuracy_of, folders)) / 2
    assert (row["accuracy"], row["auc"]) == pytest.approx((mean, mean))
    assert (row["evaluations"], row["thresholds"]) == (10, "own")  # five attacks on each run
    assert rows[0]["shares"] == "33:33:34"


@pytest.mark.usefixtures("made_up")
def test_table_5(tmp_path):
    rows = {r["method"]: r for r in made("membership-inference", SMALL, tmp_path).rows}
    assert list(rows) == ["plain", "dpsgd", "dpdt", "dpdt-without_noise"]
    assert rows["dpsgd"]["paper_auc"] == pytest.approx(0.566)
    assert rows["dpdt"]["paper_attack"] == pytest.approx(0.505)
    values = [accuracy_of(f"cifar10-dpdt-{seed}") for seed in range(3)]
    assert rows["dpdt"]["auc"] == pytest.approx(sum(values) / 3)
    assert rows["dpdt"]["attack"] == pytest.approx(1 - sum(values) / 3)
    assert {r["thresholds"] for r in rows.values()} == {"shadow"}
    assert rows["dpdt"]["auc_half_width"] > 0


def test_the_runs_of_an_allocation_have_its_clip_and_noise():
    for split in allocation.sweep_splits(SMALL):
        plan = config.plan_of(config.load("paper-small"))
        found = allocated(plan, mode=split.mode, kind=split.kind, boost=split.boost)
        (cell,) = split.runs
        assert (cell.config.method.clip, cell.config.method.noise) == (found.clip, found.noise)
        for reading, (other,) in split.others.items():
            noise = other.config.method.noise
            assert other.config.method.clip == found.clip
            if reading == "without_noise":
                assert noise == 0.0
            else:
                times = {k: v * NOISES[reading] for k, v in found.noise.items()}
                assert noise == pytest.approx(times)
            follows = other.config.method.noise_schedule == "langevin"
            assert follows == (reading == "noise_follows_step")


def test_the_sweep_has_all_ratios_kinds_and_modes():
    found = {(s.mode, s.kind, s.boost) for s in allocation.sweep_splits(FULL)}
    boosts = (0.5, 0.75, 1.25, 1.5, 1.75, 2.0)
    expected = {
        (m, k, b) for m in ("noise", "joint") for k in ("conv", "norm", "linear") for b in boosts
    }
    assert found == expected | {("noise", None, 1.0), ("joint", None, 1.0)}


def test_the_readings_change_one_thing_each():
    runs = {name: cells[0] for _, name, cells, _ in readings._rows(SMALL)}
    own = runs.pop("dpdt").config.method
    changed = {
        name: {f for f, v in vars(cell.config.method).items() if v != vars(own)[f]}
        for name, cell in runs.items()
    }
    assert changed == {
        "rho-10": {"penalty", "penalty_schedule"},
        "rho-0.1": {"penalty_schedule"},
        "rho-decay": {"penalty_schedule"},
        "scaled-noise": {"noise_schedule"},
        "inverse-v": {"preconditioner_power"},
        "channel-norm": set(),
        "lr-1e-3": {"lr"},
    }
    assert runs["channel-norm"].config.model.norm == "channel"
    assert all(cell.diagnose for cell in runs.values())
    scaled = runs["scaled-noise"].config
    assert scaled.method.noise_schedule == scaled.method.clip_schedule


def test_the_readings_of_sigma():
    """0.0045 as Langevin's parameter, 0.001 as the noise itself, 0.000445 read literally."""
    own = config.load("cifar10").method.noise["conv"]
    assert own == pytest.approx(0.0044947, rel=1e-4)
    assert own * NOISES["noise_as_deviation"] == pytest.approx(0.001)
    assert own * NOISES["noise_literal"] == pytest.approx(0.000445, rel=1e-3)
    assert own * NOISES["noise_follows_step"] == pytest.approx(0.001 * (2 * 0.1 / 0.99) ** 0.5)


@pytest.mark.parametrize("name", TRAINED)
def test_the_full_scale_is_the_papers(name):
    for cell in REPRODUCTIONS[name].cells(FULL):
        train = cell.config.train
        data = cell.config.data.name
        if name != "auxiliaries-and-batches":
            assert train.batch_size == {"imagenet100": 512, "sst2": 512}.get(data, 2500)
        slow = data == "imagenet100" and cell.config.method.name == "dpsgd"
        assert train.epochs == (100 if slow else {"sst2": 2}.get(data, 200))
        config.plan_of(cell.config)


def test_the_papers_baselines():
    def method(preset, name):
        return config.load(preset, ("privacy.epsilon=2.0",), name).method

    for preset, optimizer, lr, momentum in (
        ("cifar10", "sgd", 0.1, 0.0), ("cifar100", "sgd", 0.1, 0.0),
        ("imagenet100", "sgd", 1e-2, 0.9), ("sst2", "adamw", 1e-5, 0.9),
    ):  # fmt: skip
        found = method(preset, "dpsgd")
        assert (found.clipping, found.optimizer, found.lr) == ("automatic", optimizer, lr)
        assert found.momentum == momentum
    for preset, optimizer, lr in (
        ("cifar10", "sgd", 0.1), ("imagenet100", "adamw", 1e-4), ("sst2", "adamw", 1e-5)
    ):  # fmt: skip
        found = method(preset, "plain")
        assert (found.optimizer, found.lr, found.lr_schedule) == (optimizer, lr, "cosine")


def test_what_the_paper_prints():
    assert printed("main-results", "sst2", "dpdt") == {"epsilon": 2.04, "accuracy": 92.54}
    assert printed("membership-inference", "imagenet100") == {}

    def numbers(table):
        for value in table.values():
            yield from numbers(value) if isinstance(value, Mapping) else [value]

    tables = {name: list(numbers(printed(name))) for name in (
        "main-results", "allocation", "membership-inference")}  # fmt: skip
    assert {name: len(found) for name, found in tables.items()} == {
        "main-results": 28, "allocation": 64, "membership-inference": 28
    }  # fmt: skip


TOY = ("train.epochs=1", "data.limit=160", "train.batch_size=80", "data.public=60")


def test_a_toy_from_the_command_line_and_again(tmp_path):
    arguments = ["reproduce", "main-results", "--seeds", "1", "--out", "paper", "--jobs", "1"]
    sets = [part for text in TOY for part in ("--set", text)]
    done = dpdt(*arguments, *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "DP-DT, the paper's noise" in done.stdout
    assert " runs together: ε" in done.stdout.splitlines()[-1]
    kept = json.loads((tmp_path / "paper/main-results/table.json").read_text())
    by_name = {row["method"]: row for row in kept["rows"]}
    assert by_name["dpdt"]["claimed_epsilon"] < by_name["dpdt"]["proven_epsilon"]
    assert 0.99 < by_name["dpdt-proven"]["proven_epsilon"] <= 1.0
    assert by_name["dpdt"]["accuracy"] != by_name["dpdt"]["without_noise"]
    assert by_name["dpdt"]["noise_to_signal"] > 1
    runs = list((tmp_path / "paper/runs").iterdir())
    times = {run: (run / "ledger.jsonl").stat().st_mtime_ns for run in runs}
    done = dpdt(*arguments, *sets, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rows"] == kept["rows"]
    assert len(json.loads(done.stdout)["budget"]["data"][0]["runs"]) == len(runs)
    assert {run: (run / "ledger.jsonl").stat().st_mtime_ns for run in runs} == times
    done = dpdt(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "was run with other settings; choose a new folder" in done.stderr


@pytest.mark.parametrize("name", ["allocation", "membership-inference", "all"])
def test_one_attack_has_no_interval(name, tmp_path):
    done = dpdt("reproduce", name, "--seeds", "1", "--out", "paper", cwd=tmp_path)
    assert done.returncode == 2
    assert "--seeds: must be at least 2" in done.stderr
    assert not (tmp_path / "paper").exists()


def test_without_a_name_everything_is_listed():
    told = dpdt("reproduce").stdout
    assert all(name in told for name in REPRODUCTIONS)
    with pytest.raises(InputError, match=r"^name: must be one of main-results"):
        made("table-7", SMALL, Path("nowhere"))
