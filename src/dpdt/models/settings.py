"""What a configuration says of its model."""

from __future__ import annotations

from dataclasses import dataclass

from dpdt.fields import choice, flag, integer, is_integer, key, positive
from dpdt.tasks import AUTO, TASKS


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The section [model]. A model ignores the keys that it has no use for."""

    name: str = key("linear", "the name of a model", lambda v: isinstance(v, str))
    task: str = choice(AUTO, (AUTO, *TASKS))
    hidden: tuple[int, ...] = key(
        (64,),
        "a list of at most 1000 layer widths",
        lambda v: (
            isinstance(v, list | tuple)
            and len(v) <= 1000
            and all(is_integer(x) and x > 0 for x in v)
        ),
    )
    width: float = positive(1.0, most=1000)
    norm: str = choice("layer", ("layer", "channel"))  # convnet, resnet18: normalised together
    layers: int | None = integer(None, 1, most=1000)  # transformers that are not pretrained
    patch: int | None = integer(None, 1)  # the side of patches; vit-small: 16, patches: 6
    pool: int = integer(1, 1)  # scatter: windows of features that are averaged
    dictionary: int = integer(800, 1, most=10_000)  # patches: how many pieces of images
    dictionary_from: str | None = key(None, "a folder", lambda v: isinstance(v, str))  # patches
    channels: int = integer(300, 1)  # patches: numbers a cell that likeness is summed up in
    grid: int = integer(3, 1)  # patches: cells on a side that features are averaged over
    threshold: float = positive(1.0, most=1e6)  # patches: what likeness must exceed to count
    whitening: float = positive(0.1, most=1e6)  # patches: added to the variances of pieces
    mirror: bool = flag(True)  # patches: mean of the features of an image and its mirror image
    radius: float | None = positive(None, most=1e100)  # linear: bound on the norm of inputs
    trained: str = choice("all", ("all", "lora", "head"))
    lora_rank: int = integer(16, 1)
    lora_alpha: int = integer(32, 1)
    pretrained: bool = flag(True)  # False: a random start, from the architecture alone
    tokenizer: str | None = key(None, "a folder", lambda v: isinstance(v, str))
    length: int = integer(128, 1)  # longest text, in tokens
