"""`dpdt predict`: the answers of the training run, from raw inputs; bad input is one sentence."""

import csv
import json
import os
import zipfile

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import save_model
from sklearn.datasets import load_digits

from dpdt import data, load
from dpdt.cli.predict import command
from dpdt.data import BYTES, Facts
from dpdt.data.images import ImageFolder
from dpdt.data.scales import AS_THEY_ARE, DIGITS
from dpdt.errors import InputError
from dpdt.releasing.description import describe
from dpdt.releasing.inputs import source
from dpdt.releasing.loading import opened
from dpdt.releasing.predict import predict
from dpdt.runs import Run
from tests.models.test_pretrained import LABELS, TEXTS
from tests.releasing.folders import MAKE, digits, images, released, texts, trained


def predicted(folder, examples, *options):
    """What the command prints, row by row."""
    result = CliRunner().invoke(command, [str(folder), str(examples), *options])
    if result.exception:
        raise result.exception
    return list(csv.DictReader(result.stdout.splitlines()))


def share(rows, labels):
    return float(
        np.mean([row["class"] == str(label) for row, label in zip(rows, labels, strict=True)])
    )


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """The test part of digits as it is in scikit-learn, from 0 to 16: a .csv, and the labels."""
    x, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(x))[1437:]
    path = tmp_path_factory.mktemp("digits") / "digits.csv"
    np.savetxt(path, x[chosen], "%g", ",")
    return path, y[chosen]


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """A run of a linear model on digits."""
    path = tmp_path_factory.mktemp("runs") / "linear"
    digits(path, "linear")
    return path


@pytest.mark.parametrize("model", ["linear", "mlp", "convnet"])
def test_raw_digits_get_the_accuracy_of_the_run(tmp_path, held_out, model):
    measured = digits(tmp_path / "run", model, "method.lr=0.1")
    path, y = held_out
    rows = predicted(tmp_path / "run", path)
    assert share(rows, y) == pytest.approx(measured, abs=1e-12)
    assert measured > 0.3
    assert [row["row"] for row in rows] == [str(i + 1) for i in range(len(y))]
    again = predicted(released(tmp_path / "run", tmp_path / "release"), path, "--batch-size", "7")
    assert [row["class"] for row in again] == [row["class"] for row in rows]


