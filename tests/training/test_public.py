"""What is public of a run is no function of what its examples say.

Each run is made twice: on some data, and on the same data with one record replaced. Seeds and noise
are the same. Every public byte is compared: all files outside of private/, with their names and
sizes, those of the release, both outputs, warnings and how the run ended. What may differ is named
in `MASKED` and `SPOKEN`. A `PrivateWarning` is for who trains alone.
"""

import io
import json
import random
import re
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.utils.data import Dataset

import dpdt
from dpdt.algorithm.executor import Executor
from dpdt.cli.main import cli
from dpdt.errors import PrivateWarning
from dpdt.models.networks import bounded_linear
from tests.methods.test_conformance import EXAMPLES, INPUTS, SMALL, TRAIN, X, Y, network

# Keys of public files whose values follow from the noisy weights, from secret draws or from time.
MASKED = {
    "model": "a hash of the weights",
    "weights": "a hash of the weights",
    "hash": "of a ledger's line, and of those before it",
    "closing": "the hash of a ledger's last line",
    "seal": "fresh in every run",
    "sha256": "of files that hold any of these",
    "digest": "of a certificate that holds any of these",
    "created": "the day of a release",
}
VALUES = re.compile(r"[0-9a-f]{32,}|\d{4}-\d\d-\d\d")  # of these keys, if they are not tables
OWN = (".npz", ".csv")  # the data themselves
UNSEEN = (PrivateWarning, ResourceWarning)  # for who trains; when memory is collected
# What a command says of the model, on held-out examples, and of time.
SPOKEN = (
    re.compile(r"(?<=^accuracy )[\d.]+(?= on held-out examples$)", re.M),
    re.compile(r'(?<="accuracy": )[\d.]+|(?<="value": )[\d.]+|(?<="seconds": )[\d.]+'),
    re.compile(r"(?<= epochs, )[\d.]+(?= s$)", re.M),
)


