"""Files that somebody made to make trouble: refused in one sentence, before memory is taken."""

import gzip
import io
import os
import pickle
import socket
import struct
import zipfile

import numpy as np
import pytest

from dpdt import config, data, models, ram
from dpdt.data import formats, npz
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.models.settings import ModelSettings
from dpdt.training import run as running

ARRAYS = {
    "x_train": np.arange(24.0).reshape(4, 6),
    "y_train": np.array([0, 1, 0, 1]),
    "x_test": np.arange(12.0).reshape(2, 6),
    "y_test": np.array([1, 0]),
    "classes": np.array(2),
}
READERS = [
    lambda path: config.load(str(path)),
    Ledger.read,
    npz.parts,
    formats._idx,
    lambda path: formats.cifar([path], b"labels"),
    formats.sst2,
    formats.adult,
]


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_plain_file_is_refused_and_never_waited_for(read, tmp_path):
    pipe, link, loop = tmp_path / "pipe", tmp_path / "link", tmp_path / "loop"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    loop.symlink_to(loop)
    for path in (pipe, link):
        with pytest.raises(InputError, match=f"{path.name}: is a named pipe, not a file"):
            read(path)
    with pytest.raises(InputError, match=r"/dev/zero: is a device, not a file"):
        read("/dev/zero")
    with pytest.raises(InputError, match=r"loop: cannot be read \(Too many levels"):
        read(loop)
    with pytest.raises(InputError, match=r"is a folder, not a file|nor a file"):
        read(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(InputError, match=r"s: cannot be read \(No such device"):
            read(tmp_path / "s")
    (tmp_path / "empty").touch()
    if read not in (READERS[0], formats.adult):  # both may be empty
        with pytest.raises(InputError, match=r"empty: "):
            read(tmp_path / "empty")


def stored(tmp_path, **changes):
    path = tmp_path / "some.npz"
    np.savez(path, **{**ARRAYS, **changes})
    return path


def test_an_array_that_says_it_is_larger_than_it_is(tmp_path):
    member = io.BytesIO()
    head = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 6)}
    np.lib.format.write_array_header_1_0(member, head)
    path = stored(tmp_path)
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    members["x_train.npy"] = member.getvalue() + bytes(100)
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(InputError, match=r"x_train of shape \(1000000000000, 6\) .* does not fit"):
        data.facts(str(path))


def test_an_archive_that_is_larger_than_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **{**ARRAYS, "x_train": np.zeros((4, 250_000))})
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(formats, "available", lambda: 1_000_000)
    assert data.facts(str(path)).shape == (250_000,)  # to account for it needs no array
    with pytest.raises(InputError, match=r"would take 8.0 MB of memory, and 1.0 MB are free"):
        data.load(str(path))
    packed = struct.pack(">HBB3I", 0, 8, 3, 1000, 100, 100) + bytes(10_000_000)
    (tmp_path / "images").write_bytes(gzip.compress(packed))
    with pytest.raises(InputError, match=r"images: would take 20.0 MB of memory"):
        formats._idx(tmp_path / "images")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.array([[None] * 6] * 4)}, "does not fit its size"),
        ({"x_train": np.array(["a"] * 4)[:, None]}, "x_train must be numbers"),
        ({"x_train": np.float64(3)}, "does not fit y_train"),
        ({"x_train": np.zeros((4, 0))}, "has no numbers in its rows"),
        ({"y_train": np.zeros(4)}, "y_train must be whole numbers"),
        ({"classes": np.zeros(10**6, np.int8)}, "classes must be a whole number from 1"),
    ],
)
def test_arrays_of_other_kinds(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        data.facts(str(stored(tmp_path, **changes)))


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="is float64 here")
@pytest.mark.parametrize("part", ["train", "test"])
def test_numbers_that_torch_does_not_have(tmp_path, part):
    """An array of longdouble ended in a traceback, after the run had its folder."""
    wide = ARRAYS[f"x_{part}"].astype(np.longdouble)
    with pytest.raises(InputError, match=f"x_{part} must have at most 64 bits, found "):
        data.facts(str(stored(tmp_path, **{f"x_{part}": wide})))


