"""Configurations from TOML files and presets, with overrides."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from dpdt import data, reading
from dpdt.config.sections import SECTIONS, Config
from dpdt.config.tables import DEFAULT, check_method, section, spread, suggest
from dpdt.errors import ArgumentError, InputError, meant
from dpdt.fields import LARGEST as WHOLE

LARGEST = 1_000_000  # bytes of a configuration


def load(
    source: str,
    overrides: tuple[str, ...] = (),
    method: str | None = None,
    target: float | None = None,
) -> Config:
    """A configuration from a preset's name or a file, with `a.b=c` overrides.

    Args:
        source: a preset's name, or the path of a TOML file. The path of a data file stands for
            that file, and the default of every other key.
        overrides: changes such as "privacy.epsilon=3". Without a value, "privacy.epsilon=", a key
            that may be missing is taken away.
        method: another method than the file's own. It takes the values of the file's table
            `peers.<method>`, and its own defaults otherwise.
        target: the ε to take if the configuration gives neither noise nor a target of its own.
    """
    tables = _read(source)
    peers = _peers(source, tables)
    changes = [_override(text) for text in overrides]
    for name, found in [*tables.items(), *((path[0], {}) for path, _ in changes)]:
        if name not in SECTIONS:
            raise InputError(f"{name}: no such section{suggest(name, SECTIONS)}")
        if not isinstance(found, Mapping):
            raise InputError(f"{name}: must be a table, [{name}], found {found!r}")
    own = tables.setdefault("method", {}).setdefault("name", DEFAULT)
    named = next((value for path, value in changes if path == ["method", "name"]), own)
    asked = method or named
    for name in (own, asked, *peers):
        check_method(name)
    if own in peers:
        raise InputError(
            f"peers.{own}: {source} trains by {own} itself, so these values belong in [method]"
        )
    if asked != own:
        tables["method"] = {"name": asked}
        homes = {name: tables.setdefault(name, {}) for name in ("method", "train", "privacy")}
        spread(peers.get(asked, {}), homes, f"peers.{asked}.")
    for path, value in changes:
        _change(tables, path, value)
    if target is not None and tables["method"].get("noise") is None:
        privacy = tables.setdefault("privacy", {})
        privacy["epsilon"] = target if privacy.get("epsilon") is None else privacy["epsilon"]
    return Config(**{name: section(name, tables.get(name, {})) for name in SECTIONS})


def _peers(source: str, tables: dict[str, Any]) -> Mapping[str, Any]:
    """The values that a file has for other methods, for comparisons."""
    peers = tables.pop("peers", {})
    if not isinstance(peers, Mapping) or not all(isinstance(p, Mapping) for p in peers.values()):
        raise InputError(f"{source}: peers must hold tables, one for each method")
    return peers


def _override(text: str) -> tuple[list[str], Any]:
    path, separator, value = text.partition("=")
    parts = path.strip().split(".")
    if not separator or len(parts) < 2:
        raise ArgumentError("set", f"must look like section.key=value, found {text!r}")
    return parts, _value(value.strip()) if value.strip() else None


def _change(tables: dict[str, Any], path: list[str], value: Any) -> None:
    table = tables
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"{'.'.join(path)}: {part} is not a table")
    table[path[-1]] = value


def default(overrides: tuple[str, ...], preset: str = "digits") -> str:
    """What to start from if nothing is named: a file of the user's own, or else a preset.

    A file of one's own is not given a preset's values, which were chosen for other data.
    """
    named = [value for path, value in map(_override, overrides) if path == ["data", "name"]]
    own = named and isinstance(named[-1], str) and data.is_own(named[-1])
    return str(named[-1]) if own else preset


def presets() -> list[str]:
    """The names of the presets that come with the package."""
    folder = resources.files("dpdt") / "presets"
    return sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".toml"))


def _read(source: str) -> dict[str, Any]:
    if source in presets():
        text = (resources.files("dpdt") / "presets" / f"{source}.toml").read_text("utf-8")
    elif data.is_own(source):
        return {"data": {"name": source}}
    else:
        path = Path(source)
        if not os.path.lexists(path) or path.is_dir():
            raise InputError(
                f"{source}: neither a preset ({', '.join(presets())}) nor a file"
                + meant(source, presets())
            )
        text = reading.text(path, LARGEST)
    return _parsed(text, source)


def _parsed(text: str, source: str) -> dict[str, Any]:
    """What TOML says. Its reader has more ways to fail than it has names for."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # nested too deep, a number too long
        raise InputError(f"{source}: not valid TOML ({error})") from None
    left: list[Any] = [found]
    while left:
        value = left.pop()
        if isinstance(value, int) and abs(value) > WHOLE:
            raise InputError(f"{source}: has a whole number of more than 64 bits")
        if isinstance(value, Mapping | list):
            left += value.values() if isinstance(value, Mapping) else value
    return found


def _value(text: str) -> Any:
    """A value of TOML, or else a text."""
    try:
        found = _parsed(f"x = {text}", "")
    except InputError:
        return text
    return found["x"] if set(found) == {"x"} else text
