"""Makes a release: a folder with model, configuration, certificate and card, once per run.

Guarantees: nothing is written unless an ε is proven for the run as it was, and no audit has refuted
it. The weights are those that the run left, as its ledger says. The folder was verified before it
has its name.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from torch import nn

from dpdt import data
from dpdt.data.access import count
from dpdt.data.given import Numbers, taken
from dpdt.errors import ArgumentError, InputError
from dpdt.releasing import canonical, hidden, signing
from dpdt.releasing import certificate as certificates
from dpdt.releasing.budget import around, refuse_beyond
from dpdt.releasing.canonical import dump
from dpdt.releasing.card import card
from dpdt.releasing.certificate import CARD, CERTIFICATE, CONFIG, EXTRA, MODEL, Said
from dpdt.releasing.export import export
from dpdt.releasing.folder import building
from dpdt.releasing.sources import Source, of_fitted, of_run
from dpdt.releasing.verify import verify
from dpdt.runs import Run
from dpdt.training.fitted import Fitted
from dpdt.training.run import load
from dpdt.weights import hash_of_file


@dataclass(frozen=True, kw_only=True)
class Released:
    """What was released, and what is left of the run that nobody may see."""

    path: Path
    digest: str
    weights: str
    guarantee: dict[str, Any]
    signer: str | None = None  # fingerprint of the key that signed
    left: dict[str, str] = field(default_factory=dict)  # in private/, and why it is dangerous
    forgotten: bool = False

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}

    def __str__(self) -> str:
        """What to tell a person."""
        lines = [f"released to {self.path}, and verified"]
        lines.append(
            f"signed by {self.signer}"
            if self.signer
            else "not signed: this protects against accidents, not against forgery; see --sign"
        )
        if self.left:
            lines.append("still in private/, and never to be published (--forget deletes it):")
            lines += [f"- {name}: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def release(
    result: Fitted | str | Path,
    *,
    model: nn.Module | None = None,
    to: str | Path | None = None,
    sign: str | Path | None = None,
    description: str | None = None,
    license: str | None = None,
    public_test: Any = None,
    labels: list[str] | None = None,
    limit: float | None = None,
    paid: Sequence[str | Path] = (),
    forget: bool = False,
    ask: signing.Ask | None = None,
) -> Released:
    """Write a folder with a trained model and a certificate of what it guarantees.

    Args:
        result: what `dpdt.train` returned, or the folder of a finished run.
        to: the folder to write, which must not exist; for a run, release/ in its folder.
        model: of a run in Python, whose folder has its weights: a module of the same class.
        sign: a file with an Ed25519 private key.
        description: of the training data, for the card.
        license: its identifier, for the card.
        public_test: held-out examples that are public, on which accuracy is measured for the card.
            For the folder of a run, True stands for its own held-out examples.
        labels: names of the classes, for a model of one's own.
        limit: refuse the release if the data have paid more than this ε by it, and by all runs on
            the same data beside the run's folder.
        paid: folders with more runs that count for the limit.
        forget: delete everything in the run's private/ once the release is complete.
        ask: gives the passphrase of the key, if the environment has none.
    """
    words = {
        "description": certificates.checked_text("description", description),
        "license": certificates.checked_license(license),
    }
    key = None if sign is None else signing.private_key(sign, ask)
    with ExitStack() as held:
        if isinstance(result, Fitted):
            if to is None:
                raise ArgumentError("to", "must name a folder for the release")
            if forget:
                raise ArgumentError("forget", "is for the folder of a run; nothing is kept here")
            source, folder = of_fitted(result, labels), Path(to)
        else:
            run = Run.open(result)
            held.enter_context(run.locked())
            folder = Path(to) if to is not None else run.path / "release"
            source = of_run(run, model, labels)
        _refuse_beyond(limit, source, paid)
        said = Said(
            created=_date(source.run),
            accuracy=_accuracy(source, public_test),
            audit=source.audit,
            **words,
        )
        asked = (source, folder, said, key)
        return _told(source, folder, _left_behind(*asked, forget) or _written(*asked), forget)


def _refuse_beyond(limit: float | None, source: Source, paid: Sequence[str | Path]) -> None:
    """Refuse what brings the data beyond a limit."""
    if limit is None:
        if paid:
            raise ArgumentError("paid", "counts for a limit, which is missing")
        return
    beside = around(source.run.path) if source.run else []
    folders = [*beside, *map(Path, paid)]
    refuse_beyond(limit, source.ledger, folders, delta=source.delta, what="release")


def _told(source: Source, folder: Path, body: dict[str, Any], forget: bool) -> Released:
    """Note in the run what was released, and forget the rest if that was asked for."""
    if source.run is not None:
        names = ("created", "digest", "weights")
        source.run.write_released({"to": folder.name, **{name: body[name] for name in names}})
        if forget:
            hidden.forget(source.run)
    seal = body["signature"]
    return Released(
        path=folder,
        digest=body["digest"],
        weights=body["weights"],
        guarantee=body["guarantee"],
        signer=seal and signing.fingerprint(bytes.fromhex(seal["public_key"])),
        left=hidden.left(source.run) if source.run else {},
        forgotten=forget,
    )


def _date(run: Run | None) -> str:
    """Today, or the day of the first release, so that releases of one run are the same."""
    before = run and run.released()
    return str(before["created"] if before else date.today())


def _accuracy(source: Source, public_test: Any) -> dict[str, Any] | None:
    """The accuracy on public examples. Without any nothing is said."""
    if public_test is None or public_test is False:
        return None
    if source.judge.name != "accuracy":
        raise ArgumentError(
            "public_test",
            f"is for accuracy, and this model is judged by {source.judge.name}; leave it out",
        )
    if public_test is True:
        if source.ledger.tuned and source.ledger.tuned.noise:
            raise ArgumentError(
                "public_test", "cannot be said of held-out examples that a tune has scored on"
            )
        if source.run is None:
            raise ArgumentError("public_test", "must be examples here, such as a pair (x, y)")
        chosen = source.run.config
        public_test = data.set_aside(load(chosen), chosen.data.public)[1].test
    else:
        public_test = Numbers.of(source.learner).read(taken(public_test, "public_test"))
    value = source.judge(source.learner.eval(), public_test)
    if value is None:
        raise ArgumentError("public_test", "has no examples")
    return {"value": value, "examples": count(public_test)}


def _give_one_mode(folder: Path) -> None:
    """Let all files be read by the same people, as the umask says: libraries differ in that."""
    mode = (folder / CERTIFICATE).stat().st_mode
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(stat.S_IMODE(mode))


def _left_behind(
    source: Source, folder: Path, said: Said, key: Any, forget: bool
) -> dict[str, Any] | None:
    """The certificate of this very release in the run's folder, if a kill left it unfinished.

    It was killed before the run knew of it, or before all was forgotten, audits among it.
    """
    run = source.run
    if run is None or folder.parent != run.path or not (folder / CERTIFICATE).is_file():
        return None
    if not verify(folder).ok:
        return None
    body: dict[str, Any] = canonical.load(canonical.read(folder / CERTIFICATE))
    before = run.released()
    if before is not None and not (forget and before["digest"] == body["digest"]):
        return None
    signed_part = certificates.signed_part(body)
    wanted = certificates.claims(source.text, source.ledger, source.delta, said)
    wanted["signature"] = None if key is None else signing.signed(key, signed_part)
    names = ["weights", "ledger", "description", "license", "accuracy", "signature"]
    if source.audit is not None:
        names.append("audit")
    return body if all(body[name] == wanted[name] for name in names) else None


def _written(source: Source, folder: Path, said: Said, key: Any) -> dict[str, Any]:
    """Write the folder, and verify it before it gets its name."""
    alone = source.run is not None and folder.parent == source.run.path  # which is locked
    with building(folder, alone=alone) as part:
        source.save(part / MODEL)
        if hash_of_file(part / MODEL) != source.ledger.model:
            raise InputError(
                f"{source.name}: its weights are not those that the run left; only these are "
                "covered by its ledger"
            )
        export(source.model, part / EXTRA)
        (part / CONFIG).write_bytes(dump(source.config))
        body = certificates.claims(source.text, source.ledger, source.delta, said)
        (part / CARD).write_text(card(body, source.config), "utf-8")
        body["files"] = {
            path.relative_to(part).as_posix(): {
                "sha256": certificates.hash_of(path),
                "size": path.stat().st_size,
            }
            for path in sorted(part.rglob("*"))
            if path.is_file()
        }
        body |= {"digest": certificates.digest(body), "signature": None}
        if key is not None:
            body["signature"] = signing.signed(key, certificates.signed_part(body))
        (part / CERTIFICATE).write_bytes(dump(body))
        _give_one_mode(part)
        verdict = verify(part)
        if not verdict.ok:
            raise InputError(f"{folder}: was not written, since {verdict.problems[0]}")
    return body
