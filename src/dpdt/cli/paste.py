"""Clip and noise as lines that can be pasted into [method]."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Context


def lines(**tables: tuple[Mapping[str, float], str]) -> list[str]:
    """`key = { kind = value, … }` to six digits, each rounded as told, so that ε stays below."""
    result = []
    for key, (values, rounding) in tables.items():
        rounded = Context(prec=6, rounding=rounding).create_decimal
        inside = ", ".join(f"{_key(k)} = {float(rounded(repr(v)))}" for k, v in values.items())
        result.append(f"{key} = {{ {inside} }}")
    return result


def _key(name: str) -> str:
    """A TOML key: names such as 0.weight need quotes."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
