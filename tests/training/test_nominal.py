"""A nominal number of examples: nothing that is public tells how many there truly are."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy import stats
from torch import nn

from dpdt.cli.main import cli
from dpdt.errors import InputError
from dpdt.partition import PoissonSampler
from dpdt.training.loop import prepare, train

NOMINAL = 40
# what differs from run to run on equal data: secret draws, clocks, and a keyed identity of the data
MASKED = ("seal", "hash", "model", "seconds", "accuracy", "metric", "run")
METHODS = {
    "dpdt": ("dpdt", ()),
    "few auxiliaries": (
        "dpdt",
        ("auxiliaries=4", "lr=0.1", "penalty=1.0", "averaging=0.0", "clip=1.0"),
    ),
    "dpsgd": ("dpsgd", ()),
    "gep": ("gep", ("directions=2",)),
}


def file_of(path, examples):
    generator = np.random.default_rng(3)
    x, y = generator.random((examples, 6), dtype=np.float32), generator.integers(0, 3, examples)
    tests = {"x_test": x[:5], "y_test": y[:5]}
    np.savez(path, x_train=x, y_train=y, classes=3, **tests)


def masked(value):
    if isinstance(value, dict):
        return {k: "…" if k in MASKED else masked(v) for k, v in value.items()}
    return [masked(v) for v in value] if isinstance(value, list) else value


def masked_text(text):
    """Without what depends on the clock."""
    return [line for line in text.splitlines() if " s" not in line]


def public_of(folder):
    """Every public file of a run, as it stands but for what is masked."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or "private" in path.parts:
            continue
        text = path.read_text()
        if path.suffix == ".jsonl":
            files[path.name] = [masked(json.loads(line)) for line in text.splitlines()]
        else:
            files[path.name] = text
    return files


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("examples", [33, 80])
def test_no_public_byte_tells_how_many_examples_there_are(tmp_path, monkeypatch, method, examples):
    name, keys = METHODS[method]
    config = f"""
    [data]
    name = "data.npz"
    public = 2
    [model]
    name = "linear"
    [method]
    name = "{name}"
    [train]
    epochs = 2
    batch_size = 10
    [privacy]
    epsilon = 8.0
    delta = 1e-3
    examples = {NOMINAL}
    """
    found = []
    for there in (examples, examples - 1):
        folder = tmp_path / str(there)
        folder.mkdir()
        monkeypatch.chdir(folder)
        file_of("data.npz", there)
        (folder / "run.toml").write_text(config)
        overrides = [word for key in keys for word in ("--set", f"method.{key}")]
        arguments = ["train", "run.toml", "--out", "out", "--json", *overrides]
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said = masked(json.loads(done.stdout))
        assert said["privacy"]["relation"] == "add-remove"
        found.append((said, masked_text(done.stderr), public_of(folder / "out")))
    assert found[0] == found[1]


def test_the_true_number_is_refused_only_where_it_is_far_beyond_the_nominal_one():
    options = {"epochs": 1, "batch_size": 4, "noise": 1.0, "clip": 1.0, "examples": 10}
    for number in (1, 9, 40):
        data = (torch.randn(number, 3), torch.zeros(number, dtype=torch.long))
        prepare(nn.Linear(3, 2), data, **options)
    data = (torch.randn(41, 3), torch.zeros(41, dtype=torch.long))
    with pytest.raises(InputError, match=r"privacy.examples: there may be up to 4 times as many"):
        prepare(nn.Linear(3, 2), data, **options)


WIDTH, DELTA = 50, 1e-4


def answer(model, batch):
    """A loss whose gradient by the weights is the mean of the examples, as dropout leaves them."""
    return model(batch[0] if isinstance(batch, tuple) else batch).mean()


def released(x, nominal):
    """The weights after one step in which all take part."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 1, bias=False))
    nn.init.zeros_(model[1].weight)
    options = {"clip": 1.0, "lr": 1.0, "momentum": 0.0, "epsilon": 0.5, "delta": DELTA}
    train(
        model, x, loss=answer, method="dpsgd", epochs=1, batch_size=nominal, examples=nominal,
        progress=False, **options,
    )  # fmt: skip
    return model[1].weight.detach().double().flatten()


def measured(x, y, nominal, runs=60):
    """What an attacker proves who knows all of `x` and `y`, the public seed, and how masks follow
    from places in the data, if they do: a lower bound on ε, at a failure probability of 1e-6."""
    with pytest.MonkeyPatch.context() as patch:
        place_for_key(patch)
        patch.setattr("dpdt.noise.Randomness.gaussian", lambda self, size: np.zeros(size))
        known = [released(data, nominal) for data in (x, y)]
    apart = known[0] - known[1]
    middle = float(apart @ (known[0] + known[1])) / 2
    hits = sum(float(apart @ released(x, nominal)) > middle for _ in range(runs))
    false = sum(float(apart @ released(y, nominal)) > middle for _ in range(runs))
    low = stats.beta.ppf(5e-7, hits, runs - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - 5e-7, false + 1, runs - false) if false < runs else 1.0
    return float(np.log(max(low - DELTA, 1e-300) / high))


def place_for_key(patch):
    """Break it on purpose: what is random for an example follows its place in the data."""
    part = PoissonSampler.part

    def by_place(self, *place):
        made = part(self, *place)
        return replace(made, keys=made.indices)

    patch.setattr(PoissonSampler, "part", by_place)


def test_an_attack_on_what_is_released_does_not_tell_one_example_more():
    """Without its first example, all others are at other places. Masks that followed these would
    be other masks, and everybody's contribution another one."""
    x = 10.0 * torch.randn(600, WIDTH, generator=torch.Generator().manual_seed(1))
    assert measured(x, x[1:], nominal=600) <= 0.5
    with pytest.MonkeyPatch.context() as patch:
        place_for_key(patch)
        assert measured(x, x[1:], nominal=600) > 0.5  # so the attack would have seen it
