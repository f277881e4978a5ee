"""Readers, on small files made here in the official formats."""

import gzip
import json
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpdt import data
from dpdt.data import formats
from dpdt.data.access import take
from dpdt.errors import InputError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPDT_DATA", str(tmp_path))
    return tmp_path


def shrink(monkeypatch, name, examples, **facts):
    """Let a known data set have fewer examples, so that tests can make one."""
    entry = data.DATA[name]
    changed = {"examples": examples, "shape": entry.facts.shape, "classes": entry.facts.classes}
    new = data.Facts(**{**changed, **facts})
    monkeypatch.setitem(data.DATA, name, data.DataSet(**{**vars(entry), "facts": new}))


def write_cifar(path, n, label=b"labels", protocol=2):
    path.parent.mkdir(exist_ok=True)
    generator = np.random.default_rng(n)
    images = generator.integers(0, 256, (n, 3072), dtype=np.uint8)
    labels = generator.integers(0, 10, n).tolist()
    path.write_bytes(pickle.dumps({b"data": images, label: labels}, protocol))
    return images, labels


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar10(folder, monkeypatch, protocol):
    shrink(monkeypatch, "cifar10", 15)
    base = folder / "cifar-10-batches-py"
    written = [write_cifar(base / f"data_batch_{i}", 3, protocol=protocol) for i in range(1, 6)]
    write_cifar(base / "test_batch", 4)
    examples = data.load("cifar10")
    x, y = examples.train
    assert tuple(x.shape) == (15, 3, 32, 32)
    assert (len(examples.test[0]), y.tolist()[:3]) == (4, written[0][1])
    # red, green, blue planes of 1024 bytes each, row by row; bytes become −1 … 1
    red = written[0][0][0, :1024].reshape(32, 32)
    np.testing.assert_allclose(x[0, 0].numpy(), red / 127.5 - 1, atol=1e-6)


def test_cifar100(folder, monkeypatch):
    shrink(monkeypatch, "cifar100", 6)
    write_cifar(folder / "cifar-100-python" / "train", 6, b"fine_labels")
    write_cifar(folder / "cifar-100-python" / "test", 2, b"fine_labels")
    assert len(data.load("cifar100").train[0]) == 6


class Evil:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def test_a_pickle_can_build_nothing_but_arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(InputError, match=r"batch: is damaged \(it asks for .*system"):
        formats.cifar([path], b"labels")
    assert not (tmp_path / "pwned").exists()


def write_idx(path, array, compress=True):
    path.parent.mkdir(exist_ok=True)
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if compress else content)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("compress", [True, False])
def test_idx(folder, monkeypatch, name, compress):
    shrink(monkeypatch, name, 5)
    images = np.arange(5 * 784).reshape(5, 28, 28) % 256
    for part, n in (("train", 5), ("t10k", 2)):
        write_idx(folder / name / f"{part}-images-idx3-ubyte.gz", images[:n], compress)
        write_idx(folder / name / f"{part}-labels-idx1-ubyte.gz", np.arange(n), compress)
    x, y = data.load(name).train
    assert tuple(x.shape) == (5, 1, 28, 28)
    assert y.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(x[1, 0].numpy(), images[1] / 127.5 - 1, atol=1e-6)


def test_image_folders(folder, monkeypatch):
    from PIL import Image

    shrink(monkeypatch, "imagenet100", 4, shape=(3, 8, 8))
    for part in ("train", "val"):
        for number, name in enumerate(["ant", "bee"]):
            directory = folder / "imagenet-100" / part / name
            directory.mkdir(parents=True)
            for i, size in enumerate([(8, 8), (20, 10)]):
                Image.new("RGB", size, (255 * number, 0, 0)).save(directory / f"{i}.png")
    part = data.load("imagenet100").train  # read when asked for: the whole set fits no memory
    assert len(part) == 4
    x, y = take(part, torch.arange(4))
    assert tuple(x.shape) == (4, 3, 8, 8)
    assert y.tolist() == [0, 0, 1, 1]
    shrink(monkeypatch, "imagenet100-small", 4, shape=(3, 8, 8))
    small = data.load("imagenet100-small").train
    assert torch.equal(small[0], x)
    assert torch.equal(small[1], y)
    assert float(x[2, 0].mean()) == 1.0
    assert float(x[0, 0].mean()) == -1.0


def test_cifar_as_npz_and_its_small_part(folder, monkeypatch):
    shrink(monkeypatch, "cifar100", 6)
    shrink(monkeypatch, "cifar100-small", 6)
    write_cifar(folder / "cifar-100-python" / "train", 6, b"fine_labels")
    write_cifar(folder / "cifar-100-python" / "test", 2, b"fine_labels")
    whole = data.load("cifar100-small").train  # the first of the whole set
    assert torch.equal(whole[0], data.load("cifar100").train[0])
    pixels = np.zeros((6, 32, 32, 3), np.uint8)
    labels = np.arange(6)
    packed = {"x_train": pixels, "y_train": labels, "x_test": pixels, "y_test": labels}
    for name in ("cifar100", "cifar100-small"):
        np.savez(folder / f"{name}.npz", **packed)
        x, y = data.load(name).train
        assert tuple(x.shape) == (6, 3, 32, 32)
        assert y.tolist() == labels.tolist()


