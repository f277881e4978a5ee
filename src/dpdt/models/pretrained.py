"""Transformers from local folders, or from their architecture alone, with a linear head.

They read texts, or images (encoders.py).

Nothing is downloaded. Dropout is switched off: the noise of private training regularises enough,
and a model without random numbers trains on several cores.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpdt import data
from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.fields import is_integer
from dpdt.models import encoders
from dpdt.models.classifier import Classifier
from dpdt.models.describe import GPT2, VIT_LAYERS, VIT_PATCH
from dpdt.models.settings import ModelSettings

# Of a transformers configuration: what could name code elsewhere, or how weights were packed.
ELSEWHERE = ("auto_map", "attn_implementation", "quantization_config", "name_or_path")
VIEW, WIDTH = "view", "width"  # among a backbone's values: what it is shown of images, and says
WIDEST = 1_000_000


def _transformers() -> Any:
    """The library, or an error that names the extra."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import peft  # noqa: F401 - both belong to the extra
        import transformers
    except ImportError:
        raise InputError(
            "model.name: this model needs transformers and peft, which are not installed; "
            "pip install 'dpdt[text]'"
        ) from None
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def _folder(name: str, key: str) -> Path:
    """A local folder, as given or below the data folder."""
    if (path := data.folder_of(name)) is not None:
        return path
    if name in GPT2:
        raise InputError(
            f"{key}: {name!r} is not here; put its folder in transformers format into "
            f"{data.folder()}, or use model.pretrained = false with a model.tokenizer"
        )
    raise InputError(
        f"{key}: {name!r} is neither a model of ours, nor a folder, nor a folder in "
        f"{data.folder()}; nothing is downloaded, so put a model in transformers format there"
    )


def build(model: ModelSettings, facts: Facts) -> Classifier:
    """Build a transformer classifier as configured."""
    transformers = _transformers()
    if model.name == "vit-small":
        return _classifier(transformers, _vit(transformers, model, facts), model, facts)
    backbone = _load(transformers, model)
    if facts.text:
        return _classifier(transformers, backbone, model, facts)
    view = encoders.view_of(_folder(model.name, "model.name"), backbone.config, facts)
    return _seeing(backbone, view, None, model, facts)


def architecture(model: nn.Module) -> dict[str, Any]:
    """A classifier's backbone in plain values, without where it was read from."""
    whole: Any = model
    text = json.dumps(whole.backbone.config.to_diff_dict(), default=str)
    found: dict[str, Any] = _plain(json.loads(text))
    if whole.view is None:
        return found
    return {**found, VIEW: {**whole.view.as_json(), WIDTH: whole.head.in_features}}


def rebuild(values: Mapping[str, Any], model: ModelSettings, facts: Facts) -> Classifier:
    """A classifier from `architecture`, with random weights. No code but the library's is run."""
    transformers = _transformers()
    values = dict(values)
    seen = values.pop(VIEW, None)
    try:
        config = transformers.AutoConfig.for_model(**_plain(values))
        backbone = transformers.AutoModel.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
        if seen is None:
            return _classifier(transformers, backbone, model, facts)
        view, width = encoders.View.of_json(seen), seen.get(WIDTH)
        if not is_integer(width) or not 1 <= width <= WIDEST:  # weights are compared with it later
            raise InputError(f"view.width: must be from 1 to {WIDEST}, found {width!r:.50}")
        return _seeing(backbone, view, width, model, facts)
    except Exception as error:  # wrong values can fail anywhere
        raise InputError(f"backbone: builds no model ({_first_line(error)})") from None


def _plain(values: Any) -> Any:
    """Without keys that name places on a disk, or code to run."""
    if isinstance(values, Mapping):
        return {k: _plain(v) for k, v in values.items() if k[:1] != "_" and k not in ELSEWHERE}
    return [_plain(v) for v in values] if isinstance(values, list) else values


def _classifier(transformers: Any, backbone: Any, model: ModelSettings, facts: Facts) -> Classifier:
    if model.name == "vit-small":
        pooling, bias = "first", True
    else:
        masked = type(backbone.config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
        pooling, bias = ("mean", True) if masked else ("last", False)
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # never used here
    width = backbone.config.hidden_size
    backbone = _trained(backbone, model)
    return Classifier(backbone, width, facts.classes, pooling, bias, model)


def _seeing(
    backbone: Any, view: encoders.View, width: int | None, model: ModelSettings, facts: Facts
) -> Classifier:
    """An encoder of images with a head, on as many numbers as it is found to say of an image."""
    colours = len(view.mean)
    if facts.shape[0] not in (1, colours):
        raise InputError(
            f"model.name: reads images of {colours} colours, and the data have {facts.shape[0]}"
        )
    mixes = any("BatchNorm" in type(module).__name__ for module in backbone.modules())
    if model.trained != "head" and mixes:
        raise InputError(
            "model.trained: this encoder has BatchNorm, which mixes examples; train its head"
        )
    pooler = getattr(backbone, "pooler", None)
    if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        backbone.pooler = None  # its weights are never used here
    pooling = encoders.pooling_of(backbone)
    width = width or encoders.width_of(backbone, view, pooling)
    backbone = _trained(backbone, model)
    return Classifier(backbone, width, facts.classes, pooling, True, model, view)


def _trained(backbone: Any, model: ModelSettings) -> Any:
    """The backbone, with what is trained of it."""
    if model.trained == "lora":
        return _with_lora(backbone, model)
    return backbone.requires_grad_(False) if model.trained == "head" else backbone


def _vit(transformers: Any, model: ModelSettings, facts: Facts) -> Any:
    if len(facts.shape) != 3 or facts.shape[1] != facts.shape[2]:
        raise InputError(f"model.name: vit-small needs square images, found shape {facts.shape}")
    patch = model.patch or VIT_PATCH
    if facts.shape[1] % patch:
        raise InputError(
            f"model.patch: must divide the side of the images, {facts.shape[1]}, found {patch}"
        )
    width, heads = round(384 * model.width), max(1, round(6 * model.width))
    if width % heads:
        raise InputError(
            f"model.width: must leave whole attention heads, such as 0.5; found {model.width}"
        )
    chosen = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=model.layers or VIT_LAYERS,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=facts.shape[1],
        patch_size=patch,
        num_channels=facts.shape[0],
        **_without_dropout(transformers.ViTConfig()),
    )
    return transformers.ViTModel(chosen, add_pooling_layer=False)