def masks(value, found):
    """Collects the values of masked keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in MASKED and isinstance(inner, str) and VALUES.fullmatch(inner):
                found[inner] = f"<{key}>"
            masks(inner, found)
    elif isinstance(value, list):
        for inner in value:
            masks(inner, found)


def files(folder):
    """Every public file below a folder: its name, its size, and what it says once masked.

    Of weights only the name and the size are compared.
    """
    every = sorted(folder.rglob("*"))
    paths = [p for p in every if "private" not in p.parts and p.suffix not in OWN]
    texts = {p: p.read_text() for p in paths if p.is_file() and p.suffix != ".safetensors"}
    found = {}
    for path, text in texts.items():
        if path.suffix in (".json", ".jsonl"):
            for line in [text] if path.suffix == ".json" else text.splitlines():
                masks(json.loads(line), found)
    assert found
    for path, text in texts.items():
        for value, name in found.items():
            text = text.replace(value, name)
        texts[path] = text
    return [(str(p), p.stat().st_size if p.is_file() else None, texts.get(p)) for p in paths]


def seen(folder, monkeypatch, act):
    """All that is public of what `act` does in a folder of its own, and in which ways."""
    ways, settle = [], Executor._settle

    def spy(*args):
        how = settle(*args)
        ways.append(how.words())
        return how

    monkeypatch.setattr(Executor, "_settle", spy)
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("dpdt.noise.secrets.randbits", random.Random(0).getrandbits)
    torch.manual_seed(0)
    out, err, error = io.StringIO(), io.StringIO(), None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with redirect_stdout(out), redirect_stderr(err):
            try:
                status = act()
            except Exception as raised:  # which anyone may see
                status, error = None, f"{type(raised).__name__}: {raised}"
            finally:
                monkeypatch.setattr(Executor, "_settle", settle)
    spoken = out.getvalue()
    for pattern in SPOKEN:
        spoken = pattern.sub("<said>", spoken)
    return {
        "status": status, "error": error, "ways": ways, "stdout": spoken, "stderr": err.getvalue(),
        "warnings": [str(w.message) for w in said if w.category not in UNSEEN],
        "files": files(Path()),
    }  # fmt: skip


def same(tmp_path, monkeypatch, acts):
    """All of these must be alike, and must have trained."""
    first = None
    for number, act in enumerate(acts):
        found = seen(tmp_path / str(number), monkeypatch, act)
        assert found["error"] is None, found["error"]
        assert any(name == "run/ledger.jsonl" for name, *_ in found["files"])
        first = first or found
        assert found == first
    return first


def trained(data, make=network, *, leaves=False, **options):
    """Train in Python and keep the run. Where asked, release it."""

    def act():
        model = make()
        result = dpdt.train(model, data, out="run", **options)
        print(result.privacy)
        if leaves:
            print(dpdt.release("run", model=model, to="release"))
        return len(result.history)

    return act


def odd(x, y):
    """Neighbours of data: one record is replaced by something that nobody expects."""
    records = ((0, torch.nan, 0), (5, torch.inf, -100), (0, 1e-45, -100), (23, 3e38, 0))
    found = []
    for place, number, label in records:
        found.append((x.clone(), y.clone()))
        found[-1][0][place], found[-1][1][place] = number, label
    return found


CONVEX = {
    "method": "dpdt", "sampling": "partition", "memory": "none", "auxiliaries": 3, "clip": 1.0,
    "preconditioner": "identity", "lr": 0.05, "penalty": 1.0, "noise": 2.0, "averaging": 0.0,
    "release": "last", "weight_decay": 0.01,
}  # fmt: skip
PLAIN = {k: v for k, v in CONVEX.items() if k not in ("release", "weight_decay")}
RUNS = {
    **{name: {"method": row.method, **row.options} for name, row in SMALL.items()},
    "bounded": CONVEX,
    "none-partition": PLAIN,
    "shared-partition": {**PLAIN, "memory": "shared"},
    "none-poisson": {**PLAIN, "sampling": "poisson", "auxiliaries": "per-example"},
    "shard": {**PLAIN, "unit": "shard", "memory": "auxiliary"},
    "user": {**PLAIN, "unit": "user", "users": [i // 4 for i in range(EXAMPLES)], "batch_size": 5},
    "auto": {"method": "dpdt", "epsilon": 8.0, "delta": 0.01},
}  # fmt: skip


RELEASED = ("bounded", "shard", "user", "pate")  # accounted fast, again and again
TEST = (INPUTS, torch.arange(12) % 3)


@pytest.mark.parametrize("name", RUNS)
def test_no_record_decides_what_is_public_of_a_run(name, tmp_path, monkeypatch):
    options = {"delta": 0.01, "test": TEST, **TRAIN, **RUNS[name], "leaves": name in RELEASED}
    if options["method"] in ("gep", "pate"):
        options["public"] = INPUTS
    make = (lambda: bounded_linear(4, 3, 1.0)) if name == "bounded" else network
    same(tmp_path, monkeypatch, [trained(d, make, **options) for d in [(X, Y), *odd(X, Y)]])


def test_one_label_among_equal_ones_decides_nothing(tmp_path, monkeypatch):
    zeros, make = torch.zeros_like(Y), lambda: bounded_linear(4, 3, 1.0)
    datas = [(X, zeros), *odd(X, zeros)]
    found = same(tmp_path, monkeypatch, [trained(d, make, **TRAIN, **CONVEX) for d in datas])
    assert '"gradient_bound": 2.0' in str(found["files"])  # the bound is recorded for all of them


class Rows(Dataset):
    """Examples that are read one by one, so that nobody looks at their labels beforehand."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@pytest.mark.parametrize("name", ["dpdt", "none-partition", "dpsgd", "gep", "pate", "plain"])
def test_a_label_that_is_no_class_decides_nothing(name, tmp_path, monkeypatch):
    options = {"delta": 0.01, **TRAIN, **RUNS[name]}
    if options["method"] in ("gep", "pate"):
        options["public"] = INPUTS
    datas = [Rows(X, Y)]
    for place, label in ((0, 3), (5, -1), (5, 2**40), (23, -100)):
        datas.append(Rows(X, Y.clone()))
        datas[-1].y[place] = label
    same(tmp_path, monkeypatch, [trained(d, **options) for d in datas])


