"""The lines of a ledger's file: their chain of hashes, and what they stand for.

Every line carries a hash over itself and the line before it. The chain is there for accidents: it
notices a line that was lost, doubled or damaged. It is no protection against forgery, since anyone
can compute it anew. A tail that was cut off leaves a chain that is whole. The only sign is then
that the ledger was not closed, which is said wherever its ε is shown.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, BinaryIO

from dpdt.errors import InputError
from dpdt.ledger.records import Block, Header, Planned, Setting, Stretch, Tuned

FORMAT = 3
LARGEST = 2**63 - 1  # of whole numbers
LONGEST = 64_000_000  # bytes of a line
CANDIDATES = 1000  # settings of a tune


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) <= LARGEST


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


# what a record may hold, by the types of records.py: words, and a check
CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda v: isinstance(v, str)),
    "bool": ("true or false", lambda v: isinstance(v, bool)),
    "int": ("a whole number of 64 bits", _is_whole),
    "float": ("a finite number", _is_number),
    "float | None": ("a finite number or null", lambda v: v is None or _is_number(v)),
    "tuple[float, ...]": (
        "a list of finite numbers",
        lambda v: isinstance(v, list | tuple) and all(map(_is_number, v)),
    ),
    "tuple[Block, ...]": ("a list of blocks", lambda v: isinstance(v, list | tuple)),
}


def chain(previous: str, record: dict[str, Any]) -> str:
    """The hash of a line, from that of the line before it."""
    body = json.dumps(record, sort_keys=True)
    return hashlib.sha256((previous + body).encode()).hexdigest()[:32]


def lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, one at a time."""
    try:
        while line := file.readline(LONGEST):
            yield line
    except OSError as error:
        raise InputError(f"{path}: cannot read the ledger ({error.strerror})") from None


