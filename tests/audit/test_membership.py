"""Thresholds from shadow models: no judged example reaches them, and shadows are trained once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpdt import config
from dpdt.audit import membership as attack
from dpdt.audit import run as everything
from dpdt.audit import shadows
from dpdt.audit.membership import Split, membership
from dpdt.audit.shadows import train_shadow
from dpdt.audit.target import Target
from dpdt.errors import InputError
from dpdt.training.run import run

FEW = ("data.limit=100", "data.public=0", "train.epochs=60", "train.batch_size=20")


def trained(path, *overrides, method="plain"):
    run(config.load("digits", overrides, method), path, show_progress=False)
    return str(path)


@pytest.fixture(scope="module")
def overfit(tmp_path_factory):
    """A plain run that knows its hundred digits by heart."""
    return trained(tmp_path_factory.mktemp("runs") / "overfit", *FEW)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A private run with public inputs and canaries; its batch is the whole training set."""
    path = tmp_path_factory.mktemp("runs") / "short"
    return trained(path, "train.epochs=2", "audit.canaries=40", method="dpdt")


def split(members=90, places=100, others=50, seed=0):
    """The first ten places are canaries."""
    chosen = np.arange(places - members, places)
    return Split.draw(chosen, places, others, np.random.default_rng(seed))


def test_a_split_uses_everybody_once():
    found = split()
    assert len(found.judged.members) == len(found.judged.others) == 25
    assert len(found.inside) == 90 - 25
    assert len(found.outside) == 50 - 25
    used = np.concatenate(
        [found.judged.members, 100 + found.judged.others, found.inside, found.outside]
    )
    assert sorted(used) == list(range(10, 150))  # nobody twice, and no canary
    for side in (found.inside, found.outside):
        assert 0 < (side < 100).sum() < len(side)  # members and others of the run alike
    assert not np.array_equal(found.inside, split(seed=1).inside)


def test_the_smaller_side_decides_how_many_are_judged():
    found = split(members=40, places=40, others=300)
    assert len(found.judged.members) == len(found.judged.others) == 20
    assert (len(found.inside), len(found.outside)) == (20, 280)
    with pytest.raises(InputError, match=r"at least 40 members and 40 .* found 90 and 39"):
        split(others=39)


class Names(nn.Module):
    """Says the number of an example, which stands in its first pixel."""

    def forward(self, x):
        name = x.flatten(1)[:, :1]
        return torch.cat([name, torch.zeros(len(x), 9)], 1)


def names(answers):
    return set(np.log(answers.probabilities[:, 0] / answers.probabilities[:, 1]).round(3))


@pytest.mark.parametrize("thresholds", ["shadow", "own"])
def test_no_judged_example_reaches_the_shadow_or_the_thresholds(short, monkeypatch, thresholds):
    """Every example has a number; whatever is trained or learnt on is looked at."""
    target = Target.read(short)
    (x, y), (x_test, y_test) = target.examples.train, target.examples.test
    x, x_test = torch.zeros_like(x), torch.zeros_like(x_test)
    x.flatten(1)[:, 0] = torch.arange(len(y)) / 1000
    x_test.flatten(1)[:, 0] = 2 + torch.arange(len(y_test)) / 1000
    examples = replace(target.examples, train=(x, y), test=(x_test, y_test))
    target = replace(target, examples=examples, learner=Names())
    held, seen = [], []

    def shadow(config, data, public, number):
        assert torch.equal(public, target.public)
        held.append({round(float(n), 3) for n in data[0].flatten(1)[:, 0]})
        return Names()

    def scored(metric, *pair):
        seen.append([names(side) for side in pair])
        return [(metric(side), side.labels) for side in pair]

    monkeypatch.setattr(Target, "read", lambda _: target)
    monkeypatch.setattr(attack, "train_shadow", shadow)
    monkeypatch.setattr(attack, "scored", scored)
    membership(short, evaluations=2, thresholds=thresholds)
    real = np.setdiff1d(np.arange(len(y)), target.planted.places)
    assert len(real) == len(y) - 40
    members = {round(n / 1000, 3) for n in real}
    others = {round(2 + n / 1000, 3) for n in range(len(y_test))}
    assert len(held) == (2 if thresholds == "shadow" else 0)
    for evaluation in range(2):
        learn, judged = seen[2 * evaluation : 2 * evaluation + 2]
        assert judged[0] <= members
        assert judged[1] <= others
        assert len(judged[0]) == len(judged[1]) == len(y_test) // 2
        assert learn[0] | learn[1] == (members | others) - judged[0] - judged[1]
        if thresholds == "shadow":
            assert learn[0] == held[evaluation]
            assert not learn[0] & learn[1]
        else:
            assert learn[0] == members - judged[0]
    assert seen[1] != seen[3]  # other examples are judged each time
    for path in target.folder.shadows.glob("thresholds-*.npz"):
        path.unlink()


