import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdt import account, config
from dpdt.accounting import check_delta
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.accounting.composition import composed_mu, squared_mu
from dpdt.errors import InputError
from dpdt.ledger import Block, Header, Ledger, Setting


def planned(source, *overrides):
    return config.plan_of(config.load(source, overrides)).ledger()


def ledger(runs, *, K=4, M=5, **options):
    """`runs` are (clip, noise, steps) of a model with one block."""
    header = Header(
        method="dpdt",
        examples=100,
        auxiliaries=K,
        batches=M,
        memory=options.pop("memory", "auxiliary"),
        sampling=options.pop("sampling", "partition"),
        unit=options.pop("unit", "example"),
        relation=options.pop("relation", "replace-one"),
        release=options.pop("release", "last"),
        blocks=(Block(name="a", kind="linear", size=3),),
        **options,
    )
    result = Ledger(header)
    for clip, noise, steps in runs:
        result.append(
            Setting(
                clip=(clip,), noise=(noise,), penalty=1.0, lr=0.1, global_lr=0.9, step_size=0.9,
                contraction=1.0,
            ),
            steps,
        )  # fmt: skip
    return result


def with_rounding(run, rounding):
    """The same run, on a lattice."""
    runs = [replace(r, setting=replace(r.setting, rounding=rounding)) for r in run.runs]
    return replace(run, runs=runs)


BASE = "method.clip_schedule=constant"


def test_a_step_of_the_cifar10_preset():
    run = planned("cifar10", BASE)
    assert squared_mu(run.runs[0].setting, run.header) == pytest.approx(0.0795437, rel=1e-6)


@pytest.mark.parametrize(
    ("source", "overrides", "mu", "epsilon"),
    [
        ("cifar10", [BASE], 17.8375, 234.266),
        ("cifar10", [BASE, "method.memory=shared"], 3.98858, 24.2878),
        ("cifar10", [], 151.791, None),
        ("cifar100", [BASE], None, 522.215),
    ],
)
def test_published_numbers(source, overrides, mu, epsilon):
    proven = account(planned(source, *overrides), 1e-5).proven
    if mu is not None:
        assert proven.mu == pytest.approx(mu, rel=5e-6)
    if epsilon is not None:
        assert proven.epsilon == pytest.approx(epsilon, rel=5e-6)


RUNS = [(1.0, 0.5, 7), (2.0, 0.5, 3), (1.0, 1.0, 6)]  # 16 steps: 3 epochs of 5 and one step


def by_hand():
    values = [(2 * c / (4 * s)) ** 2 for c, s, n in RUNS for _ in range(n)]
    return [values[i : i + 5] for i in range(0, 16, 5)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"memory": "auxiliary"}, lambda t: sum(map(sum, t))),
        ({"memory": "auxiliary", "unit": "shard"}, lambda t: sum(map(sum, t))),
        (
            {"memory": "shared"},
            lambda t: max(sum(row[m] for row in t if m < len(row)) for m in range(5)),
        ),
        ({"memory": "none", "reshuffle": True}, lambda t: sum(max(row) for row in t)),
        ({"memory": "none", "unit": "user"}, lambda t: sum(map(sum, t))),
        ({"memory": "shared", "unit": "shard"}, lambda t: sum(map(sum, t))),
    ],
)
def test_which_steps_count(options, expected):
    mu = account(ledger(RUNS, **options), 1e-5).proven.mu
    assert mu**2 == pytest.approx(expected(by_hand()))


def test_the_sensitivity_is_two_c_over_k():
    assert account(ledger([(0.3, 0.2, 1)], K=10), 1e-5).proven.mu == pytest.approx(0.3)


def test_rounding_adds_to_the_sensitivity():
    run = with_rounding(ledger([(0.3, 0.2, 1)], K=10), (0.02,))
    assert account(run, 1e-5).proven.mu == pytest.approx((2 * 0.3 / 10 + 0.02) / 0.2)


@pytest.mark.parametrize(
    ("per_example", "relation", "as_clip"),
    [(True, "zero-out", 4.0), (True, "replace-one", 4.0), (False, "zero-out", 2.0)],
)
@pytest.mark.parametrize("noise", [0.4, 1e-3])
def test_rounding_under_poisson_sampling(per_example, relation, as_clip, noise):
    """C/K + r of one contribution, 2C/K + r of an auxiliary: as if C were larger. With hardly any
    noise a bound without sampling takes over."""
    options = {"memory": "none", "sampling": "poisson", "rate": 0.04}
    options |= {"per_example": per_example, "relation": relation}
    found = account(with_rounding(ledger([(1.0, noise, 20)], **options), (0.05,)), 1e-5)
    same = account(ledger([(1.0 + as_clip * 0.05, noise, 20)], **options), 1e-5)
    assert found.epsilon == pytest.approx(same.epsilon)