def test_what_was_trained_in_other_coordinates_reads_raw_inputs(tmp_path, held_out):
    """The preset whitens its inputs by the first hundred held-out ones, which are not judged."""
    measured = trained(tmp_path / "run", "digits", "train.epochs=3")
    assert Run(tmp_path / "run").ledger().header.preconditioner == "public"
    path, y = held_out
    rows = predicted(released(tmp_path / "run", tmp_path / "release"), path)
    assert share(rows[100:], y[100:]) == pytest.approx(measured, abs=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_behind_scattering(tmp_path, channels):
    """An archive of bytes, the same as flat numbers in a .csv, and as image files."""
    path = images(tmp_path, channels)
    run = tmp_path / "run"
    measured = trained(
        run, "cifar10-scatter", f"data.name={path}", "data.public=0", "method.name=plain",
        "method.lr=0.05", "train.epochs=5", "train.batch_size=20",
    )  # fmt: skip
    assert measured > 0.6
    folder = released(run, tmp_path / "release")
    with np.load(path) as archive:
        x, y = archive["x_test"], archive["y_test"]
    path.unlink()
    assert str(tmp_path) not in (folder / "config.json").read_text()
    np.savez(tmp_path / "last.npz", np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
    np.savez_compressed(tmp_path / "x.npz", x=x, other=y)
    np.savetxt(tmp_path / "flat.csv", x.reshape(len(x), -1), "%d", ",")
    (tmp_path / "pictures" / "some").mkdir(parents=True)
    for i, pixels in enumerate(x):
        mode = "RGB" if channels == 3 or i % 2 else "L"  # without colour, all the same
        picture = Image.fromarray(pixels.transpose(1, 2, 0).squeeze()).convert(mode)
        picture.save(tmp_path / "pictures" / "some" / f"{i:02}.png")
    (tmp_path / "pictures" / ".hidden").write_text("no image")
    several = [
        predicted(folder, tmp_path / name, "--batch-size", "6")
        for name in ("last.npz", "x.npz", "flat.csv", "pictures", "pictures/some/00.png")
    ]
    assert share(several[0], y) == pytest.approx(measured, abs=1e-12)
    assert [row.pop("file") for row in several[3]] == [f"some/{i:02}.png" for i in range(len(y))]
    for rows in several[:3]:
        assert [row.pop("row") for row in rows] == [str(i + 1) for i in range(len(y))]
    assert several[0] == several[1] == several[2] == several[3]
    assert several[4] == [{"file": "00.png", **several[3][0]}]


@pytest.mark.parametrize("what", ["all", "head", "lora"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_texts_without_the_folder_they_were_trained_from(tmp_path, kind, what):
    base = tmp_path / "base"
    MAKE[kind](base)
    measured = texts(tmp_path / "run", base, what)
    (tmp_path / "lines.txt").write_text("\r\n".join(TEXTS))
    (tmp_path / "table.csv").write_text("label,Text\n" + "".join(f'0,"{t}"\n' for t in TEXTS))
    folder = released(tmp_path / "run", tmp_path / "release")
    before = predicted(tmp_path / "run", tmp_path / "lines.txt")
    base.rename(tmp_path / "gone")
    rows = predicted(folder, tmp_path / "lines.txt")
    assert rows == before == predicted(folder, tmp_path / "table.csv")
    names = ["negative", "positive"]
    assert share(rows, [names[y] for y in LABELS]) == measured == 1.0
    assert sum(float(rows[0][f"probability {name}"]) for name in names) == pytest.approx(
        1, abs=1e-5
    )
    for path in folder.rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes()


def test_probabilities_are_those_of_the_model(linear, held_out):
    path, _ = held_out
    x = torch.from_numpy(np.loadtxt(path, delimiter=",")).float() / 16
    wanted = load(linear)(x).softmax(1)
    rows = predicted(linear, path)
    found = torch.tensor([[float(row[f"probability {c}"]) for c in range(10)] for row in rows])
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-6)
    assert list(predicted(linear, path, "--no-probabilities")[0]) == ["row", "class"]


@pytest.mark.parametrize("name", sorted(data.DATA))
def test_the_table_of_data_sets_has_the_scale_that_training_uses(name):
    """Bytes are scaled where they are loaded, digits where they are read."""
    scale, read = data.scale_of(name), data.DATA[name].read.__qualname__
    if name.startswith("digits"):
        assert scale == DIGITS
        assert float(data.load(name).train[0].max()) == 16 / scale.divide
    elif name in ("adult", "sst2"):
        assert scale == AS_THEY_ARE
    else:
        assert (scale.divide, scale.subtract, scale.highest) == (127.5, 1.0, 255)
        assert scale.crop == ("imagenet" in read)
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(BYTES.apply(every), data.scale(every))
    labels = data.DATA[name].labels
    assert labels is None or len(labels) == data.DATA[name].facts.classes


def test_a_header_and_its_labels_are_passed_over(linear, held_out, tmp_path):
    path, _ = held_out
    lines = path.read_text().splitlines()
    names = ",".join(["label", *(f"pixel{i}" for i in range(64))])
    other = tmp_path / "named.csv"
    other.write_text("\n".join([names, *(f"?,{line}" for line in lines)]) + "\n\n\n", "utf-8-sig")
    assert predicted(linear, other) == predicted(linear, path)


NUMBERS = Facts(examples=1, shape=(3,), classes=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b,c\n", "is empty"),
        ("\n\n", "is empty"),
        ("1,2\n", "line 1 has 2 columns, and the model reads 3 numbers"),
        ("1,2,3,4\n", "line 1 has 4 columns, .* if a header calls it label"),
        ("1,2,3\n1,2\n", "line 2 has 2 columns, and the first line has 3"),
        ("1,2,3\n1,x,3\n", "line 2 has 'x' in column 2, which is no number"),
        ("1,x,3\n1,2,3\n", "line 1 has 'x' in column 2, which is no number"),
        ("label,a,b,c\n0,1,,3\n", "line 2 has '' in column 3"),
        ("1,2,1_0\n", "line 1 has '1_0' in column 3"),
        ("1,2,3\n\n1,2,3\n", "line 2 is empty"),
        ("1,2,3\n1,nan,3\n", "row 2 has nan"),
        ("1,2,3\n1,inf,3\n", "row 2 has inf"),
        ("1,2,3\n1,1e39,3\n", r"row 2 has 1e\+39"),
        ('1,2,"3\n', "line 1 is no CSV"),
        ("1;2;3\n4;5;6\n", "line 1 has 1 columns"),
        ("1,2,3\n1,2," + "3" * 200_000 + "\n", "line 2 is no CSV"),
    ],
)
def test_a_bad_table_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        list(source(path, NUMBERS, AS_THEY_ARE, 2).chunks)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,256\n", "row 1 has 256, and the model reads whole numbers from 0 to 255"),
        ("1,2,3\n0,-1,0\n", "row 2 has -1"),
        ("0.1,0.5,1\n", "row 1 has 0.1"),  # scaled by another constant already
    ],
)
def test_numbers_off_the_scale_are_refused(tmp_path, text, message):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        list(source(path, NUMBERS, BYTES, 2).chunks)


