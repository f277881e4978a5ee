"""Plain training, the yardstick."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpdt import config
from dpdt.errors import InputError
from tests.numbers import prepare, train


def problem():
    torch.manual_seed(0)
    x = torch.randn(60, 5)
    return nn.Linear(5, 3), (x, (x[:, :3]).argmax(1))


def test_a_step_is_sgd_with_momentum_and_a_cosine():
    model, (x, y) = problem()
    reference = nn.Linear(5, 3)
    reference.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    step, loader = prepare(
        model, (x, y), method="plain", lr=0.1, weight_decay=0.01, epochs=4, batch_size=30
    )
    for batch in loader:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5 * (1 + math.cos(math.pi * batch.step / 8))
        optimizer.zero_grad()
        F.cross_entropy(reference(batch.data[0]), batch.data[1]).backward()
        optimizer.step()
        step(batch)
    torch.testing.assert_close(model.weight, reference.weight)
    assert batch.step == 7


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_learns_and_promises_nothing(optimizer):
    model, data = problem()
    result = train(
        model, data, test=data, method="plain", optimizer=optimizer, lr=0.05, epochs=40,
        batch_size=10,
    )  # fmt: skip
    assert result.history[-1]["accuracy"] > 0.9
    assert math.isinf(result.privacy.epsilon)
    assert not any(g.applies for g in result.privacy.guarantees)


PRESET = """
[method]
clip = 2.0
noise = 1.0
[train]
epochs = 7
batch_size = 100
[peers.plain]
lr = 0.3
batch_size = 50
"""


def test_a_preset_holds_values_for_each_method(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PRESET)
    own = config.load(str(path))
    assert (own.method.clip, own.train.batch_size) == (2.0, 100)
    assert config.load(str(path), method="dpdt") == own  # its own method, asked for by name
    for plain in (
        config.load(str(path), method="plain"),
        config.load(str(path), ("method.name=plain",)),
    ):
        assert (plain.method.lr, plain.train.batch_size, plain.train.epochs) == (0.3, 50, 7)
    changed = config.load(str(path), ("method.lr=0.5",), method="plain")
    assert changed.method.lr == 0.5
    path.write_text(PRESET.replace("lr = 0.3", "clip = 0.3"))
    with pytest.raises(InputError, match=r"peers.plain.clip: no such setting"):
        config.load(str(path), method="plain")
    path.write_text(PRESET.replace("peers.plain", "peers.dpdt"))
    with pytest.raises(InputError, match=r"peers.dpdt: .* these values belong in \[method\]"):
        config.load(str(path))
    path.write_text(PRESET.replace("peers.plain", "peers.plane"))
    with pytest.raises(InputError, match=r"method.name: must be one of dpdt, .*plain"):
        config.load(str(path))
