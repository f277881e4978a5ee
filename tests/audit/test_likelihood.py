"""LiRA's scores on shadows whose law is known, and the shadow runner."""

import numpy as np
import pytest

from dpdt import config
from dpdt.audit import likelihood
from dpdt.audit.likelihood import half, scores, train_shadows
from dpdt.audit.metrics import auc
from dpdt.audit.shadows import Targets
from dpdt.errors import InputError


def shadows(generator, number, targets, gap):
    """Answers N(hardness + gap·inside, 1): every target has a hardness of its own."""
    hardness = generator.normal(0, 3, targets)
    inside = generator.random((number, targets)) < 0.5
    answers = hardness + gap * inside + generator.normal(size=(number, targets))
    member = np.arange(targets) < targets // 2
    own = hardness + gap * member + generator.normal(size=targets)
    return own, answers, inside, member


@pytest.mark.parametrize("online", [True, False])
def test_the_score_is_as_good_as_the_law_allows(online):
    """With known means the best AUC is Φ(gap/√2); hardness alone would hide it."""
    from scipy.special import ndtr

    own, answers, inside, member = shadows(np.random.default_rng(0), 64, 4000, 1.5)
    found = scores(own, answers, inside, online=online)
    best = float(ndtr(1.5 / 2**0.5))
    assert auc(found[member], found[~member]) > best - 0.03
    assert auc(own[member], own[~member]) < best - 0.15


def test_nothing_is_found_where_nothing_is():
    own, answers, inside, member = shadows(np.random.default_rng(1), 32, 4000, 0.0)
    for online in (True, False):
        found = scores(own, answers, inside, online=online)
        assert abs(auc(found[member], found[~member]) - 0.5) < 0.04


def test_too_few_shadows():
    own, answers, inside, _ = shadows(np.random.default_rng(2), 1, 10, 1.0)
    with pytest.raises(InputError, match=r"^shadows: too few"):
        scores(own, answers, inside, online=True)


def test_targets_are_members_and_as_many_others():
    targets = Targets.draw(np.arange(10, 100), 30, 50, np.random.default_rng(0))
    assert len(targets.members) == len(targets.others) == 30
    assert targets.members.min() >= 10
    inside = np.stack([half(targets, s, 0) for s in range(200)])
    assert (inside.sum(1) == 30).all()  # a shadow is as large as the run itself
    assert abs(inside.mean(0) - 0.5).max() < 5 * (0.25 / 200) ** 0.5


def test_shadows_are_trained_with_the_runs_settings_and_only_once(tmp_path, monkeypatch):
    """In this process instead of workers; a second call trains only what is missing."""
    chosen = config.load("digits", ("train.epochs=2", "privacy.epsilon=8.0"))
    made = []

    def here(function, items, *, initializer, initargs):
        initializer(*initargs)
        for arguments in items:
            made.append(arguments[-1])
            yield function(*arguments)

    monkeypatch.setattr(likelihood.pool, "each", here)
    targets = Targets.draw(np.arange(1437), 260, 40, np.random.default_rng(0))
    done = []
    answers, inside = train_shadows(chosen, targets, tmp_path / "s", 4, on_done=done.append)
    assert answers.shape == inside.shape == (4, 80)
    assert made == [0, 1, 2, 3]
    assert done == [0, 1, 2, 3, 4]
    (tmp_path / "s" / "2.npz").unlink()
    train_shadows(chosen, targets, tmp_path / "s", 4, on_done=done.append)
    assert made == [0, 1, 2, 3, 2]
    other = Targets.draw(np.arange(1437), 260, 30, np.random.default_rng(0))
    with pytest.raises(InputError, match="shadows of other targets"):
        train_shadows(chosen, other, tmp_path / "s", 4, on_done=done.append)
    with pytest.raises(InputError, match=r"^shadows: must be at least 4, found 3"):
        train_shadows(chosen, targets, tmp_path / "t", 3, on_done=done.append)
