"""Models by name: as published, as described, on the data they can read."""

import pytest
import torch

from dpdt import config, data, models
from dpdt.algorithm.blocks import Blocks
from dpdt.algorithm.layout import parameters_of
from dpdt.errors import InputError
from dpdt.models.settings import ModelSettings as Model

CIFAR = data.facts("cifar10")


def kinds(parameters):
    blocks = Blocks.group(parameters, "layer").blocks
    return {k: sum(b.kind == k for b in blocks) for k in {b.kind for b in blocks}}


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (Model(name="linear"), data.facts("digits")),
        (Model(name="mlp", hidden=(8, 5)), CIFAR),
        (Model(name="cnn"), data.facts("mnist")),
        (Model(name="cnn"), CIFAR),
        (Model(name="resnet18", width=0.25), CIFAR),
        (Model(name="vit-small", width=0.5, layers=2, patch=8), data.facts("imagenet100-small")),
        (Model(name="vit-small"), data.facts("imagenet100")),
        (Model(name="gpt2", trained="lora", pretrained=False, layers=2), data.facts("sst2")),
    ],
)
def test_a_model_is_what_its_description_says(model, facts):
    """Accounting goes by the description, without building: same names, kinds, sizes, order."""
    assert parameters_of(models.build(model, facts, 0)) == models.parameters(
        model, facts, augment=True
    )


def test_resnet18_is_the_published_one():
    parameters = models.parameters(Model(name="resnet18"), CIFAR, False)
    assert sum(p.size for p in parameters) == 11_173_962
    assert kinds(parameters) == {"conv": 20, "norm": 20, "linear": 1}


def test_vit_small_is_the_published_one():
    parameters = models.parameters(Model(name="vit-small"), data.facts("imagenet100"), False)
    assert sum(p.size for p in parameters) == 21_704_164  # 22.05M with the 1000-class head
    # 12 layers × (4 attention + 2 MLP) + head; 12 × 2 + 1 norms; patches; class token, positions
    assert kinds(parameters) == {"conv": 1, "linear": 73, "norm": 25, "other": 1}


def test_gpt2_medium_with_lora_is_the_published_one():
    chosen = config.load("sst2").model
    parameters = models.parameters(chosen, data.facts("sst2"), False)
    assert sum(p.size for p in parameters) == 24 * 16 * (1024 + 3072) + 2 * 1024
    with torch.device("meta"):
        model = models.build(
            Model(name="gpt2-medium", pretrained=False, trained="lora"), data.facts("sst2"), 0
        )
    assert parameters_of(model) == parameters
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert frozen == 354_823_168


def test_the_small_cnn_is_the_published_one():
    assert (
        sum(p.size for p in models.parameters(Model(name="cnn"), data.facts("mnist"), False))
        == 26_010
    )


@pytest.mark.parametrize(
    ("model", "name", "message"),
    [
        (Model(name="resnet81"), "cifar10", r"model.name: must be one of linear, .* 'resnet81'"),
        (Model(name="cnn"), "digits", r"'cnn' reads images, and the data have shape \(64,\)"),
        (Model(name="mlp"), "sst2", r"'mlp' reads numbers, and the data are texts"),
        (Model(name="resnet18", trained="lora"), "cifar10", r"model.trained: 'lora' is for"),
        (Model(name="vit-small", patch=7), "cifar10", r"model.patch: must divide .* 32, found 7"),
        (Model(name="vit-small", width=0.33, patch=8), "cifar10", r"model.width: .* heads"),
        (Model(name="gpt2"), "sst2", r"model.name: 'gpt2' is not here; .* model.pretrained"),
        (Model(name="nosuch"), "sst2", r"model.name: 'nosuch' is neither .* nothing is downloaded"),
    ],
)
def test_what_does_not_fit_is_refused(model, name, message):
    with pytest.raises(InputError, match=message):
        models.build(model, data.facts(name), 0)
