"""The Python interface, as a user meets it."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import dpdt
from dpdt import config, data
from dpdt.ledger import Ledger
from tests.numbers import prepare, train


def small(n=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def test_one_call_trains_and_returns_model_privacy_and_history():
    x, y = small()
    result = train(
        nn.Linear(4, 2), (x, y), test=(x, y), epochs=3, batch_size=20, epsilon=8.0, lr=0.5
    )
    assert 7.9 < result.privacy.epsilon <= 8.0
    assert [r["epoch"] for r in result.history] == [1, 2, 3]
    assert result.history[-1]["accuracy"] is not None
    assert not result.model.training


def test_a_loop_of_ones_own():
    step, loader = prepare(
        nn.Linear(4, 2), small(), epochs=2, batch_size=20, epsilon=8.0, auxiliaries=5
    )
    spent = []
    for batch in loader:
        result = step(batch)
        assert result.loss > 0
        spent.append(step.privacy().epsilon)
    assert len(spent) == 6
    assert spent == sorted(spent)
    assert spent[-1] <= 8.0


class Pairs(Dataset):
    def __init__(self):
        self.x, self.y = small()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def test_a_torch_dataset_trains_like_its_tensors():
    results = []
    for source in (Pairs(), small()):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        train(model, source, epochs=1, batch_size=20, noise=0.0, memory="none", auxiliaries=3)
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


def test_settings_beside_settings_that_were_made_already_are_refused():
    made = config.load("digits").training
    with pytest.raises(dpdt.InputError, match=r"using: .* no room for epsilon, lr; give one"):
        prepare(nn.Linear(64, 10), small(), using=made, epsilon=1.0, lr=0.5)


def test_users_as_shards_give_a_user_level_guarantee():
    x, y = small()
    users = [i // 7 for i in range(60)]
    result = train(
        nn.Linear(4, 2),
        (x, y),
        users=users,
        unit="user",
        memory="auxiliary",
        auxiliaries=4,
        epochs=2,
        batch_size=3,
        noise=1.0,
    )
    assert result.privacy.proven.unit == "user"
    with pytest.raises(dpdt.InputError, match="users: must be given"):
        prepare(nn.Linear(4, 2), (x, y), unit="user", auxiliaries=4, batch_size=20, noise=1.0)
    with pytest.raises(dpdt.InputError, match="users: must be given"):
        prepare(nn.Linear(4, 2), (x, y), users=users, batch_size=20, noise=1.0)


def test_batches_must_come_from_the_loader_once_and_in_order():
    step, loader = prepare(nn.Linear(4, 2), small(), epochs=2, batch_size=20, noise=1.0)
    batches = list(loader)
    with pytest.raises(dpdt.InputError, match="each batch of the loader"):
        step(small())
    with pytest.raises(dpdt.InputError, match="once, in order"):
        step(batches[1])
    step(batches[0])
    with pytest.raises(dpdt.InputError, match="once, in order"):
        step(batches[0])


def test_data_that_cannot_be_used():
    model = nn.Linear(4, 2)
    with pytest.raises(dpdt.InputError, match="tensors of different lengths, 3, 4"):
        prepare(model, (torch.ones(3, 4), torch.ones(4)), noise=1.0, batch_size=2)
    with pytest.raises(dpdt.InputError, match="data: must be tensors"):
        prepare(model, "digits", noise=1.0)
    with pytest.raises(
        dpdt.InputError, match=r"train.batch_size: must be at most .* 60, found 256"
    ):
        prepare(model, small(), noise=1.0)


def test_a_growing_clip_is_accepted_with_a_warning_that_names_the_lemma():
    growing = {"kind": "steps", "epochs": [1], "factors": [1, 2]}
    with pytest.warns(UserWarning, match="Bound for Clipping Bias"):
        prepare(nn.Linear(4, 2), small(), batch_size=20, noise=1.0, epochs=3, clip_schedule=growing)


def test_per_auxiliary_penalties_and_schedules_reach_the_ledger():
    step, loader = prepare(
        nn.Linear(4, 2),
        small(),
        batch_size=20,
        epochs=3,
        noise=1.0,
        memory="auxiliary",
        auxiliaries=2,
        penalty=[1.0, 3.0],
        penalty_schedule=["constant", {"kind": "exponential", "rate": 2.0, "every": 1}],
        global_lr=0.5,
        weight_decay=0.1,
    )
    for batch in loader:
        step(batch)
    settings = [run.setting for run in step.writer.ledger.runs]
    # mean ρ of (1, 3), (1, 6), (1, 12), and η̂ = η_θ / mean ρ
    assert [s.penalty for s in settings] == pytest.approx([2.0, 3.5, 6.5])
    assert [s.penalties for s in settings] == [(1.0, 3.0), (1.0, 6.0), (1.0, 12.0)]
    sizes = [0.5 / 2, 0.5 / 3.5, 0.5 / 6.5]
    assert [s.step_size for s in settings] == pytest.approx(sizes)
    assert [s.contraction for s in settings] == pytest.approx([1 / (1 + 0.1 * s) for s in sizes])


def test_the_ledger_on_disk_says_what_was_done(tmp_path):
    path = tmp_path / "ledger.jsonl"
    result = train(
        nn.Linear(4, 2), small(), epochs=2, batch_size=20, noise=1.0, ledger=path, memory="none"
    )
    ledger = Ledger.read(path)
    assert ledger.closed
    assert dpdt.account(ledger, 1e-5).epsilon == result.privacy.epsilon


def test_a_step_is_recorded_before_it_is_taken(tmp_path):
    """So that a run that dies within a step has paid for it."""
    path, seen = tmp_path / "ledger.jsonl", []

    def loss(model, batch):
        seen.append(Ledger.read(path).steps)
        raise RuntimeError("the machine goes down")

    step, loader = prepare(
        nn.Linear(4, 2), small(), loss=loss, batch_size=20, noise=1.0, ledger=path
    )
    with pytest.raises(RuntimeError, match="goes down"):
        step(next(iter(loader)))
    assert set(seen) == {1}
    assert Ledger.read(path).steps == 1


def test_a_fixed_noise_seed_repeats_and_is_marked():
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        fitted = train(model, small(), epochs=1, batch_size=20, noise=1.0, noise_seed=1)
        results.append(model.weight.detach().clone())
        assert fitted.privacy.proven is None
    assert torch.equal(*results)


def test_the_demo_reaches_its_accuracy_at_a_proven_epsilon_of_8():
    """Mean of five noise seeds on digits, every example its own auxiliary, memory shared."""
    from dpdt import config, models

    chosen = config.load("digits")
    assert chosen.method.per_example
    assert chosen.method.memory == "shared"
    examples, accuracies = data.load("digits"), []
    for _ in range(5):
        model = models.build(chosen.model, data.facts("digits"), 0)
        result = train(model, examples.train, test=examples.test, using=chosen)
        accuracies.append(result.history[-1]["accuracy"])
        assert result.privacy.epsilon <= 8.0
    assert sum(accuracies) / 5 >= 0.92


def test_facts_about_data_are_true():
    examples, facts = data.load("digits"), data.facts("digits")
    assert len(examples.train[0]) == len(examples.train[1]) == facts.examples
    assert tuple(examples.train[0].shape[1:]) == facts.shape
    assert int(examples.train[1].max()) + 1 == facts.classes
