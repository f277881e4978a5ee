"""Random and damaged inputs: read as they should be, or refused with one sentence.

DPDT_EXAMPLES is how many of each kind are tried.
"""

import copy
import io
import json
import os
import random
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from dpdt import config, models
from dpdt.data import BYTES, Facts
from dpdt.data.scales import AS_THEY_ARE
from dpdt.errors import InputError
from dpdt.releasing.description import describe
from dpdt.releasing.inputs import source
from dpdt.releasing.loading import WEIGHTS, opened

TRIES = int(os.environ.get("DPDT_EXAMPLES", "100"))
NUMBERS = Facts(examples=1, shape=(3,), classes=2)
TEXTS = Facts(examples=1, shape=(), classes=2, text=True)
PICTURES = Facts(examples=1, shape=(1, 4, 4), classes=2)
PIECES = [
    "1", "2.5", "-3", "nan", "inf", "1e400", "", "x", ",", ";", "\n", "\r\n", '"', "\0", "\ufeff",
    "é", "1_0", "label", "text", "\t", " ", "0x10", "a,b,c\n", "1,2,3\n", "text\n",
]  # fmt: skip
VALUES = [None, True, 0, -1, 1, 2**70, 1e308, "", "x", [], {}, [1], ["a"], {"a": 1}, 3.5]


def told(error):
    assert "\n" not in str(error)


def asked(path, facts, scale):
    """Read all examples; whatever else than a refusal is raised fails the test."""
    try:
        for names, x, _ in source(path, facts, scale, 2).chunks:
            assert len(names) == len(x) > 0
            if scale is not None:
                assert x.shape[1:] == facts.shape
                assert torch.isfinite(x).all()
    except InputError as error:
        told(error)


def damaged(raw, chance):
    raw = bytearray(raw)
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(raw))
        if chance.random() < 0.8:
            raw[place] = chance.randrange(256)
        else:
            del raw[place : place + chance.randrange(1, 20)]
    return bytes(raw)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_tables_and_texts(tmp_path):
    chance = random.Random(0)
    for _ in range(TRIES):
        text = "".join(chance.choice(PIECES) for _ in range(chance.randrange(12)))
        for name, facts, scale in (
            ("x.csv", NUMBERS, AS_THEY_ARE),
            ("x.csv", NUMBERS, BYTES),
            ("x.csv", TEXTS, None),
            ("x.txt", TEXTS, None),
        ):
            (tmp_path / name).write_bytes(text.encode() + chance.choice([b"", b"", b"\xff"]))
            asked(tmp_path / name, facts, scale)


def test_archives(tmp_path):
    chance, wholes = random.Random(0), []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, x=np.arange(12.0).reshape(4, 3))
        wholes.append(file.getvalue())
    for _ in range(TRIES):
        (tmp_path / "x.npz").write_bytes(damaged(chance.choice(wholes), chance))
        asked(tmp_path / "x.npz", NUMBERS, AS_THEY_ARE)


def test_images(tmp_path):
    chance, wholes = random.Random(0), []
    pixels = np.random.default_rng(0).integers(0, 255, (4, 4), np.uint8)
    for kind in ("PNG", "GIF", "BMP", "JPEG", "TIFF", "WEBP", "PPM"):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        wholes.append(file.getvalue())
    for _ in range(TRIES):
        (tmp_path / "x").write_bytes(damaged(chance.choice(wholes), chance))
        asked(tmp_path / "x", PICTURES, BYTES)


def changed(value, chance):
    if not isinstance(value, dict) or not value or chance.random() < 0.1:
        return copy.deepcopy(chance.choice(VALUES))
    value, key = dict(value), chance.choice([*value, "more"])
    if chance.random() < 0.2:
        value.pop(key, None)
    else:
        value[key] = changed(value.get(key), chance)
    return value


def test_descriptions_and_weights(tmp_path):
    from safetensors.torch import save_model

    chance = random.Random(0)
    chosen = config.load("digits", ("model.name=mlp", "model.hidden=[3]"))
    model = models.build(chosen.model, Facts(examples=1, shape=(64,), classes=10), 0)
    whole = describe(model, chosen)
    save_model(model, str(tmp_path / WEIGHTS))
    weights = (tmp_path / WEIGHTS).read_bytes()
    for _ in range(TRIES):
        said, damage = whole, weights
        if chance.random() < 0.7:
            said = changed(whole, chance)
        else:
            damage = damaged(weights[: 2 * len(weights) // 3], chance) + weights[-100:]
        (tmp_path / "config.json").write_text(json.dumps(said))
        (tmp_path / WEIGHTS).write_bytes(damage)
        try:
            loaded = opened(tmp_path)
        except InputError as error:
            told(error)
        else:
            assert loaded.model(torch.zeros(1, 64)).shape == (1, 10)
