"""An example as it is read is a function of its own number, whatever was read before."""

import functools
import io
import itertools
import math
import pickle
import random
import sqlite3
import sys
import types
import warnings
import zipfile
from collections import deque

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from dpdt.algorithm.batch import leaves
from dpdt.data.access import read
from dpdt.data.given import taken
from dpdt.errors import InputError, Tainted
from dpdt.training.ahead import Reader, readers
from tests.numbers import prepare

N = 40
X = torch.arange(N * 4, dtype=torch.float32).reshape(N, 4) / N
COUNT = 0
OWN = random.Random(1)
LAST = {"x": torch.zeros(4)}


class Rows(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.changed(X[i], i).float(), i % 3


class Generators(Rows):
    """Each read draws a number of times that follows the example."""

    def __init__(self):
        self.own, self.old = np.random.default_rng(0), [np.random.RandomState(0)]
        self.torch = torch.Generator().manual_seed(0)

    def changed(self, x, i):
        drawn = self.own.normal(size=1 + i % 3)[-1] + self.old[0].rand() + OWN.random()
        return x + drawn + torch.rand(1, generator=self.torch)


class Rare(Rows):
    """Uses its generator for one example in eight, which a look at the first does not show."""

    def __init__(self):
        self.own = np.random.default_rng(0)

    def changed(self, x, i):
        return x + self.own.normal() if i % 8 == 7 else x


class Counts(Rows):
    """Counts in an attribute, a global and an array, from the third example on."""

    def __init__(self):
        self.read, self.sums, self.mean = 0, np.zeros(2), torch.zeros(4)

    def changed(self, x, i):
        global COUNT
        if i > 2:
            self.read += 1
            COUNT += 1
            self.sums[0] += i
            self.mean += x
        return x + self.read + COUNT + self.sums[0] + self.mean


class Mixes(Rows):
    """Adds the last of the odd examples, from example 3 on."""

    def changed(self, x, i):
        before = LAST["x"]
        if i % 2 and i > 2:
            LAST["x"] = x
        return x + before


class Queues(Rows):
    """Keeps many examples, so that containers have many members from the start."""

    def __init__(self):
        self.recent, self.known = [0.0] * 1000, dict.fromkeys(range(1000), 0.0)

    def changed(self, x, i):
        if i > 2:
            self.recent[i] = self.recent[i - 1] + float(x.sum())
            self.known[2000 + i] = 1.0
        return x + sum(self.recent) + len(self.known)


class Cached(Rows):
    """Two caches, which say who was read before."""

    def __init__(self):
        self.cache = {}

    @staticmethod
    @functools.lru_cache
    def decoded(i):
        return torch.rand(4)

    def changed(self, x, i):
        if i not in self.cache:
            self.cache[i] = x + self.decoded(i // 4)
        return self.cache[i] + (len(self.cache) > 3)


class Files(Rows):
    """Reads on from where a file stands."""

    def __init__(self):
        self.file = io.BytesIO(bytes(range(200)))

    def changed(self, x, i):
        if i > 2:
            self.file.read(i)
        return x + self.file.tell()


class Buffered(Rows):
    """Gives the same array for every example."""

    def __init__(self):
        self.array = np.zeros(4, dtype=np.float32)

    def __getitem__(self, i):
        self.array[:] = X[i].numpy()
        return self.array, i % 3


KINDS = [Generators, Rare, Counts, Mixes, Queues, Cached, Files, Buffered]
ORDERS = ([5, 7, 3, 15, 6], [15, 5, 5, 3], [7], [6, 39, 15, 7, 23, 5, 3])


def by_number(source, order, step=0):
    """Read examples in an order, and return each as bytes."""
    x, _ = read(source, torch.tensor(order), 0, step)
    return {i: row.numpy().tobytes() for i, row in zip(order, x, strict=True)}


def agree(found):
    """Compare what several orders gave of each example."""
    assert all(len({f[i] for f in found if i in f}) == 1 for i in {i for f in found for i in f})


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_is_the_same_whoever_was_read_before(kind):
    source = taken(kind())
    agree([by_number(source, order) for order in ORDERS])
    agree([by_number(source, order) for order in ORDERS[::-1]])


@pytest.mark.parametrize("kind", [Generators, Counts, Queues, Cached, Buffered])
def test_a_process_that_reads_finds_what_the_run_itself_would(kind):
    source = taken(kind())
    tasks = [(torch.tensor(order), np.array(order), 0) for order in ORDERS]
    elsewhere = list(readers(Reader(source, 0), iter(tasks), 2, pinned=False))
    for order, (x, _) in zip(ORDERS, elsewhere, strict=True):
        own, _ = read(source, torch.tensor(order), 0, 0)
        assert torch.equal(own, x)


def test_random_transforms_differ_from_step_to_step():
    source = taken(Generators())
    assert by_number(source, [5, 7], 0)[7] != by_number(source, [5, 7], 1)[7]


def test_a_subset_and_a_collate_function_are_looked_into_too():
    last = {}
    own = np.random.default_rng(0)

    def collate(rows):
        x, y = default_collate(rows)
        last.setdefault("first", float(x.sum()) if last or int(y[0]) else 0.0)
        return x + own.normal() + last["first"], y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = taken(DataLoader(Subset(Queues(), list(range(N))), collate_fn=collate))
    agree([by_number(source, order) for order in ORDERS])


JITTER = """
import numpy as np
rng = np.random.default_rng(0)

def jitter(x, i):
    return x + (rng.normal() if i > 2 else 0.0)
"""
MOVED = """
class Moved(Rows):
    def changed(self, x, i):
        return transforms.jitter(x, i)
"""


def test_names_of_an_imported_module_are_looked_into():
    """A generator that stands in a file of one's own is one of the Dataset's."""
    made = types.ModuleType("transforms_of_ones_own")
    exec(JITTER, made.__dict__)
    namespace = {"transforms": made, "Rows": Rows, "__name__": "data_of_ones_own"}
    exec(MOVED, namespace)
    source = taken(namespace["Moved"]())
    agree([by_number(source, order) for order in ORDERS])


class Holds(Rows):
    def __init__(self, held):
        self.held = held

    def changed(self, x, i):
        return x


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: itertools.count(), "itertools.count"),
        (lambda: iter([1, 2]), "builtins.list_iterator"),
        (lambda: (i for i in range(3)), "builtins.generator"),
        (lambda: {"deep": [itertools.cycle([1])]}, "itertools.cycle"),
        (lambda: [itertools.count() for _ in range(300)], "itertools.count"),
        (lambda: np.random.SeedSequence(0), "numpy.random.bit_generator.SeedSequence"),
    ],
)
def test_what_cannot_be_put_back_is_refused_by_its_path(make, kind):
    message = rf"^data: attribute 'held' of data is of type {kind}, which can change"
    with pytest.raises(InputError, match=message) as error:
        prepare(torch.nn.Linear(4, 3), Holds(make()), epochs=1, batch_size=8, noise=1.0)
    assert "\n" not in str(error.value)