def verified(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number and the record of every line, once its hash was found right."""
    previous = ""
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            if len(line) < LONGEST:
                return  # what follows the last newline is torn
            raise InputError(f"{path}: line {number} is too long for a ledger")
        try:
            record = json.loads(line.decode("utf-8"))
            found = record.pop("hash")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise InputError(f"{path}: line {number} of the ledger is damaged") from None
        previous = chain(previous, record)
        if found != previous:
            raise InputError(
                f"{path}: line {number} of the ledger does not match its hash; it was changed "
                "after it was written"
            )
        yield number, record


def header_of(record: dict[str, Any]) -> Header:
    """The header that a line stands for. A format or a word that is not known is refused."""
    if record.pop("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}, the one that this version knows")
    return _header(record)


def _header(record: dict[str, Any]) -> Header:
    values = _fields(Header, record)
    if not values["blocks"]:
        raise ValueError("there are no blocks")
    if "coefficients" in values:
        values["coefficients"] = tuple(float(c) for c in values["coefficients"])
    values["blocks"] = tuple(Block(**_fields(Block, block)) for block in values["blocks"])
    return Header(**values)


def setting_of(record: dict[str, Any], blocks: int) -> Setting:
    """The setting that a line stands for, with a finite value for each block."""
    values = _fields(Setting, record)
    for name in ("clip", "noise", "spacing", "grid", "rounding"):
        values[name] = tuple(float(x) for x in values.get(name, ()))
        empty = name in ("spacing", "grid", "rounding") and not values[name]
        if len(values[name]) != blocks and not empty:
            raise ValueError(f"{name} has {len(values[name])} entries for {blocks} blocks")
        if not all(math.isfinite(x) and x >= 0 for x in values[name]):
            raise ValueError(f"{name} must be finite and 0 or more")
    values["penalties"] = tuple(float(x) for x in values.get("penalties", ()))
    if not all(math.isfinite(x) and x > 0 for x in values["penalties"]):
        raise ValueError("penalties must be finite and above 0")
    return Setting(**values)


def tuned_of(record: dict[str, Any], own: Header) -> Tuned:
    """The tune that a line stands for. Its runs are on the same data, and this is one of them."""
    if set(record) != {"kind", "runs", "noise", "chosen", "candidates"}:
        raise ValueError("a tune has runs, noise, chosen and candidates")
    runs, noise, chosen = (record[name] for name in ("runs", "noise", "chosen"))
    if not (_is_number(runs) and runs > 0):
        raise ValueError(f"runs must be a finite number above 0, found {reprlib.repr(runs)}")
    if not (_is_number(noise) and noise >= 0):
        raise ValueError(f"noise must be a finite number from 0, found {reprlib.repr(noise)}")
    if not (isinstance(chosen, bool) and isinstance(record["candidates"], list)):
        raise ValueError("chosen must be true or false, and candidates a list")
    if len(record["candidates"]) > CANDIDATES:
        raise ValueError(f"there are more than {CANDIDATES} candidates")
    candidates = tuple(map(_planned, record["candidates"]))
    if own not in [candidate.header for candidate in candidates]:
        raise ValueError("the run is none of the tune's candidates")
    for name in ("unit", "relation", "examples"):
        if any(getattr(c.header, name) != getattr(own, name) for c in candidates):
            raise ValueError(f"the tune's candidates differ in {name}")
    return Tuned(runs=float(runs), noise=float(noise), candidates=candidates, chosen=chosen)


def _planned(record: Any) -> Planned:
    if not (isinstance(record, dict) and set(record) == {"header", "runs"} and record["runs"]):
        raise ValueError("a candidate has a header and runs")
    header, runs, start = _header(record["header"]), [], 0
    for run in record["runs"]:
        steps = run["steps"]
        if not (set(run) == {"setting", "steps"} and _is_whole(steps) and steps > 0):
            raise ValueError("a candidate's run has a setting, and a whole number of steps")
        setting = setting_of(run["setting"], len(header.blocks))
        runs.append(Stretch(setting=setting, steps=steps, start=start))
        start += steps
    return Planned(header=header, runs=tuple(runs))


def told(tuned: Tuned) -> dict[str, Any]:
    """The record of a tune, as a line has it."""
    candidates = [
        {
            "header": asdict(candidate.header),
            "runs": [{"setting": asdict(r.setting), "steps": r.steps} for r in candidate.runs],
        }
        for candidate in tuned.candidates
    ]
    about = {"runs": tuned.runs, "noise": tuned.noise, "chosen": tuned.chosen}
    return {"kind": "tuned", **about, "candidates": candidates}


def model_of(record: dict[str, Any]) -> str | None:
    """The hash of the weights that the end of a run names, if it names one."""
    found = record.get("model")
    if found is not None and not (isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found)):
        raise ValueError("model is not a hash")
    return found


def fork_of(record: dict[str, Any]) -> str:
    """The random number of a run that went on with fresh noise."""
    nonce = record["nonce"]
    if not (isinstance(nonce, str) and re.fullmatch(r"[0-9a-f]{32}", nonce)):
        raise ValueError("nonce must be 32 hexadecimal digits")
    return nonce


def seal_of(record: dict[str, Any]) -> str:
    """The sealed identity of the data that a line stands for (seal.py)."""
    seal = record["seal"]
    if not (isinstance(seal, str) and re.fullmatch(r"[0-9a-f]{128}", seal)):
        raise ValueError("seal must be 128 hexadecimal digits")
    return seal


def _fields(kind: type, record: dict[str, Any]) -> dict[str, Any]:
    """The values of a dataclass.

    An unknown key is refused, and so is a missing one that has no default.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{reprlib.repr(record)} is no record")
    known = {f.name: f for f in fields(kind)}
    unknown = set(record) - set(known) - {"kind", "hash"}
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}")
    missing = [n for n, f in known.items() if n not in record and f.default is MISSING]
    if missing:
        raise ValueError(f"key {missing[0]!r} is missing")
    found = {name: record[name] for name in known if name in record}
    for name, value in found.items():
        words, holds = CHECKS[str(known[name].type)]
        if not holds(value):
            raise ValueError(f"{name} must be {words}, found {reprlib.repr(value)}")
    return found