def test_text_that_is_none(tmp_path):
    facts = Facts(examples=1, shape=(), classes=2, text=True)
    for name, content, message in (
        ("a.txt", b"good\n\nbad\n", "line 2 is empty"),
        ("b.txt", b"\xff\xfe", "is not text in UTF-8"),
        ("c.txt", b"", "is empty"),
        ("d.csv", b"good film\n", "line 1 must be a header with a column text or sentence"),
        ("i.csv", b'"one\ntwo"\n', r"found 'one\\ntwo'"),
        ("e.csv", b"text,label\n ,1\n", "line 2 has no text in column 1"),
        ("f.npz", b"", "the model reads texts"),
        ("g.png", b"", "the model reads no images"),
        ("h.txt", b"x" * 10_000_001, "line 1 has 10000000 characters or more"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as error:
            list(source(tmp_path / name, facts, None, 2).chunks)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 4))}, r"rows of shape \(4,\), and the model reads \(3,\)"),
        ({"x": np.zeros(3)}, r"rows of shape \(\)"),
        ({"x": np.float64(1)}, "must be rows of numbers"),
        ({"x": np.zeros((0, 3))}, "is empty"),
        ({"x": np.array([["a", "b", "c"]])}, "must be rows of numbers, found <U1"),
        ({"x": np.array([[1, None, 2]], dtype=object)}, "must be rows of numbers, found object"),
        ({"x": np.zeros((2, 3), complex)}, "must be rows of numbers, found complex128"),
        ({"x": np.array([[1, np.nan, 2]])}, "row 1 has nan"),
        ({"x": np.asfortranarray(np.zeros((2, 3)))}, "column by column"),
        ({"a": np.zeros((2, 3)), "b": np.zeros((2, 3))}, "found 'a, b'"),
        ({}, "found ''"),
    ],
)
def test_a_bad_archive_is_one_sentence(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=message):
        list(source(tmp_path / "x.npz", NUMBERS, AS_THEY_ARE, 2).chunks)


def header(text, version=b"\x01\x00"):
    width = 2 if version == b"\x01\x00" else 4
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (b"", "is damaged"),
        (
            header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 3)}"),
            "does not fit",
        ),
        (header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3)}"), "is damaged"),
        (header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1, 3)}"), "found object"),
        (header(b"__import__('os').getcwd()"), "is damaged"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "a header of 4294967295 bytes"),
    ],
)
def test_an_archive_that_lies_about_its_size(tmp_path, member, message):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(InputError, match=message):
        list(source(tmp_path / "x.npz", NUMBERS, AS_THEY_ARE, 2).chunks)


def test_a_flipped_byte_in_an_archive_is_noticed(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((4, 3)))
    raw = bytearray((tmp_path / "x.npz").read_bytes())
    place = raw.index(np.ones(3).tobytes())
    raw[place] ^= 1
    (tmp_path / "x.npz").write_bytes(raw)
    with pytest.raises(InputError, match="is damaged"):
        list(source(tmp_path / "x.npz", NUMBERS, AS_THEY_ARE, 2).chunks)


PICTURES = Facts(examples=1, shape=(1, 4, 4), classes=2)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Image.new("L", (5, 4)), "has 5 × 4 pixels, and the model reads 4 × 4"),
        (Image.new("RGB", (4, 4), (1, 2, 3)), "is in colour"),
        (Image.new("RGBA", (4, 4), (1, 1, 1, 9)), "is partly transparent"),
        (Image.new("I;16", (4, 4)), "8 bits a channel"),
    ],
)
def test_images_that_would_have_to_be_changed_are_refused(tmp_path, image, message):
    image.save(tmp_path / "x.png")
    with pytest.raises(InputError, match=message):
        list(source(tmp_path / "x.png", PICTURES, BYTES, 2).chunks)


