"""Features of a frozen part: the example's own, and computed once."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpdt import data, models
from dpdt.algorithm import lanes
from dpdt.data import cache
from dpdt.models import frozen
from dpdt.models.settings import ModelSettings as Model

SETTINGS = Model(name="scatter", pool=2)
FACTS = data.Facts(examples=40, shape=(1, 8, 8), classes=2)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPDT_CACHE", str(tmp_path))


@pytest.fixture
def model():
    return models.build(SETTINGS, FACTS, 0)


def examples(number=40):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(number, 1, 8, 8, generator=generator), torch.arange(number) % 2


def test_features_do_not_depend_on_the_others(model):
    """To the bit: neither on what they are, nor on how many there are, nor on their order."""
    x, y = examples()
    whole, labels = frozen.features(model, (x, y))
    assert torch.equal(labels, y)
    changed = x.clone()
    changed[7] = 1e4
    others = [i for i in range(40) if i != 7]
    assert torch.equal(frozen.features(model, (changed, y))[0][others], whole[others])
    for chosen in ([5], range(1, 40), range(33), range(39, -1, -1)):
        index = torch.tensor(list(chosen))
        assert torch.equal(frozen.features(model, (x[index], y[index]))[0], whole[index])


def test_features_do_not_depend_on_the_number_of_cores(model):
    found, before = [], torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            found.append(frozen.features(model, examples())[0])
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
    assert torch.equal(*found)


def test_a_dataset_gives_the_same(model):
    whole, labels = frozen.features(model, examples())
    read = frozen.features(model, TensorDataset(*examples()))
    assert torch.equal(read[0], whole)
    assert torch.equal(read[1], labels)


class Counts(nn.Module):
    """Stands in for a frozen part: counts what it is shown, and on how many cores."""

    def __init__(self):
        super().__init__()
        self.frozen, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
        self.seen = []

    def __deepcopy__(self, memo):
        return self

    def features(self, x):
        assert not torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        self.seen.append((len(x), torch.get_num_threads()))
        return self.frozen(x)


@pytest.mark.parametrize("found", [None, 16, 1])
def test_inputs_are_computed_together_only_if_places_are_equal(found, monkeypatch):
    monkeypatch.setattr(frozen, "equal_places", lambda *_: found)
    model, x = Counts(), torch.randn(40, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows, _ = frozen.features(model, (x, torch.arange(40)))
    seen = model.seen[frozen.TRIES :]  # behind the trial of one row, again and again
    assert {n for n, _ in seen} == ({frozen.IMAGES} if found == 1 else {1})
    assert rows.dtype == torch.float32


def test_places_are_tried_as_they_are_computed():
    """On one core, in full precision, without gradients."""
    before, model = torch.get_num_threads(), Counts()
    torch.set_num_threads(2)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            frozen._Frozen(model).together(torch.randn(1, 3), 16)
            assert torch.get_num_threads() == 2
            frozen.features(model, (torch.randn(4, 3), torch.arange(4)))
    finally:
        torch.set_num_threads(before)
    assert {threads for _, threads in model.seen} == {1}


def test_items_are_not_all_taken_at_once():
    taken = []

    def items():
        for i in range(100):
            taken.append(i)
            yield i

    threads = torch.get_num_threads()  # while results are taken it is 1
    results = lanes.Lanes().map(lambda i: i, items())
    assert next(results) == 0
    assert len(taken) <= lanes.AHEAD * threads + 1
    assert list(results) == list(range(1, 100))


def test_features_are_computed_once(model, monkeypatch):
    first = frozen.features_once(model, SETTINGS, examples())
    monkeypatch.setattr(frozen, "features", None)
    again = frozen.features_once(models.build(SETTINGS, FACTS, 1), SETTINGS, examples())
    assert all(map(torch.equal, first, again))  # whatever the head starts from


def test_a_damaged_file_is_computed_again(model):
    first = frozen.features_once(model, SETTINGS, examples())
    (path,) = cache.folder().iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        again = frozen.features_once(model, SETTINGS, examples())
    assert all(map(torch.equal, first, again))


def test_whatever_features_depend_on_makes_another_key(model, tmp_path, monkeypatch):
    x, y = examples()
    keys = [frozen.key_of(model, SETTINGS, (x, y))]
    assert keys[0] == frozen.key_of(models.build(SETTINGS, FACTS, 1), SETTINGS, (x, y))
    changed = x.clone()
    changed[-1, 0, 7, 7] += 1e-6
    keys.append(frozen.key_of(model, SETTINGS, (changed, y)))
    keys.append(frozen.key_of(model, SETTINGS, (x, 1 - y)))
    keys.append(frozen.key_of(model, SETTINGS, (x[:39], y[:39])))
    keys.append(frozen.key_of(model, SETTINGS, (x.double(), y)))
    keys.append(frozen.key_of(model, SETTINGS, (x.view(40, 1, 4, 16), y)))
    keys.append(frozen.key_of(model, Model(name="scatter", pool=2, length=9), (x, y)))
    model.features.fine[0, 0, 0, 0] += 1e-6
    keys.append(frozen.key_of(model, SETTINGS, (x, y)))
    model.features.pool = 1
    keys.append(frozen.key_of(model, SETTINGS, (x, y)))
    monkeypatch.setattr(torch, "__version__", "another")
    keys.append(frozen.key_of(model, SETTINGS, (x, y)))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    keys.append(frozen.key_of(model, SETTINGS, (x, y)))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["models/scattering.py", "models/new.py", *frozen.CODE])
def test_other_code_makes_another_key(model, name, tmp_path, monkeypatch):
    for known in ("models/frozen.py", "models/scattering.py", *frozen.CODE):
        path = tmp_path / "dpdt" / known
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a = 1\n")
    monkeypatch.setattr(frozen, "__file__", str(tmp_path / "dpdt" / "models" / "frozen.py"))
    before = frozen.key_of(model, SETTINGS, examples())
    assert before == frozen.key_of(model, SETTINGS, examples())
    (tmp_path / "dpdt" / name).write_text("a = 2\n")
    assert before != frozen.key_of(model, SETTINGS, examples())


def test_progress_is_told(model):
    told = []

    @contextmanager
    def watch(what, total):
        told.append((what, total))
        yield told.append

    chosen = data.Examples(train=examples(), test=examples(3))
    models.inputs(model, SETTINGS, chosen, augment=False, watch=watch)
    assert told == [
        ("features of 40 examples", 40), 16, 32, 40, ("features of 3 examples", 3), 3
    ]  # fmt: skip
    told.clear()
    models.inputs(model, SETTINGS, chosen, augment=False, watch=watch)
    assert told == []
