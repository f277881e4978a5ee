"""Bounds on attacks are true, and near to what the best attack does."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest

from dpdt.accounting import account
from dpdt.accounting.gaussian import epsilon_of
from dpdt.ledger import Block, Header, Ledger, Setting
from dpdt.report.attacker import MANY, most_found, most_right, pairs_of, percent, sentences

NORMAL = NormalDist()


def ledger_of(noise=0.2, steps=1, closed=True, **facts):
    """Full-batch steps of one block: each is a Gaussian mechanism of μ = 2C/(Kσ)."""
    given = {"method": "dpsgd", "examples": 10_000, "auxiliaries": 10, "batches": 1,
             "memory": "none", "sampling": "partition", "unit": "example",
             "relation": "replace-one",
             "blocks": (Block(name="model", kind="linear", size=5),)}  # fmt: skip
    found = Ledger(Header(**{**given, **facts}))
    number = len(found.header.blocks)
    setting = Setting(clip=(1.0,) * number, noise=(noise,) * number, penalty=1.0, lr=0.1,
                      global_lr=1.0, step_size=1.0, contraction=1.0)  # fmt: skip
    found.append(setting, steps)
    found.closed = closed
    return found


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("rate", [1e-3, 0.01, 0.2, 0.7])
def test_no_attack_on_a_gaussian_beats_the_bound_and_the_best_comes_near(mu, rate):
    pairs = tuple((epsilon_of(mu, delta), delta) for delta in MANY)
    best = NORMAL.cdf(NORMAL.inv_cdf(rate) + mu)  # likelihood ratio of N(0, 1) and N(μ, 1)
    assert best <= most_found(pairs, rate) <= min(1.0, 1.05 * best + 0.002)
    right = NORMAL.cdf(mu / 2)
    assert right <= most_right(pairs) <= right + 0.005


def test_randomized_response_meets_the_bound_exactly():
    epsilon = 1.5
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    pairs = ((epsilon, 0.0),)
    assert most_found(pairs, 1 - honest) == pytest.approx(honest)
    assert most_right(pairs) == pytest.approx(honest)
    assert most_found(((0.0, 0.1),), 0.2) == pytest.approx(0.3)
    assert most_found((), 0.01) == most_right(()) == 1.0


def test_a_run_is_bounded_by_its_own_gaussian():
    ledger = ledger_of(noise=0.2)  # μ = 1
    privacy = account(ledger, 1e-5)
    assert privacy.proven.mu == pytest.approx(1.0)
    pairs = pairs_of(ledger, privacy.proven)
    best = NORMAL.cdf(NORMAL.inv_cdf(0.01) + 1.0)
    assert best <= most_found(pairs, 0.01) <= 1.01 * best
    told = " ".join(sentences(privacy, pairs))
    assert "which of two candidates was used in the place of one training example" in told
    assert f"at most {percent(most_found(pairs, 0.01))} of 100" in told
    assert f"at most {percent(most_right(pairs))} %" in told
    assert "say little" not in told


def test_what_is_not_proven_is_not_promised():
    ledger = ledger_of(private=False)
    privacy = account(ledger, 1e-5)
    assert pairs_of(ledger, privacy.proven) == ()
    assert "no ε is proven" in " ".join(sentences(privacy, ()))
    large = account(ledger_of(noise=0.01), 1e-5)
    assert "say little" in " ".join(sentences(large, pairs_of(ledger_of(noise=0.01), large.proven)))
    chosen = replace(account(ledger_of(), 1e-5), chosen="the best of some")
    assert "choose this run among others is counted" in " ".join(sentences(chosen, ((1.0, 1e-5),)))
    going = account(ledger_of(closed=False), 1e-5)
    assert "so far" in " ".join(sentences(going, ((1.0, 1e-5),)))


def test_bounds_are_rounded_up():
    assert percent(0.123401) == "12.35"
    assert percent(0.5) == "50"
    assert percent(0.999999) == percent(1.0) == "100"
