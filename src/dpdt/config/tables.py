"""From plain tables to sections, with every key checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dpdt.config.sections import SECTIONS
from dpdt.errors import InputError
from dpdt.methods import METHODS
from dpdt.methods.settings import PrivacySettings, TrainSettings

DEFAULT = "dpdt"  # the method, if none is named


def check_method(name: Any) -> None:
    """Refuse a method that is not known."""
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"method.name: must be one of {', '.join(METHODS)}, found {name!r}")


def section(name: str, table: Mapping[str, Any]) -> Any:
    """A section from its table. Every key and value is checked."""
    kind = METHODS[table.get("name", DEFAULT)] if name == "method" else SECTIONS[name]
    known = {f.name: f for f in fields(kind)}
    values = {}
    for option, value in table.items():
        if option not in known:
            raise InputError(f"{name}.{option}: no such key{suggest(option, known)}")
        metadata = known[option].metadata
        if not metadata["check"](value):
            if value is None and known[option].default is None:
                continue
            raise InputError(f"{name}.{option}: must be {metadata['text']}, found {value!r}")
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


def suggest(name: str, known: Any) -> str:
    """What may have been meant by a name that is not known."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
