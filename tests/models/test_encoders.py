"""Image encoders from local folders: small ones made here, in the library's own format."""

import csv
import json

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from dpdt import data, load, models
from dpdt.cli.main import cli
from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.models.encoders import View, view_of
from dpdt.models.frozen import features
from dpdt.models.settings import ModelSettings as Model
from dpdt.releasing.description import Description, rebuild
from dpdt.releasing.export import export
from tests.models.test_pretrained import wordpiece
from tests.numbers import prepare

GREY, COLOUR = (Facts(examples=6, shape=(c, 12, 12), classes=3) for c in (1, 3))


def vit(**options):
    return transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=16, patch_size=8, **options,
        )
    )  # fmt: skip


def resnet():
    return transformers.ResNetModel(
        transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"
        )
    )


def swin():
    return transformers.SwinModel(
        transformers.SwinConfig(
            image_size=16, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2
        )
    )


MAKE = {"vit": vit, "resnet": resnet, "swin": swin}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with a small ViT."""
    monkeypatch.setenv("DPDT_DATA", str(tmp_path))
    return saved(tmp_path, "vit")


def saved(parent, kind):
    torch.manual_seed(0)
    path = parent / kind
    MAKE[kind]().save_pretrained(path)
    return path


def seen(kind, **said):
    """The configuration of a kind of model, with other values."""
    found = MAKE[kind]().config
    for name, value in said.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize("facts", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize(("kind", "read"), [("vit", "token"), ("resnet", "map"), ("swin", "mean")])
def test_features_are_what_the_library_says_of_the_image(tmp_path, kind, read, facts):
    path = saved(tmp_path, kind)
    model = models.build(Model(name=str(path), trained="head"), facts, 0)
    x = torch.rand(4, *facts.shape) * 2.0 - 1.0
    size = 12 if kind == "resnet" else 16  # which takes images of any size
    shown = torch.nn.functional.interpolate(
        x.expand(4, 3, 12, 12), (size, size), mode="bicubic", antialias=True
    )
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(path)(pixel_values=shown).last_hidden_state
        expected = {
            "token": lambda: hidden[:, 0],
            "map": lambda: hidden.mean((2, 3)),
            "mean": lambda: hidden.mean(1),
        }[read]()
        torch.testing.assert_close(model.eval().features(x), expected)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        "head.weight",
        "head.bias",
    ]
    found, _ = features(model, (x, torch.zeros(4, dtype=torch.long)))
    alone, _ = features(model, (x[2:3], torch.zeros(1, dtype=torch.long)))
    assert torch.equal(found[2:3], alone)  # whoever else is there


def test_images_are_normalised_as_the_encoder_was_trained(tmp_path):
    said = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.1]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    view = view_of(tmp_path, seen("vit"), COLOUR)
    white, black = view(torch.ones(1, 3, 16, 16)), view(-torch.ones(1, 3, 16, 16))
    torch.testing.assert_close(white[0, :, 0, 0], torch.tensor([2.5, 3.0, 7.0]))
    torch.testing.assert_close(black[0, :, 0, 0], torch.tensor([-2.5, -2.0, -3.0]))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said | {"do_normalize": False}))
    assert view_of(tmp_path, seen("vit"), COLOUR).mean == [0.5] * 3


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ({"size": {"height": 24, "width": 20}}, [24, 20]),
        ({"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}, [32, 32]),
        ({"size": {"shortest_edge": 40}}, [40, 40]),
        ({"size": 28}, [28, 28]),
        ({"size": 28, "crop_size": 24, "do_center_crop": False}, [28, 28]),
        ({}, [16, 16]),  # the configuration's own
    ],
)
def test_images_have_the_size_that_the_folder_says(tmp_path, said, size):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert view_of(tmp_path, seen("vit"), COLOUR).size == size


def test_a_folder_of_timm_says_it_in_its_configuration(tmp_path):
    said = {"input_size": [3, 20, 24], "mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]}
    view = view_of(tmp_path, seen("resnet", pretrained_cfg=said), COLOUR)
    assert (view.size, view.mean, view.deviation) == ([20, 24], said["mean"], said["std"])


def test_without_timm_the_error_names_it(folder):
    config = {"architecture": "resnet10t", "num_classes": 0, "pretrained_cfg": {}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"vit: (holds no model|cannot be loaded) .*timm"):
        models.build(Model(name="vit"), COLOUR, 0)


@pytest.mark.parametrize(
    ("damage", "facts", "message"),
    [
        (None, Facts(examples=6, shape=(2, 12, 12), classes=3), "3 colours, and the data have 2"),
        (
            lambda f: (f / "preprocessor_config.json").write_text("{"),
            COLOUR, r"preprocessor_config.json: cannot be read",
        ),
        (
            lambda f: (f / "preprocessor_config.json").write_text('{"image_std": [1, 0, 1]}'),
            COLOUR, r"vit: says nothing of use about images \(view.deviation: must be 3 numbers",
        ),
        (
            lambda f: (f / "preprocessor_config.json").write_text('{"size": 24}'),
            COLOUR, "model.name: is no encoder of images of 24 × 24",
        ),
        (
            lambda f: (f / "preprocessor_config.json").write_text('{"size": "24"}'),
            COLOUR, "view.size: must be two sides",
        ),
        (
            lambda f: (f / "preprocessor_config.json").write_text('{"do_rescale": false}'),
            COLOUR, "do_rescale must be true",
        ),
        (
            lambda f: (f / "preprocessor_config.json").write_text("[" * 100_000),
            COLOUR, "preprocessor_config.json: cannot be read",
        ),
        (
            lambda f: (f / "preprocessor_config.json").write_text('{"size": 5000}'),
            COLOUR, r"view.size: must be two sides of 1 to 1024, found \[5000, 5000\]",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(folder, damage, facts, message):
    if damage:
        damage(folder)
    with pytest.raises(InputError, match=message):
        models.build(Model(name="vit", trained="head"), facts, 0)


def test_a_reader_of_texts_is_refused_for_images(tmp_path, monkeypatch):
    monkeypatch.setenv("DPDT_DATA", str(tmp_path))
    small = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    transformers.BertModel(small).save_pretrained(tmp_path / "bert")
    wordpiece(tmp_path / "bert")
    with pytest.raises(InputError, match="is no encoder of images"):
        models.build(Model(name="bert", trained="head"), COLOUR, 0)


def test_names_that_are_no_folder_are_still_told_the_nearest(folder):
    with pytest.raises(InputError, match="the folder of an image encoder, found 'resnet81'"):
        models.check(Model(name="resnet81"), COLOUR)
    for name in ("", "x" * 5000, "~nobody-at-all/x"):
        with pytest.raises(InputError, match="the folder of an image encoder, found"):
            models.check(Model(name=name), COLOUR)
    with pytest.raises(InputError, match="must be one of linear"):
        models.check(Model(name="vit"), data.facts("digits"))  # 64 numbers are no image


@pytest.mark.parametrize("trained", ["all", "lora"])
def test_an_encoder_can_be_trained_too(folder, trained):
    model = models.build(Model(name="vit", trained=trained, lora_rank=2), COLOUR, 0)
    examples = (torch.rand(6, 3, 12, 12), torch.arange(6) % 3)
    step, loader = prepare(
        model, examples, memory="none", noise=0.0, clip=1e-3, batch_size=6, epochs=1
    )
    assert step(next(iter(loader))).loss > 0.0


@pytest.mark.parametrize("public", [0, 100])
def test_a_head_is_trained_released_and_used(folder, tmp_path, public):
    """All of it by commands: the same cache and the same whitening as for other features."""

    def command(*words):
        done = CliRunner().invoke(cli, list(words))
        assert done.exit_code == 0, done.output
        return done.stdout

    (tmp_path / "encoder.toml").write_text(
        f'[data]\nname = "digits-images"\npublic = {public}\n[model]\nname = "vit"\n'
        'trained = "head"\n[train]\nepochs = 5\nbatch_size = 200\n[privacy]\nepsilon = 8.0\n'
        "delta = 1e-5\n"
    )
    run = str(tmp_path / "run")
    command("train", str(tmp_path / "encoder.toml"), "--out", run)
    command("release", run, "--description", "digits")
    assert command("verify", f"{run}/release").startswith("ok:")
    (x, _), whole = data.load("digits-images").test, load(run)
    with torch.no_grad():
        torch.testing.assert_close(load(f"{run}/release")(x[:5]), whole(x[:5]))
    np.savez(tmp_path / "some.npz", x=(x[:5] * 16).numpy())
    said = command("predict", f"{run}/release", str(tmp_path / "some.npz")).splitlines()
    assert [int(r["class"]) for r in csv.DictReader(said)] == whole(x[:5]).argmax(1).tolist()


def test_the_library_reads_backbone_and_head(folder, tmp_path):
    model = models.build(Model(name="vit", trained="head"), COLOUR, 0).eval()
    names = {path.name for path in export(model, tmp_path / "out")}
    assert names == {
        "config.json", "model.safetensors", "head.safetensors", "preprocessor_config.json",
    }  # fmt: skip
    again = view_of(tmp_path / "out", model.backbone.config, COLOUR)
    assert again.as_json() == model.view.as_json()
    backbone = transformers.AutoModel.from_pretrained(tmp_path / "out", add_pooling_layer=False)
    x = torch.rand(2, 3, 12, 12)
    with torch.no_grad():
        hidden = backbone.eval()(pixel_values=model.view(x)).last_hidden_state[:, 0]
        torch.testing.assert_close(model.head(hidden), model(x))


GOOD = {"size": [8, 8], "mean": [0], "deviation": [1], "width": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"view": 3}, "view.size"),
        ({"view": GOOD | {"size": [8, 1e9]}}, "view.size"),
        ({"view": GOOD | {"mean": []}}, "view.mean"),
        ({"view": GOOD | {"mean": [0] * 17, "deviation": [1] * 17}}, "at most 16 colours"),
        ({"view": GOOD | {"deviation": [1, 1]}}, "view.deviation"),
        ({"view": GOOD | {"deviation": [1e-45]}}, "numbers from 0 to 1"),
        ({"view": GOOD | {"width": 10**9}}, "view.width"),
        ({"model_type": "timm_wrapper", "architecture": "local-dir:/x"}, "may name no place"),
        ({"model_type": "timm_wrapper", "model_args": {"a": "/x"}}, "may name no place"),
        ({"model_type": "vit", "sub": [{"backbone": "some/where"}]}, "may name no place"),
        ({"model_type": "vit", "sub": {"checkpoint_path": "x"}}, "may name no place"),
    ],
)
def test_what_a_release_says_of_a_backbone_is_checked(values, message, tmp_path):
    said = Description(
        kind="x",
        model={"name": "transformers", "trained": "head"},
        backbone={**vit().config.to_diff_dict(), **values},
        facts=COLOUR,
    )
    with pytest.raises(InputError, match=message):
        rebuild(said, tmp_path)


@pytest.mark.parametrize("size", [[16, 16], [900, 900]])
def test_a_release_makes_no_pass_of_a_size_that_it_states(tmp_path, size, monkeypatch):
    """Building one takes no more than its weights: nothing is computed."""
    monkeypatch.setattr(torch.nn.Conv2d, "forward", None)
    found = resnet().config.to_diff_dict() | {"view": GOOD | {"size": size, "width": 12}}
    said = Description(
        kind="x", model={"name": "transformers", "trained": "head"}, backbone=found, facts=GREY
    )
    assert rebuild(said, tmp_path).head.in_features == 12


def test_an_encoder_that_draws_at_random_is_refused(tmp_path):
    """ViTMAE hides other patches every time: an image would have many features."""
    small = transformers.ViTMAEConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=4,
    )  # fmt: skip
    transformers.ViTMAEModel(small).save_pretrained(tmp_path / "mae")
    model = models.build(Model(name=str(tmp_path / "mae"), trained="head"), COLOUR, 0)
    with pytest.raises(InputError, match="other features of the same input every time"):
        features(model, (torch.rand(4, 3, 12, 12), torch.zeros(4, dtype=torch.long)))


def test_weights_that_are_not_there_are_never_drawn_at_random(folder):
    weights = load_file(folder / "model.safetensors")
    for name in [n for n in weights if ".layer.1." in n or "layers.1." in n]:
        del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"vit: has no weights for .*1.* and \d+ more"):
        models.build(Model(name="vit", trained="head"), COLOUR, 0)


@pytest.mark.parametrize("value", [None, "16", [[]], {"a": 1}])
def test_values_of_a_folder_that_fail_anywhere_are_one_sentence(folder, value):
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | {"image_size": value}))
    for pretrained in (True, False):
        with pytest.raises(InputError, match=r"vit: |no encoder of images"):
            models.build(Model(name="vit", trained="head", pretrained=pretrained), COLOUR, 0)


def test_norms_that_mix_examples_stay_frozen(tmp_path):
    path = saved(tmp_path, "resnet")
    with pytest.raises(InputError, match="BatchNorm, which mixes examples; train its head"):
        models.build(Model(name=str(path)), COLOUR, 0)


def test_a_model_of_texts_and_images_is_told_apart(tmp_path):
    config = transformers.CLIPConfig(
        text_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        vision_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    )
    with pytest.raises(InputError, match="save its vision model alone"):
        view_of(tmp_path, config, COLOUR)


def test_a_view_is_written_and_read():
    view = View([8, 9], [0.5], [0.25])
    assert View.of_json(json.loads(json.dumps(view.as_json()))).as_json() == view.as_json()
