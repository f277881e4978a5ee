"""What may be wrong with data and plan is said once, to who trains, wherever a run begins."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpdt
from dpdt import config
from dpdt.training.doubts import finite
from dpdt.training.run import run
from tests.numbers import prepare, train

N = 40
OPTIONS = {"epochs": 1, "batch_size": 8, "lr": 0.1}
QUIET = {**OPTIONS, "noise": 0.01, "allow_large_delta": True}


def data(n=N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator), torch.arange(n) % 3


class Rows(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def said(call, *arguments, **options):
    """Call a function, and return its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(*arguments, **options)
    return found


def begins(found, text):
    return [w for w in found if str(w.message).startswith(text)]


@pytest.mark.parametrize("call", [dpdt.train, dpdt.prepare])
def test_too_few_examples_are_said_to_be_too_few_in_python_too(call):
    options = {**OPTIONS, "method": "dpsgd", "noise": 50.0, "delta": 1e-4}
    found = said(call, nn.Linear(6, 3), data(), **options)
    (one,) = begins(found, f"{N} examples are too few for this ε")
    assert one.filename == __file__
    assert not begins(said(call, nn.Linear(6, 3), data(), quiet=True, **options), f"{N} examples")


@pytest.mark.parametrize("call", [dpdt.train, dpdt.prepare])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [tuple, lambda pair: Rows(*pair), lambda p: p[0].numpy()])
def test_inputs_that_are_not_finite_are_said_at_the_callers_line(call, value, kind):
    x, y = data()
    assert not begins(said(call, nn.Linear(6, 3), (x, y), **QUIET), "data: some numbers")
    x = x.clone()
    x[7, 2] = value
    given = kind((x, y))
    given = (given, y) if isinstance(given, np.ndarray) else given
    (one,) = begins(said(call, nn.Linear(6, 3), given, **QUIET), "data: some numbers are NaN")
    assert one.filename == __file__
    assert "keep it to yourself" in str(one.message)


def test_what_is_not_finite_is_in_no_public_file(tmp_path):
    """Nor does it change which files there are, or how the run ends."""
    names = []
    for value in (0.0, float("nan")):
        x, y = data()
        x[7, 2] = value
        out = tmp_path / str(value)
        said(train, nn.Linear(6, 3), (x, y), out=out, **QUIET)
        files = sorted(p for p in out.rglob("*") if p.is_file())
        names.append([p.relative_to(out) for p in files])
        public = [p for p in files if "private" not in p.parts]
        assert not any(b"NaN or infinite" in p.read_bytes() for p in files)
        assert public
    assert names[0] == names[1]


def test_complex_and_whole_numbers_and_no_examples_are_looked_at():
    assert finite((torch.zeros(3, 2, dtype=torch.complex64), torch.zeros(3).long()))
    assert not finite(torch.tensor([1.0 + 0j, complex(0, float("inf"))]))
    assert finite(torch.zeros(0, 4))
    assert not finite(torch.tensor([1.0, float("nan")], dtype=torch.bfloat16))


@pytest.mark.parametrize("call", [dpdt.train, dpdt.prepare])
def test_held_out_examples_that_are_trained_on_are_said(call):
    x, y = data()
    rows = TensorDataset(x, y)
    for mine, test in (
        ((x, y), (x, y)),
        ((x, y), (x[:9], y[:9])),
        ((x, y), (x.clone(), y.clone())),
        (rows, rows),
        (rows, torch.utils.data.Subset(rows, [1, 2])),
    ):
        (one,) = begins(said(call, nn.Linear(6, 3), mine, test=test, **QUIET), "test: these are")
        assert one.filename == __file__
    for mine, test in (((x, y), data(9, 1)), ((x[:30], y[:30]), (x[30:], y[30:]))):
        assert not begins(said(call, nn.Linear(6, 3), mine, test=test, **QUIET), "test: these")


def test_a_configured_run_says_the_same(tmp_path):
    chosen = ("train.epochs=1", "data.limit=200", "train.batch_size=50",
              "privacy.epsilon=0.5", "privacy.delta=1e-4")  # fmt: skip
    loaded = config.load("digits", chosen, "dpsgd")
    examples = loaded.data.load()
    x = examples.train[0].clone()
    x[3, 1] = float("nan")
    examples = replace(examples, train=(x, examples.train[1]))
    found = said(run, loaded, tmp_path / "run", show_progress=False, examples=examples)
    assert begins(found, "data: some numbers are NaN")
    assert begins(found, "200 examples are too few")


def test_a_guarantee_so_far_is_computed_and_shown_once_an_epoch(tmp_path, monkeypatch):
    """With a folder and a callback, the recorder and the watch would both do it."""
    from dpdt.training.progress import Display
    from dpdt.training.spent import Spent

    asked, shown, heard = [], [], []
    inner = Spent.__call__
    monkeypatch.setattr(Spent, "__call__", lambda *a: asked.append(a[1]) or inner(*a))
    monkeypatch.setattr(Display, "epoch", lambda *a: shown.append(a[2]))
    options = {**QUIET, "epochs": 3, "noise": 1.0}
    said(train, nn.Linear(6, 3), data(), out=tmp_path / "run", on_epoch=heard.append, **options)
    assert asked == [1, 2, 3]
    assert [record["epsilon"] for record in heard] == shown
    assert all(epsilon > 0 for epsilon in shown)
    said(train, nn.Linear(6, 3), data(), on_epoch=heard.append, **options)
    assert asked == [1, 2, 3] * 2
    assert len(shown) == 6


def test_steps_of_an_own_loop_are_warned_of_once():
    found = said(prepare, nn.Linear(6, 3), data(), test=data(), **QUIET)
    assert len(begins(found, "test: these are")) == 1
