"""Whether a release is what its certificate says. Needs no torch, and runs nothing that it finds.

Guarantees: every byte of the folder is covered by the certificate, and what follows from the ledger
is computed anew. No file is opened by way of a link, and none is read as a whole before its size is
known. An unsigned certificate protects against accidents only: who can change files can also make a
new certificate.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from dataclasses import dataclass, field
from decimal import ROUND_CEILING
from pathlib import Path, PurePosixPath
from typing import Any

from dpdt import __version__, weights
from dpdt.accounting.guarantee import RELATIONS, short, shown
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.releasing import canonical, signing
from dpdt.releasing import certificate as certificates
from dpdt.releasing.card import card
from dpdt.releasing.certificate import CARD, CERTIFICATE, CONFIG, EXTRA, MODEL
from dpdt.releasing.description import Description

CLOSE = 1e-9  # relative difference of numbers that count as equal
DEEPEST = 4  # folders in a release


@dataclass(kw_only=True)
class Verdict:
    """What `verify` found. `guarantee` is the recomputed one, if it came to that."""

    problems: list[str] = field(default_factory=list)
    guarantee: dict[str, Any] | None = None
    signer: str | None = None  # fingerprint of the key that signed
    pinned: bool = False  # that key is the one that was asked for

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        names = ("epsilon", "delta", "unit", "relation", "accountant", "observer")
        found = self.guarantee if self.ok else None
        return {
            "ok": self.ok,
            "problems": self.problems,
            "guarantee": found and {name: found[name] for name in names},
            "signer": self.signer,
            "pinned": self.pinned,
        }

    def __str__(self) -> str:
        """What to tell a person."""
        if not self.ok:
            return "\n".join(["not ok", *(f"- {problem}" for problem in self.problems)])
        g, lines = self.guarantee or {}, ["ok: every hash, the ledger and ε were computed anew"]
        lines.append(
            f"ε ≤ {shown(g['epsilon'], ROUND_CEILING)} proven by {g['accountant']} · "
            f"{RELATIONS[g['relation']]} {g['unit']} · δ = {short(g['delta'])} · {g['observer']}"
        )
        if self.signer is None:
            lines.append("not signed: this protects against accidents, not against forgery")
        elif self.pinned:
            lines.append(f"signed by {self.signer}, the key that was given")
        else:
            lines.append(f"signed by {self.signer}; nobody vouches for it here, give --key")
        return "\n".join(lines)


class _No(Exception):
    """Nothing further can be said."""


def verify(folder: str | Path, *, key: str | Path | None = None) -> Verdict:
    """Check a release, against the public key in a file if one is given.

    Raises InputError if the folder is no release, or the key is none.
    """
    root = Path(folder)
    if not os.path.lexists(root / CERTIFICATE):
        raise InputError(f"{folder}: not a release (it has no {CERTIFICATE})")
    wanted = None if key is None else signing.public_key(key)
    verdict = Verdict()
    try:
        body = _certificate(root)
        _check_signature(body, wanted, verdict)
        if changed := _changed(root, body["files"]):
            verdict.problems += changed
            return verdict
        ledger = _check_ledger(body)
        _check_claims(body, ledger, verdict)
        _check_content(root, body, ledger, verdict.problems)
    except OSError as error:
        name = _shown(str(error.filename or folder))
        verdict.problems.append(f"{name}: cannot be read ({error.strerror})")
    except (_No, InputError) as problem:
        verdict.problems.append(str(problem))
    return verdict


def _no(problem: object, name: str = CERTIFICATE) -> _No:
    return _No(f"{name}: {problem}")


def _certificate(root: Path) -> dict[str, Any]:
    """The certificate, once it is found to be one that this version knows, and unchanged."""
    try:
        raw = canonical.read(root / CERTIFICATE)
        body = canonical.load(raw)
    except ValueError as error:
        raise _no(f"cannot be used; {error}") from None
    _refuse_newer(body)
    if not canonical.is_canonical(raw, body):
        raise _no("was changed after it was made; it is not written as certificates are")
    if wrong := certificates.misshapen(body):
        raise _no(f"is not a certificate; {wrong}")
    if certificates.digest(body) != body["digest"]:
        raise _no("was changed after it was made; its digest does not match")
    return body


def _refuse_newer(body: dict[str, Any]) -> None:
    """Refuse what a later version has made: what it means can only be guessed."""
    made, number = body.get("dpdt"), body.get("format")
    if not (isinstance(made, str) and re.fullmatch(r"\d{1,6}(\.\d{1,6}){1,3}", made)):
        raise _no("does not say by which version of dpdt it was made")
    newer = _version(made) > _version(__version__)
    if newer or (type(number) is int and number > certificates.FORMAT):
        raise _no(f"made by dpdt {made}, this is {__version__}: use that version or a newer one")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _check_signature(body: dict[str, Any], wanted: bytes | None, verdict: Verdict) -> None:
    seal, problems = body["signature"], verdict.problems
    if seal is None:
        if wanted is not None:
            problems.append(f"{CERTIFICATE}: is not signed, and a key was given")
        return
    found = signing.signer(seal, certificates.signed_part(body))
    if found is None:
        raise _no("its signature is not right")
    verdict.signer = signing.fingerprint(found)
    verdict.pinned = found == wanted
    if wanted is not None and not verdict.pinned:
        problems.append(
            f"{CERTIFICATE}: is signed by {verdict.signer}, not by the key that was given, "
            f"{signing.fingerprint(wanted)}"
        )


def _changed(root: Path, listed: dict[str, Any]) -> list[str]:
    """How what is there differs from what is listed. A file that is not as it was is named."""
    missing = [name for name in (MODEL, CONFIG, CARD) if name not in listed]
    problems = [f"{CERTIFICATE}: does not list {name}" for name in missing]
    for name in listed:
        if name not in (MODEL, CONFIG, CARD) and not _is_extra(name):
            problems.append(f"{CERTIFICATE}: lists {name[:80]!r}, which no release has")
    found = dict(_found(root, problems))
    found.pop(CERTIFICATE, None)
    for name in sorted(found.keys() - listed.keys()):
        problems.append(f"{_shown(name)}: is not part of the release")
    for name, facts in sorted(listed.items()):
        if name not in found:
            problems.append(f"{_shown(name)}: is missing")
        elif found[name] != facts["size"]:
            problems.append(
                f"{_shown(name)}: was changed; it has {found[name]} bytes, not {facts['size']}"
            )
        elif certificates.hash_of(root / name) != facts["sha256"]:
            problems.append(f"{_shown(name)}: was changed; its hash does not match")
    return problems


def _is_extra(name: str) -> bool:
    """Whether a path is one of a release's other formats: below its folder, without detours."""
    parts = name.split("/")
    plain = all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", part) for part in parts)
    return plain and parts[0] == EXTRA and 2 <= len(parts) <= DEEPEST


