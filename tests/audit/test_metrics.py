"""Metric attacks against hand-computed values and a brute-force AUC."""

import numpy as np
import pytest

from dpdt.audit import metrics
from dpdt.audit.metrics import Answers
from dpdt.errors import InputError


def answers(*rows, labels):
    return Answers(probabilities=np.array(rows, dtype=float), labels=np.array(labels))


A = answers([0.7, 0.2, 0.1], [0.1, 0.3, 0.6], labels=[0, 1])


def test_scores_by_hand():
    assert metrics.correctness(A).tolist() == [1.0, 0.0]
    assert metrics.confidence(A) == pytest.approx([0.7, 0.3])
    assert metrics.loss(A) == pytest.approx(np.log([0.7, 0.3]))
    first = 0.7 * np.log(0.7) + 0.2 * np.log(0.2) + 0.1 * np.log(0.1)
    assert metrics.entropy(A)[0] == pytest.approx(first)
    modified = -(0.3 * np.log(0.7) + 0.2 * np.log(0.8) + 0.1 * np.log(0.9))
    assert metrics.modified_entropy(A)[0] == pytest.approx(-modified)
    modified = -(0.7 * np.log(0.3) + 0.1 * np.log(0.9) + 0.6 * np.log(0.4))
    assert metrics.modified_entropy(A)[1] == pytest.approx(-modified)


def test_modified_entropy_knows_right_from_wrong_where_entropy_does_not():
    sure = answers([0.99, 0.01], [0.99, 0.01], labels=[0, 1])
    assert metrics.entropy(sure)[0] == pytest.approx(metrics.entropy(sure)[1])
    assert metrics.modified_entropy(sure)[0] > metrics.modified_entropy(sure)[1] + 1


