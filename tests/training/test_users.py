"""Runs that protect users: what anybody holds decides nothing public, and moves nobody else."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

import dpdt
from dpdt import config
from dpdt.accounting import account
from dpdt.report import pages
from dpdt.training.run import Assembled
from dpdt.users import Users
from tests.numbers import prepare, train

NAMES = [f"user {i}" for i in range(9)]
HOLDINGS = [3, 1, 7, 2, 0, 5, 4, 1, 6]
TARGET = 2  # whose holdings are others in the neighbour
NUMBERS = [0, 1, 6, 8, 30]  # in the place of 7


def held(number, order=0):
    """Users' examples, in a random order: images that say whose they are, labels, and owners.

    The target holds `number` examples. The others' have the order that they have without it.
    """
    generator = random.Random(order)
    rows = [(name, j) for name, n in zip(NAMES, HOLDINGS, strict=True) for j in range(n)]
    rows = [row for row in rows if row[0] != NAMES[TARGET]]
    generator.shuffle(rows)
    for j in range(number):
        rows.insert(generator.randrange(len(rows) + 1), (NAMES[TARGET], j))
    owners, images = {name: [] for name in NAMES}, []
    for i, (name, _) in enumerate(rows):
        owners[name].append(i)
        images.append(picture(name, len(owners[name]) - 1))
    x = torch.stack(images)
    return (x, torch.arange(len(x)) % 3), owners


def picture(name, number):
    """An image without symmetries, whose entries say whose it is and which of theirs."""
    return (torch.arange(64.0) + 1 + 100 * NAMES.index(name) + 1e4 * number).reshape(1, 8, 8)


class Own(torch.utils.data.Dataset):
    """Examples that are changed at random as they are read."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, i):
        noise = torch.rand(()) + random.random() + float(np.random.rand())
        return self.data[0][i] + 0.1 * noise, self.data[1][i]


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


OPTIONS = {
    "unit": "user", "auxiliaries": 4, "batch_size": 3, "epochs": 2, "noise": 1.0, "noise_seed": 3,
}  # fmt: skip


def seen(number, kind=None, order=0, **options):
    """Where and how the others' examples are trained on: (user, number) → every time in turn."""
    data, owners = held(number, order)
    data = Own(data) if kind == "dataset" else data
    options = OPTIONS | {"augment": kind == "augment"} | options
    step, loader = prepare(network(), data, users=owners, **options)
    mine = {int(i): (name, j) for name, own in owners.items() for j, i in enumerate(own)}
    found = {}
    for batch in loader:
        indices, sizes = loader.draws.sampler.batch(batch.step)
        assert sizes == batch.sizes
        homes = np.repeat(np.arange(len(sizes)), sizes)
        for i, home, image in zip(indices, homes, batch.data[0], strict=True):
            if mine[int(i)][0] != NAMES[TARGET]:
                entry = (batch.step, int(home), image.numpy().tobytes())
                found.setdefault(mine[int(i)], []).append(entry)
        step(batch)
    return found, step


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (None, {}),
        ("augment", {"memory": "auxiliary"}),
        ("augment", {"views": 3, "reshuffle": True}),
        ("dataset", {}),
        ("dataset", {"workers": 1, "augment": True}),
    ],
    ids=str,
)
def test_how_much_one_user_holds_moves_and_changes_nobody_elses_examples(kind, options, number):
    before, _ = seen(7, kind, **options)
    after, _ = seen(number, kind, **options)
    assert len(before) == sum(HOLDINGS) - 7
    assert all(len(times) == 2 for times in before.values())  # epochs
    assert before == after


def test_crops_and_draws_differ_from_example_to_example_and_from_step_to_step():
    for kind in ("augment", "dataset"):
        found, _ = seen(7, kind)
        changed = {}
        for (name, number), times in found.items():
            for _, _, image in times:
                shown = torch.frombuffer(bytearray(image), dtype=torch.float32).view(1, 8, 8)
                way = (shown - picture(name, number)).numpy().round(2).tobytes()
                changed[way] = changed.get(way, 0) + 1
        assert len(changed) > len(found) / 2
        assert max(changed.values()) < len(found) / 2


def test_what_is_random_for_an_example_follows_from_its_owner_and_its_own_number():
    one, other = Users.of(list("abab"), 4), Users.of(list("cbbaaa"), 6)
    assert one.own.tolist() == [0, 0, 1, 1]
    assert one.keys[[0, 2]].tolist() == other.keys[[3, 4]].tolist()
    assert one.keys[[1, 3]].tolist() == other.keys[[1, 2]].tolist()
    assert len({*one.keys.tolist(), *other.keys.tolist()}) == 6
    assert all(0 <= key < 2**62 for key in other.keys.tolist())


@pytest.mark.parametrize("order", [1, 2])
def test_where_a_user_goes_does_not_depend_on_the_order_of_the_table(order):
    assert seen(7, "augment")[0] == seen(7, "augment", order)[0]


def test_each_users_examples_are_spread_over_the_mini_batches():
    found, step = seen(7)
    batches = step.plan.header.batches
    assert batches == 3  # 9 users, a batch_size of 3 users
    for name, number in zip(NAMES, HOLDINGS, strict=True):
        if name != NAMES[TARGET]:
            steps = [found[name, j][0][0] for j in range(number)]
            counts = np.bincount(steps, minlength=batches)
            assert counts.max() - counts.min() <= 1


