import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdt import account, config, data, models
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.accounting.composition import squared_mu
from dpdt.algorithm.blocks import Blocks
from dpdt.errors import InputError
from dpdt.ledger import Block, Header, Ledger, Setting
from dpdt.methods.plan import plan


def planned(source, *overrides):
    chosen = config.load(source, overrides)
    facts = data.facts(chosen.data.name)
    blocks = Blocks.group(models.parameters(chosen.model, facts), chosen.method.granularity)
    return plan(chosen, blocks, facts.examples).ledger()


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


BASE = "method.clip_schedule=constant"


def test_a_step_of_the_cifar10_preset():
    run = planned("cifar10", BASE).runs[0]
    assert squared_mu(run.setting, 40) == pytest.approx(0.0795437, rel=1e-6)


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
        relation="add-remove",
        rate=rate,
        per_example=per_example,
    )
    privacy = account(run, 1e-5)
    assert privacy.proven.epsilon == pytest.approx(epsilon, abs=1e-3)
    assert privacy.relation == "add-remove"
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


@pytest.mark.parametrize("bad", [(-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_bad_ledger_values_never_give_a_number(bad):
    with pytest.raises(InputError, match="the ledger has a"):
        account(ledger([(*bad, 3)]), 1e-5)


@settings(max_examples=50)
@given(st.floats(0.05, 100), st.sampled_from(["auxiliary", "shared", "none"]), st.integers(1, 500))
def test_calibration_meets_the_target_from_below(target, memory, steps):
    run = ledger([(1.0, 0.3, steps)], memory=memory)
    factor = calibrate(run, target, 1e-5)
    spent = account(scaled(run, factor), 1e-5).epsilon
    assert target * (1 - 1e-3) <= spent <= target


def test_the_table_a_user_sees():
    text = str(account(ledger(RUNS), 1e-5))
    assert "proven" in text
    assert "composition · replace one example · δ = 1e-5" in text