def test_folders_and_files_that_are_no_images(tmp_path):
    def refused(path, message, scale=BYTES, facts=PICTURES):
        with pytest.raises(InputError, match=message):
            list(source(path, facts, scale, 2).chunks)

    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "is empty")
    refused(tmp_path / "none", "is missing")
    (tmp_path / "notes").write_text("no image")
    refused(tmp_path, "notes: is no image")
    refused(tmp_path / "notes", "the model reads no images", AS_THEY_ARE, NUMBERS)
    refused(tmp_path / "notes", "the model reads whole numbers from 0 to 16, and pixels", DIGITS)
    (tmp_path / "x.ps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n")
    refused(tmp_path / "x.ps", "is no image")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "neither a file nor a folder")
    (tmp_path / "inside").mkdir()
    os.mkfifo(tmp_path / "inside" / "pipe")
    refused(tmp_path / "inside", "is no file")


def test_images_of_any_size_where_training_crops_them(tmp_path):
    """As data/images.py does for the class folders of ImageNet."""
    facts = Facts(examples=1, shape=(3, 4, 4), classes=2)
    generator = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    Image.fromarray(generator.integers(0, 256, (9, 6, 3), np.uint8)).save(tmp_path / "a" / "x.png")
    (_, x, _), *rest = source(tmp_path, facts, data.scale_of("imagenet100"), 2).chunks
    assert not rest
    assert torch.equal(x[0], ImageFolder(tmp_path, 4)[0][0])


def test_nothing_that_looks_complete_is_left_behind(linear, held_out, tmp_path):
    """An error in the last row: neither a file nor a line on stdout."""
    lines = held_out[0].read_text().splitlines()
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([*lines, lines[0].replace(",", ";")]))
    result = CliRunner().invoke(command, [str(linear), str(bad), "--batch-size", "10"])
    assert isinstance(result.exception, InputError)
    assert result.stdout == ""
    out = tmp_path / "out.csv"
    with pytest.raises(InputError, match="line 361"):
        predicted(linear, bad, "--out", str(out))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv"]
    assert predicted(linear, held_out[0], "--out", str(out)) == []
    assert list(csv.DictReader(out.read_text().splitlines())) == predicted(linear, held_out[0])
    with pytest.raises(InputError, match="already exists"):
        predicted(linear, held_out[0], "--out", str(out))
    with pytest.raises(InputError, match="cannot be written"):
        predicted(linear, held_out[0], "--out", str(tmp_path / "no" / "folder.csv"))


def test_a_run_is_said_to_be_private(linear, held_out, tmp_path):
    result = CliRunner().invoke(command, [str(linear), str(held_out[0])])
    assert "private until it is released; dpdt account" in result.stderr
    folder = released(linear, tmp_path / "release")
    result = CliRunner().invoke(command, [str(folder), str(held_out[0])])
    assert "no certificate" in result.stderr


def test_an_answer_that_is_not_finite_is_refused(tmp_path):
    """Inputs that are finite can overflow inside a model."""
    path = images(tmp_path, dtype=np.float64)
    trained(
        tmp_path / "run", "digits", f"data.name={path}", "data.public=0", "model.name=linear",
        "method.name=plain", "method.lr=0.1", "train.epochs=1", "train.batch_size=20",
    )  # fmt: skip
    weight = load(tmp_path / "run")[1].weight[0].sign().numpy(force=True)
    np.savez(tmp_path / "x.npz", 3e38 * weight[None])
    with pytest.raises(InputError, match="row 1: the model's answer is not finite"):
        predicted(tmp_path / "run", tmp_path / "x.npz")


def test_a_model_of_ones_own_has_no_known_inputs(tmp_path):
    model = torch.nn.Linear(2, 2)
    save_model(model, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(describe(model)))
    (tmp_path / "x.csv").write_text("1,2\n")
    with pytest.raises(InputError, match=r"own class, torch.nn.modules.linear.Linear; build one"):
        predicted(tmp_path, tmp_path / "x.csv")
    with pytest.raises(InputError, match=r"use dpdt.load\(folder, model\)"):
        predict(opened(tmp_path, model), tmp_path / "x.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_large_inputs_are_not_read_at_once(tmp_path):
    """The first rows have their answers before the last ones are looked at."""
    path = tmp_path / "x.csv"
    path.write_text("1,2,3\n" * 50_000 + "1,2,x\n")
    chunks = source(path, NUMBERS, AS_THEY_ARE, 10).chunks
    names, x, done = next(chunks)
    assert names == [str(i + 1) for i in range(10)]
    assert x.shape == (10, 3)
    assert done < path.stat().st_size / 2
    with pytest.raises(InputError, match="line 50001"):
        list(chunks)
