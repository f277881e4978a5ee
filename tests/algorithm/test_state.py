"""One state_dict holds everything a run needs to continue bit for bit."""

import copy

import pytest
import torch
from torch import nn

import dpdt
from dpdt.errors import InputError

from .problems import classification


def network(kind):
    torch.manual_seed(0)
    if kind == "dropout":
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    if kind == "conv":
        return nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3)
        )
    return nn.Linear(6, 3)


@pytest.mark.parametrize("kind", ["linear", "conv", "dropout"])
@pytest.mark.parametrize(
    "options",
    [
        {"memory": "auxiliary", "auxiliaries": 4, "preconditioner": "rmsprop"},
        {"memory": "shared", "auxiliaries": 4, "preconditioner": "adam", "reshuffle": True},
        {"memory": "shared", "sampling": "poisson"},
        {"memory": "none", "sampling": "poisson", "auxiliaries": 3},
        {"memory": "none"},
    ],
)
def test_a_run_continues_bit_for_bit(kind, options):
    data = classification(40)
    options = {"epochs": 4, "batch_size": 12, "noise": 0.1, "lr": 0.1, **options}

    def start():
        return dpdt.prepare(network(kind), data, **options)

    step, loader = start()
    batches = iter(loader)
    for _ in range(5):
        step(next(batches))
    state = copy.deepcopy(step.state_dict())
    for batch in batches:
        step(batch)

    other, rest = start()  # another run, with noise of its own until the state is loaded
    other.load_state_dict(state)
    assert len(rest) == 12 - 5
    for batch in rest:
        other(batch)
    for a, b in zip(step.engine.model.parameters(), other.engine.model.parameters(), strict=True):
        assert torch.equal(a, b)
    first, second = step.state_dict()["engine"], other.state_dict()["engine"]
    for name, tensor in first["memory"].items():
        assert torch.equal(tensor, second["memory"][name])
    assert first["noise"] == second["noise"]
    assert other.writer.ledger.runs == step.writer.ledger.runs


def test_a_foreign_state_is_refused():
    data = classification(20)
    one, _ = dpdt.prepare(nn.Linear(6, 3), data, batch_size=10, noise=1.0, memory="none")
    two, _ = dpdt.prepare(nn.Linear(6, 3), data, batch_size=10, noise=1.0, memory="shared")
    with pytest.raises(InputError, match="another model or memory"):
        two.load_state_dict(one.state_dict())
