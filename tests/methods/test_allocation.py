"""Budget allocations of planned runs, against the paper's bound computed another way."""

import subprocess
import sys

import numpy as np
import pytest

from dpdt import config
from dpdt.accounting import account, by_name
from dpdt.accounting.renyi import ORDERS, epsilon_of_rdp
from dpdt.errors import InputError
from dpdt.methods import values
from dpdt.methods.allocation import allocated

PRINTED = {  # what the paper prints: the baseline, and a boost of 1.5
    "cifar10": ((0.78, 0.79), (0.84, 0.85)),
    "cifar100": ((1.04, 1.04), (1.11, 1.13)),
}


def plan(source, *overrides):
    return config.plan_of(config.load(source, overrides))


def claimed(cost, *, auxiliaries=40, batches=20, contraction=1e-4, far=400):
    """The paper's ε from Σ(C/σ)² of the last epochs: every step the same, and long ago began.

    Then v = n/(1 − L_F²), apart from weight decay, so other steps divide what a step leaks by
    1 + (1 − L_F²)/L_F² = 1/L_F².
    """
    a = np.zeros(batches)
    for m in range(batches):
        for step in range(m, far, batches):
            others = sum(t % batches != m for t in range(step + 1, far))
            a[m] += cost / auxiliaries**2 * contraction**others
    with np.errstate(over="ignore"):  # at orders that are far too large for such a loss
        mean = np.mean(np.exp(np.outer(ORDERS * (ORDERS - 1), a)), axis=1)
    rdp = np.log(mean) / (ORDERS - 1)
    return epsilon_of_rdp(ORDERS, rdp, 1e-5)


@pytest.mark.parametrize(("source", "clip"), [("cifar10", 0.004), ("cifar100", 0.005)])
@pytest.mark.parametrize("mode", ["noise", "joint"])
@pytest.mark.parametrize("kind", [None, "conv", "norm", "linear"])
def test_the_papers_table(source, clip, mode, kind):
    found = allocated(plan(source), mode=mode, kind=kind, boost=1.5 if kind else 1.0)
    epsilon = by_name("paper").guarantee(found.plan.ledger(), 1e-5).epsilon
    conv = 20 * (clip / 0.004494665749754947) ** 2
    assert epsilon == pytest.approx(claimed((3.5 if kind else 3.0) * conv), rel=1e-6)
    low, high = PRINTED[source][kind is not None]
    assert low * 0.97 <= epsilon <= high * 1.03
    assert account(found.plan.ledger(), 1e-5).proven.accountant == "composition"


def test_what_is_claimed_and_proven_does_not_move_with_a_penalty_that_grows():
    table = '{ kind = "exponential", rate = 1.1, every = 3, ceiling = 100.0 }'
    growing = ("method.penalty=0.1", f"method.penalty_schedule={table}")
    for name in ("composition", "paper", "paper-per-block"):
        constant, grown = (
            by_name(name).guarantee(plan("cifar10", *settings).ledger(), 1e-5).epsilon
            for settings in ((), growing)
        )
        assert grown == pytest.approx(constant, rel=1e-6)


@pytest.mark.parametrize("mode", ["noise", "joint"])
@pytest.mark.parametrize("accountant", ["composition", "paper", "paper-per-block"])
@pytest.mark.parametrize("kind", [None, "linear"])
def test_a_held_total_is_the_runs_own(mode, accountant, kind):
    run, judge = plan("cifar10"), by_name(accountant)
    target = judge.guarantee(run.ledger(), 1e-5).epsilon
    boost = 2.0 if kind else 1.0
    free = allocated(run, mode=mode, kind=kind, boost=boost)
    found = allocated(run, mode=mode, kind=kind, boost=boost, hold=accountant)
    epsilon = judge.guarantee(found.plan.ledger(), 1e-5).epsilon
    assert target * (1 - 1e-5) <= epsilon <= target
    factors = [found.noise[k] / free.noise[k] for k in free.noise]
    assert factors == pytest.approx([factors[0]] * 3)
    assert factors[0] > 1.05
    assert (found.clip, found.shares) == (free.clip, free.shares)


@pytest.mark.parametrize("hold", [None, "composition"])
@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("cifar10", ()),  # with a schedule of clip
        ("cifar10", ("privacy.epsilon=8.0",)),  # with a target, which must not scale twice
        ("imagenet100-small", ()),
        ("sst2", ("method.granularity=layer",)),  # one kind
    ],
)
def test_the_configuration_that_is_told_plans_the_same_run(source, settings, hold):
    chosen = config.load(source, settings)
    run = config.plan_of(chosen)
    kinds = {block.kind for block in run.header.blocks}
    for kind in sorted(kinds):
        found = allocated(run, mode="joint", kind=kind, boost=0.75, hold=hold)
        again = config.plan_of(values.told(chosen, found.clip, found.noise))
        assert again.ledger().runs == found.plan.ledger().runs
        assert set(found.clip) == set(found.noise) == set(found.shares) == kinds
        assert all(type(v) is float for v in (*found.clip.values(), *found.noise.values()))


def test_base_values_are_those_before_a_schedule():
    found = allocated(plan("cifar10"), mode="noise")
    assert plan("cifar10").at(0).clip[0] == pytest.approx(0.064)
    assert found.clip["conv"] == 0.004
    assert found.plan.at(0).clip[0] == pytest.approx(0.064)


def test_what_has_no_budget_to_split_is_refused():
    with pytest.raises(InputError, match="the whole model is one block"):
        allocated(plan("digits"), mode="noise")
    with pytest.raises(InputError, match="allocate is for dpdt, found 'dpsgd'"):
        allocated(plan("digits", "method.name=dpsgd", "privacy.epsilon=3"), mode="noise")
    with pytest.raises(InputError, match="'hidden-state-convex' gives no ε for this run to hold"):
        allocated(plan("cifar10"), mode="noise", hold="hidden-state-convex")


def test_no_torch_is_needed():
    code = (
        "import sys; from dpdt import config; from dpdt.methods.allocation import allocated; "
        "allocated(config.plan_of(config.load('cifar10')), mode='noise'); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
