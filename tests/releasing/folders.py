"""Finished runs and releases, small ones, for these tests."""

import hashlib
import json

import numpy as np
import torch
import transformers
from safetensors.torch import save_model

from dpdt import config, data, models
from dpdt.data import Examples
from dpdt.releasing.description import describe
from dpdt.releasing.export import export
from dpdt.releasing.loading import load
from dpdt.runs import Run
from dpdt.training.run import run
from tests.models.test_pretrained import LABELS, TEXTS, wordpiece

PLAIN = ("method.name=plain", "method.lr=0.02", "method.optimizer=adamw", "privacy.epsilon=8.0")


def trained(path, preset, *overrides, examples=None):
    """A finished run, and what it measured."""
    chosen = config.load(preset, overrides)
    return run(chosen, path, show_progress=False, examples=examples).accuracy


def digits(path, model, *overrides):
    """A run of a few steps on digits."""
    name = "digits-images" if model == "convnet" else "digits"
    return trained(
        path, "digits", f"model.name={model}", f"data.name={name}", "data.public=0",
        "method.name=plain", "method.lr=0.5", "train.epochs=2", "train.batch_size=64",
        *overrides,
    )  # fmt: skip


def images(folder, channels=1, side=8, dtype=np.uint8):
    """An .npz of bright and dark images."""
    generator = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = generator.integers(0, 128, (60, channels, side, side)) + 100 * y[:, None, None, None]
    x[:, :, : side // 2] //= 2
    path = folder / "own.npz"
    x = x.astype(dtype)
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:], classes=2)
    return path


def bert(folder):
    torch.manual_seed(0)
    small = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertModel(small).save_pretrained(folder)
    wordpiece(folder)


def gpt2(folder):
    torch.manual_seed(0)
    small = transformers.GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    transformers.GPT2Model(small).save_pretrained(folder)
    letters = {chr(c): i for i, c in enumerate(range(33, 127))}
    letters |= {"Ġ": 94, "go": 95, "goo": 96, "<|endoftext|>": 97}
    (folder / "vocab.json").write_text(json.dumps(letters))
    (folder / "merges.txt").write_text("#version: 0.2\ng o\ngo o\n")


MAKE = {"bert": bert, "gpt2": gpt2}


def texts(path, base, what):
    """A run on a few texts, from a model in the folder `base`."""
    chosen = config.load(
        "sst2-head",
        (
            f"model.name={base}", f"model.trained={what}", "model.length=12", "data.limit=6",
            "data.public=0", *PLAIN[:3], "train.epochs=20", "train.batch_size=6",
            "model.lora_rank=4",
        ),
    )  # fmt: skip
    built = models.build(chosen.model, data.facts("sst2", 6), chosen.train.seed)
    examples = Examples(train=(TEXTS, LABELS), test=(TEXTS, LABELS))
    examples = models.inputs(built, chosen.model, examples, augment=False)
    return run(chosen, path, show_progress=False, examples=examples).accuracy


def released(run_folder, folder):
    """The model of a run, as a release holds it."""
    model, chosen = load(run_folder), Run.open(run_folder).config
    folder.mkdir()
    save_model(model, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(describe(model, chosen)))
    export(model, folder / "transformers")
    return folder


def certify(folder):
    """A certificate that names the files."""
    hashes = {
        name: {
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
            "size": (folder / name).stat().st_size,
        }
        for name in ("model.safetensors", "config.json")
    }
    (folder / "certificate.json").write_text(json.dumps({"files": hashes}))
