"""From plain tables to sections, with every key checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dpdt.config.sections import SECTIONS
from dpdt.errors import InputError, meant, one_of
from dpdt.methods import METHODS
from dpdt.methods.settings import PrivacySettings, TrainSettings

DEFAULT = "dpdt"  # the method, if none is named

# What other libraries call a key.
OTHER_WORDS = {
    "noise_multiplier": "noise",
    "noise_scale": "noise",
    "sigma": "noise",
    "max_grad_norm": "clip",
    "l2_norm_clip": "clip",
    "clipping_norm": "clip",
    "learning_rate": "lr",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "random_state": "seed",
}


def check_method(name: Any) -> None:
    """Refuse a method that is not known."""
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"method.name: {one_of(name, METHODS)}")


def section(name: str, table: Mapping[str, Any]) -> Any:
    """A section from its table. Every key and value is checked."""
    kind = METHODS[table.get("name", DEFAULT)] if name == "method" else SECTIONS[name]
    known = {f.name: f for f in fields(kind)}
    values = {}
    for option, value in table.items():
        if option not in known:
            raise InputError(f"{name}.{option}: no such key{_elsewhere(option, name, known)}")
        metadata = known[option].metadata
        if not metadata["check"](value):
            if value is None and known[option].default is None:
                continue
            near = meant(value, metadata["words"]) if isinstance(value, str) else ""
            raise InputError(f"{name}.{option}: must be {metadata['text']}, found {value!r}{near}")
        values[option] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def spread(options: Mapping[str, Any], tables: dict[str, dict[str, Any]], where: str) -> None:
    """Put flat options into the sections they belong to."""
    method = METHODS[tables["method"]["name"]]
    classes = {"method": method, "train": TrainSettings, "privacy": PrivacySettings}
    homes = {f.name: s for s, c in classes.items() for f in fields(c) if f.name != "name"}
    for name, value in options.items():
        if name not in homes:
            raise InputError(f"{where}{name}: no such setting{suggest(name, homes)}")
        tables[homes[name]][name] = value


def _elsewhere(option: str, name: str, known: Any) -> str:
    """Where a key may belong that its section does not have."""
    word = OTHER_WORDS.get(option, option)
    homes = [] if word in known else [k for k in every_key() if k.split(".")[1] == word != "name"]
    return f"; did you mean {homes[0]}?" if homes else suggest(option, known)


def every_key() -> list[str]:
    """Every key of a configuration, of any method."""
    kinds = [(name, kind) for name, kind in SECTIONS.items() if name != "method"]
    kinds += [("method", kind) for kind in METHODS.values()]
    return sorted({f"{name}.{f.name}" for name, kind in kinds for f in fields(kind)})


def suggest(name: str, known: Any) -> str:
    """What may have been meant by a name that is not known."""
    other = OTHER_WORDS.get(name)
    if other in known:
        return f"; did you mean {other}?"
    return meant(name, known) or f"; there are {', '.join(sorted(known))}"
