"""A run that goes on: bit for bit with its secrets, with fresh noise without them."""

import copy
import math

import pytest
import torch
from torch import nn

import dpdt
from dpdt.errors import InputError
from tests.numbers import prepare

from .problems import classification, flat


def network(kind):
    torch.manual_seed(0)
    if kind == "dropout":
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    if kind == "conv":
        return nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3)
        )
    return nn.Linear(6, 3)


OPTIONS = [
    {"memory": "auxiliary", "auxiliaries": 4, "preconditioner": "rmsprop"},
    {"memory": "shared", "auxiliaries": 4, "preconditioner": "adam", "reshuffle": True},
    {"memory": "shared", "sampling": "poisson"},
    {"memory": "none", "sampling": "poisson", "auxiliaries": 3},
    {"memory": "none"},
]
STEPS = 12


def start(kind, options):
    data = classification(40)
    chosen = {"epochs": 4, "batch_size": 12, "noise": 1.0, "lr": 0.1, **options}
    return prepare(network(kind), data, **chosen)


def take(step, batches, number):
    for _ in range(number):
        step(next(batches))


def resumed(kind, options, state, secrets, runs):
    """Another run, with noise of its own until it goes on with that of the first."""
    other, rest = start(kind, options)
    other.writer.adopt(runs)
    other.resume(state, secrets)
    return other, rest


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", ["linear", "conv", "dropout"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_run_continues_bit_for_bit(kind, options, ahead):
    """`ahead`: the ledger knows of steps after the checkpoint; they come out as they did."""
    step, loader = start(kind, options)
    batches = iter(loader)
    take(step, batches, 5)
    state, secrets = copy.deepcopy(step.state_dict()), copy.deepcopy(step.secrets())
    recorded = list(step.writer.ledger.runs)
    take(step, batches, 3)
    if ahead:
        recorded = list(step.writer.ledger.runs)
    take(step, batches, STEPS - 8)

    other, rest = resumed(kind, options, state, secrets, recorded)
    assert len(rest) == STEPS - 5
    for batch in rest:
        other(batch)
    for a, b in zip(step.engine.model.parameters(), other.engine.model.parameters(), strict=True):
        assert torch.equal(a, b)
    first, second = step.state_dict()["engine"], other.state_dict()["engine"]
    assert set(first["memory"]) == set(second["memory"])
    for name, tensor in first["memory"].items():
        assert torch.equal(tensor, second["memory"][name])
    assert step.secrets() == other.secrets()
    assert other.writer.ledger.runs == step.writer.ledger.runs
    assert other.writer.ledger.steps == STEPS
    assert other.run == step.run


@pytest.mark.parametrize("kind", ["linear", "conv", "dropout"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_loaded_state_goes_on_with_fresh_noise_and_pays_again(kind, options):
    step, loader = start(kind, options)
    batches = iter(loader)
    take(step, batches, 5)
    state = copy.deepcopy(step.state_dict())
    there = flat(step.engine.model)
    take(step, batches, 1)
    after = flat(step.engine.model)
    take(step, batches, 2)
    old = next(batches)

    step.load_state_dict(state)  # into the same run: steps 5, 6 and 7 are taken again
    assert torch.equal(flat(step.engine.model), there)
    assert len(loader) == STEPS - 5
    with pytest.raises(InputError, match="once, in order"):
        step(old)
    batches = iter(loader)
    take(step, batches, 1)
    assert not torch.equal(flat(step.engine.model), after)
    take(step, batches, STEPS - 6)
    step.finish()
    ledger = step.writer.ledger
    assert ledger.steps == 9 + (STEPS - 5)  # the batch that was handed out is paid for, used or not
    assert ledger.repeats
    assert ledger.position == STEPS
    assert torch.isfinite(flat(step.engine.model)).all()
    planned = dpdt.account(step.plan.ledger(), step.delta).epsilon
    assert planned < step.privacy().epsilon < math.inf

    other, rest = start(kind, options)  # into another, which has done nothing
    other.load_state_dict(state)
    assert torch.equal(flat(other.engine.model), there)
    assert other.writer.ledger.steps == 5  # what was done before is not forgotten
    batches = iter(rest)
    take(other, batches, 1)
    assert not torch.equal(flat(other.engine.model), after)
    take(other, batches, STEPS - 6)
    assert other.writer.ledger.runs == other.plan.ledger().runs
    assert other.privacy().epsilon == pytest.approx(planned)


def test_a_state_holds_no_noise():
    """Who has a state can neither repeat the draws of its run nor foresee them."""
    step, loader = start("linear", {"memory": "shared", "sampling": "poisson"})
    take(step, iter(loader), 2)
    shown = repr(step.state_dict())
    for secret in step.secrets().values():
        keys = [word for word in secret["s"]["seed"] if word > 2**32]
        assert len(keys) >= 2
        assert not any(str(word) in shown for word in keys)
    assert "noise" not in step.state_dict()["engine"]


def test_a_ledger_that_does_not_begin_with_the_state_is_refused():
    options = {"memory": "none"}
    step, loader = start("linear", options)
    batches = iter(loader)
    take(step, batches, 5)
    state, secrets, runs = step.state_dict(), step.secrets(), list(step.writer.ledger.runs)
    with pytest.raises(InputError, match="does not begin with the steps of the checkpoint"):
        resumed("linear", options, state, secrets, [])
    take(step, batches, 1)
    step.load_state_dict(state)
    take(step, iter(loader), 1)
    again = list(step.writer.ledger.runs)  # some were taken twice, with other noise
    with pytest.raises(InputError, match="does not go on as the run would after the checkpoint"):
        resumed("linear", options, state, secrets, again)
    other, rest = start("linear", options)
    take(other, iter(rest), 1)
    with pytest.raises(InputError, match="belongs to another run"):
        other.load_state_dict(state)
    assert runs != again


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"memory": "shared"}, "settings"),
        ({"noise": 2.0}, "settings"),
        ({"model": nn.Linear(6, 3, bias=False)}, "settings|model"),
        ({"data": classification(20, seed=1)}, "training data"),
    ],
)
def test_a_foreign_state_is_refused(change, what):
    data = classification(20)
    usual = {"batch_size": 10, "noise": 1.0, "memory": "none"}
    one, _ = prepare(nn.Linear(6, 3), data, **usual)
    changed = {"model": nn.Linear(6, 3), "data": data, **usual, **change}
    two, _ = prepare(changed.pop("model"), changed.pop("data"), **changed)
    with pytest.raises(InputError, match=f"belongs to a run with other ({what})"):
        two.load_state_dict(one.state_dict())
    with pytest.raises(InputError, match=f"belongs to a run with other ({what})"):
        two.resume(one.state_dict(), one.secrets())


def test_an_engine_refuses_the_state_of_another_model_or_memory():
    data = classification(20)
    one, _ = prepare(nn.Linear(6, 3), data, batch_size=10, noise=1.0, memory="none")
    two, _ = prepare(nn.Linear(6, 3), data, batch_size=10, noise=1.0, memory="shared")
    with pytest.raises(InputError, match="another model or memory"):
        two.engine.load_state_dict(one.engine.state_dict())
