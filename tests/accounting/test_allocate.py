import math

import pytest

from dpdt import config
from dpdt.accounting.allocate import BISECTIONS, BOOSTS, MODES, allocate, held
from dpdt.errors import InputError
from dpdt.ledger import Block

SHARES = {None: "33:33:34", "conv": "43:29:28", "norm": "29:43:28", "linear": "29:29:42"}


def resnet(source="cifar10"):
    """Blocks, clip and noise of the paper's experiment."""
    plan = config.plan_of(config.load(source))
    return plan.header.blocks, plan.recipe.clip, plan.recipe.noise


def some(*kinds):
    return [Block(name=f"b{i}", kind=kind, size=2) for i, kind in enumerate(kinds)]


def costs(blocks, clip, noise):
    found = {}
    for block, c, s in zip(blocks, clip, noise, strict=True):
        found[block.kind] = found.get(block.kind, 0.0) + (c / s) ** 2
    return found


def by_kind(blocks, values):
    return {block.kind: value for block, value in zip(blocks, values, strict=True)}


@pytest.mark.parametrize(("source", "clip"), [("cifar10", 0.004), ("cifar100", 0.005)])
def test_the_equal_baseline_keeps_conv_and_lets_every_kind_cost_as_much(source, clip):
    blocks, before, noise = resnet(source)
    found = allocate(blocks, before, noise, mode="noise")
    sigma = by_kind(blocks, noise)["conv"]
    assert set(found.noise) == {sigma}
    # 20 conv and 20 norm blocks against 1 linear one
    assert by_kind(blocks, found.clip) == pytest.approx(
        {"conv": clip, "norm": clip, "linear": clip * math.sqrt(20)}
    )
    assert found.clip[0] == before[0]
    assert found == allocate(blocks, before, noise, mode="joint")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["conv", "norm", "linear"])
@pytest.mark.parametrize("boost", BOOSTS)
def test_a_boost_multiplies_one_kinds_cost_and_leaves_the_others(mode, kind, boost):
    blocks, *values = resnet()
    equal = allocate(blocks, *values, mode=mode)
    found = allocate(blocks, *values, mode=mode, kind=kind, boost=boost)
    before, after = (costs(blocks, a.clip, a.noise) for a in (equal, found))
    clip, noise = (
        by_kind(blocks, [x / y for x, y in zip(new, old, strict=True)])
        for new, old in ((found.clip, equal.clip), (found.noise, equal.noise))
    )
    for k in before:
        assert after[k] == pytest.approx(before[k] * (boost if k == kind else 1.0))
        if k != kind:
            assert clip[k] == noise[k] == 1.0
        elif mode == "noise":
            assert (clip[k], noise[k]) == pytest.approx((1.0, boost**-0.5))
        else:
            assert (clip[k], noise[k]) == pytest.approx((boost**0.25, boost**-0.25))


@pytest.mark.parametrize("kind", SHARES)
def test_the_papers_shares(kind):
    blocks, *values = resnet()
    found = allocate(blocks, *values, mode="noise", kind=kind, boost=1.5 if kind else 1.0)
    assert ":".join(map(str, found.shares.values())) == SHARES[kind]
    assert list(found.shares) == ["conv", "norm", "linear"]
    cost = costs(blocks, found.clip, found.noise)
    for k, share in found.shares.items():
        assert 100 * cost[k] / sum(cost.values()) == pytest.approx(share, abs=0.9)
    assert BOOSTS == (0.5, 0.75, 1.25, 1.5, 1.75, 2.0)


def test_the_kind_with_the_most_blocks_is_kept_and_the_first_of_several():
    blocks = some("linear", "embedding", "linear", "other")
    found = allocate(blocks, [1.0, 5.0, 3.0, 7.0], [2.0, 0.1, 2.0, 9.0], mode="noise")
    assert found.noise == (2.0, 2.0, 2.0, 2.0)
    assert found.clip == pytest.approx((1.0, math.sqrt(10), 3.0, math.sqrt(10)))
    assert found.shares == {"linear": 33, "embedding": 33, "other": 34}
    found = allocate(some("linear", "norm"), [1.0, 5.0], [2.0, 1.0], mode="noise")
    assert (found.noise, found.clip) == ((1.0, 1.0), (5.0, 5.0))
    assert found.shares == {"norm": 50, "linear": 50}


def test_blocks_of_a_kind_that_differ_get_one_noise_and_keep_the_ratio_of_their_clip():
    blocks = some("conv", "conv", "linear")
    found = allocate(blocks, [1.0, 2.0, 1.0], [1.0, 4.0, 1.0], mode="noise")
    assert found.noise == (4.0, 4.0, 4.0)
    assert found.clip[1] == pytest.approx(2 * found.clip[0])
    cost = costs(blocks, found.clip, found.noise)
    assert cost["conv"] == pytest.approx(1.25)  # as before
    assert cost["linear"] == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, "mode: must be noise or joint, found 'both'"),
        ({"kind": "linear"}, "kind: this model has conv, norm, found 'linear'"),
        ({"kind": "conv", "boost": 0.0}, "boost: must be above 0, found 0"),
        ({"kind": "conv", "boost": math.inf}, "boost: must be above 0, found inf"),
        ({"boost": 2.0}, "kind: missing; say which kind is boosted by 2"),
        ({"noise": [1.0, 0.0]}, "method.noise: a budget can be split only with noise in every"),
        ({"blocks": some("other"), "clip": [1.0], "noise": [1.0]}, "method.granularity: the whole"),
    ],
)
def test_what_cannot_be_allocated_is_refused(options, message):
    given = {"blocks": some("conv", "norm"), "clip": [1.0, 1.0], "noise": [1.0, 1.0]}
    given = {**given, "mode": "noise", **options}
    with pytest.raises(InputError) as caught:
        allocate(given.pop("blocks"), given.pop("clip"), given.pop("noise"), **given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("target", [1e-3, 0.3, 1.0, 40.0])
def test_a_total_is_held_from_below_by_20_bisections(target):
    asked = []

    def spent(factor):
        asked.append(factor)
        return 1.0 / factor

    factor = held(spent, target)
    assert target * (1 - 1e-5) <= spent(factor) <= target
    assert BISECTIONS == 20
    assert len(asked) > BISECTIONS


def test_a_total_that_noise_does_not_change_cannot_be_held():
    with pytest.raises(InputError, match="no factor on the noise brings ε back to 1"):
        held(lambda factor: 2.0, 1.0)
    with pytest.raises(InputError, match="no factor on the noise brings ε back to 3"):
        held(lambda factor: 2.0, 3.0)