def test_steps_taken_again_add_up_where_they_stand_in_the_plan():
    """10 steps of 5 a epoch, then the state of step 4 is loaded and 4, 5, 6 are taken again."""
    runs = [(1.0, 0.5, 10)]
    square = (2 * 1.0 / (4 * 0.5)) ** 2
    for options, count in [
        ({"memory": "auxiliary"}, 13),
        ({"memory": "none"}, 3),  # position 0, 1 or 4: twice, and once again
        ({"memory": "none", "reshuffle": True}, 4),  # at worst in step 4, then in 5 or 6
        ({"memory": "shared", "unit": "shard"}, 13),
    ]:
        run = ledger(runs, **options)
        run.append(run.runs[0].setting, 3, start=4)
        assert run.repeats
        assert account(run, 1e-5).proven.mu ** 2 == pytest.approx(count * square), options


def test_steps_taken_again_under_poisson_sampling():
    options = {"memory": "none", "sampling": "poisson", "rate": 0.04, "relation": "zero-out"}
    run = ledger([(1.0, 1.0, 10)], **options)
    run.append(run.runs[0].setting, 3, start=4)
    whole = ledger([(1.0, 1.0, 13)], **options)
    assert account(run, 1e-5).epsilon == pytest.approx(account(whole, 1e-5).epsilon, rel=1e-4)


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps", "epsilon"),
    [(1.5, 0.04, 2250, 6.769), (0.7, 0.01, 120, 2.46124)],
)
@pytest.mark.parametrize("per_example", [True, False])
def test_poisson_sampling(multiplier, rate, steps, epsilon, per_example):
    """Noise multiplier Kσ/C for one contribution an example, Kσ/2C where auxiliaries are shared."""
    noise = multiplier / 4 if per_example else 2 * multiplier / 4
    run = ledger(
        [(1.0, noise, steps)],
        memory="none",
        sampling="poisson",
        relation="zero-out",
        rate=rate,
        per_example=per_example,
    )
    privacy = account(run, 1e-5)
    assert privacy.proven.epsilon == pytest.approx(epsilon, abs=1e-3)
    assert privacy.relation == "zero-out"
    assert privacy.proven.mu is None


def test_no_noise_is_no_privacy_and_no_steps_cost_nothing():
    assert account(ledger([(1.0, 0.0, 3)]), 1e-5).epsilon == math.inf
    assert account(ledger([(1.0, 0.0, 3)]), 1e-5).as_json()["proven"]["epsilon"] is None
    assert account(ledger([]), 1e-5).epsilon == 0.0


def test_a_fixed_noise_seed_is_never_private():
    privacy = account(ledger([(1.0, 1.0, 3)], private=False), 1e-5)
    assert privacy.proven is None
    assert privacy.epsilon == math.inf
    assert "a fixed seed was used" in str(privacy)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan, "small"])
def test_bad_delta(delta):
    with pytest.raises(InputError, match=r"privacy.delta: must be a number between 0 and 1"):
        account(ledger(RUNS), delta)


@pytest.mark.parametrize("delta", [0.5, 0.01])
def test_a_delta_of_one_in_n_is_refused_unless_asked_for(delta):
    """At δ = 1/n to publish an example as it is would pass. It used to say ε ≤ 0, proven."""
    run = ledger(RUNS)  # of 100 examples
    with pytest.raises(InputError, match=r"privacy.delta: must be below 1/n = 0.01 .* found 0"):
        account(run, delta)
    with pytest.warns(UserWarning, match="is large for 100 examples"):
        assert account(run, delta, allow_large_delta=True).proven.delta == delta


def test_a_delta_above_a_tenth_of_one_in_n_is_warned_of():
    with pytest.warns(UserWarning, match=r"0.0099 is large .* usual is a tenth of 1/n, 0.001"):
        account(ledger(RUNS), 0.0099)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        account(ledger(RUNS), 0.001)
        check_delta(1e-5, 10_000)