def test_what_datasets_commonly_hold_is_read(tmp_path):
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    Image.fromarray(np.zeros((4, 4, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", np.ones((300, 200)))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.write(tmp_path / "a.png", "a.png")
    for held in (
        [Image.open(tmp_path / "a.png") for _ in range(3)],
        np.load(tmp_path / "a.npy", mmap_mode="r"),
        np.load(tmp_path / "a.npy", mmap_mode="r+"),
        zipfile.ZipFile(tmp_path / "a.zip"),
        pandas.DataFrame({"a": range(N), "b": ["x"] * N}),
        datasets.Dataset.from_dict({"a": list(range(N))}),
        sqlite3.connect(":memory:"),
        deque(range(3)),
        torch.nn.BatchNorm1d(4).eval(),
    ):
        source = taken(Uses(held))
        agree([by_number(source, order) for order in ORDERS])


class Uses(Holds):
    """Reads from what it holds."""

    def changed(self, x, i):
        held = self.held
        if isinstance(held, zipfile.ZipFile):
            return x + len(held.read("a.png"))
        if isinstance(held, np.ndarray):
            return x + float(held[i].sum())
        if isinstance(held, list):
            return x + np.asarray(held[0].convert("RGB")).sum()
        if isinstance(held, torch.nn.Module):
            return x + held(torch.stack([x, 2 * x])).detach().sum() + held.running_mean
        if isinstance(held, sqlite3.Connection):
            return x + held.execute("select 1").fetchone()[0]
        if isinstance(held, deque):
            held.rotate(1)
            return x + len(held)
        return x + float(held.iloc[i]["a"] if hasattr(held, "iloc") else held[i]["a"])


def test_a_transform_of_a_dataset_of_hugging_face_is_looked_into():
    datasets = pytest.importorskip("datasets")
    own, last = np.random.default_rng(0), []

    def transform(rows):
        x = np.asarray(rows["x"], dtype=np.float32)
        if x.sum() > 3:
            last.append(x)
        return {"x": list(x + own.normal() + len(last)), "labels": rows["labels"]}

    made = datasets.Dataset.from_dict({"x": X.tolist(), "labels": [i % 3 for i in range(N)]})
    source = taken(made.with_transform(transform))
    found = []
    for order in ORDERS:
        rows = read(source, torch.tensor(order), 0, 0)
        found.append({i: r.numpy().tobytes() for i, r in zip(order, rows["x"], strict=True)})
    agree(found)


class Writes(Rows):
    """Writes to something large."""

    def __init__(self):
        self.x, self.after = np.zeros((N, 10_000)), 3

    def changed(self, x, i):
        if i >= self.after:
            self.x[i - 1] = 1.0
        return x


def test_writing_to_a_large_array_is_refused_or_voids_the_run():
    data = Writes()
    data.after = 0
    with pytest.raises(InputError, match=r"^data: reading an example changes attribute 'x' of"):
        taken(data)
    step, loader = prepare(torch.nn.Linear(4, 3), Writes(), epochs=1, batch_size=20, noise=1.0)

    def go():
        for batch in loader:
            step(batch)
        step.finish()

    with pytest.raises(Tainted, match="attribute 'x' of data changed while examples were read"):
        go()
    assert math.isinf(step.privacy().epsilon)


class Unseen(Rows):
    """Keeps a count where no walk looks."""

    def changed(self, x, i):
        if sys.unseen_count is not None:
            sys.unseen_count += 1
        return x + (sys.unseen_count or 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_state_that_no_walk_sees_voids_the_run(workers, monkeypatch):
    monkeypatch.setattr(sys, "unseen_count", None, raising=False)
    options = {"epochs": 1, "batch_size": 20, "noise": 1.0, "workers": workers}
    step, loader = prepare(torch.nn.Linear(4, 3), Unseen(), **options)
    monkeypatch.setattr(sys, "unseen_count", 0)
    with pytest.raises(Tainted, match=r"^data: gives another example when the same one is read"):
        next(iter(loader))
    assert math.isinf(step.privacy().epsilon)


def test_what_is_changed_between_reads_is_put_back_and_said():
    data = Counts()
    source = taken(data)
    before = by_number(source, [1, 2])
    data.read = 5
    with pytest.warns(UserWarning, match=r"^attribute 'read' of data was changed between reads"):
        assert by_number(source, [1, 2]) == before
    assert data.read == 0


def test_a_dataset_that_reads_the_trained_model_is_refused():
    model = torch.nn.Linear(4, 3)
    for held in (model, [model.weight] * 300):
        with pytest.raises(InputError, match=r"^data: reads .* of data, which is trained"):
            prepare(model, Holds(held), epochs=1, batch_size=8, noise=1.0)
    prepare(model, Holds(torch.nn.Linear(4, 3)), epochs=1, batch_size=8, noise=1.0)


def test_a_dataset_can_be_sent_to_another_process():
    """By pickling, where processes do not share memory; the copy has a state of its own."""
    source = taken(Generators())
    sent = pickle.loads(pickle.dumps(source))
    assert sent.reads.roots["data"] is sent.source
    agree([by_number(s, order) for s in (source, sent) for order in ORDERS])


def test_processes_do_not_share_the_position_of_a_file(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(N))
    with path.open("rb") as file:
        options = {"epochs": 1, "batch_size": 8, "noise": 1.0, "workers": 2}
        with pytest.raises(
            InputError, match=r"^train.workers: attribute 'held' of data is an open"
        ):
            prepare(torch.nn.Linear(4, 3), Holds(file), **options)


def test_many_samples_in_memory_are_not_compared_at_every_read(monkeypatch):
    """Places that are compared at every read are few, however many samples there are."""
    source = taken(Holds([(torch.zeros(3), i) for i in range(3000)]))
    assert len(source.reads.near.places) < 20
    looked = []
    monkeypatch.setattr("dpdt.data.state._digest", looked.append)
    source.reads.one(1, 1, 0, 0, source.__getitem__)
    assert not looked


def test_training_on_a_dataset_with_a_generator_moves_one_example_only():
    """Blank out an example: the others are read as before, however many draws it made."""

    def batch(blank):
        data = Generators()
        inner = data.changed
        data.changed = lambda x, i: torch.zeros(4) if i == blank else inner(x, i)
        options = {"epochs": 1, "batch_size": N, "noise": 1.0, "noise_seed": 3}
        _, loader = prepare(torch.nn.Linear(4, 3), data, sampling="partition", **options)
        return leaves(next(iter(loader)).data)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = batch(None), batch(11)
    moved = (one != other).any(1)
    assert moved.sum() == 1
    assert not other[moved].any()
