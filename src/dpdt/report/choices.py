"""What can be moved in the explorer, and the configuration that a position stands for.

A position is a text for each control, as one would write it in TOML. What differs from the source
becomes an override, as of `--set`. So everything that the page shows is what `dpdt account` says of
the same overrides.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import tomli_w

from dpdt import config
from dpdt.accounting.guarantee import short
from dpdt.config import Config
from dpdt.errors import InputError
from dpdt.fields import AUTO, PER_EXAMPLE
from dpdt.methods.bands import SAMPLINGS
from dpdt.methods.dpdt import MEMORIES

LONGEST = 200  # characters of a text
DIGITS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
TARGET, GIVEN = "target", "given"  # how the noise is chosen: for a target ε, or as a number
RATE = "0.1"  # the learning rate where "auto" has no meaning


@dataclass(frozen=True, kw_only=True)
class Control:
    """One thing that can be moved: between values, or among options."""

    name: str
    key: str
    label: str
    help: str
    text: str  # where it stands in the source
    values: tuple[str, ...]
    slides: bool = True


@dataclass(frozen=True, kw_only=True)
class Source:
    """What the command was given: a preset or file, overrides and a method."""

    name: str
    overrides: tuple[str, ...] = ()
    method: str | None = None

    @cached_property
    def config(self) -> Config:
        found = config.load(self.name, self.overrides, self.method)
        if _at(found, "method.clip") is MISSING or not found.method.private:
            raise InputError(
                f"method.name: {found.method.name} has no clipped steps with noise to explore; use "
                "dpdt, dpsgd or gep"
            )
        return found

    def load(self, changes: tuple[str, ...]) -> Config:
        """The configuration with further overrides."""
        return config.load(self.name, self.overrides + changes, self.method)

    def command(self, changes: tuple[str, ...]) -> str:
        """The command that says the same."""
        words = ["dpdt", "account", self.name]
        for change in self.overrides + changes:
            words += ["--set", change]
        return shlex.join([*words, *(["--method", self.method] if self.method else [])])


def toml(found: Config) -> str:
    """The whole configuration as a file."""
    return tomli_w.dumps(found.as_tables())


@lru_cache(maxsize=16)
def controls(source: Source) -> tuple[Control, ...]:
    """Everything that can be moved, at the places that the source gives."""
    helped = _at(source.config, "method.auxiliaries") is not MISSING
    found, examples = source.config, config.problem_of(source.config).examples
    most = config.problem_of(source.load(("data.limit=",))).examples
    all_of = [
        ("n", "data.limit", "examples n", "how many records are trained on", examples,
         (*_steps(100, most), str(most))),
        ("batch", "train.batch_size", "mini-batch", "examples in one step", None,
         (*_powers(16, most), str(most))),
        ("epochs", "train.epochs", "epochs", "passes over the data", None,
         _steps(1, 1000, (1, 1.5, 2, 3, 4, 5, 7))),
        ("k", "method.auxiliaries", "auxiliaries K", "helpers that share a mini-batch", None,
         (*_powers(1, most), PER_EXAMPLE)),
        ("clip", "method.clip", "clip C", "the longest contribution", None, _steps(1e-3, 10)),
        ("epsilon", "privacy.epsilon", "target ε", "the noise is found for it",
         found.privacy.epsilon or 8.0, _steps(0.1, 100)),
        ("noise", "method.noise", "noise σ", "of a step's mean" if helped else "in units of C",
         _noise(found), _steps(1e-6, 100)),
        ("delta", "privacy.delta", "δ", "the chance that ε does not count", None,
         tuple(f"1e-{k}" for k in range(12, 1, -1))),
    ]  # fmt: skip
    if helped:
        told = "matters to hidden-state bounds and claims alone"
        all_of.append(("lr", "method.lr", "learning rate η", told, None, (AUTO, *_steps(1e-3, 10))))
    options = [
        ("memory", "method.memory", "memory", "what auxiliaries keep between steps", MEMORIES),
        ("sampling", "method.sampling", "sampling", "who is in a mini-batch", SAMPLINGS),
        ("unit", "privacy.unit", "unit", "whose data is protected", ("example", "shard")),
        ("release", "privacy.release", "release", "which iterates anyone sees", ("all", "last")),
    ]
    made = []
    for name, key, label, told, value, values in all_of:
        if (given := _at(found, key)) is not MISSING:
            text = _text(given if value is None else value)
            made.append(Control(name=name, key=key, label=label, help=told, text=text,
                                values=_ordered((*values, text))))  # fmt: skip
    for name, key, label, told, names in options:
        if (given := _at(found, key)) is not MISSING:
            made.append(Control(name=name, key=key, label=label, help=told, text=_text(given),
                                values=names, slides=False))  # fmt: skip
    return tuple(made)


def changes(
    source: Source, places: Mapping[str, str], noise: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Overrides for where the controls stand, and what was adjusted, in sentences.

    `noise` says whether the noise is found for a target or given.
    """
    known = {control.name: control for control in controls(source)}
    for name, text in places.items():
        if name not in known or not isinstance(text, str) or len(text) > LONGEST:
            raise InputError(f"{str(name)[:LONGEST]}: must be a text of at most {LONGEST} signs")
    texts = {name: places.get(name, c.text).strip() for name, c in known.items()}
    notes = _settle(texts)
    left_out, found = "noise" if noise == TARGET else "epsilon", []
    for name, control in known.items():
        target = name == "epsilon" and source.config.privacy.epsilon is None
        given = name == "noise" and source.config.method.noise is None
        if name != left_out and not texts[name]:
            raise InputError(f"{control.key}: has no value; it was {control.text}")
        if name != left_out and (texts[name] != control.text or target or given):
            found.append(f"{control.key}={texts[name]}")
    if noise != TARGET and source.config.privacy.epsilon is not None:
        found.append("privacy.epsilon=")
    return tuple(found), tuple(notes)


