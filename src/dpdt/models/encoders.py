"""Image encoders from local folders: what they are shown of an image, and what is read of them.

Folders are in transformers format, or in timm's, which transformers reads if timm is installed.
Nothing that such a folder says is learnt from the data: an image's features cost no privacy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.fields import is_integer, is_number

PROCESSOR = "preprocessor_config.json"
COLOURS, MOST = 16, 100.0  # at most: colours, and a mean or deviation of numbers from 0 to 1
FIRST = ("cls_token", "class_embedding")  # a token for the whole image, before all others
LARGEST = 1024  # pixels on a side


class View(nn.Module):
    """Images of numbers from −1 to 1 as an encoder was trained on them.

    They are resized to `size`, grey ones get as many colours as the encoder has, and numbers from
    0 to 1 become (x − mean) / deviation. Each image is a function of itself alone.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, size: Sequence[int], mean: Sequence[float], deviation: Sequence[float]):
        super().__init__()
        self.size, self.mean, self.deviation = list(size), list(mean), list(deviation)
        spread = torch.tensor(self.deviation)[:, None, None]
        self.register_buffer("factor", 0.5 / spread, persistent=False)
        shift = (0.5 - torch.tensor(self.mean)[:, None, None]) / spread
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if list(x.shape[-2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bicubic", align_corners=False, antialias=True)
        return x * self.factor + self.shift

    def as_json(self) -> dict[str, Any]:
        """In plain values; `of_json` reads them."""
        return {"size": self.size, "mean": self.mean, "deviation": self.deviation}

    @classmethod
    def of_json(cls, values: Any) -> View:
        """From plain values, which somebody else may have written."""
        table: Mapping[str, Any] = values if isinstance(values, Mapping) else {}
        size: Any = table.get("size")
        mean: Any = table.get("mean")
        deviation: Any = table.get("deviation")
        if not (
            isinstance(size, list)
            and len(size) == 2
            and all(is_integer(n) and 1 <= n <= LARGEST for n in size)
        ):
            raise InputError(f"view.size: must be two sides of 1 to {LARGEST}, found {size!r:.50}")
        for name, found in (("mean", mean), ("deviation", deviation)):
            if not isinstance(found, list) or not found or not all(map(is_number, found)):
                raise InputError(f"view.{name}: must be a number a colour, found {found!r:.50}")
        if len(mean) != len(deviation) or not all(d > 0 for d in deviation):
            raise InputError(
                f"view.deviation: must be {len(mean)} numbers above 0, found {deviation!r:.50}"
            )
        if len(mean) > COLOURS:
            raise InputError(f"view.mean: must be at most {COLOURS} colours, found {len(mean)}")
        if not all(
            abs(m) <= MOST and 1 / MOST <= d <= MOST for m, d in zip(mean, deviation, strict=True)
        ):
            raise InputError(
                f"view: mean and deviation must be for numbers from 0 to 1, found {mean!r:.50} and "
                f"{deviation!r:.50}"
            )
        return cls(size, mean, deviation)


def view_of(folder: Path, config: Any, facts: Facts) -> View:
    """What the encoder in a folder is to be shown of a data set's images.

    The folder's preprocessor says the size and the normalisation, or else its configuration. Where
    neither does, images keep their size, and go from −1 to 1.
    """
    said = _json(folder / PROCESSOR)
    timm = getattr(config, "pretrained_cfg", None)
    timm = timm if isinstance(timm, Mapping) else {}
    colours = getattr(config, "num_channels", None) or len(timm.get("mean", (0, 0, 0)))
    if hasattr(config, "vision_config"):
        raise InputError(f"{folder}: holds more than an image encoder; save its vision model alone")
    if said.get("do_rescale", True) is not True:
        raise InputError(f"{folder / PROCESSOR}: do_rescale must be true, for numbers from 0 to 1")
    cropped = said.get("crop_size") if said.get("do_center_crop", True) else None
    sizes = (cropped, said.get("size"), getattr(config, "image_size", None),
             timm.get("input_size"), list(facts.shape))  # fmt: skip
    normal = said if said.get("do_normalize", True) else {}
    mean = normal.get("image_mean", timm.get("mean"))
    deviation = normal.get("image_std", timm.get("std"))
    try:
        return View.of_json(
            {
                "size": _sides(next(given for given in sizes if given)),
                "mean": [0.5] * colours if mean is None else list(mean),
                "deviation": [0.5] * colours if deviation is None else list(deviation),
            }
        )
    except (InputError, TypeError) as error:
        raise InputError(f"{folder}: says nothing of use about images ({error})") from None


def _sides(given: Any) -> Any:
    """Height and width, in any of the ways that folders say them."""
    if isinstance(given, Mapping):
        edge = given.get("shortest_edge")
        return [given.get("height", edge), given.get("width", edge)]
    return list(given)[-2:] if isinstance(given, list | tuple) else [given, given]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    return found if isinstance(found, dict) else {}


def processor(view: View) -> dict[str, Any]:
    """What a folder's preprocessor says, for an encoder with this view."""
    return {
        "do_resize": True,
        "size": dict(zip(("height", "width"), view.size, strict=True)),
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": view.mean,
        "image_std": view.deviation,
    }


def read_off(hidden: Tensor, pooling: str) -> Tensor:
    """What an encoder says of the whole image: its `first` token, or the mean of all `places`."""
    if pooling == "first":
        return hidden[:, 0]
    return hidden.flatten(2).mean(2) if hidden.dim() == 4 else hidden.mean(1)


def pooling_of(backbone: nn.Module) -> str:
    """Where the whole image is read."""
    names = [name.rsplit(".", 1)[-1] for name, _ in backbone.named_parameters()]
    return "first" if any(name in FIRST for name in names) else "places"


def width_of(backbone: nn.Module, view: View, pooling: str) -> int:
    """How many numbers are read of an image; refused if the encoder does not read images so."""
    try:
        with torch.no_grad():
            shown = torch.zeros(1, len(view.mean), *view.size)
            hidden: Tensor = backbone.eval()(pixel_values=shown).last_hidden_state
            found = read_off(hidden, pooling)
            if not found.isfinite().all():
                raise ValueError("what it says is not finite")
            return found.shape[1]
    except Exception as error:  # a library's model can fail in any way
        said = (str(error).strip() or type(error).__name__).split("\n")[0][:200]
        raise InputError(
            f"model.name: is no encoder of images of {view.size[0]} × {view.size[1]} ({said})"
        ) from None
