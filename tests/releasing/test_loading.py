"""`dpdt.load`: the model of a release or a run in one line, and nothing else from the folder."""

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn

import dpdt
from dpdt import config
from dpdt.errors import InputError
from dpdt.models import pretrained
from dpdt.releasing import loading
from dpdt.releasing.description import FORMAT, describe
from dpdt.runs import Run
from tests.releasing.folders import bert, certify, digits, gpt2, released, texts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "mlp"
    digits(path, "mlp")
    return path


@pytest.fixture
def release(run, tmp_path):
    return released(run, tmp_path / "release")


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A release of a small BERT with adapters."""
    home = tmp_path_factory.mktemp("text")
    bert(home / "base")
    texts(home / "run", home / "base", "lora")
    return released(home / "run", home / "release")


def edited(folder, change):
    """Change what config.json says."""
    said = json.loads((folder / "config.json").read_text())
    change(said)
    (folder / "config.json").write_text(json.dumps(said))


def test_one_line_gives_the_model(run, release):
    models = [dpdt.load(run), dpdt.load(str(release))]
    saved = load_file(run / "private" / "model.safetensors")
    for model in models:
        assert not model.training
        assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
        assert model(torch.zeros(2, 64)).shape == (2, 10)


def test_loading_does_not_disturb_random_numbers(release, language):
    for folder in (release, language):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        dpdt.load(folder)
        assert torch.equal(torch.get_rng_state(), before)


def test_the_description_has_plain_values_and_no_paths(run, tmp_path):
    said = describe(dpdt.load(run), Run.open(run).config)
    assert json.loads(json.dumps(said)) == said
    assert said["facts"] == {"shape": [64], "classes": 10, "text": False, "name": "digits",
                             "task": "classification"}  # fmt: skip
    assert said["inputs"]["divide"] == 16.0
    assert said["trained"] == {
        "1.weight": [64, 64], "1.bias": [64], "3.weight": [10, 64], "3.bias": [10],
    }  # fmt: skip
    chosen = config.load("digits", (f"model.tokenizer={tmp_path}", "model.name=mlp"))
    assert str(tmp_path) not in json.dumps(describe(dpdt.load(run), chosen))


class Own(nn.Module):
    """A class that only its author has, with tied weights and a buffer."""

    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))

    def forward(self, x):
        return self.second(self.first(x - self.mean))


def own_release(folder):
    model = Own()
    model.mean += 1
    folder.mkdir()
    save_model(model, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(describe(model)))
    return model


def test_a_model_of_ones_own_is_filled(tmp_path):
    model = own_release(tmp_path / "own")
    with pytest.raises(InputError, match=r"own class, tests.releasing.test_loading.Own; build one"):
        dpdt.load(tmp_path / "own")
    other = Own().train()
    assert dpdt.load(tmp_path / "own", other) is other
    assert not other.training
    assert other.second.weight is other.first.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: Own(5),
            r"'mean' has shape \(4,\) .* in the model it has shape \(5,\)",
        ),
        (lambda: Own().double(), "of torch.float32, and in the model .* of torch.float64"),
        (lambda: Own().first, "holds 'first.bias', which the model does not have"),
        (lambda: nn.ModuleDict({"more": nn.Linear(2, 2), **Own()._modules}), "holds 'mean'"),
    ],
)
def test_a_model_that_does_not_fit_is_not_touched(tmp_path, other, message):
    own_release(tmp_path / "own")
    model = other()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        dpdt.load(tmp_path / "own", model)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_sizes_are_compared_before_anything_of_that_size_is_built(release, monkeypatch):
    built, inner = [], loading._built

    def spy(*given):
        built.append(torch.get_default_device().type)
        return inner(*given)

    monkeypatch.setattr(loading, "_built", spy)
    dpdt.load(release)
    assert built == ["meta", "cpu"]
    edited(release, lambda c: c["model"].update(hidden=[5]))
    with pytest.raises(InputError, match="has shape"):
        dpdt.load(release)
    assert built == ["meta", "cpu", "meta"]


def test_a_missing_tensor_is_named(release):
    tensors = load_file(release / "model.safetensors")
    tensors.pop("3.bias")
    save_file(tensors, release / "model.safetensors")
    with pytest.raises(InputError, match=r"has no '3.bias', which the model has"):
        dpdt.load(release)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=FORMAT + 1), "format: 2 is newer than 1"),
        (lambda c: c.update(format="1"), "format: must be a whole number"),
        (lambda c: c.update(format=True), "format: must be a whole number"),
        (lambda c: c.update(more=1), "must have the keys format, dpdt"),
        (lambda c: c.pop("labels"), "must have the keys format, dpdt"),
        (lambda c: c.update(facts=None), "facts: must be a table"),
        (lambda c: c["facts"].update(shape=[10**30]), "must be whole numbers"),
        (lambda c: c["facts"].update(shape=[10**12]), "of memory"),
        (lambda c: c["facts"].update(shape=[-1]), "facts.shape: must be whole numbers from 1"),
        (lambda c: c["facts"].update(shape="ab"), "facts.shape: must be whole numbers from 1"),
        (lambda c: c["facts"].update(classes=1.5), "facts.classes: must be a whole number"),
        (lambda c: c["facts"].update(text=True), "facts.text: must be true exactly where"),
        (lambda c: c.update(inputs=None), "inputs: must be null exactly where inputs are texts"),
        (lambda c: c.update(inputs={"divide": 1}), "inputs: must have the keys divide"),
        (lambda c: c["inputs"].update(divide=0), "divide, which is not 0"),
        (lambda c: c["inputs"].update(crop=1), "true or false for crop"),
        (lambda c: c.update(labels=["a"]), "labels: must be null, or 10 names"),
        (
            lambda c: c["model"].update(name="../elsewhere"),
            "model.name: '../elsewhere' is not known",
        ),
        (lambda c: c["model"].update(name="resnet18"), "reads images, and the data have shape"),
        (lambda c: c["model"].update(hidden=[10**12]), "of memory"),
        (lambda c: c["model"].update(hidden=["a"]), "model.hidden: must be a list"),
        (lambda c: c["model"].update(layers=10**9), "model.layers: must be .* to 1000"),
        (lambda c: c["model"].update(code="x"), "model.code: no such key"),
    ],
)
def test_a_description_that_is_wrong_is_one_sentence(release, change, message):
    edited(release, change)
    with pytest.raises(InputError, match=message) as error:
        dpdt.load(release)
    assert str(error.value).startswith(str(release))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: must be at most 1000"),
        ({"hidden_size": 10**6}, "has shape|builds no model"),
        ({"model_type": "nothing"}, "builds no model"),
        ({"vocab_size": 12}, "has shape"),
    ],
)
def test_an_architecture_that_is_wrong(language, tmp_path, change, message):
    shutil.copytree(language, tmp_path / "copy")
    edited(tmp_path / "copy", lambda c: c["backbone"].update(change))
    with pytest.raises(InputError, match=message):
        dpdt.load(tmp_path / "copy")


def test_no_code_of_the_folder_is_run(language, tmp_path):
    """Not what transformers would run if it were told to trust the folder."""
    folder = tmp_path / "copy"
    shutil.copytree(language, folder)
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Trap:\n    pass\n"
    for place in (folder, folder / "transformers"):
        (place / "trap.py").write_text(trap)
    named = {
        "AutoConfig": "trap.Trap",
        "AutoModel": "trap.Trap",
        "AutoTokenizer": ["trap.Trap"] * 2,
    }
    edited(folder, lambda c: c["backbone"].update(auto_map=named))
    said = json.loads((folder / "transformers" / "tokenizer_config.json").read_text())
    (folder / "transformers" / "tokenizer_config.json").write_text(
        json.dumps(said | {"auto_map": named})
    )
    model = dpdt.load(folder)
    pretrained.encode(model.settings, ["a good film"])
    assert not (tmp_path / "ran").exists()


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("unpickled",))


def test_nothing_is_unpickled(release, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (pickle.dumps(Trap()), b"", b"\xff" * 100, (10**15).to_bytes(8, "little")):
        (release / "model.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="cannot be read"):
            dpdt.load(release)
    assert not (tmp_path / "unpickled").exists()


def test_files_that_are_none(release, tmp_path):
    def refused(folder, message):
        with pytest.raises(InputError, match=message) as error:
            dpdt.load(folder)
        assert "\n" not in str(error.value)

    refused(tmp_path / "nowhere", "neither the folder of a release")
    for name in ("config.json", "model.safetensors"):
        kept = (release / name).read_bytes()
        (release / name).unlink()
        os.mkfifo(release / name)  # to read it would wait for ever
        refused(release, f"{name}: is missing, or is no file")
        (release / name).unlink()
        (release / name).write_bytes(kept)
    for content in ("[" * 100_000, "{", "\udcff", " " * 10_000_001, "3"):
        (release / "config.json").write_text(content, errors="surrogateescape")
        refused(release, "config.json")


def test_a_run_must_be_finished(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "private" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="holds no model"):
        dpdt.load(tmp_path / "run")
    Run.open(tmp_path / "run").save_checkpoint({})
    with pytest.raises(InputError, match="is not finished; dpdt train --resume"):
        dpdt.load(tmp_path / "run")


def test_a_certificate_that_names_other_files_is_not_passed_over(release):
    certify(release)
    dpdt.load(release)
    edited(release, lambda c: c.update(dpdt="9.9.9"))
    with pytest.raises(InputError, match=r"config.json: is not the file that certificate.json"):
        dpdt.load(release)
    certify(release)
    raw = bytearray((release / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (release / "model.safetensors").write_bytes(raw)
    with pytest.raises(InputError, match=r"model.safetensors: is not the file"):
        dpdt.load(release)
    (release / "certificate.json").write_text('{"files": {}}')
    with pytest.raises(InputError, match="does not name the files"):
        dpdt.load(release)


def test_causal_models_are_rebuilt_with_their_pooling(tmp_path):
    gpt2(tmp_path / "base")
    texts(tmp_path / "run", tmp_path / "base", "all")
    release = released(tmp_path / "run", tmp_path / "release")
    assert dpdt.load(release).pooling == dpdt.load(tmp_path / "run").pooling == "last"