def _settle(texts: dict[str, str]) -> list[str]:
    """Take along what a moved control would otherwise make impossible; say so."""
    notes = []
    for small, large, words in (("batch", "n", "mini-batch"), ("k", "batch", "K")):
        least, most = _whole(texts.get(small)), _whole(texts.get(large))
        if least and most and least > most:
            texts[small] = str(most)
            notes.append(f"{words} follows {large}, and is {most} here.")
    alone = texts.get("k") == PER_EXAMPLE and texts.get("memory") == "shared"
    if texts.get("lr") == AUTO and "k" in texts and not alone:
        texts["lr"] = RATE
        notes.append(
            f"The learning rate is {RATE} here: 'auto' is for K per-example and memory shared. "
            "ε by composition does not depend on it."
        )
    return notes


class _Missing:
    pass


MISSING = _Missing()


def _at(found: Config, key: str) -> Any:
    """What a configuration has at a key; MISSING if its method has no such key."""
    section, name = key.split(".")
    part = getattr(found, section)
    return getattr(part, name) if name in {f.name for f in fields(part)} else MISSING


def _noise(found: Config) -> Any:
    """The noise as given, or else as the plan has found it, to three digits."""
    if found.method.noise is not None:
        return found.method.noise
    plan = config.plan_of(found)
    setting = plan.runs[0][0]
    unit = 1.0 if plan.recipe is not None else setting.clip[0] / plan.header.auxiliaries
    return float(f"{setting.noise[0] / unit:.3g}")


def _text(value: Any) -> str:
    """A value as TOML writes it, but for the quotes around a word."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{json.dumps(name)} = {_text(each)}" for name, each in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, float):
        return short(value) if float(short(value)) == value else repr(value)
    return str(value)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 19 else None


def _steps(least: float, most: float, digits: Iterable[float] = DIGITS) -> tuple[str, ...]:
    """Round numbers between the ends."""
    found, power = [], 10.0**-6
    while power <= most:
        found += [d * power for d in digits if least * 0.999 <= d * power <= most * 1.001]
        power *= 10.0
    return tuple(dict.fromkeys(str(round(x)) if least >= 1 else short(x) for x in found))


def _powers(least: int, most: int) -> tuple[str, ...]:
    return tuple(str(2**k) for k in range(40) if least <= 2**k <= most)


def _ordered(values: Iterable[str]) -> tuple[str, ...]:
    """Each once: numbers by size, words before or behind them as they came."""

    def place(text: str) -> tuple[int, float]:
        try:
            return (1, float(text))
        except ValueError:
            return (0 if text == AUTO else 2, 0.0)

    return tuple(sorted(dict.fromkeys(values), key=place))