def write_sst2(folder, lines, name="train.tsv"):
    (folder / "SST-2").mkdir(exist_ok=True)
    (folder / "SST-2" / name).write_text("\n".join(["sentence\tlabel", *lines]) + "\n")


def test_sst2(folder, monkeypatch):
    shrink(monkeypatch, "sst2", 3, text=True)
    write_sst2(folder, ["hide new secretions \t0", "what 's \"this\t1", "café\t1"])
    write_sst2(folder, ["good\t1"], "dev.tsv")
    examples = data.load("sst2")
    assert examples.train[0] == ["hide new secretions", "what 's \"this", "café"]
    assert examples.train[1].tolist() == [0, 1, 1]
    for bad in ("no label", "x\t2"):
        write_sst2(folder, ["fine\t1", bad])
        with pytest.raises(InputError, match=r"train.tsv: is damaged \(line 3 is not"):
            data.load("sst2")
    (folder / "SST-2" / "train.tsv").write_text("index\tsentence\n")
    with pytest.raises(InputError, match=r"train.tsv: is damaged \(its first line"):
        data.load("sst2")


def test_a_limit_takes_evenly_spaced_examples(tmp_path):
    path = str(tmp_path / "mine.npz")
    np.savez(path, **arrays(x_train=np.arange(24).reshape(6, 4)))
    assert data.facts(path, 3).examples == 3
    assert data.load(path, 3).train[0][:, 0].tolist() == [0, 8, 16]
    with pytest.raises(InputError, match=r"data.limit: must be at most .* 6, found 7"):
        data.load(path, 7)


ADULT = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, "  # noqa: E501


def test_adult(folder, monkeypatch):
    shrink(monkeypatch, "adult", 2)
    (folder / "adult").mkdir()
    (folder / "adult" / "train.csv").write_text(
        f"{ADULT}<=50K\n{ADULT.replace('State-gov', '?')}>50K\n\n"
    )
    (folder / "adult" / "test.csv").write_text(f"|1x3 Cross validator\n{ADULT}>50K.\n")
    examples = data.load("adult")
    x, y = examples.train
    assert tuple(x.shape) == (2, 105)
    assert y.tolist() == [0, 1]
    assert examples.test[1].tolist() == [1]
    assert float(x[0, 0]) == pytest.approx(0.39)
    assert float(x[0, 1:9].sum()) == 1.0  # one of eight work classes
    assert float(x[1, 1:9].sum()) == 0.0  # unknown
    assert float(x.abs().max()) <= 1.0


def arrays(**changes):
    return {
        "x_train": np.zeros((6, 4), np.float32),
        "y_train": np.arange(6) % 3,
        "x_test": np.zeros((2, 4), np.float32),
        "y_test": np.zeros(2, np.int64),
        "classes": 3,
        **changes,
    }


def test_any_npz(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays())
    assert data.facts(str(path)) == data.Facts(examples=6, shape=(4,), classes=3)
    assert data.load(str(path)).train[1].tolist() == [0, 1, 2, 0, 1, 2]
    pixels = np.full((6, 8, 8, 3), 255, np.uint8)
    np.savez(path, **arrays(x_train=pixels, x_test=pixels[:2], classes=7))
    assert data.facts(str(path)) == data.Facts(examples=6, shape=(3, 8, 8), classes=7)
    assert float(data.load(str(path)).train[0].min()) == 1.0