def test_users_of_few_examples_fill_the_mini_batches_alike():
    for holding in (1, 2):
        users = [f"user {i // holding}" for i in range(120 * holding)]
        data = torch.randn(len(users), 64), torch.arange(len(users)) % 3
        for auxiliaries in (120, 30, 7):
            _, loader = prepare(
                nn.Linear(64, 3), data, users=users,
                **OPTIONS | {"auxiliaries": auxiliaries, "batch_size": 20},
            )  # fmt: skip
            sizes = [len(loader.draws.sampler.batch(m)[0]) for m in range(6)]
            assert max(sizes) - min(sizes) <= 7


def public_files(folder):
    """Every public file of a run, without what is random or released: the seal and the weights."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith("private"):
            found[name] = path.read_text()
    lines = [json.loads(line) for line in found.pop("ledger.jsonl").splitlines()]
    for line in lines:
        for name in ("hash", "seal", "model"):
            line.pop(name, None)
    return found, lines


@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
def test_how_much_one_user_holds_shows_in_nothing_public(memory, tmp_path, capfd):
    found = []
    for number in (7, *NUMBERS):
        data, owners = held(number)
        folder = tmp_path / str(number)
        result = train(
            network(), data, users=owners, out=folder, memory=memory, augment=True, **OPTIONS
        )
        header = result.ledger.header
        assert (header.examples, header.batches, result.ledger.steps) == (9, 3, 6)
        printed = capfd.readouterr()
        found.append((public_files(folder), result.privacy, printed.out, printed.err))
    assert all(one == found[0] for one in found)


def test_every_public_number_of_a_callback_is_about_users():
    class Hears(dpdt.Callback):
        def on_start(self, facts):
            self.numbers = facts.numbers()

    told = []
    for number in (7, 0, 30):
        data, owners = held(number)
        heard = Hears()
        train(network(), data, users=owners, callbacks=[heard], progress=False, **OPTIONS)
        told.append(heard.numbers)
    assert told[0] == told[1] == told[2]
    assert told[0]["examples"] == len(NAMES)


def test_delta_is_compared_with_one_in_the_number_of_users():
    data, owners = held(7)
    with pytest.raises(dpdt.InputError, match=r"below 1/n = 0.11 for n = 9 users, found 0.2"):
        prepare(network(), data, users=owners, delta=0.2, **OPTIONS)
    with pytest.warns(UserWarning, match="0.05 is large for 9 users"):
        step, _ = prepare(network(), data, users=owners, delta=0.05, **OPTIONS)
    with pytest.raises(dpdt.InputError, match="for n = 9 users"):
        account(step.plan.ledger(), 0.2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 10}, "train.batch_size: must be at most the number of users, 9, found 10;"),
        ({"auxiliaries": 10}, "method.auxiliaries: must be at most the number of users, 9, since"),
    ],
)
def test_sizes_are_compared_with_the_number_of_users(options, text):
    data, owners = held(7)
    with pytest.raises(dpdt.InputError, match=f"^{text}"):
        prepare(network(), data, users=owners, **OPTIONS | options)


def test_as_many_auxiliaries_as_users_may_share_small_mini_batches():
    data, owners = held(7)
    step, loader = prepare(
        network(), data, users=owners, **OPTIONS | {"auxiliaries": 9, "batch_size": 1}
    )
    assert loader.batches == 9
    for batch in loader:
        step(batch)


@pytest.mark.parametrize(
    ("users", "text"),
    [
        ({"a": [0, 1], "b": [1, 2]}, "users: example 1 has two owners; give it to one"),
        ({"a": [0, 1], "b": []}, "users: example 2 has no owner; give one for each"),
        ({"a": [0, 1, 2, 3]}, "users: 'a' owns example 3, and examples are numbered from 0 to 2"),
        ({"a": [0, 1, -1]}, "users: 'a' owns example -1, and examples"),
        ({"a": [0, 1, 2.0]}, "users: must be a sequence, .* found \\[0, 1, 2.0\\] in a mapping"),
        ({"a": 0}, "users: must be a sequence, .* found int in a mapping"),
        (7, "users: must be a sequence, one owner for each example, or a mapping .* found int"),
        ({0, 1, 2}, "users: must be a sequence, .* found set"),
        ("abc", "users: must be a sequence, .* found str"),
    ],
)
def test_what_does_not_say_who_owns_what_is_refused(users, text):
    with pytest.raises(dpdt.InputError, match=f"^{text}"):
        Users.of(users, 3)


def test_a_mapping_says_the_same_as_a_list_of_owners():
    one = Users.of(["a", 2, "a", "b"], 4)
    for lists in ({"a": [0, 2], 2: (1,), "b": [3]}, {"a": np.array([2, 0]), 2.0: torch.tensor([1]),
                                                   "b": [np.int64(3)]}):  # fmt: skip
        other = Users.of(lists, 4)
        assert (one.names, one.owner.tolist()) == (other.names, other.owner.tolist())
    empty = Users.of({"a": [0, 2], "none": [], "b": [3, 1]}, 4)
    assert (empty.number, empty.owner.tolist()) == (3, [0, 2, 0, 2])


def test_a_configuration_whose_data_do_not_say_who_owns_what_is_refused_at_once():
    sets = ("privacy.unit=user", "method.auxiliaries=10", "method.sampling=partition",
            "method.lr=0.1", "method.penalty=1.0")  # fmt: skip
    chosen = config.load("digits", sets)
    for attempt in (config.plan_of, lambda c: Assembled.of(c, None, None)):
        with pytest.raises(dpdt.InputError, match="'digits' do not say who owns what; give users"):
            attempt(chosen)


def test_the_page_of_a_run_counts_users(tmp_path):
    data, owners = held(7)
    train(network(), data, users=owners, out=tmp_path / "run", progress=False, **OPTIONS)
    assert "dpdt · 9 users · 6 steps" in pages.page([tmp_path / "run"])
