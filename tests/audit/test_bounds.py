"""Lower bounds: known values, and an auditor that is neither blind nor alarmist."""

import numpy as np
import pytest

from dpdt.accounting.gaussian import epsilon_of
from dpdt.audit.bounds import Counts, measure, one_run, one_run_epsilon
from dpdt.errors import InputError

COUNTS = Counts(true_positives=900, positives=1000, false_positives=100, negatives=1000)


def test_known_values():
    assert COUNTS.epsilon(1e-5, 0.05) == pytest.approx(1.9897, abs=1e-4)
    assert COUNTS.mu(0.05) == pytest.approx(2.3471, abs=1e-4)


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "expected"),
    [
        (100, 100, 100, 0.0, 3.4930),
        (100, 100, 100, 1e-5, 3.4902),
        (1000, 100, 90, 1e-5, 1.6261),
        (100, 100, 50, 0.0, 0.0),
        (100, 100, 0, 0.0, 0.0),
    ],
)
def test_known_one_run_values(canaries, guesses, right, delta, expected):
    found = one_run_epsilon(canaries=canaries, guesses=guesses, right=right, delta=delta, beta=0.05)
    assert found == pytest.approx(expected, abs=1e-4)


def test_the_mirror_image_counts_too():
    """Few false negatives are as telling as few false positives."""
    mirrored = Counts(true_positives=1000, positives=1000, false_positives=500, negatives=1000)
    straight = Counts(true_positives=500, positives=1000, false_positives=0, negatives=1000)
    assert mirrored.epsilon(1e-5, 0.05) == pytest.approx(straight.epsilon(1e-5, 0.05))
    assert mirrored.epsilon(1e-5, 0.05) > 4


def test_edges():
    nothing = Counts(true_positives=0, positives=10, false_positives=10, negatives=10)
    assert nothing.epsilon(1e-5, 0.05) == 0.0
    assert nothing.mu(0.05) == 0.0
    with pytest.raises(InputError, match="11 of 10"):
        Counts(true_positives=11, positives=10, false_positives=0, negatives=10).mu(0.05)
    with pytest.raises(InputError, match="at least 8"):
        measure(np.zeros(7), np.zeros(9), delta=1e-5, beta=0.05)
    with pytest.raises(InputError, match="at least 8 are needed"):
        one_run(np.zeros(7), np.ones(7, dtype=bool), delta=1e-5, beta=0.05)
    with pytest.raises(InputError, match="5 right of 4"):
        one_run_epsilon(canaries=4, guesses=4, right=5, delta=0.0, beta=0.05)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_comes_within_a_tenth_of_a_gaussian(mu):
    """μ of a Gaussian mechanism, and the ε it stands for, from enough samples."""
    generator = np.random.default_rng(0)
    found = measure(
        generator.normal(mu, 1, 200_000), generator.normal(0, 1, 200_000), delta=1e-5, beta=0.05
    )
    assert 0.9 * mu <= found.mu <= mu
    assert 0.9 * epsilon_of(mu, 1e-5) <= epsilon_of(found.mu, 1e-5) <= epsilon_of(mu, 1e-5)
    assert 0.3 * epsilon_of(mu, 1e-5) <= found.epsilon <= epsilon_of(mu, 1e-5)


def test_epsilon_of_randomised_response_is_found():
    """A mechanism whose whole ε shows in one threshold: the assumption-free bound is tight."""
    generator = np.random.default_rng(1)
    truth = np.log(3.0)
    inside, outside = generator.random(100_000) < 0.75, generator.random(100_000) < 0.25
    found = measure(inside.astype(float), outside.astype(float), delta=1e-9, beta=0.05)
    assert 0.9 * truth <= found.epsilon <= truth


def test_exceeds_the_truth_in_at_most_the_nominal_share_of_repeats():
    """400 audits of a Gaussian at β = 0.2: more than 0.2 + 4.5 deviations would be a lie.

    Choosing the threshold on the trials that are judged exceeds the truth far more often.
    """
    generator = np.random.default_rng(2)
    repeats, beta, mu = 400, 0.2, 1.0
    above = {"mu": 0, "epsilon": 0, "cheating": 0}
    for _ in range(repeats):
        inside, outside = generator.normal(mu, 1, 400), generator.normal(0, 1, 400)
        found = measure(inside, outside, delta=1e-5, beta=beta)
        above["mu"] += found.mu > mu
        above["epsilon"] += found.epsilon > epsilon_of(mu, 1e-5)
        best = max(
            Counts(
                true_positives=int((inside > t).sum()),
                positives=400,
                false_positives=int((outside > t).sum()),
                negatives=400,
            ).mu(beta)
            for t in np.linspace(-2, 3, 100)
        )
        above["cheating"] += best > mu
    limit = repeats * beta + 4.5 * (repeats * beta * (1 - beta)) ** 0.5
    assert above["mu"] <= limit
    assert above["epsilon"] <= limit
    assert above["cheating"] > above["mu"]


def test_a_threshold_is_chosen_without_looking_at_the_trials_it_is_judged_on():
    """Every fourth trial is blank: from those, nothing about the others can be learnt."""
    inside, outside = np.full(400, 10.0), np.full(400, 5.0)
    inside[::4] = outside[::4] = 0.0
    found = measure(inside, outside, delta=1e-5, beta=0.05)
    assert (found.epsilon, found.mu) == (0.0, 0.0)


def test_one_run_stays_below_the_truth_and_finds_most_of_it():
    """Randomised response about each canary: ε is known, guesses are independent."""
    generator = np.random.default_rng(3)
    truth, repeats, beta = 2.0, 200, 0.2
    found = []
    for _ in range(repeats):
        included = generator.random(1000) < 0.5
        honest = generator.random(1000) < np.exp(truth) / (1 + np.exp(truth))
        scores = np.where(honest, included, ~included) + generator.normal(0, 1e-3, 1000)
        found.append(one_run(scores, included, delta=0.0, beta=beta).epsilon)
    limit = repeats * beta + 4.5 * (repeats * beta * (1 - beta)) ** 0.5
    assert sum(e > truth for e in found) <= limit
    assert np.mean(found) > 0.8 * truth


def test_one_run_on_scores_that_know_nothing():
    generator = np.random.default_rng(4)
    above = [
        one_run(generator.normal(size=200), generator.random(200) < 0.5, delta=0.0, beta=0.05)
        for _ in range(200)
    ]
    assert sum(a.epsilon > 0 for a in above) <= 10 + 4.5 * (200 * 0.05 * 0.95) ** 0.5


def test_one_run_fixes_its_numbers_of_guesses_beforehand():
    """β is divided among the numbers of guesses that are tried, here 8 of them."""
    included = np.arange(1000) >= 500
    found = one_run(np.arange(1000.0), included, delta=0.0, beta=0.05)
    assert (found.guesses, found.right) == (1000, 1000)
    alone = one_run_epsilon(canaries=1000, guesses=1000, right=1000, delta=0.0, beta=0.05 / 7)
    assert found.epsilon == pytest.approx(alone)