@pytest.mark.parametrize("kind", [">f8", "<f4", ">i2", "|u1", "|b1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_order_of_bytes_and_of_rows_gives_the_same_numbers(tmp_path, kind, order):
    x = np.asarray(np.arange(24).reshape(4, 6) % 2, dtype=kind, order=order)
    found, _ = data.load(str(stored(tmp_path, x_train=x))).train
    plain, _ = data.load(str(stored(tmp_path, x_train=np.ascontiguousarray(x)))).train
    assert found.tolist() == plain.tolist()
    assert kind == "|u1" or found.tolist() == x.tolist()


def test_names_in_an_archive_are_no_paths(tmp_path):
    path = stored(tmp_path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("../outside.npy", b"x")
    data.load(str(path))
    assert {p.name for p in tmp_path.iterdir()} == {"some.npz"}


def test_a_truncated_or_changed_archive(tmp_path):
    path = stored(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[:-50])
    with pytest.raises(InputError, match=r"some\.npz: is damaged"):
        data.load(str(path))
    changed = bytearray(raw)
    changed[raw.index(np.float64(7.0).tobytes())] ^= 1
    path.write_bytes(changed)
    with pytest.raises(InputError, match=r"some.npz: is damaged \(Bad CRC"):
        data.load(str(path))


def test_an_idx_file_that_says_it_is_larger_than_it_is(tmp_path):
    path = tmp_path / "images"
    for shape in ((2**31, 2**31, 2**31), (3, 3, 3)):
        path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, *shape) + bytes(18))
        with pytest.raises(InputError, match="images: is damaged"):
            formats._idx(path)
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 2, 3, 3) + bytes(19))
    with pytest.raises(InputError, match="more than 18 bytes"):
        formats._idx(path)


def test_a_batch_cannot_take_memory_by_its_instructions(tmp_path):
    """numpy.ndarray(shape) was called with any shape that the file gave."""
    path = tmp_path / "batch"
    call = b"\x80\x02}(C\x04datacnumpy\nndarray\n(J\xff\xff\xff\x7ft\x85Ru."
    path.write_bytes(call)
    with pytest.raises(InputError, match=r"it asks for numpy.ndarray, which is not an array"):
        formats.cifar([path], b"labels")
    nested = []
    for _ in range(60):
        nested = [nested, nested]
    path.write_bytes(pickle.dumps({b"data": nested, b"labels": nested}, 2))
    with pytest.raises(InputError, match=r"its labels are not whole numbers"):
        formats.cifar([path], b"labels")


def test_links_out_of_a_folder_of_images_are_refused(tmp_path):
    from PIL import Image

    from dpdt.data.images import ImageFolder

    Image.new("RGB", (8, 8)).save(tmp_path / "outside.png")
    (tmp_path / "set" / "ant").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "set" / "ant" / "a.png")
    (tmp_path / "set" / "ant" / "b.png").symlink_to(tmp_path / "set" / "ant" / "a.png")
    assert len(ImageFolder(tmp_path / "set", 8)) == 2
    (tmp_path / "set" / "ant" / "c.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(InputError, match=r"c.png: is a link that leads out of"):
        ImageFolder(tmp_path / "set", 8)


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path, monkeypatch):
    from PIL import Image

    from dpdt.data import images

    monkeypatch.setattr(images, "PIXELS", 1000)
    (tmp_path / "ant").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "ant" / "a.png")
    with pytest.raises(InputError, match=r"a.png: is damaged \(40 × 40 pixels, more than 1,000\)"):
        images.ImageFolder(tmp_path, 8).pixels(0)


def test_a_model_larger_than_the_memory_is_not_built(monkeypatch):
    monkeypatch.setattr(models, "available", lambda: 1_000_000)
    wide = ModelSettings(name="mlp", hidden=(10**9,))
    with pytest.raises(InputError, match=r"'mlp' of this size takes 300.0 GB of memory"):
        models.build(wide, data.facts("digits"), 0)
    assert ram.available() is None or ram.available() > 0


def test_classes_that_no_memory_holds_are_refused_before_training(tmp_path, monkeypatch):
    """The model itself would fit; with its copies, the sum and the noise it does not."""
    monkeypatch.setattr(models, "available", lambda: 25 * 10**9)
    x, y, path = np.ones((40, 4), "float32"), np.arange(40) % 2, tmp_path / "many.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, classes=10**9)
    chosen = config.load("digits", (f"data.name={path}", "data.public=0", "train.batch_size=20"))
    with pytest.raises(InputError, match=r"'linear' of this size takes 120.0 GB .* fewer classes"):
        running.load(chosen)