def _found(root: Path, problems: list[str]) -> list[tuple[str, int]]:
    """Every plain file below a folder, with its size. Links and everything else are problems."""
    files: list[tuple[str, int]] = []
    left = [PurePosixPath()]
    while left:
        place = left.pop()
        with os.scandir(root / place) as entries:
            for entry in entries:
                name, facts = place / entry.name, entry.stat(follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    files.append((str(name), facts.st_size))
                elif stat.S_ISDIR(facts.st_mode) and _may_hold_more(name):
                    left.append(name)
                else:
                    problems.append(f"{_shown(str(name))}: is not part of a release")
    return files


def _may_hold_more(name: PurePosixPath) -> bool:
    return name.parts[0] == EXTRA and len(name.parts) < DEEPEST


def _shown(name: str) -> str:
    """A name that can be printed; it may come from anyone."""
    return name if name.isprintable() and len(name) < 200 else ascii(name)[:200]


def _check_ledger(body: dict[str, Any]) -> Ledger:
    text = "\n".join(body["ledger"]["lines"]) + "\n"
    try:
        digest = hashlib.sha256(text.encode()).hexdigest()
        ledger = Ledger.parse(text, Path(CERTIFICATE))
    except InputError as error:
        raise _No(str(error)) from None
    except (ValueError, RecursionError):
        raise _no("its ledger cannot be read") from None
    if digest != body["ledger"]["sha256"]:
        raise _no("its ledger does not match its hash")
    if not ledger.closed:
        raise _no("its ledger has no end, so steps may be missing")
    if certificates.written(text, ledger) != body["ledger"]:
        raise _no("what it says of its ledger is not what the ledger says")
    return ledger


def _check_claims(body: dict[str, Any], ledger: Ledger, verdict: Verdict) -> None:
    """Compute what follows from the ledger, and compare every field."""
    try:
        again = certificates.derived(ledger, body["privacy"]["delta"])
    except InputError as error:
        raise _no(error) from None
    except Exception:  # what was made up can fail anywhere in an accountant
        raise _no("its ledger holds what no run has") from None
    if again["guarantee"] is None:
        raise _no("nothing is proven by its ledger")
    verdict.guarantee = again["guarantee"]
    for name, value in again.items():
        if where := difference(body[name], value, name):
            raise _no(f"{where}, by its ledger and the accountants of dpdt {__version__}")


def difference(said: Any, found: Any, where: str) -> str | None:
    """The first place where two records differ, in words. Numbers may differ in their last bits."""
    if isinstance(said, dict) and isinstance(found, dict) and said.keys() == found.keys():
        parts = [(said[k], found[k], f"{where}.{k}") for k in found]
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        parts = [(s, f, f"{where}[{i}]") for i, (s, f) in enumerate(zip(said, found, strict=True))]
    elif _equal(said, found):
        return None
    else:
        return f"{where} is {str(said)[:80]!r} but must be {str(found)[:80]!r}"
    return next((d for part in parts if (d := difference(*part))), None)


def _equal(said: Any, found: Any) -> bool:
    if type(said) in (int, float) and type(found) in (int, float):
        return math.isclose(said, found, rel_tol=CLOSE)
    return type(said) is type(found) and bool(said == found)


def _check_content(root: Path, body: dict[str, Any], ledger: Ledger, problems: list[str]) -> None:
    """The model is the one that the run left, and the card says what the certificate says."""
    try:
        found = weights.hash_of_file(root / MODEL)
        shapes = weights.shapes(root / MODEL)
    except InputError as error:
        raise _No(str(error)) from None
    if not found == ledger.model == body["weights"]:
        problems.append(f"{MODEL}: is not the model that the run of this ledger left")
    try:
        raw = canonical.read(root / CONFIG)
        config = canonical.load(raw)
    except ValueError as error:
        raise _no(f"cannot be used; {error}", CONFIG) from None
    try:
        Description.of(config, CONFIG)
    except InputError as error:
        raise _No(str(error)) from None
    if not canonical.is_canonical(raw, config):
        raise _no("is not written as configurations are", CONFIG)
    if any(shapes.get(n, tuple(s)) != tuple(s) for n, s in config["trained"].items()):
        problems.append(f"{CONFIG}: has other shapes than {MODEL}")
    if canonical.read(root / CARD) != card(body, config).encode():
        problems.append(f"{CARD}: does not say what {CERTIFICATE} says")