def test_an_npz_trains_from_the_command_line(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    sets = ["data.name=mine.npz", "train.batch_size=200", "train.epochs=5", "privacy.epsilon=8"]
    done = subprocess.run(
        [sys.executable, "-m", "dpdt", "train", "--json"]
        + [a for s in sets for a in ("--set", s)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: np.savez(p, x=np.zeros(3)), "has no x_train"),
        (lambda p: p.write_bytes(b"not a zip"), "is damaged"),
        (lambda p: np.savez(p, **arrays(x_train=np.array([{}]))), "is damaged"),
        (lambda p: None, "is missing"),
    ],
)
def test_bad_npz_files_are_named(tmp_path, damage, message):
    path = tmp_path / "mine.npz"
    damage(path)
    with pytest.raises(InputError, match=f"mine.npz: .*{message}"):
        data.load(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.zeros(5)}, "x_train of shape .6, 4. does not fit y_train .5,."),
        ({"y_test": np.zeros((2, 3), int)}, "does not fit y_test"),
        ({"x_train": np.float32(1.0)}, "x_train of shape .. does not fit"),
        ({"x_train": np.zeros(6)}, "a row of numbers for each label"),
        ({"x_train": np.full((6, 4), "a")}, "x_train must be numbers, found <U1"),
        ({"y_train": np.full(6, 0.5)}, "y_train must be whole numbers from 0, found float64"),
        ({"y_test": np.array(["a", "b"])}, "y_test must be whole numbers from 0, found <U1"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.arange(0)}, "x_train is empty"),
        ({"x_test": np.zeros((0, 4)), "y_test": np.arange(0)}, "x_test is empty"),
        ({"x_test": np.zeros((2, 5))}, r"2 test examples of shape \(5,\), expected .* \(4,\)"),
        (
            {"y_train": np.arange(6)},
            "a label that is none of its 3 classes; labels must be from 0 to 2$",
        ),
        ({"y_test": np.array([0, 3])}, "has a label that is none of its 3 classes"),
        ({"y_train": np.arange(6) - 1}, "has a label that is none of its 3 classes"),
        ({"classes": np.array([3, 3])}, "classes must be a whole number from 1"),
        ({"classes": 2.5}, "classes must be a whole number from 1, found 2.5"),
        ({"classes": 0}, "classes must be a whole number from 1, found 0"),
    ],
)
def test_what_an_npz_must_hold(tmp_path, change, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(**change))
    with pytest.raises(InputError, match=f"mine.npz.*{message}"):
        data.load(str(path))


def test_the_labels_of_an_npz_do_not_decide_how_many_classes_there_are(tmp_path):
    """One record with a new label would give the released model another shape."""
    path = tmp_path / "mine.npz"
    unsaid = arrays()
    del unsaid["classes"]
    np.savez(path, **unsaid)
    for read in (data.facts, data.load):
        with pytest.raises(InputError, match=r"mine.npz: has no classes; .*classes=10"):
            read(str(path))


def test_labels_of_known_sets_are_checked_too(folder, monkeypatch):
    shrink(monkeypatch, "cifar10", 6)
    pixels, labels = np.zeros((6, 32, 32, 3), np.uint8), np.arange(6)
    packed = {"x_train": pixels, "y_train": labels + 5, "x_test": pixels, "y_test": labels}
    np.savez(folder / "cifar10.npz", **packed)
    with pytest.raises(InputError, match="cifar10 has a label that is none of its 10 classes"):
        data.load("cifar10")


def test_damaged_files_are_named(folder, monkeypatch):
    shrink(monkeypatch, "mnist", 5)
    images = np.zeros((5, 28, 28))
    for part in ("train", "t10k"):
        write_idx(folder / "mnist" / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz", np.arange(5))
    path = folder / "mnist" / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for content in (whole[:-20], b"", b"rubbish", gzip.compress(gzip.decompress(whole)[:-7])):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz: is damaged"):
            data.load("mnist")
    path.write_bytes(whole)
    write_idx(folder / "mnist" / "train-labels-idx1-ubyte.gz", np.arange(4))
    with pytest.raises(InputError, match="do not fit"):
        data.load("mnist")


def test_a_set_of_another_size_is_refused(folder):
    for part in ("train", "t10k"):
        write_idx(folder / "mnist" / f"{part}-images-idx3-ubyte.gz", np.zeros((5, 28, 28)))
        write_idx(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz", np.arange(5))
    with pytest.raises(InputError, match=r"has 5 training examples .* expected 60000"):
        data.load("mnist")


@pytest.mark.parametrize("name", [n for n, found in data.DATA.items() if found.files])
def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(folder, name):
    with pytest.raises(InputError, match=f"{name} is not here, {folder}.* is missing; ") as error:
        data.load(name)
    assert data.DATA[name].source in str(error.value)
    with pytest.raises(InputError, match=r"data.name: must be one of"):
        data.load("nosuch")


def test_the_data_command(folder, tmp_path):
    kept = tmp_path / "kept" / "features"
    kept.mkdir(parents=True)
    (kept / "one").write_bytes(bytes(70_000_000))
    environment = {**os.environ, "DPDT_DATA": str(folder), "DPDT_CACHE": str(kept.parent)}
    command = [sys.executable, "-m", "dpdt", "data"]
    text = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    assert f"looked in {folder}" in text
    assert f"1 files, 0.1 GB in {kept}" in text
    printed = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True)
    said = json.loads(printed.stdout)
    assert said["cache"] == {"folder": str(kept), "files": 1, "bytes": 70_000_000}
    rows = {row["name"]: row for row in said["data"]}
    assert rows["digits"]["present"]
    assert not rows["cifar10"]["present"]
    assert len(rows["cifar10"]["missing"]) == 6
    environment["DPDT_CACHE"] = "off"
    text = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    assert "no features are kept" in text


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    theirs, ours = load_digits(), data.load("digits")
    order = np.random.default_rng(0).permutation(1797)
    x, y = (torch.cat([a, b]).numpy() for a, b in zip(ours.train, ours.test, strict=True))
    assert np.array_equal(x, (theirs.data[order] / 16.0).astype("float32"))
    assert np.array_equal(y, theirs.target[order])
