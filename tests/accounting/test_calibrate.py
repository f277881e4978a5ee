import math

import pytest

from dpdt import account
from dpdt.accounting import by_name
from dpdt.accounting.allocate import BOOSTS, allocate
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.errors import InputError

from .test_composition import BASE, ledger, planned
from .test_conformance import make


def test_one_kinds_noise():
    run = planned("cifar10", BASE)
    factor = calibrate(run, 200.0, 1e-5, kinds=["conv"])
    result = scaled(run, factor, ["conv"])
    assert 200 * (1 - 1e-3) <= account(result, 1e-5).epsilon <= 200.0
    kinds = {
        b.kind: s for b, s in zip(run.header.blocks, result.runs[0].setting.noise, strict=True)
    }
    assert kinds["norm"] == run.runs[0].setting.noise[1]
    assert kinds["conv"] == pytest.approx(factor * run.runs[0].setting.noise[0])


def test_unreachable_targets_say_what_would_have_to_change():
    run = planned("cifar10", BASE)
    with pytest.raises(InputError, match="other kinds of block alone spend more"):
        calibrate(run, 3.0, 1e-5, kinds=["linear"])
    with pytest.raises(InputError, match="not valid for this run: auxiliaries reset"):
        calibrate(run, 3.0, 1e-5, accountant=by_name("paper"))
    with pytest.raises(InputError, match="no L2 weight decay"):
        calibrate(
            ledger([(1.0, 1.0, 5)]), 3.0, 1e-5, accountant=by_name("hidden-state-contraction")
        )


@pytest.mark.parametrize("name", ["hidden-state-convex", "hidden-state-contraction"])
def test_other_valid_accountants(name):
    run = make(decay=0.5)
    accountant = by_name(name)
    factor = calibrate(run, 2.0, 1e-5, accountant=accountant)
    spent = accountant.guarantee(scaled(run, factor), 1e-5).epsilon
    assert 2.0 * (1 - 1e-3) <= spent <= 2.0


PAPERS = {None: "33:33:34", "conv": "43:29:28", "norm": "29:43:28", "linear": "29:29:42"}


@pytest.mark.parametrize("mode", ["noise", "joint"])
@pytest.mark.parametrize("accountant", ["composition", "paper"])
@pytest.mark.parametrize("kind", list(PAPERS))
def test_the_papers_shares_at_the_same_total(mode, accountant, kind):
    run, judge = planned("cifar10", BASE), by_name(accountant)
    target = judge.guarantee(run, 1e-5).epsilon
    found = allocate(run, 1e-5, accountant=judge, mode=mode, kind=kind, boost=1.5)
    assert ":".join(str(found.shares[k]) for k in ("conv", "norm", "linear")) == PAPERS[kind]
    assert abs(found.epsilon - target) <= 0.01
    # the shares are what (C/σ)² of the result says, over 20, 20 and 1 blocks
    cost = {
        k: n * (found.clip[k] / found.noise[k]) ** 2
        for k, n in (("conv", 20), ("norm", 20), ("linear", 1))
    }
    for k, share in found.shares.items():
        assert 100 * cost[k] / sum(cost.values()) == pytest.approx(share, abs=0.9)
    if mode == "noise":
        assert found.clip == {"conv": 0.004, "norm": 0.004, "linear": 0.001}


def test_joint_moves_clip_and_noise_by_the_same_factor():
    run, judge = planned("cifar10", BASE), by_name("composition")
    noise = allocate(run, 1e-5, accountant=judge, mode="noise", kind="conv", boost=2.0)
    joint = allocate(run, 1e-5, accountant=judge, mode="joint", kind="conv", boost=2.0)
    for k in noise.noise:
        assert joint.clip[k] / joint.noise[k] == pytest.approx(
            noise.clip[k] / noise.noise[k], rel=1e-4
        )
    assert joint.clip["conv"] > noise.clip["conv"]
    assert len(BOOSTS) == 7


def test_allocation_needs_a_number_to_hold():
    with pytest.raises(InputError, match="gives no ε"):
        allocate(ledger([(1.0, 0.0, 3)]), 1e-5, accountant=by_name("composition"), mode="noise")
    assert math.isinf(account(ledger([(1.0, 0.0, 3)]), 1e-5).epsilon)


def test_an_epsilon_that_would_take_forever_is_refused():
    with pytest.raises(InputError, match=r"at most 1000 under poisson sampling, found 1e\+09"):
        planned("digits", "method.sampling=poisson", "privacy.epsilon=1e9")
