"""Canaries are in or out by coin, leave no other trace, and gradient canaries pull as told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpdt import account, config, data
from dpdt.errors import InputError
from dpdt.methods.canaries import WITHIN, Marked, Planted, coordinates, marked_loss
from dpdt.training.run import Assembled, canaries_of
from tests.numbers import prepare

DIGITS = data.load("digits").train
SETS = ("audit.canaries=60", "privacy.epsilon=3.0")


def planted(*overrides, method=None):
    chosen = config.load("digits", (*SETS, *overrides), method)
    return Planted.plant(DIGITS, canaries_of(chosen)), chosen


@pytest.mark.parametrize("kind", ["mislabelled", "noise"])
def test_where_examples_are_replaced_a_stand_in_takes_the_place(kind):
    found, _ = planted(f"audit.canary={kind}", "privacy.relation=replace-one")
    assert found.absent is None
    x, y = found.data
    changed = np.flatnonzero(((x != DIGITS[0]).flatten(1).any(1) | (y != DIGITS[1])).numpy())
    assert set(changed) <= set(found.places)
    inside = torch.from_numpy(found.places[found.included])
    cx, cy = found.canaries
    mine = torch.from_numpy(found.included)
    assert torch.equal(x[inside], cx[mine])
    assert torch.equal(y[inside], cy[mine])
    outside = torch.from_numpy(found.places[~found.included])
    if kind == "mislabelled":  # the stand-in is the example itself
        assert torch.equal(y[outside], DIGITS[1][outside])
        assert (cy != DIGITS[1][torch.from_numpy(found.places)]).all()
    else:
        assert not torch.equal(x[outside], cx[~mine])


@pytest.mark.parametrize("method", ["dpdt", "dpsgd"])
def test_where_examples_are_added_or_removed_the_place_stays_empty(method):
    found, chosen = planted(method=method)
    assert set(np.flatnonzero(found.absent)) == set(found.places[~found.included])
    step, loader = prepare(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        found.data,
        absent=found.absent,
        public=data.load("digits").test[0],
        using=chosen,
    )
    present = len(DIGITS[1]) - found.absent.sum()
    for batch, _ in zip(loader, range(3), strict=False):
        assert len(batch.sizes) == present  # every example is in every mini-batch of digits
        step(batch)
    assert step.plan.header.examples == len(DIGITS[1])


def test_absence_is_refused_where_examples_are_replaced():
    chosen = config.load("digits", ("privacy.relation=replace-one",))
    with pytest.raises(InputError, match="none can be absent"):
        prepare(nn.Linear(64, 10), DIGITS, absent=np.ones(1437, dtype=bool), using=chosen)


def test_coins_are_fair_and_secret():
    """Fresh coins each time, whatever the seed; places and canaries are public and repeat."""
    first, second = planted()[0], planted()[0]
    assert np.array_equal(first.places, second.places)
    assert torch.equal(first.canaries[1], second.canaries[1])
    assert not np.array_equal(first.included, second.included)
    total = sum(planted()[0].included.sum() for _ in range(20))
    assert abs(total - 600) < 5 * 300**0.5


def test_the_same_again_from_its_record():
    found, chosen = planted("audit.canary=gradient")
    again = Planted.again(DIGITS, canaries_of(chosen), found.record())
    for a, b in zip(found.data, again.data, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(found.pulls.marks, again.pulls.marks)
    assert np.array_equal(found.included, again.included)


def test_a_gradient_canary_pulls_its_own_coordinate_and_nothing_else():
    inner = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model = Marked(inner, canaries=5, seed=0, strength=7.0)
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    for mark, sign in ((2, 1.0), (-2, -1.0)):
        marks = torch.full((3,), mark)
        loss = marked_loss(model, (x, y, marks))
        gradient = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(inner.parameters()))]
        )
        expected = torch.zeros(15)
        expected[coordinates(15, 5, 0)[1]] = sign * 7.0
        assert torch.allclose(gradient, expected)
    plain = marked_loss(model, (x, y, torch.zeros(3, dtype=torch.long)))
    expected = nn.functional.cross_entropy(inner(x), y)
    assert torch.allclose(plain, expected)


def test_gradient_canaries_go_through_the_engine_vectorised_and_clipped():
    """On blank images, with next to no noise, a canary moves its weight exactly as far as clipping
    allows, and its stand-in as far the other way."""
    chosen = config.load(
        "digits",
        (
            "audit.canaries=60",
            "audit.canary=gradient",
            "train.epochs=1",
            "method.memory=none",
            "method.sampling=partition",
            "method.lr=1.8",
            "method.averaging=0.0",
            "method.noise=1e-9",
        ),
    )
    chosen = replace(chosen, privacy=replace(chosen.privacy, epsilon=None))
    found = Planted.plant((torch.zeros_like(DIGITS[0]), DIGITS[1]), canaries_of(chosen))
    inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    start = inner[1].weight.detach().clone()
    step, loader = prepare(inner, found.data, pulls=found.pulls, using=chosen)
    for batch in loader:
        assert step(batch).nonfinite == 0
    (how,) = step.engine.executor.found.values()
    assert how.rows > 0
    moved = (inner[1].weight.detach() - start).flatten().numpy()
    places = coordinates(650, 60, 0).numpy()
    weights = places < 640
    setting = step.plan.at(0)
    most = setting.step_size * setting.clip[0] / step.plan.header.auxiliaries
    expected = np.zeros(640)
    expected[places[weights]] = np.where(found.included, -most, most)[weights]
    assert np.abs(moved - expected).max() < 1e-3 * most


@pytest.mark.parametrize(
    ("overrides", "method", "message"),
    [
        (("audit.canaries=1000",), None, "at most half of the 1437 examples, found 1000"),
        (("audit.canaries=-1",), None, "audit.canaries: must be a whole number from 0"),
        (("audit.canary=loud",), None, "must be one of mislabelled, noise, gradient"),
    ],
)
def test_canaries_that_cannot_be(overrides, method, message):
    with pytest.raises(InputError, match=message):
        planted(*overrides, method=method)


@pytest.mark.parametrize("method", ["pate", "plain"])
def test_gradient_canaries_need_clipped_gradients(method):
    """Whether the run is told beforehand or made."""
    sets = ("audit.canaries=60", "audit.canary=gradient", "privacy.epsilon=3.0")
    chosen = config.load("digits", sets, method)
    for attempt in (config.plan_of, lambda c: Assembled.of(c, None, None)):
        with pytest.raises(InputError, match=f"{method} has none; use mislabelled or noise"):
            attempt(chosen)


def test_gradient_canaries_need_enough_parameters():
    with pytest.raises(InputError, match="the model has 20, found 60"):
        coordinates(20, 60, 0)


def test_noise_needs_numbers():
    chosen = config.load("digits", (*SETS, "audit.canary=noise"))
    tokens = ({"input_ids": torch.ones(1437, 4, dtype=torch.long)}, DIGITS[1])
    with pytest.raises(InputError, match="not of tokens"):
        Planted.plant(tokens, canaries_of(chosen))


@pytest.mark.parametrize("kind", ["mislabelled", "noise", "gradient"])
@pytest.mark.parametrize("method", ["dpdt", "dpsgd", "gep"])
def test_canaries_never_change_the_plan(kind, method):
    """They used to switch the preconditioner off, and so to move the learning rate."""
    plain = config.load("digits", ("train.epochs=3",), method)
    audited = config.load(
        "digits", ("train.epochs=3", "audit.canaries=60", f"audit.canary={kind}"), method
    )
    plans = [Assembled.of(c, None, None).prepare(c, False)[0].plan for c in (plain, audited)]
    assert plans[0].header == plans[1].header
    assert plans[0].runs == plans[1].runs
    assert plans[1].header == config.plan_of(audited).header


@pytest.mark.parametrize("memory", ["none", "shared"])
def test_a_pull_keeps_to_the_bound_that_a_guarantee_rests_on(memory):
    """The convex bound holds of losses with gradients below it, as the pull of a canary is."""
    chosen = config.load(
        "digits",
        (
            "model.radius=1", "audit.canaries=40", "audit.canary=gradient", "train.epochs=2",
            f"method.memory={memory}", "method.sampling=partition", "method.lr=1.0",
            "method.averaging=0.0", "method.clip=3.0", "privacy.release=last",
        ),
    )  # fmt: skip
    step, _ = Assembled.of(chosen, None, None).prepare(chosen, False)
    told, done = (
        {g.accountant: (g.epsilon, g.valid) for g in account(plan.ledger(), 1e-5).guarantees}
        for plan in (config.plan_of(chosen), step.plan)
    )
    assert told == done
    assert done["hidden-state-convex"][1] == (memory == "none")
    learner, bound = step.engine.executor.model, step.plan.problem.bounds.gradient
    assert learner.strength == WITHIN * bound < bound
