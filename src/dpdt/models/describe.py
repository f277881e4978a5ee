"""The trained parameters of each model, in numbers. Tests compare them with the built models."""

from __future__ import annotations

from itertools import pairwise

from dpdt.algorithm.blocks import Parameter


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


def vit(
    shape: tuple[int, ...], classes: int, *, patch: int = 16, width: int = 384, layers: int = 12
) -> list[Parameter]:
    """ViT-Small/16: patch convolution, class token and positions, 12 layers, head."""
    tokens = (shape[1] // patch) * (shape[2] // patch) + 1
    result = [
        Parameter(name="cls_token", layer="embeddings", kind="other", size=width),
        Parameter(name="positions", layer="embeddings", kind="other", size=tokens * width),
        *_layer("patches", "conv", weight=shape[0] * patch**2 * width, bias=width),
    ]
    for i in range(layers):
        name = f"layers.{i}"
        result += _norm(f"{name}.norm1", width) + _norm(f"{name}.norm2", width)
        for part in ("query", "key", "value", "output"):
            result += _linear(f"{name}.{part}", width, width)
        result += _linear(f"{name}.up", width, 4 * width)
        result += _linear(f"{name}.down", 4 * width, width)
    return result + _norm("norm", width) + _linear("head", width, classes)


def gpt2_lora(*, layers: int, width: int, rank: int) -> list[Parameter]:
    """LoRA adapters on each layer's fused attention projection, and the classification head."""
    result = []
    for i in range(layers):
        result += _layer(f"h.{i}.attn.lora_A", "linear", weight=width * rank)
        result += _layer(f"h.{i}.attn.lora_B", "linear", weight=rank * 3 * width)
    return result + _layer("score", "linear", weight=2 * width)
