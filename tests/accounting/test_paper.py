"""The paper's bound, reproduced: the recursion to the letter, and the closed form of its proof."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdt import account
from dpdt.accounting import paper
from dpdt.accounting.paper import Paper, leak, rdp
from dpdt.accounting.renyi import ORDERS, epsilon_of_rdp
from dpdt.ledger import Setting
from dpdt.report.privacy import paper_contributions, paper_losses

from .test_composition import BASE, ledger, planned


def make(clip=1.0, noise=1.0, global_lr=0.9, penalty=2.0, decay=0.1):
    step_size = global_lr / penalty
    return Setting(
        clip=(clip,), noise=(noise,), penalty=penalty, lr=0.1, global_lr=global_lr,
        step_size=step_size, contraction=1 / (1 + decay * step_size),
    )  # fmt: skip


def literal(settings, counts, K, M):
    """The recursion of the specification, step by step and position by position."""
    result = []
    for m0 in range(M):
        v = a = 0.0
        t = 0
        for s, count in zip(settings, counts, strict=True):
            for _ in range(count):
                n = (s.step_size * s.noise[0]) ** 2
                f2, t2 = (1 - s.global_lr) ** 2, s.contraction**2
                if t % M == m0:
                    a += s.clip[0] ** 2 / (K**2 * s.noise[0] ** 2)
                elif v == 0 or f2 == 0:
                    a = 0.0
                else:
                    a *= (1 + n / (f2 * v)) ** (-1 / t2)
                v = t2 * (f2 * v + n)
                t += 1
        result.append(a)
    return result


setting = st.builds(
    make,
    clip=st.floats(0.1, 3),
    noise=st.floats(0.1, 3),
    global_lr=st.sampled_from([0.02, 0.5, 0.99, 1.0, 1.3]),
    penalty=st.floats(0.1, 10),
    decay=st.sampled_from([0.0, 1e-3, 0.5]),
)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(setting, st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 20),
)
def test_the_unrolled_form_is_the_recursion(runs, M, K):
    chosen, counts = [s for s, _ in runs], [n for _, n in runs]
    values = tuple((s.clip[0], s.noise[0]) for s in chosen)
    expected = literal(chosen, counts, K, M)
    np.testing.assert_allclose(leak(chosen, counts, values, K, M), expected, rtol=1e-9, atol=1e-300)


def closed_form(s, K, M, E, m0):
    """The proof's closed form for constant settings, its last line mended (positions from 1).

    c_l^m is the log-Sobolev constant before step m of epoch l, counted on across epochs.
    """
    L2 = (1 - s.global_lr) ** 2 * s.contraction**2
    n = (s.step_size * s.noise[0]) ** 2

    def c(epoch, m):
        steps = (epoch - 1) * M + m - 1
        return 1 / (s.contraction**2 * n * (1 - L2**steps) / (1 - L2))

    total = 0.0
    for epoch in range(1, E + 1):
        product = math.prod(c(p, m0 + 1) / c(p, m0) for p in range(epoch + 1, E + 1))
        exponent = (M - 1) * (E - epoch) + M - m0
        discount = c(epoch, m0 + 1) / c(E + 1, 1) * L2**-exponent * product
        total += s.clip[0] ** 2 / (K * s.noise[0]) ** 2 * discount ** (-1 / s.contraction**2)
    return total


@pytest.mark.parametrize("m0", [1, 2, 5])
def test_the_proofs_closed_form_agrees_for_constant_settings(m0):
    s = make(global_lr=0.3, decay=0.2)
    values = ((s.clip[0], s.noise[0]),)
    ours = leak([s], [5 * 7], values, 4, 5)[m0 - 1]
    assert ours == pytest.approx(closed_form(s, 4, 5, 7, m0), rel=1e-9)


@pytest.mark.parametrize(
    ("source", "paper", "per_block"), [("cifar10", 0.6343, 0.2249), ("cifar100", 1.0669, None)]
)
def test_printed_numbers(source, paper, per_block):
    found = {g.accountant: g for g in account(planned(source, BASE), 1e-5).guarantees}
    assert found["paper"].epsilon == pytest.approx(paper, abs=5e-5)
    if per_block:
        assert found["paper-per-block"].epsilon == pytest.approx(per_block, abs=5e-5)
    assert not found["paper"].valid


def test_the_claim_is_the_same_after_one_epoch_and_after_two_hundred():
    values = [
        next(
            g.epsilon
            for g in account(planned("cifar10", BASE, f"train.epochs={e}"), 1e-5).guarantees
            if g.accountant == "paper"
        )
        for e in (1, 200)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_every_preset_is_accounted_and_none_has_the_paper_as_headline():
    for source in ("cifar10", "cifar100", "imagenet100", "sst2"):
        privacy = account(planned(source), 1e-5, allow_large_delta=source == "imagenet100")
        assert privacy.proven.accountant in ("composition", "hidden-state-contraction")
        assert all(not g.valid for g in privacy.guarantees if g.accountant.startswith("paper"))


def test_rdp_conversion():
    """A Gaussian mechanism of μ = 1: ε_RDP(α) = α/2. The exact ε is 4.377, RDP gives a bit more."""
    assert 4.377 < epsilon_of_rdp(ORDERS, ORDERS / 2, 1e-5) < 4.8
    assert epsilon_of_rdp(ORDERS, np.full(len(ORDERS), np.inf), 1e-5) == math.inf
    assert epsilon_of_rdp(ORDERS, np.zeros(len(ORDERS)), 1e-5) < 1e-4


def test_a_million_steps_with_schedules():
    ledger = planned("cifar10", "train.epochs=50000", "method.penalty_schedule=paper")
    assert ledger.steps == 1_000_000
    assert len(ledger.runs) > 10
    privacy = account(ledger, 1e-5)
    assert privacy.epsilon > 1e4
    # the run-length coded ledger and the same steps one by one agree
    short = planned("cifar10", "train.epochs=3")
    single = replace(short, runs=[])
    for run in short.runs:
        for _ in range(run.steps):
            single.append(run.setting)
    assert rdp(single, ORDERS).tolist() == rdp(short, ORDERS).tolist()


def test_the_papers_figure():
    constant, adaptive = paper_losses(40, False), paper_losses(40, True)
    assert constant[-1] == pytest.approx(constant[-2], rel=1e-6)  # converges
    assert adaptive[-1] != pytest.approx(adaptive[-2], rel=1e-2)  # never settles
    parts = paper_contributions(20, False)
    ratios = [b / a for a, b in pairwise(parts[5:])]
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-2)  # a straight line on a log scale
    # the parts add up to the whole, for a mixture over m0 that is nearly even
    assert sum(parts) == pytest.approx(constant[19], rel=0.3)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.builds(
                make,
                clip=st.floats(0.1, 3),
                noise=st.floats(0.1, 3),
                global_lr=st.sampled_from([0.5, 0.99, 1.0, 1.3, 2.0, 2.5]),
                penalty=st.floats(0.1, 10),
                decay=st.sampled_from([0.0, 1e-3, 0.5]),
            ),
            st.integers(1, 2000),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 7),
    st.integers(1, 50),
)
def test_once_settled_the_closed_form_is_the_recursion(runs, M, at_once):
    chosen, counts = [s for s, _ in runs], [n for _, n in runs]
    values = tuple((s.clip[0], s.noise[0]) for s in chosen)
    expected = leak(chosen, counts, values, 3, M)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "WRITTEN", at_once)
        found = leak(chosen, counts, values, 3, M)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


def test_a_thousand_million_epochs_are_claimed_for_without_writing_them_out():
    short, long = (ledger([(1.0, 2.0, 5 * epochs)], memory="none") for epochs in (1000, 10**9))
    expected = Paper().guarantee(short, 1e-5).epsilon
    assert Paper().guarantee(long, 1e-5).epsilon == pytest.approx(expected, rel=1e-9)


def test_a_recursion_that_never_settles_claims_nothing():
    long = ledger([(1.0, 2.0, 5 * 10**9)], memory="none")
    runs = [replace(r, setting=replace(r.setting, global_lr=2.0)) for r in long.runs]
    found = Paper().guarantee(replace(long, runs=runs), 1e-5)
    assert found.epsilon == math.inf
    assert "takes more than 20,000,000 steps to settle" in found.why_not