def test_members_of_an_overfitted_run_are_found(overfit, monkeypatch):
    """Shadows are trained once; a second attack gives the same, and the others of a third."""
    made = []

    def count(config, data, public, number):
        made.append((number, len(data[1])))
        return train_shadow(config, data, public, number)

    monkeypatch.setattr(attack, "train_shadow", count)
    found = membership(overfit, evaluations=3)
    assert made == [(0, 50), (1, 50), (2, 50)]
    (auc, around), accuracies = found.auc, found.accuracies
    assert auc - around > 0.55
    assert auc > 0.65
    assert found.accuracy[0] > 0.55
    assert (len(accuracies), found.thresholds, found.metric) == (3, "shadow", "modified-entropy")
    assert found == membership(overfit, evaluations=3)
    report = everything.audit(overfit, repeats=5, thresholds="shadow")  # has the first at hand
    assert len(made) == 3
    assert report.as_json()["thresholds"] == "shadow"
    own = membership(overfit, evaluations=3, thresholds="own")
    assert own.thresholds == "own"
    assert own.auc[0] > 0.65
    assert len(made) == 3


def test_one_threshold_or_one_per_class(overfit):
    one, each = (membership(overfit, evaluations=2, per_class=p) for p in (False, True))
    assert one != each
    assert membership(overfit, evaluations=2, metric="entropy").metric == "entropy"


def test_stale_and_damaged_shadows_are_refused(overfit):
    membership(overfit, evaluations=2)
    path = Target.read(overfit).folder.shadows / "thresholds-0.npz"
    whole = path.read_bytes()
    try:
        for name in ("members", "others", "inside", "outside"):
            with np.load(path) as file:
                record = dict(file)
            record[name] = record[name][::-1]
            shadows.keep(path, **record)
            with pytest.raises(InputError, match="holds shadows of other targets; remove it"):
                membership(overfit, evaluations=2)
            path.write_bytes(whole)
        for damaged in (whole[:100], b"", b"\x80\x04]."):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=r"thresholds-0.npz: cannot be read") as refused:
                membership(overfit, evaluations=2)
            assert "pickle" not in str(refused.value)  # numpy advises to unpickle it
    finally:
        path.write_bytes(whole)


def test_a_shadow_has_another_start_and_other_noise(monkeypatch):
    """The other settings are the run's; where a run takes all examples at once, so does it."""
    chosen = config.load("digits", ("train.epochs=1", "privacy.noise_seed=5"))
    used, starts = [], []

    def train(learner, data, *, public, using, task, quiet):
        used.append(using)
        starts.append(torch.cat([p.detach().flatten() for p in learner.parameters()]))

    monkeypatch.setattr(shadows, "train", train)
    data = (torch.zeros(500, 1, 8, 8), torch.zeros(500, dtype=torch.long))
    for number in (0, 1):
        train_shadow(chosen, data, None, number)
    assert [u.privacy.noise_seed for u in used] == [6, 7]
    assert [u.train for u in used] == [replace(chosen.train, batch_size=500)] * 2
    assert all(u.method == chosen.method for u in used)
    assert not torch.equal(*starts)
    train_shadow(config.load("digits"), data, None, 0)
    assert used[-1].privacy.noise_seed is None


def test_what_cannot_be_attacked(overfit):
    sets = ("privacy.unit=user", "method.auxiliaries=10", "method.sampling=partition",
            "method.lr=1.0", "method.averaging=0.0", "method.memory=auxiliary")  # fmt: skip
    with pytest.raises(InputError, match="a run that protects users cannot have them"):
        train_shadow(config.load("digits", sets), None, None, 0)
    with pytest.raises(InputError, match=r"^evaluations: must be at least 1, found 0"):
        membership(overfit, evaluations=0)
    with pytest.raises(InputError, match=r"^thresholds: must be one of own, shadow, found 'x'"):
        membership(overfit, thresholds="x")
    with pytest.raises(InputError, match=r"^thresholds: must be one of own, shadow, found 'x'"):
        everything.audit(overfit, thresholds="x")
    with pytest.raises(InputError, match=r"^metric: must be one of correctness, .*, found 'x'"):
        membership(overfit, metric="x")