def test_logit_does_not_saturate():
    logits = np.array([[100.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    found = metrics.logit(logits, np.array([0, 2]))
    p = np.exp(3) / np.exp([1, 2, 3]).sum()
    assert found == pytest.approx([100 - np.log(2), np.log(p / (1 - p))])


def test_auc_counts_ties_half():
    generator = np.random.default_rng(0)
    members, others = generator.integers(0, 5, 40), generator.integers(0, 4, 30)
    pairs = [(m > o) + 0.5 * (m == o) for m in members for o in others]
    assert metrics.auc(members, others) == pytest.approx(np.mean(pairs))


def test_tpr_at_a_low_false_positive_rate():
    others = np.arange(100.0)
    assert metrics.tpr_at(np.array([97.5, 98.5, 99.5, 3.0]), others, 0.01) == 0.5
    assert metrics.tpr_at(np.array([97.5, 98.5, 99.5, 3.0]), others, 0.0) == 0.25


def test_best_threshold_splits_what_can_be_split():
    threshold = metrics.best_threshold(np.array([3.0, 4, 5]), np.array([0.0, 1, 2]))
    assert 2 <= threshold < 3


def sample(generator, number, shift):
    """Three classes; members are surer by `shift`."""
    labels = generator.integers(0, 3, number)
    logits = generator.normal(size=(number, 3))
    logits[np.arange(number), labels] += shift
    return Answers.from_logits(logits, labels)


def test_no_attack_finds_members_where_there_are_none():
    generator = np.random.default_rng(1)
    for attack in metrics.attack_all(sample(generator, 2000, 1), sample(generator, 2000, 1)):
        low, high = attack.auc_interval
        assert low - 0.02 <= 0.5 <= high + 0.02, attack
        assert abs(attack.accuracy - 0.5) < 0.04, attack
        assert attack.tpr_at_1e_2_fpr < 0.03


def test_every_attack_finds_members_of_an_overfit_model():
    generator = np.random.default_rng(2)
    found = metrics.attack_all(sample(generator, 2000, 4), sample(generator, 2000, 1))
    assert len(found) == 9
    for attack in found:
        assert min(attack.auc, attack.accuracy) > 0.6, attack
        assert attack.auc_interval[0] < attack.auc < attack.auc_interval[1]


def test_thresholds_per_class_see_what_one_threshold_cannot():
    """Members are surer in class 0 and less sure in class 1: only thresholds per class tell."""
    generator = np.random.default_rng(3)
    labels = np.repeat([0, 1], 1000)
    members = (np.where(labels == 0, 3.0, 11.0) + generator.normal(size=2000), labels)
    others = (np.where(labels == 0, 1.0, 9.0) + generator.normal(size=2000), labels)
    one = metrics.evaluate("x", members, others, repeats=20, seed=0)
    each = metrics.evaluate("x", members, others, repeats=20, seed=0, per_class=True)
    assert each.accuracy > one.accuracy + 0.1


def test_thresholds_are_judged_on_examples_they_were_not_learnt_on():
    """Scores without ties and without information: learnt and judged alike would give 0.6."""
    generator = np.random.default_rng(4)
    labels = np.arange(60) % 20
    pair = [(generator.normal(size=60), labels) for _ in range(2)]
    attack = metrics.evaluate("x", *pair, repeats=200, seed=0, per_class=True)
    assert attack.accuracy < 0.6


def around(generator, *centres):
    """Scores of two classes: N(centre, 1), a thousand each."""
    labels = np.repeat([0, 1], 1000)
    return np.repeat(np.array(centres, dtype=float), 1000) + generator.normal(size=2000), labels


def test_thresholds_of_a_shadow_are_the_shadows_own():
    """The shadow is less sure of everything than the run: its threshold calls all "member"."""
    generator = np.random.default_rng(6)
    sides = around(generator, 9, 9), around(generator, 7, 7)
    shadow = around(generator, 1, 1), around(generator, -1, -1)
    own = metrics.evaluate("x", *sides, repeats=20, seed=0)
    other = metrics.evaluate("x", *sides, repeats=20, seed=0, shadow=shadow)
    assert own.accuracy > 0.8
    assert other.accuracy == 0.5
    assert other.auc == pytest.approx(own.auc, abs=0.02)  # one threshold does not change the order
    alike = metrics.evaluate("x", *sides, repeats=20, seed=0, shadow=sides)
    assert alike.accuracy == pytest.approx(own.accuracy, abs=0.02)


def test_thresholds_of_a_shadow_per_class():
    """Only the shadow's threshold for each class parts both classes of the run."""
    generator = np.random.default_rng(7)
    sides = around(generator, 1, 9), around(generator, -1, 7)
    shadow = around(generator, 1, 9), around(generator, -1, 7)
    one, each = (
        metrics.evaluate("x", *sides, repeats=20, seed=0, per_class=p, shadow=shadow)
        for p in (False, True)
    )
    assert each.accuracy > one.accuracy + 0.1
    swapped = [(scores, 1 - labels) for scores, labels in shadow]
    wrong = metrics.evaluate("x", *sides, repeats=20, seed=0, per_class=True, shadow=swapped)
    assert wrong.accuracy < 0.55


def test_every_metric_is_judged_by_a_shadow():
    generator = np.random.default_rng(8)
    sides = sample(generator, 500, 4), sample(generator, 500, 1)
    sure = sample(generator, 500, 30), sample(generator, 500, 20)  # nobody in the run is as sure
    for attack in metrics.attack_all(*sides, repeats=5, shadow=sure):
        assert attack.accuracy < 0.6 or attack.attack == "correctness"
        assert attack.auc > 0.6


def test_every_evaluation_draws_the_judged_and_the_shadows_examples_anew():
    generator = np.random.default_rng(9)
    sides = around(generator, 1, 1), around(generator, 0, 0)
    fixed = [(np.array([0.5]), np.array([0])), (np.array([0.4]), np.array([0]))]
    rows = metrics.evaluations(sides, 30, 0, shadow=fixed)
    assert rows.shape == (30, 3)
    spread = rows.std(0)  # of the judged alone; the threshold is 0.4 each time
    assert 0 < spread[1] < 0.03
    far = [(np.array([0.5, 9.0]), np.array([0, 0])), (np.array([0.4, 8.0]), np.array([0, 0]))]
    assert metrics.evaluations(sides, 30, 0, shadow=far).std(0)[1] > 3 * spread[1]


def test_mean_and_interval_of_evaluations():
    from scipy import stats

    values = [0.61, 0.58, 0.64, 0.60, 0.55]
    mean, half = metrics.mean_and_interval(values)
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert metrics.mean_and_interval([0.5, 0.5, 0.5]) == (0.5, 0.0)
    with pytest.raises(InputError, match="at least 2 of them, found 1"):
        metrics.mean_and_interval([0.5])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: answers([0.5, 0.6], labels=[0]), "not probabilities"),
        (lambda: answers([1.5, -0.5], labels=[0]), "not probabilities"),
        (lambda: answers([np.nan, 1.0], labels=[0]), "not probabilities"),
        (lambda: answers([1.0], labels=[0]), "shape"),
        (lambda: answers([0.5, 0.5], labels=[2]), "labels: must be from 0 to 1"),
        (lambda: Answers.from_logits(np.array([[np.inf, 0]]), np.array([0])), "not finite"),
        (lambda: Answers.from_logits(np.array([1.0, 2.0]), np.array([0, 1])), "not finite scores"),
    ],
)
def test_outputs_that_are_not_probabilities(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_too_few_examples():
    generator = np.random.default_rng(5)
    with pytest.raises(InputError, match="found 2000 and 19"):
        metrics.attack_all(sample(generator, 2000, 1), sample(generator, 19, 1))