class Texts(nn.Module):
    """Reads tokens by name, and says for each position which comes next."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.table, self.head = nn.Embedding(7, 5), nn.Linear(5, 7)

    def forward(self, input_ids, attention_mask, labels=None):
        logits = self.head(self.table(input_ids) * attention_mask.unsqueeze(-1))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.movedim(2, 1), labels)
        return SimpleNamespace(loss=loss, logits=logits)


def test_the_length_of_a_text_decides_nothing(tmp_path, monkeypatch):
    ids = torch.arange(EXAMPLES * 6).reshape(EXAMPLES, 6) % 7
    datas = []
    for length in (6, 3, 1, 0):
        mask = torch.ones_like(ids)
        mask[5, length:] = 0
        labels = ids.masked_fill(mask == 0, -100)
        datas.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    for name in ("none-partition", "dpdt"):
        options = {"delta": 0.01, **TRAIN, **RUNS[name]}
        (tmp_path / name).mkdir()
        same(tmp_path / name, monkeypatch, [trained(d, Texts, **options) for d in datas])


def test_the_categories_that_occur_decide_nothing(tmp_path, monkeypatch):
    kinds = pandas.CategoricalDtype(["b", "a"])
    frames = []
    for last in ("a", "b"):
        kind = pandas.Series([*["b"] * (EXAMPLES - 1), last], dtype=kinds)
        frames.append(pandas.DataFrame({"age": X[:, 0], "weight": X[:, 1], "kind": kind}))
    y, options = pandas.Series(Y), {"delta": 0.01, **TRAIN, **RUNS["none-partition"]}
    same(tmp_path, monkeypatch, [trained((frame, y), **options) for frame in frames])


def commanded(*lines):
    """Some commands, one after the other; the sum of their statuses."""

    def act():
        total = 0
        for line in lines:
            found = CliRunner().invoke(cli, line)
            if found.exception is not None and not isinstance(found.exception, SystemExit):
                raise found.exception
            total += found.exit_code
            print(found.stdout)
            print(found.stderr, file=sys.stderr)
        return total

    return act


FAST = ("method.sampling=partition", "method.noise=2.0", "method.memory=none", "method.lr=0.1",
        "method.averaging=0.0", "train.epochs=2", "train.batch_size=20", "privacy.delta=0.001",
        "model.name=linear")  # fmt: skip


def training(source, out):
    sets = [part for change in FAST for part in ("--set", change)]
    return ["train", source, *sets, "--out", out]


TABLE = """
[data]
name = "people.csv"
test = "others.csv"
target = "rich"
missing = "zero"
[data.columns]
age = [0, 100]
sex = ["f", "m"]
rich = ["no", "yes"]
"""
ROWS = ["1e300,f,no", "-inf,m,yes", ",,no", "?,NA,yes", "nan,other,no", f"7,{'m' * 9999},yes"]


def test_no_cell_of_a_table_decides_what_a_command_says(tmp_path, monkeypatch):
    plain = [f"{i},{'fm'[i % 2]},{'no' if i < 30 else 'yes'}" for i in range(60)]
    acts = []
    for row in (plain[5], *ROWS):
        text = "\n".join(["age,sex,rich", *plain[:5], row, *plain[6:]])

        def act(text=text):
            with open("people.csv", "w") as file:
                file.write(text)
            with open("others.csv", "w") as file:
                file.write("\n".join(["age,sex,rich", *plain]))
            with open("own.toml", "w") as file:
                file.write(TABLE)
            return commanded(training("own.toml", "run"))()

        acts.append(act)
    found = same(tmp_path, monkeypatch, acts)
    assert found["status"] == 0


def test_no_array_decides_what_commands_say(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = np.zeros(60, dtype=np.int64)
    acts = []
    for number, label in ((0.5, 0), (3e38, 1)):
        inputs, labels = x.copy(), y.copy()
        inputs[5], labels[5] = number, label

        def act(inputs=inputs, labels=labels):
            np.savez("own.npz", x_train=inputs, y_train=labels, x_test=x, y_test=y, classes=2)
            return commanded(
                training("own.npz", "run"), [*training("own.npz", "again"), "--json"],
                ["account", "run"], ["release", "run", "--to", "release"], ["report", "run"],
            )()  # fmt: skip

        acts.append(act)
    assert same(tmp_path, monkeypatch, acts)["status"] == 0
