"""Every command that reads a configuration or a run, on files of one's own."""

import csv
import random
from contextlib import contextmanager

import numpy as np
import pytest

from dpdt.cli.main import COMMANDS
from dpdt.report import exploring, loopback
from dpdt.report.choices import GIVEN, TARGET, Source
from tests.cli.test_files import asked, sets

COLUMNS = "data.columns={age=[0,120],sex=['f','m'],hours=[0,100],income=['low','high']}"
TABLE = ("data.target=income", COLUMNS)
QUICK = ("train.epochs=2", "train.batch_size=100", "privacy.epsilon=3")
LAYERS = ("model.name=mlp", "method.granularity=layer", "method.lr=1", "method.penalty=0.1")
CONFIG = """
[data]
name = "{name}"
{more}
[train]
epochs = 2
batch_size = 100
[privacy]
epsilon = 3.0
"""


def table(path):
    """The table of docs/files.md, shorter."""
    chance = random.Random(0)
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "age", "sex", "hours", "income"])
        for i in range(500):
            age, hours = chance.randint(17, 90), chance.randint(0, 80)
            target = "high" if age + hours > 95 else "low"
            rows.writerow([i, age, chance.choice("fm"), hours, target])
    return path


def parquet(path):
    pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import csv as reader
    from pyarrow.parquet import write_table

    write_table(reader.read_csv(table(path.with_suffix(".csv"))), path)
    return path


def arrays(path):
    x = np.random.default_rng(0).normal(size=(500, 4))
    y = (x[:, 0] > 0).astype(int)
    np.savez(path, x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:], classes=2)
    return path


@contextmanager
def interrupted_at_once(page, port):
    """A server that hears Ctrl-C before it has served."""

    class Server:
        port = 1

        def serve_forever(self):
            raise KeyboardInterrupt

    yield Server()


@pytest.mark.parametrize(
    ("make", "name"),
    [(table, "people.csv"), (parquet, "people.parquet"), (arrays, "mine.npz")],
    ids=("csv", "parquet", "npz"),
)
def test_every_command_takes_a_file_of_ones_own(make, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loopback, "server", interrupted_at_once)
    make(tmp_path / name)
    declared = TABLE if name != "mine.npz" else ()
    more = "\n".join(f"{k[5:]} = {v}" for k, v in (line.split("=", 1) for line in declared))
    more = more.replace("= income", '= "income"')
    (tmp_path / "own.toml").write_text(CONFIG.format(name=name, more=more))
    used = set()

    def dpdt(command, *arguments):
        used.add(command)
        status, said = asked(command, *arguments)
        assert status == 0, (command, said)
        return said

    dpdt("init", name, *(["--target", "income"] if declared else []), "--out", "new.toml")
    dpdt("data")
    dpdt("train", "own.toml", "--set", "audit.canaries=20", "--out", "runs/a")
    dpdt("train", name, *sets(*declared, *QUICK), "--out", "runs/b")
    for source in ("own.toml", "runs/a"):
        assert "ε ≤ 3 " in dpdt("account", source)
    assert "ε ≤ 3 by composition" in dpdt("calibrate", "own.toml")
    dpdt("allocate", "own.toml", *sets(*LAYERS), "--equal")
    assert "one-run audit" in dpdt("audit", "runs/a", "--repeats", "2")
    assert "measured" in dpdt("audit", "runs/a", "--repeats", "2", "--thresholds", "shadow")
    compared = ("--seeds", "1", "--methods", "dpdt,plain", "--out", "compared")
    assert "plain" in dpdt("compare", "own.toml", *compared)
    tuned = ("--try", "method.lr=0.5,1", "--runs", "1", "--out", "runs/tuned")
    assert "ε = 3 for the whole tune" in dpdt("tune", "own.toml", *tuned)
    dpdt("report", "runs/a", "runs/tuned", "--out", "both.html")
    dpdt("report", "runs/a", "--private")
    assert "runs/tuned" in dpdt("budget", "runs", "compared")
    dpdt("release", "runs/a")
    assert dpdt("verify", "runs/a/release").startswith("ok")
    for folder in ("runs/a", "runs/a/release"):
        assert len(dpdt("predict", folder, name).splitlines()) > 100
    assert "open it in a browser" in dpdt("explore", "own.toml")
    for noise in (GIVEN, TARGET):
        moved = exploring.position(Source(name="own.toml"), {"n": "200", "epochs": "3"}, noise)
        assert exploring.found(moved).ledger.header.examples == 200
    small = ("--seeds", "1", "--set", f"data.name={name}", *sets(*declared, "data.limit=300"))
    status, said = asked("reproduce", "main-results", *small)  # which trains on images
    if declared:
        assert (status, said[:18]) == (2, "data.test: missing")
    else:
        why = "model.name: 'convnet' reads images, and the data have shape (4,)"
        assert (status, said) == (2, why)
    assert {*COMMANDS} - used == {"reproduce"}
