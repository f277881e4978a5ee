"""The trained parameters of each model, in numbers. Tests compare them with the built models."""

from __future__ import annotations

import math
from itertools import pairwise

from dpdt.algorithm.blocks import Parameter

GPT2 = {"gpt2": (12, 768), "gpt2-medium": (24, 1024)}  # layers, width
VIT_LAYERS, VIT_PATCH = 12, 16
PATCH = 6  # the side of the pieces that a dictionary has
SIZE = 0.5  # of features from patches, as a root mean square over public or made-up images
SCATTERED = 0.65  # of scattering features, over made-up images: norms make them at most 1
CNN_LEAST = 14  # the smallest side of which the small CNN leaves anything
CONVNET, CONVNET_SIDE = (16, 32), 4  # channels, and the side that images are averaged down to


def _layer(name: str, kind: str, **sizes: int) -> list[Parameter]:
    return [Parameter(name=f"{name}.{n}", layer=name, kind=kind, size=s) for n, s in sizes.items()]


def _linear(name: str, inputs: int, outputs: int) -> list[Parameter]:
    return _layer(name, "linear", weight=inputs * outputs, bias=outputs)


def _norm(name: str, width: int) -> list[Parameter]:
    return _layer(name, "norm", weight=width, bias=width)


def mlp(inputs: int, hidden: tuple[int, ...], classes: int) -> list[Parameter]:
    widths = [inputs, *hidden, classes]
    return [
        parameter
        for i, (a, b) in enumerate(pairwise(widths))
        for parameter in _linear(f"{1 + 2 * i}", a, b)
    ]


def resnet18(channels: int, classes: int, width: float) -> list[Parameter]:
    """CIFAR stem, GroupNorm: 20 convolutions, 20 norms, 1 linear."""

    def conv(name: str, inputs: int, outputs: int, kernel: int = 3) -> list[Parameter]:
        return _layer(name, "conv", weight=inputs * outputs * kernel**2)

    widths = [max(1, round(w * width)) for w in (64, 128, 256, 512)]
    result = conv("stem", channels, widths[0]) + _norm("stem_norm", widths[0])
    inputs = widths[0]
    for stage, outputs in enumerate(widths):
        for block in range(2):
            name = f"blocks.{2 * stage + block}"
            result += conv(f"{name}.conv1", inputs, outputs) + _norm(f"{name}.norm1", outputs)
            result += conv(f"{name}.conv2", outputs, outputs) + _norm(f"{name}.norm2", outputs)
            if block == 0 and stage > 0:
                result += conv(f"{name}.shortcut", inputs, outputs, 1)
                result += _norm(f"{name}.shortcut_norm", outputs)
            inputs = outputs
    return result + _linear("head", inputs, classes)


def convnet(channels: int, classes: int, width: float) -> list[Parameter]:
    """Two convolutions, two norms, 1 linear."""
    first, second = (max(1, round(w * width)) for w in CONVNET)
    return (
        _layer("0", "conv", weight=channels * first * 9)
        + _norm("1", first)
        + _layer("3", "conv", weight=first * second * 9)
        + _norm("4", second)
        + _linear("8", second * CONVNET_SIDE**2, classes)
    )


def cnn(shape: tuple[int, ...], classes: int) -> list[Parameter]:
    """Two convolutions, two linear layers."""
    sides = [cnn_side(side) for side in shape[1:]]
    return (
        _layer("0", "conv", weight=shape[0] * 64 * 16, bias=16)
        + _layer("3", "conv", weight=16 * 16 * 32, bias=32)
        + _linear("7", 32 * sides[0] * sides[1], 32)
        + _linear("9", 32, classes)
    )


def cnn_side(side: int) -> int:
    """What the convolutions and poolings of the small CNN leave of a side."""
    return ((side - 2) // 2 - 4) // 2


def scattered(shape: tuple[int, ...], pool: int) -> int:
    """The number of scattering features: 81 a colour at every fourth pixel, pooled."""
    return shape[0] * 81 * (shape[1] // (4 * pool)) * (shape[2] // (4 * pool))


def scatter(shape: tuple[int, ...], classes: int, pool: int) -> list[Parameter]:
    """A linear head on scattering features, which are fixed."""
    return _linear("head", scattered(shape, pool), classes)


def channels(dictionary: int, wanted: int) -> int:
    """The number of features of a cell: there are no more directions than two for each atom."""
    return min(wanted, 2 * dictionary)


def learning(dictionary: int) -> int:
    """Bytes that learning channels takes: a covariance in float64, and twice that to turn it."""
    return 3 * 8 * (2 * dictionary) ** 2


def patched(dictionary: int, wanted: int, grid: int) -> int:
    """The number of features from patches."""
    return channels(dictionary, wanted) * grid**2


def length(features: int, size: float) -> float:
    """How long the features of an image are, if each is of this size."""
    return size * math.sqrt(features)


def patches(dictionary: int, wanted: int, grid: int, classes: int) -> list[Parameter]:
    """A linear head on features from patches, which are fixed."""
    return _linear("head", patched(dictionary, wanted, grid), classes)


def vit(
    shape: tuple[int, ...], classes: int, *, width: float, layers: int, patch: int
) -> list[Parameter]:
    """ViT-Small: patch convolution, class token and positions, layers, head."""
    wide, base = round(384 * width), "backbone.embeddings"
    tokens = (shape[1] // patch) * (shape[2] // patch) + 1
    result = [
        Parameter(name=f"{base}.cls_token", layer=base, kind="other", size=wide),
        Parameter(name=f"{base}.position_embeddings", layer=base, kind="other", size=tokens * wide),
        *_layer(
            f"{base}.patch_embeddings.projection",
            "conv",
            weight=shape[0] * patch**2 * wide,
            bias=wide,
        ),
    ]
    for i in range(layers):
        name = f"backbone.layers.{i}"
        for part in "qkvo":
            result += _linear(f"{name}.attention.{part}_proj", wide, wide)
        result += _norm(f"{name}.layernorm_before", wide)
        result += _norm(f"{name}.layernorm_after", wide)
        result += _linear(f"{name}.mlp.fc1", wide, 4 * wide)
        result += _linear(f"{name}.mlp.fc2", 4 * wide, wide)
    return result + _norm("backbone.layernorm", wide) + _linear("head", wide, classes)


def gpt2_lora(*, layers: int, width: int, rank: int, classes: int) -> list[Parameter]:
    """LoRA adapters on each layer's fused attention projection, and the classification head."""
    result = []
    for i in range(layers):
        name = f"backbone.base_model.model.h.{i}.attn.c_attn"
        result += _layer(f"{name}.lora_A.default", "linear", weight=width * rank)
        result += _layer(f"{name}.lora_B.default", "linear", weight=rank * 3 * width)
    return result + _layer("head", "linear", weight=classes * width)
