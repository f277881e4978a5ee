"""Tasks on the command line: train, account, predict, release, audit, compare, tune."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from dpdt import config, data, models
from dpdt.cli.main import cli
from dpdt.cli.train import _tell
from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.models.settings import ModelSettings
from dpdt.runs import Run
from dpdt.tasks import METRICS, SERVES, TASKS, task_of
from dpdt.training.run import run as train_run

PLAIN = ("--set", "train.epochs=2", "--set", "train.batch_size=40", "--set", "method.lr=0.5",
         "--set", "data.public=0")  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False).stdout


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """A data set with numbers for targets, as a reader of files gives it."""
    x = np.random.default_rng(0).normal(size=(240, 3)).astype("float32")

    def known(task, y):
        width = y.shape[1] if y.ndim > 1 else 2 if y.dtype == "int64" else 1
        facts = Facts(examples=160, shape=(3,), classes=width, task=task)
        entry = data.DataSet(
            facts=facts, files=(), source="", scale=data.AS_THEY_ARE,
            read=lambda folder: ((x[:160], y[:160]), (x[160:], y[160:])),
        )  # fmt: skip
        monkeypatch.setitem(data.DATA, "numbers", entry)

    return x, known


def train(tmp_path, *options):
    out = tmp_path / "run"
    found = run("train", "--set", "data.name=numbers", "--set", "model.name=linear", "--method",
                "plain", *PLAIN, *options, "--out", str(out), "--json")  # fmt: skip
    return out, json.loads(found)


def test_every_task_has_a_metric_and_every_metric_a_task():
    assert {t.metric for t in TASKS.values()} <= set(METRICS)
    assert all(t.name in METRICS[t.metric] for t in TASKS.values())
    assert {name for names in METRICS.values() for name in names} <= set(TASKS)
    assert all(set(names) <= set(TASKS) for names in SERVES.values())


def test_a_task_decides_how_many_outputs_there_are():
    facts = Facts(examples=9, shape=(3,), classes=2)
    for task, outputs in (("auto", 2), ("classification", 2), ("binary", 1), ("regression", 1)):
        model = models.build(ModelSettings(task=task), facts, 0)
        assert list(model.parameters())[-1].shape == (outputs,)
    for task, made_for, classes in (
        ("binary", "classification", 3), ("next-token", "classification", 3),
        ("classification", "regression", 1), ("multi-label", "regression", 2),
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"^model\.task: "):
            task_of(task, made_for, classes)


def test_regression_from_end_to_end(tmp_path, numbers):
    x, known = numbers
    known("regression", x @ np.array([1.0, -1.0, 0.5], dtype="float32"))
    out, found = train(tmp_path)
    assert found["accuracy"] is None
    assert found["metric"]["name"] == "mse"
    assert 0.0 < found["metric"]["value"] < 5.0
    records = Run.open(out).private_metrics()
    assert records[-1]["mse"] == found["metric"]["value"]
    np.savetxt(tmp_path / "x.csv", x[:5], delimiter=",")
    rows = list(csv.reader(run("predict", str(out), str(tmp_path / "x.csv")).splitlines()))
    assert rows[0] == ["row", "value"]
    assert len(rows) == 6
    audit = json.loads(run("audit", str(out), "--json", "--repeats", "5"))
    assert [attack["attack"] for attack in audit["attacks"]] == ["loss"]
    for more in (("--shadows", "4"), ("--thresholds", "shadow")):
        with pytest.raises(InputError, match="the task is regression"):
            run("audit", str(out), *more)


def test_a_release_of_a_regression_speaks_of_no_classes(tmp_path, numbers):
    x, known = numbers
    known("regression", x @ np.array([1.0, -1.0, 0.5], dtype="float32"))
    out = tmp_path / "run"
    run("train", "--set", "data.name=numbers", "--set", "model.name=linear", "--method", "dpsgd",
        "--set", "method.noise=4.0", "--set", "method.sampling=partition", *PLAIN,
        "--out", str(out))  # fmt: skip
    with pytest.raises(InputError, match="is judged by mse"):
        run("release", str(out), "--public-test")
    run("release", str(out))
    card = (out / "release/README.md").read_text()
    assert "for regression, with 1 output." in card
    assert "classes" not in card.split("## Model")[1].split("##")[0]
    run("verify", str(out / "release"))


def test_without_held_out_examples_nothing_is_said_to_be_measured(tmp_path, capsys):
    chosen = config.load("digits", ("train.epochs=1", "data.public=0"), "plain")
    loaded = data.load("digits")
    empty = replace(loaded, test=tuple(t[:0] for t in loaded.test))
    with pytest.warns(UserWarning, match="test: has no examples"):
        outcome = train_run(chosen, tmp_path / "run", show_progress=False, examples=empty)
    assert outcome.as_json()["metric"] == {"name": "accuracy", "value": None}
    _tell(outcome, tmp_path / "run", diagnose=False, as_json=False)
    assert capsys.readouterr().out.startswith("no held-out examples, so nothing was measured\n")


def test_two_classes_by_one_logit(tmp_path, numbers):
    x, known = numbers
    known("classification", (x[:, 0] > 0).astype("int64"))
    out, found = train(tmp_path, "--set", "model.task=binary")
    assert found["metric"] == {"name": "accuracy", "value": found["accuracy"]}
    assert found["accuracy"] > 0.6
    np.savetxt(tmp_path / "x.csv", x[:5], delimiter=",")
    rows = list(csv.reader(run("predict", str(out), str(tmp_path / "x.csv")).splitlines()))
    assert rows[0] == ["row", "class", "probability 0", "probability 1"]
    for _, chosen, *chances in rows[1:]:
        assert sum(map(float, chances)) == pytest.approx(1.0, abs=1e-5)
        assert int(chosen) == int(float(chances[1]) > 0.5)
    attacks = json.loads(run("audit", str(out), "--json", "--repeats", "5"))["attacks"]
    assert {"loss", "confidence"} <= {attack["attack"].split(",")[0] for attack in attacks}


def test_several_labels(tmp_path, numbers):
    x, known = numbers
    known("multi-label", (x > 0).astype("float32"))
    out, found = train(tmp_path)
    assert found["metric"]["name"] == "label_accuracy"
    assert found["metric"]["value"] > 0.6
    np.savetxt(tmp_path / "x.csv", x[:5], delimiter=",")
    rows = list(csv.reader(run("predict", str(out), str(tmp_path / "x.csv")).splitlines()))
    assert rows[0] == ["row", "probability 0", "probability 1", "probability 2"]
    assert all(0.0 < float(p) < 1.0 for row in rows[1:] for p in row[1:])


def test_what_needs_classes_is_refused_in_one_sentence(tmp_path, numbers):
    x, known = numbers
    known("regression", x[:, 0].copy())
    base = ("--set", "data.name=numbers", "--set", "model.name=linear", "--set", "data.public=0")
    with pytest.raises(InputError, match=r"^audit\.canaries: canaries have class numbers"):
        run("train", *base, "--set", "audit.canaries=10", "--out", tmp_path / "a")
    for command in (("compare", "digits"), ("tune", "digits", "--try", "train.epochs=1,2")):
        with pytest.raises(InputError, match=r"^model\.task: runs are compared by accuracy"):
            run(*command, *base, "--out", tmp_path / "b")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
