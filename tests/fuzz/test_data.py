"""Data files: whole ones with changed bytes, headers that lie, and anything else."""

import gzip
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdt import data
from dpdt.data import formats, npz
from dpdt.errors import InputError

from . import fuzz, one_sentence

SMALL = {
    "x_train": np.arange(24.0).reshape(4, 6),
    "y_train": np.array([0, 1, 0, 1]),
    "x_test": np.arange(12.0).reshape(2, 6),
    "y_test": np.array([1, 0]),
    "classes": np.array(2),
}


def archive(arrays, compressed=False):
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def idx(shape, body):
    return struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + body


def parquet():
    """A table, in pages of two kinds; nothing where there is no pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow.parquet import write_table
    except ImportError:
        return []
    columns = {"age": [30, 40, 50] * 6, "sex": ["f", "m", "f"] * 6, "income": ["low", "high"] * 9}
    files = []
    for options in ({"compression": "none"}, {"use_dictionary": False}):
        file = io.BytesIO()
        write_table(pa.table(columns), file, **options)
        files.append(file.getvalue())
    return files


BATCH = pickle.dumps(
    {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 0], b"batch_label": b"one"}, 2
)
WHOLE = {
    "npz": [archive(SMALL), archive(SMALL, compressed=True)],
    "idx": [idx((2, 3, 3), bytes(18)), gzip.compress(idx((2, 3, 3), bytes(18)), mtime=0)],
    "cifar": [BATCH, pickle.dumps(pickle.loads(BATCH), 4)],
    "sst2": [b"sentence\tlabel\ngood\t1\nbad \t0\n"],
    "adult": [
        b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
        b"Male, 2174, 0, 40, United-States, <=50K\n"
    ],
    "csv": [b'age,sex,income\n30,f,low\n"40",m,high\n' + b"50,f,low\r\n" * 20],
    "parquet": parquet(),
}
TABLE = data.Table.of(
    target="income",
    columns={"age": [0, 100], "sex": ["f", "m"], "income": ["low", "high"]},
    held_out=0.3,
    test=None,
    missing="refuse",
)


def read(kind, path):
    """What a reader makes of a file, unless it is refused."""
    try:
        if kind == "npz":
            return data.load(str(path)).train
        if kind in ("csv", "parquet"):
            return data.load(str(path), table=TABLE).train
        reader = {
            "idx": formats._idx,
            "cifar": lambda p: formats.cifar([p], b"labels"),
            "sst2": formats.sst2,
            "adult": formats.adult,
        }[kind]
        return reader(path)
    except InputError as error:
        one_sentence(error, str(path), "data.name", "data.held_out")
        return None


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_files_are_read(kind, tmp_path):
    for raw in WHOLE[kind]:
        path = tmp_path / f"file.{kind}"
        path.write_bytes(raw)
        assert read(kind, path) is not None


@fuzz
@given(st.data())
@pytest.mark.parametrize("kind", WHOLE)
def test_changed_bytes(kind, tmp_path_factory, data):
    if not WHOLE[kind]:
        pytest.skip(f"{kind} is read by a library that is not here")
    raw = bytearray(data.draw(st.sampled_from(WHOLE[kind])))
    for _ in range(data.draw(st.integers(1, 4))):
        # most of a batch is pixels: look at its beginning and end
        near = st.integers(0, min(len(raw), 400) - 1)
        place = data.draw(near | near.map(lambda i: len(raw) - 1 - i))
        match data.draw(st.integers(0, 3)):
            case 0 | 1:
                raw[place] = data.draw(st.integers(0, 255))
            case 2:
                del raw[place : place + data.draw(st.integers(1, 300))]
            case 3:
                raw[place:place] = data.draw(st.binary(max_size=5))
        if not raw:
            break
    path = tmp_path_factory.getbasetemp() / f"changed.{kind}"
    path.write_bytes(raw)
    read(kind, path)


@fuzz
@given(raw=st.binary(max_size=200))
@pytest.mark.parametrize("kind", WHOLE)
def test_any_bytes(kind, tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / f"any.{kind}"
    path.write_bytes(raw)
    read(kind, path)


shapes = st.lists(st.integers(0, 9) | st.sampled_from([10**6, 10**12, 2**62, 2**64]), max_size=5)
types = st.sampled_from(
    [
        "<f8",
        ">f8",
        "<f4",
        "|u1",
        "<i8",
        ">i4",
        "|b1",
        "|O",
        "<c16",
        "<U3",
        "<M8[s]",
        "|V7",
        "<f2",
        "x",
    ]
)


@st.composite
def members(draw):
    """An array whose header may say anything."""
    shape, kind = draw(shapes), draw(types)
    text = repr({"descr": kind, "fortran_order": draw(st.booleans()), "shape": tuple(shape)})
    text = draw(st.sampled_from([text, text + "\n", "{}", "__import__('os')", "(" * 300]))
    size = int(np.prod([float(n) for n in shape])) * 8 if shape else 8
    body = draw(st.binary(max_size=9) | st.just(bytes(min(size, 5000))))
    version = draw(st.sampled_from([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"]))
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text.encode("latin-1") + body


@fuzz
@given(data=st.data())
def test_headers_that_lie(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "lying.npz"
    honest = {f"{name}.npy": None for name in SMALL}
    with zipfile.ZipFile(io.BytesIO(archive(SMALL))) as whole:
        honest = {name: whole.read(name) for name in honest}
    for name in data.draw(st.sets(st.sampled_from(sorted(honest)), min_size=1, max_size=3)):
        honest[name] = data.draw(members())
    with zipfile.ZipFile(path, "w") as file:
        for name, content in honest.items():
            file.writestr(name, content)
        if data.draw(st.booleans()):
            file.writestr("../../outside.npy", b"x")
    found = read("npz", path)
    if found is not None:
        assert len(found[0]) == len(found[1])
        with npz._archive(path) as opened:
            assert found[1].shape == npz._checked(path, opened)["y_train"].shape
