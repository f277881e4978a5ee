"""The certificate: what is claimed of a model, and everything that the claim rests on.

Part of it is said by whoever releases (`Said`). Part names files, code and versions. The rest
follows from the ledger (`derived`), and whoever verifies computes it anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdt import __version__
from dpdt.accounting import Guarantee, Privacy, account
from dpdt.code import code_hash, versions
from dpdt.errors import ArgumentError
from dpdt.ledger import Ledger
from dpdt.releasing import inside, words
from dpdt.releasing.canonical import dump

FORMAT = 1
CERTIFICATE, MODEL, CONFIG, CARD, EXTRA = (
    "certificate.json",
    "model.safetensors",
    "config.json",
    "README.md",
    "transformers",
)
SEALS = ("digest", "signature")
SURVIVED = "survived"  # a run whose ε an audit has refuted is not released
NOT_AUDITED: dict[str, Any] = {
    "verdict": "not audited",
    "attacks": [],
    "confidence": None,
    "bounds": False,
}
LONGEST = 10_000  # characters of a description


@dataclass(frozen=True, kw_only=True)
class Said:
    """What whoever releases says of the model. Nothing of it can be computed from the ledger."""

    created: str | None = None  # a date
    description: str | None = None  # of the training data
    license: str | None = None
    accuracy: dict[str, Any] | None = None  # on held-out data that are public
    audit: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "audit": self.audit or NOT_AUDITED}


def checked_text(name: str, text: str | None) -> str | None:
    """A text of the user's on one line; control characters are refused."""
    if text is None:
        return None
    text = " ".join(text.split())
    if not (is_text(text) and text):
        raise ArgumentError(name, f"must be printable, of at most {LONGEST} characters")
    return text


def checked_license(text: str | None) -> str | None:
    if text is not None and not is_license(text):
        raise ArgumentError(
            "license", f"must be an identifier, such as apache-2.0, found {text[:80]!r}"
        )
    return text


def is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and value.isprintable()


def is_license(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", value))


def derived(ledger: Ledger, delta: float) -> dict[str, Any]:
    """What follows from the ledger by the accountants of this version.

    A δ of 1/n or more is refused, also where a run was allowed it: it certifies nothing.
    """
    privacy = account(ledger, delta)
    proven = privacy.proven
    finite = proven is not None and math.isfinite(proven.epsilon)
    whole = privacy.as_json()
    del whole["measured"]  # private
    return {
        "privacy": whole,
        "guarantee": _guarantee(proven) if proven and finite else None,
        "claimed": _claimed(privacy),
        "protects": words.protects(proven) if proven and finite else [],
        "does_not_protect": words.does_not_protect(proven) if proven else [],
    }


def _guarantee(g: Guarantee) -> dict[str, Any]:
    return {
        "accountant": g.accountant,
        "epsilon": g.epsilon,
        "delta": g.delta,
        "mu": g.mu,
        "unit": g.unit,
        "relation": g.relation,
        "observer": g.observer,
        "conditions": [{"text": c.text, "holds": c.holds, "why": c.why} for c in g.conditions],
    }


def _claimed(privacy: Privacy) -> list[dict[str, Any]]:
    """Numbers whose conditions do not hold here."""
    return [
        {"accountant": g.accountant, "epsilon": g.epsilon, "valid": False, "why": g.why_not}
        for g in privacy.guarantees
        if g.applies and not g.valid
    ]


def written(text: str, ledger: Ledger) -> dict[str, Any]:
    """A ledger as the certificate holds it: whole, line by line."""
    lines = text.removesuffix("\n").split("\n")
    return {
        "lines": lines,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "steps": ledger.steps,
        "closing": json.loads(lines[-1])["hash"],
    }


def claims(text: str, ledger: Ledger, delta: float, said: Said) -> dict[str, Any]:
    """The certificate without the hashes of files: all that the model card is made from."""
    return {
        "format": FORMAT,
        "dpdt": __version__,
        "code": code_hash(Path(__file__).parents[1]),
        "dependencies": versions(),
        "weights": ledger.model,
        "ledger": written(text, ledger),
        **derived(ledger, delta),
        **said.as_json(),
    }


def digest(body: dict[str, Any]) -> str:
    """The hash of everything but the seals."""
    return hashlib.sha256(signed_part(body)).hexdigest()


def signed_part(body: dict[str, Any]) -> bytes:
    """The bytes that a signature is over. They begin with what they are, and so serve no other."""
    rest = {name: value for name, value in body.items() if name not in SEALS}
    return b"dpdt certificate\n" + dump(rest)


def hash_of(path: Path) -> str:
    """The hash of a file, unless it is made of holes, which it would take for ever to hash."""
    inside.refuse_sparse(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value))


def _is_ledger(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"lines", "sha256", "steps", "closing"}
        and isinstance(value["lines"], list)
        and len(value["lines"]) > 0
        and all(isinstance(line, str) and "\n" not in line for line in value["lines"])
    )


def _is_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(facts, dict)
        and set(facts) == {"sha256", "size"}
        and _is_hash(facts["sha256"])
        and type(facts["size"]) is int
        for facts in value.values()
    )


def _is_audit(value: Any) -> bool:
    return dump(value) == dump(NOT_AUDITED) or (
        isinstance(value, dict)
        and value.keys() == NOT_AUDITED.keys()
        and value["verdict"] == SURVIVED
        and isinstance(value["attacks"], list)
        and all(is_text(name) for name in value["attacks"])
        and isinstance(value["confidence"], float)
        and 0.0 < value["confidence"] < 1.0
        and isinstance(value["bounds"], bool)
    )


def _is_accuracy(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and set(value) == {"value", "examples"}
        and isinstance(value["value"], float)
        and 0.0 <= value["value"] <= 1.0
        and type(value["examples"]) is int
        and value["examples"] > 0
    )


def _is_versions(value: Any) -> bool:
    return isinstance(value, dict) and all(is_text(v) for v in (*value, *value.values()))


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"\d{4}-\d\d-\d\d", value))


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


# What each key must be. Those that follow from the ledger are compared with what it gives.
KEYS: dict[str, Callable[[Any], bool]] = {
    "format": lambda v: v == FORMAT and type(v) is int,
    "dpdt": is_text,
    "code": _is_hash,
    "dependencies": _is_versions,
    "weights": _is_hash,
    "ledger": _is_ledger,
    "privacy": lambda v: isinstance(v, dict) and isinstance(v.get("delta"), float),
    "guarantee": lambda v: isinstance(v, dict),
    "claimed": lambda v: isinstance(v, list),
    "protects": lambda v: isinstance(v, list),
    "does_not_protect": lambda v: isinstance(v, list),
    "created": _or_none(_is_date),
    "description": _or_none(is_text),
    "license": _or_none(is_license),
    "accuracy": _is_accuracy,
    "audit": _is_audit,
    "files": _is_files,
    "digest": _is_hash,
    "signature": lambda v: v is None or isinstance(v, dict),
}


def misshapen(body: dict[str, Any]) -> str | None:
    """What is wrong with the keys of a certificate, if anything."""
    if different := KEYS.keys() ^ body.keys():
        name = min(different)
        return f"key {name!r} is missing" if name in KEYS else f"key {name[:80]!r} is not known"
    wrong = next((name for name, fits in KEYS.items() if not fits(body[name])), None)
    return wrong and f"{wrong!r} is not what it must be"
