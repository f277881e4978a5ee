"""What a run will need is known, said and checked before it is allocated."""

import pytest
import torch
from torch import nn

from dpdt import config
from dpdt.errors import InputError
from dpdt.methods.dpdt import engine
from dpdt.ram import available
from tests.numbers import prepare


def test_the_state_of_the_cifar10_preset():
    chosen = config.load("cifar10")
    size = chosen.method.state_size(config.problem_of(chosen), chosen.train)
    assert size == 11_173_962 * 40 * 2 * 4


def test_free_memory_is_known_here():
    assert available() is None or available() > 1_000_000


def test_a_run_that_does_not_fit_is_refused_with_the_number(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: 150_000)
    x, y = torch.randn(100, 1000), torch.zeros(100, dtype=torch.long)
    options = {"noise": 1.0, "batch_size": 100, "auxiliaries": 40}
    with pytest.raises(InputError, match=r"40 auxiliaries .* 2,002 parameters need 0.3 MB .* 0.1"):
        prepare(nn.Linear(1000, 2), (x, y), memory="auxiliary", **options)
    prepare(nn.Linear(1000, 2), (x, y), memory="shared", **options)