def _without_dropout(config: Any) -> dict[str, float]:
    return {
        name: 0.0
        for name, value in config.to_dict().items()
        if "drop" in name and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _load(transformers: Any, model: ModelSettings) -> Any:
    """A backbone from a local folder, or a random one of the same architecture."""
    if not model.pretrained and model.name in GPT2:
        layers, width = GPT2[model.name]
        config = transformers.GPT2Config(
            n_layer=model.layers or layers, n_embd=width, n_head=width // 64
        )
    else:
        folder = _folder(model.name, "model.name")
        weights = sorted(folder.glob("*.gguf"))
        extra = {"gguf_file": weights[0].name} if weights else {}
        try:
            config = transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **extra
            )
        except Exception as error:  # wrong values can fail anywhere
            raise InputError(f"{folder}: holds no model ({_first_line(error)})") from None
    for name, value in _without_dropout(config).items():
        setattr(config, name, value)
    try:
        if not model.pretrained:
            return transformers.AutoModel.from_config(config, dtype=torch.float32)
        found, said = transformers.AutoModel.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            **extra,
        )
    except Exception as error:  # damaged weights can fail anywhere
        where = folder if model.pretrained else model.name
        raise InputError(f"{where}: cannot be loaded ({_first_line(error)})") from None
    missing = sorted(name for name in said["missing_keys"] if "pooler" not in name)
    if missing:  # the library would draw them at random
        raise InputError(
            f"{folder}: has no weights for {missing[0]}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}; it holds another model"
        )
    return found


def _with_lora(backbone: Any, model: ModelSettings) -> nn.Module:
    """Adapters where PEFT puts them by default, or else at all linear layers."""
    from peft import LoraConfig, get_peft_model

    chosen: dict[str, Any] = {"r": model.lora_rank, "lora_alpha": model.lora_alpha}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about GPT-2's transposed weights, which it handles
        try:
            try:
                adapted: nn.Module = get_peft_model(backbone, LoraConfig(**chosen))
            except ValueError:  # it knows no default for this architecture
                everywhere = LoraConfig(target_modules="all-linear", **chosen)
                adapted = get_peft_model(backbone, everywhere)
        except ValueError as error:
            raise InputError(f"model.trained: lora fails here ({_first_line(error)})") from None
    return adapted


def encode(model: ModelSettings, texts: list[str]) -> dict[str, Tensor]:
    """Texts as tokens of the model's own tokenizer, cut and padded to `model.length`."""
    return tokens(tokenizer(model), texts, model.length)


def tokens(by: Any, texts: list[str], length: int) -> dict[str, Tensor]:
    """Texts as a tokenizer cuts and pads them to a length."""
    try:
        encoded = by(
            texts, truncation=True, padding="max_length", max_length=length, return_tensors="pt"
        )
    except Exception as error:  # wrong values can fail anywhere
        raise InputError(f"the tokenizer fails on these texts ({_first_line(error)})") from None
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def tokenizer(model: ModelSettings) -> Any:
    """The model's own tokenizer, which pads on the right."""
    transformers = _transformers()
    name = model.tokenizer or model.name
    folder = _folder(name, "model.tokenizer" if model.tokenizer else "model.name")
    weights = sorted(folder.glob("*.gguf"))
    extra = {"gguf_file": weights[0].name} if weights else {}
    merges = (folder / "merges.txt").is_file() and not (folder / "tokenizer.json").is_file()
    kind = transformers.GPT2TokenizerFast if merges else transformers.AutoTokenizer
    try:
        found = kind.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **extra
        )
        if found.pad_token is None:
            found.pad_token = found.eos_token
        found.padding_side = "right"
    except Exception as error:  # wrong values can fail anywhere
        raise InputError(f"{folder}: holds no tokenizer ({_first_line(error)})") from None
    return found


def _first_line(error: BaseException) -> str:
    first, *more = str(error).strip().split("\n")
    return f"{first} {more[0].strip()}"[:200] if first.endswith(":") and more else first[:200]
