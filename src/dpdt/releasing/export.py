"""Transformers models as their own libraries read them.

`export` writes into a folder what `AutoModel.from_pretrained`, or `PeftModel.from_pretrained` for
LoRA, reads from there, and the tokenizer. A backbone with a head is one model for the library
where it has a class that reads the same token (causal models and ViT); whether that class gives
the same answers is tried on made-up inputs. Otherwise the head is a file of its own beside the
backbone: head.safetensors, with `weight` and perhaps `bias`. Encoders are read by the mean of all
tokens, for which the library has no class. Beside an encoder of images, preprocessor_config.json
says what it is shown of them. Models of the libraries' own classes, as `dpdt.train`
takes them, are saved as they are; their tokenizer is not known here.

Guarantees: the same model gives the same bytes. No file names a path of this machine. All weights
that are written are parts of the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dpdt.algorithm.randomness import kept
from dpdt.mechanism import full_precision
from dpdt.models import encoders, pretrained
from dpdt.models.classifier import Classifier

LIBRARY = ("transformers", "PreTrainedModel")
HEAD = "head.safetensors"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
ROWS, TOKENS = 3, 5  # of made-up inputs
WITH_HEAD = {
    "first": ("AutoModelForImageClassification", "classifier"),
    "last": ("AutoModelForSequenceClassification", "score"),
}


def export(model: nn.Module, folder: Path) -> list[Path]:
    """Write a transformers model into a folder, which is made. Nothing for other models.

    Returns the files.
    """
    adapted = _is(model, "peft", "PeftModel")
    if not (isinstance(model, Classifier) or adapted or _is(model, *LIBRARY)):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, Classifier):
        _classifier(model, folder)
    elif adapted:
        _adapters(model, folder)
    else:
        _save(model, folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _is(model: nn.Module, library: str, name: str) -> bool:
    """Whether a model is of a class of a library, which was then imported already."""
    kind = getattr(sys.modules.get(library), name, None)
    return kind is not None and isinstance(model, kind)


def _classifier(model: Classifier, folder: Path) -> None:
    if model.settings.trained == "lora":
        _adapters(model.backbone, folder)
        _head(model, folder)
    else:
        whole = _whole(model)
        if whole is None:
            _head(model, folder)
        _save(model.backbone if whole is None else whole, folder)
    if model.reads_texts:
        _tokenizer(model, folder)
    if model.view is not None:
        text = json.dumps(encoders.processor(model.view), indent=2)
        (folder / encoders.PROCESSOR).write_text(text + "\n", "utf-8")


def _save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, safe_serialization=True)


def _head(model: Classifier, folder: Path) -> None:
    save_file({n: p.detach().cpu().contiguous() for n, p in model.head.named_parameters()},
              folder / HEAD, metadata={"format": "pt"})  # fmt: skip


def _adapters(adapted: Any, folder: Path) -> None:
    """What PEFT would write, without its model card and the path of the base model."""
    import peft

    name = adapted.active_adapter
    state = peft.get_peft_model_state_dict(adapted, adapter_name=name, save_embedding_layers=False)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / ADAPTER, metadata={"format": "pt"})
    chosen = adapted.peft_config[name].to_dict()
    chosen |= {"base_model_name_or_path": None, "inference_mode": True}
    text = json.dumps(_sorted(chosen), indent=2, sort_keys=True)
    (folder / ADAPTER_CONFIG).write_text(text + "\n", "utf-8")


def _sorted(value: Any) -> Any:
    """With lists for sets, which have no order."""
    if isinstance(value, dict):
        return {key: _sorted(v) for key, v in value.items()}
    return sorted(value) if isinstance(value, set) else value


def _whole(model: Classifier) -> Any:
    """Backbone and head as one model of the library, if it gives the same answers."""
    if model.pooling not in WITH_HEAD or model.view is not None:  # which no class of it has
        return None
    import transformers

    kind, head = WITH_HEAD[model.pooling]
    backbone: Any = model.backbone
    config = type(backbone.config)(**pretrained.architecture(model))
    config.num_labels = model.head.out_features
    if model.pooling == "last":
        config.pad_token_id = pretrained.tokenizer(model.settings).pad_token_id
    try:
        with kept():
            whole = getattr(transformers, kind).from_config(config, trust_remote_code=False)
        whole.base_model.load_state_dict(backbone.state_dict())
        getattr(whole, head).load_state_dict(model.head.state_dict())
    except (ValueError, AttributeError, RuntimeError):  # there is none, or it has other parts
        return None
    return whole.eval() if _same(model, whole) else None


def _same(model: Classifier, whole: Any) -> bool:
    """Whether both give the same answers on made-up inputs."""
    config = whole.config
    generator = torch.Generator().manual_seed(0)
    was = model.training
    with full_precision(), torch.no_grad():
        model.eval(), whole.eval()
        if model.pooling == "first":
            shape = (ROWS, config.num_channels, config.image_size, config.image_size)
            x = torch.randn(shape, generator=generator)
            own, other = model(x), whole(pixel_values=x).logits
        else:
            tokens = _made_up(config.vocab_size, config.pad_token_id, generator)
            own, other = model(tokens), whole(**tokens).logits
    model.train(was)
    return own.shape == other.shape and torch.allclose(own, other, rtol=1e-4, atol=1e-5)


def _made_up(words: int, pad: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Texts of different lengths."""
    lengths = torch.arange(TOKENS - ROWS + 1, TOKENS + 1)
    mask = (torch.arange(TOKENS) < lengths[:, None]).long()
    ids = torch.randint(words, (ROWS, TOKENS), generator=generator)
    ids = torch.where(ids == pad, (pad + 1) % words, ids)
    return {"input_ids": torch.where(mask == 1, ids, pad), "attention_mask": mask}


def _tokenizer(model: Classifier, folder: Path) -> None:
    found = pretrained.tokenizer(model.settings)
    found.name_or_path = ""
    found.init_kwargs.pop("name_or_path", None)
    found.save_pretrained(folder)
