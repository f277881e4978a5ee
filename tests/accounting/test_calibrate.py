import math
from dataclasses import replace

import pytest

from dpdt import account
from dpdt.accounting import by_name
from dpdt.accounting.allocate import BOOSTS, allocate
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.errors import InputError
from dpdt.report.privacy import first_epochs

from .test_composition import BASE, ledger, planned, with_rounding
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
    cost = dict.fromkeys(("conv", "norm", "linear"), 0.0)
    setting = run.runs[0].setting
    for block, clip, noise in zip(run.header.blocks, setting.clip, setting.noise, strict=True):
        k = block.kind
        cost[k] += (clip * found.clip_scale[k] / (noise * found.noise_scale[k])) ** 2
    for k, share in found.shares.items():
        assert 100 * cost[k] / sum(cost.values()) == pytest.approx(share, abs=0.9)
    if mode == "noise":
        assert found.clip_scale == {"conv": 1.0, "norm": 1.0, "linear": 1.0}


def test_joint_moves_clip_and_noise_by_the_same_factor():
    run, judge = planned("cifar10", BASE), by_name("composition")
    noise = allocate(run, 1e-5, accountant=judge, mode="noise", kind="conv", boost=2.0)
    joint = allocate(run, 1e-5, accountant=judge, mode="joint", kind="conv", boost=2.0)
    for k in noise.noise_scale:
        assert joint.clip_scale[k] / joint.noise_scale[k] == pytest.approx(
            noise.clip_scale[k] / noise.noise_scale[k], rel=1e-4
        )
    assert joint.clip_scale["conv"] > noise.clip_scale["conv"]
    assert len(BOOSTS) == 7


@pytest.mark.parametrize("mode", ["noise", "joint"])
def test_an_allocation_pays_for_rounding_that_grows_with_clip(mode):
    """The lattice's spacing is a power of two: as clip grows, rounding may grow twice as much."""
    plain = planned("cifar10", BASE)
    rounding = tuple(c / 40 for c in plain.runs[0].setting.clip)
    run = with_rounding(plain, rounding)
    found = allocate(
        run, 1e-5, accountant=by_name("composition"), mode=mode, kind="conv", boost=2.0
    )
    kinds = [block.kind for block in run.header.blocks]
    clip = tuple(
        c * found.clip_scale[k] for c, k in zip(run.runs[0].setting.clip, kinds, strict=True)
    )
    noise = tuple(
        s * found.noise_scale[k] for s, k in zip(run.runs[0].setting.noise, kinds, strict=True)
    )
    far = rounding if mode == "noise" else tuple(2 * c / 40 for c in clip)
    changed = replace(run.runs[0].setting, clip=clip, noise=noise, rounding=far)
    again = replace(run, runs=[replace(run.runs[0], setting=changed)])
    target = account(run, 1e-5).epsilon
    assert account(again, 1e-5).epsilon <= target
    assert account(again, 1e-5).epsilon == pytest.approx(found.epsilon)


def test_other_noise_keeps_steps_that_were_taken_again():
    run = ledger([(1.0, 1.0, 10)], memory="none")
    run.append(run.runs[0].setting, 3, start=4)
    assert [(r.start, r.steps) for r in scaled(run, 2.0).runs] == [(0, 10), (4, 3)]
    assert [(r.start, r.steps) for r in first_epochs(run, 1).runs] == [(0, 5)]
    factor = calibrate(run, 2.0, 1e-5)
    assert 2.0 * (1 - 1e-3) <= account(scaled(run, factor), 1e-5).epsilon <= 2.0


def test_allocation_needs_a_number_to_hold():
    with pytest.raises(InputError, match="gives no ε"):
        allocate(ledger([(1.0, 0.0, 3)]), 1e-5, accountant=by_name("composition"), mode="noise")
    assert math.isinf(account(ledger([(1.0, 0.0, 3)]), 1e-5).epsilon)


def test_an_epsilon_that_would_take_forever_is_refused():
    with pytest.raises(InputError, match=r"at most 1000 under poisson sampling, found 1e\+09"):
        planned("digits", "method.sampling=poisson", "privacy.epsilon=1e9")