@pytest.mark.parametrize("bad", [(-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_bad_ledger_values_never_give_a_number(bad):
    with pytest.raises(InputError, match="the ledger has a"):
        account(ledger([(*bad, 3)]), 1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    "name", ["rounding", "spacing", "penalty", "lr", "global_lr", "step_size", "contraction"]
)
def test_no_setting_may_be_less_than_nothing_or_nan(name, value):
    run = ledger([(1.0, 1.0, 3)])
    bad = (value,) if name in ("rounding", "spacing") else value
    setting = replace(run.runs[0].setting, **{name: bad})
    with pytest.raises(InputError, match=f"the ledger has a {name} of"):
        account(replace(run, runs=[replace(run.runs[0], setting=setting)]), 1e-5)


@pytest.mark.parametrize(
    ("penalties", "message"),
    [
        ((1.0,), "1 values of penalties for 2 auxiliaries"),
        ((1.0, 0.0), "a penalty of 0 among its penalties"),
        ((1.0, -1.0), "a penalties of -1.0"),
        ((1.0, math.nan), "a penalties of nan"),
        ((1.0, math.inf), "a penalties of inf"),
    ],
)
def test_penalties_of_auxiliaries_are_positive_and_one_for_each(penalties, message):
    run = ledger([(1.0, 1.0, 3)], K=2)
    plain = run.runs[0]

    def with_penalties(values):
        setting = replace(plain.setting, penalties=values)
        return account(replace(run, runs=[replace(plain, setting=setting)]), 1e-5)

    assert with_penalties((1.0, 3.0)) == with_penalties(())  # a bound of composition has no ρ
    with pytest.raises(InputError, match=f"the ledger has {message}"):
        with_penalties(penalties)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": math.nan}, "a rate of nan"),
        ({"rate": 0.0}, "a rate of 0.0"),
        ({"rate": 1.5}, "a rate of 1.5"),
        ({"examples": 0}, "examples 0"),
        ({"auxiliaries": 0}, "auxiliaries 0"),
        ({"batches": 0}, "batches 0"),
        ({"gradient_bound": math.nan}, "a gradient_bound of nan"),
        ({"gradient_bound": -1.0}, "a gradient_bound of -1.0"),
        ({"smoothness": math.nan}, "a smoothness of nan"),
    ],
)
def test_bad_headers_never_give_a_number(change, message):
    run = ledger([(1.0, 1.0, 5)])
    with pytest.raises(InputError, match=f"the ledger has {message}"):
        account(replace(run, header=replace(run.header, **change)), 1e-5)


@pytest.mark.parametrize("contraction", [0.0, 1.1])
def test_a_contraction_that_none_can_be(contraction):
    run = ledger([(1.0, 1.0, 5)])
    setting = replace(run.runs[0].setting, contraction=contraction)
    with pytest.raises(InputError, match="must be above 0, up to 1"):
        account(replace(run, runs=[replace(run.runs[0], setting=setting)]), 1e-5)


def test_a_value_for_every_block():
    run = with_rounding(ledger([(1.0, 1.0, 5)]), (0.1, 0.1))
    with pytest.raises(InputError, match="2 values of rounding for 1 blocks"):
        account(run, 1e-5)


@settings(max_examples=50)
@given(st.floats(0.05, 100), st.sampled_from(["auxiliary", "shared", "none"]), st.integers(1, 500))
def test_calibration_meets_the_target_from_below(target, memory, steps):
    run = ledger([(1.0, 0.3, steps)], memory=memory)
    factor = calibrate(run, target, 1e-5)
    spent = account(scaled(run, factor), 1e-5).epsilon
    assert target * (1 - 1e-3) <= spent <= target


def test_a_ledger_without_an_end_says_so_wherever_its_epsilon_is_shown():
    run = ledger(RUNS)
    cut = account(run, 1e-5)
    assert "not closed" in str(cut)
    first, *_, last = str(cut).splitlines()
    assert first[14:23] == "so far   "
    assert last.startswith("not closed    the ledger has no end: later steps than these 16 would")
    assert "proven" not in str(cut)
    assert "holds" not in str(cut)
    assert cut.as_json()["closed"] is False
    run.closed = True
    ended = account(run, 1e-5)
    assert "not closed" not in str(ended)
    assert "proven" in str(ended)
    assert ended.as_json()["closed"] is True


def laid_out_mu(run):
    """`composed_mu` with a number for every step of the plan, epochs × positions."""
    header = run.header
    last = max((r.start + r.steps for r in run.runs), default=0)
    table = np.zeros((-(-last // header.batches), header.batches))
    for r in run.runs:
        table.reshape(-1)[r.start : r.start + r.steps] += squared_mu(r.setting, header)
    if header.reshuffle:
        return math.sqrt(float(table.max(axis=1, initial=0.0).sum()))
    return math.sqrt(float(table.sum(axis=0).max(initial=0.0)))


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 3), st.integers(1, 25), st.none() | st.integers(0, 40)),
        max_size=8,
    ),
    st.integers(1, 7),
    st.booleans(),
)
def test_runs_of_equal_steps_compose_as_single_steps_do(runs, M, reshuffle):
    """Also where steps were taken again, from any earlier one."""
    found = ledger([], M=M, memory="none", reshuffle=reshuffle)
    for noise, steps, start in runs:
        setting = ledger([(1.0, noise, 1)]).runs[0].setting
        found.append(setting, steps, start if start is not None else None)
    assert composed_mu(found) == pytest.approx(laid_out_mu(found), rel=1e-12)


@pytest.mark.parametrize("reshuffle", [False, True])
def test_a_thousand_million_epochs_are_composed_without_writing_them_out(reshuffle):
    one = ledger([(1.0, 2.0, 5)], memory="none", reshuffle=reshuffle)
    long = ledger([(1.0, 2.0, 5 * 10**9)], memory="none", reshuffle=reshuffle)
    assert composed_mu(long) == pytest.approx(composed_mu(one) * math.sqrt(1e9), rel=1e-12)
    vast = ledger([(1.0, 2.0, 1)], M=10**15, memory="none", reshuffle=reshuffle)
    assert composed_mu(vast) == composed_mu(ledger([(1.0, 2.0, 1)], memory="none"))
