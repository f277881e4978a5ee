"""config.json: everything that is needed to rebuild the model, and no path of anyone's machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dpdt import __version__, data
from dpdt.config import Config
from dpdt.data import DATA, Facts
from dpdt.models import NAMES

if TYPE_CHECKING:
    from torch import nn

FORMAT = 1
LOCAL = "local"  # in place of the name of a folder
BYTES = {"kind": "bytes", "scale": "x / 127.5 - 1"}
# What inputs are, where the reader of a data set does more than turn bytes into numbers.
INPUTS = {
    "digits": {"kind": "numbers", "scale": "x / 16, of pixels from 0 to 16"},
    "digits-images": {"kind": "numbers", "scale": "x / 16, of pixels from 0 to 16"},
    "adult": {"kind": "numbers", "scale": "columns as dpdt.data.formats.adult encodes them"},
}
LABELS = {"adult": ["<=50K", ">50K"], "sst2": ["negative", "positive"]}
KEYS = ("format", "dpdt", "model", "class", "backbone", "facts", "inputs", "labels", "trained")


def of_run(config: Config, model: nn.Module, learner: nn.Module) -> dict[str, Any]:
    """The record of a model that a configuration names.

    The folder of a transformers model, and of its tokenizer, is replaced by the word "local". The
    model can be rebuilt without it: `backbone` holds its architecture.
    """
    facts = data.facts(config.data.name, config.data.limit)
    settings = asdict(config.model)
    if config.model.name not in NAMES:
        settings["name"] = LOCAL
    if config.model.tokenizer is not None:
        settings["tokenizer"] = LOCAL
    known = config.data.name if config.data.name in DATA else None
    return {
        **_of(model, learner),
        "model": {**settings, "hidden": list(config.model.hidden)},
        "facts": _facts(facts, known),
        "inputs": _inputs(config, facts, known),
        "labels": LABELS.get(known or ""),
    }


def of_model(model: nn.Module, labels: list[str] | None = None) -> dict[str, Any]:
    """The record of a model of one's own: it takes its own class to rebuild it."""
    return {
        **_of(model, model),
        "model": None,
        "facts": {"shape": None, "classes": None, "text": None, "name": None},
        "inputs": {"kind": "tensors", "scale": "as the model was trained on them"},
        "labels": labels,
    }


def _of(model: nn.Module, learner: nn.Module) -> dict[str, Any]:
    trained = {id(p) for p in learner.parameters() if p.requires_grad}
    kind = type(model)
    return {
        "format": FORMAT,
        "dpdt": __version__,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "backbone": _backbone(model),
        "trained": {n: list(p.shape) for n, p in model.named_parameters() if id(p) in trained},
    }


def _backbone(model: nn.Module) -> dict[str, Any] | None:
    """The configuration of the transformers model inside, without the folder it came from."""
    config: Any = getattr(getattr(model, "backbone", None), "config", None)
    if config is None or not hasattr(config, "to_json_string"):
        return None
    found: dict[str, Any] = _without_paths(json.loads(config.to_json_string(use_diff=False)))
    return found


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        kept = (k for k in value if not k.endswith("name_or_path"))
        return {k: _without_paths(value[k]) for k in kept}
    return [_without_paths(v) for v in value] if isinstance(value, list) else value


def _facts(facts: Facts, name: str | None) -> dict[str, Any]:
    return {
        "shape": list(facts.shape),
        "classes": facts.classes,
        "text": facts.text,
        "name": name,
    }


def _inputs(config: Config, facts: Facts, known: str | None) -> dict[str, Any]:
    if facts.text:
        return {"kind": "text", "scale": f"at most {config.model.length} tokens"}
    if known is not None:
        return INPUTS.get(known, BYTES)
    return BYTES if data.holds_bytes(config.data.name) else {"kind": "numbers", "scale": "x"}


def misshapen(record: dict[str, Any]) -> str | None:
    """What is wrong with a record that was read, as far as the card and the model need it."""
    if different := set(KEYS) ^ record.keys():
        return f"key {min(different)[:80]!r} is missing or not known"
    if record["format"] != FORMAT or type(record["format"]) is not int:
        return f"its format is not {FORMAT}, the one that this version knows"
    facts, settings, trained = record["facts"], record["model"], record["trained"]
    if not (isinstance(facts, dict) and set(facts) == {"shape", "classes", "text", "name"}):
        return "'facts' is not what it must be"
    if settings is not None and not (
        isinstance(settings, dict) and isinstance(settings.get("name"), str)
    ):
        return "'model' is not what it must be"
    if not isinstance(record["class"], str):
        return "'class' is not what it must be"
    if not isinstance(trained, dict) or not all(map(_is_shape, trained.values())):
        return "'trained' is not what it must be"
    return None


def _is_shape(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > 64:
        return False
    return all(type(n) is int and 0 <= n < 1 << 62 for n in value)
