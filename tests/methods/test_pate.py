"""PATE: votes, answers, and what they cost, against cases computed by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpdt.accounting import account
from dpdt.accounting import pate as votes
from dpdt.accounting.gaussian import epsilon_of
from dpdt.errors import InputError
from dpdt.partition import Shards
from tests.numbers import prepare, train


def separable(n, seed):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


DATA, PUBLIC = separable(600, 0), separable(80, 1)[0]
OPTIONS = {
    "method": "pate",
    "public": PUBLIC,
    "teachers": 20,
    "epochs": 60,
    "batch_size": 32,
    "lr": 0.05,
}


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def test_a_student_learns_from_the_teachers():
    test = separable(500, 2)
    result = train(linear(), DATA, test=test, noise=0.1, **OPTIONS)
    assert result.history[-1]["accuracy"] > 0.9
    assert math.isfinite(result.privacy.epsilon)
    assert result.privacy.relation == "zero-out"


def test_teachers_after_a_resume_grow_from_the_start_of_those_before():
    """The state has it: the model that is given then may start elsewhere."""
    options = {**OPTIONS, "teachers": 3, "teacher_epochs": 1, "lr": 1e-4, "noise": 0.1}
    whole, other = linear(), linear()
    nn.init.normal_(other.weight, std=3.0)
    step, loader = prepare(whole, DATA, **options)
    for batch in loader:
        step(batch)
        if batch.step == 0:
            state = step.state_dict()
        if batch.step == 2:
            break
    again, loader = prepare(other, DATA, **options)
    again.load_state_dict(state)
    for batch in loader:
        again(batch)
        if batch.step == 2:
            break
    assert torch.equal(again.engine.counts, step.engine.counts)


def test_every_example_has_one_teacher_whoever_else_is_there():
    shards = Shards(examples=100, shards=7, seed=3)
    seen = np.concatenate([shards.batch(k)[0] for k in range(7)])
    assert sorted(seen.tolist()) == list(range(100))
    assert shards.batch(7)[0].size == 0
    fewer = Shards(examples=99, shards=7, seed=3)  # the last one removed
    for k in range(7):
        assert fewer.batch(k)[0].tolist() == [i for i in shards.batch(k)[0] if i != 99]


def test_answers_are_noisy_winners_and_never_more_than_paid_for():
    step, loader = prepare(linear(), DATA, noise=1e-9, threshold_noise=1e-9, answers=10, **OPTIONS)
    for batch in loader:
        step(batch)
    engine = step.engine
    assert len(engine.answers) == 10
    assert torch.equal(engine.counts.sum(1), torch.full((80,), 20.0, dtype=torch.float64))
    for query, answer in engine.answers.items():
        assert answer == int(engine.counts[query].argmax())
        assert float(engine.counts[query].max()) >= 0.6 * 20


def test_an_undecided_vote_is_not_answered():
    step, loader = prepare(
        linear(), DATA, noise=1e-9, threshold=0.99, threshold_noise=1e-9, answers=80, **OPTIONS
    )
    for batch in loader:
        step(batch)
    unanimous = {q for q in range(80) if float(step.engine.counts[q].max()) == 20}
    assert set(step.engine.answers) == unanimous
    assert 0 < len(unanimous) < 80


def test_the_bill_is_every_comparison_and_every_answer():
    """Gaussian mechanisms: sensitivity 1 and √2, so μ² = queries/σ₁² + 2·answers/σ₂²."""
    step, _ = prepare(linear(), DATA, noise=0.5, threshold_noise=0.25, answers=30, **OPTIONS)
    mu = math.sqrt(80 / (0.25 * 20) ** 2 + 30 * 2 / (0.5 * 20) ** 2)
    assert account(step.plan.ledger(), 1e-5).epsilon == pytest.approx(epsilon_of(mu, 1e-5))


def test_the_noise_of_the_votes_is_the_one_accounted():
    """With equal votes and two classes, the winner flips like a Gaussian of √2 σ."""
    step, _ = prepare(linear(), DATA, noise=0.5, threshold=0.0, **OPTIONS)
    engine = step.engine
    engine.counts[:] = torch.tensor([15.0, 5.0], dtype=torch.float64)
    engine.steps = 20
    setting = step.plan.at(20)
    flips = 0
    for _ in range(4000):
        engine.answers.clear()
        engine._ask(0, setting)
        flips += engine.answers[0] == 1
    sigma = 0.5 * 20
    expected = 0.5 * math.erfc(10 / (2 * sigma))
    assert flips / 4000 == pytest.approx(expected, abs=0.03)


def test_gnmax_by_hand():
    assert votes.gnmax(40.0, 8.0) == 8.0 / 1600
    assert votes.threshold(40.0, 8.0) == 8.0 / 3200
    # two classes, a lead of 100 with σ = 20: ½ erfc(2.5)
    assert votes.flip_probability([150, 50], 20.0) == pytest.approx(0.5 * math.erfc(2.5))
    # three classes: one term for each loser
    expected = 0.5 * (math.erfc(30 / 40) + math.erfc(50 / 40))
    assert votes.flip_probability([80, 50, 30], 20.0) == pytest.approx(expected)


def test_the_data_dependent_bound_by_hand():
    """Theorem 6 written out for q = 1e-8, σ = 40, λ = 10."""
    q, sigma, order = 1e-8, 40.0, 10.0
    mu2 = sigma * math.sqrt(math.log(1 / q))
    mu1 = mu2 + 1
    e1, e2 = mu1 / sigma**2, mu2 / sigma**2
    a = (1 - q) / (1 - (q * math.exp(e2)) ** ((mu2 - 1) / mu2))
    b = math.exp(e1) / q ** (1 / (mu1 - 1))
    expected = math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
    assert votes.gnmax_given(q, sigma, order) == pytest.approx(expected, rel=1e-6)
    assert expected < votes.gnmax(sigma, order) / 100


def test_the_data_dependent_bound_never_exceeds_the_other_and_falls_with_agreement():
    previous = 0.0
    for q in (0.0, 1e-30, 1e-12, 1e-6, 1e-3, 0.1, 0.5, 0.9, 1.0):
        value = votes.gnmax_given(q, 40.0, 10.0)
        assert previous - 1e-12 <= value <= votes.gnmax(40.0, 10.0)
        previous = value


def test_what_depends_on_the_votes_stays_private(tmp_path):
    step, loader = prepare(linear(), DATA, noise=0.5, **OPTIONS)
    for batch in loader:
        step(batch)
    told = step.engine.data_dependent(1e-5)
    assert 0 < told["epsilon_data_dependent"] <= told["epsilon_data_independent"]
    assert "private" in told["caveat"]
    assert step.privacy().proven.accountant == "composition"


def test_more_queries_than_public_examples_are_refused():
    with pytest.raises(InputError, match=r"method.queries: must be at most .* 80, found 90"):
        train(linear(), DATA, noise=1.0, queries=90, **OPTIONS)
