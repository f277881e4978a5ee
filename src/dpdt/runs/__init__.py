"""A run's folder. Nothing else knows its files.

config.toml      the whole configuration
ledger.jsonl     what was done; all that accounting needs
metrics.jsonl    a line for each epoch: ε so far
result.json      what a comparison keeps of a run
release.json     which model was released, and where to
report.html      a page about the run; one with private numbers is in private/
private/         mode 0700. It holds the model until it is released, losses, counts, a line of
                 diagnostics for each step, the checkpoint that an interrupted run continues from,
                 its plan (plan.py), the ledger's last hash (tail.py), what audits found, and the
                 lock of whoever writes. It also holds accuracies after epochs, which tell about
                 iterates that nobody may see

A crash at any moment leaves every file as it was or as it is to be. Only the lines of metrics and
diagnostics may be torn, and a torn line is left out. Whoever writes holds the lock.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from dpdt.config import Config, load
from dpdt.errors import InputError
from dpdt.files import CannotWrite, replacing, sync, sync_folder, write_atomically, writing
from dpdt.ledger import Ledger
from dpdt.runs import checkpoint, tail
from dpdt.runs.lock import holding
from dpdt.runs.place import LEDGER, PRIVATE, is_run, refuse_private
from dpdt.runs.records import append_line, content, lines, read

CONFIG, METRICS, RESULT = "config.toml", "metrics.jsonl", "result.json"
RELEASES, REPORT, CHOSEN = "release.json", "report.html", "tune.json"
FILES = (LEDGER, CONFIG, METRICS, RESULT, RELEASES, REPORT, CHOSEN)
# in private/
LOCK, PLAN, TAIL = "lock", "plan.jsonl", "tail.json"
AUDIT, CANARIES, FINDINGS = "audit.json", "canaries.json", "pate.json"
DIAGNOSTICS, DIAGRAM = "diagnostics.jsonl", "diagnostics.png"
CHECKPOINT, MODEL, SHADOWS, CURVES = "checkpoint.pt", "model.safetensors", "shadows", "audit.png"
SHOWN = ("epoch", "step", "epsilon")  # of the metrics: what depends on no data


class Run:
    """The folder of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path, config: Config, *, tuned: bool = False) -> Run:
        """Make a folder with the configuration in it. Its name is on the disk itself.

        A run of a tune (`tuned`) is in the tune's private folder, and no other run is in any."""
        if not tuned:
            refuse_private(path)
        new = [folder for folder in (path, *path.absolute().parents) if not folder.exists()]
        try:
            path.mkdir(parents=True)
            (path / PRIVATE).mkdir(mode=0o700)
            for folder in new:
                sync_folder(folder.absolute().parent)
        except FileExistsError:
            raise InputError(
                f"{path}: already exists; a run never overwrites another, choose a new name"
            ) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be created ({error.strerror})") from None
        write_atomically(path / CONFIG, tomli_w.dumps(config.as_tables()).encode())
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The folder of a run that was made before."""
        if not is_run(path):
            cls.refuse_lost(Path(path))
            if (Path(path) / PRIVATE).is_dir():
                raise InputError(_unspent(path))
            raise InputError(f"{path}: not the folder of a run (it has no {LEDGER})")
        return cls(Path(path))

    @staticmethod
    def refuse_lost(path: Path) -> None:
        """Refuse a folder that had a run, and has no ledger any more."""
        left = (CHECKPOINT, MODEL, METRICS, AUDIT)
        there = os.path.lexists(path / LEDGER) or any((path / PRIVATE / n).exists() for n in left)
        if there and not is_run(path):
            raise InputError(
                f"{path / LEDGER}: is missing, or no file, and the run has begun; what it spent is "
                "not known, so restore the file"
            )

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder, so that no other process writes to it. What crashes left is removed."""
        return holding(self.path, self._private(LOCK), FILES)

    @cached_property
    def config(self) -> Config:
        """The configuration that the run was made with."""
        return load(str(self.path / CONFIG))

    @property
    def ledger_path(self) -> Path:
        return self.path / LEDGER

    def ledger(self) -> Ledger:
        """What was done. A ledger that was cut is refused."""
        return tail.checked(self.ledger_path, self.path / METRICS, self._private(TAIL))

    def keep_tail(self, digest: str) -> None:
        """Keep the hash of the ledger's last line in a second place."""
        tail.keep(self._private(TAIL), digest)

    def metrics(self, record: dict[str, Any]) -> None:
        """Append an epoch to the metrics; what depends on data or iterates goes to private/."""
        append_line(self.path / METRICS, {k: v for k, v in record.items() if k in SHOWN})
        append_line(self._private(METRICS), record)

    def add_diagnostics(self, record: dict[str, Any]) -> None:
        """Append a step to the diagnostics, all of which are private."""
        append_line(self._private(DIAGNOSTICS), record)

    def diagnostics(self) -> list[dict[str, Any]]:
        """A record for each diagnosed step; none if the run was not diagnosed."""
        return [record for _, record in lines(self._private(DIAGNOSTICS))]

    @property
    def diagram_path(self) -> Path:
        """Where the figure of the diagnostics goes."""
        return self._private(DIAGRAM)

    def forget_after(self, step: int) -> None:
        """Drop the epochs and steps that a resumed run takes again."""
        for path in (self.path / METRICS, self._private(METRICS), self._private(DIAGNOSTICS)):
            if path.is_file():
                kept = [line for line, record in lines(path) if record["step"] <= step]
                write_atomically(path, b"".join(kept))

    @property
    def metrics_path(self) -> Path:
        """Where losses and counts stand, which are private."""
        return self._private(METRICS)

    def private_metrics(self) -> list[dict[str, Any]]:
        """Every epoch with its losses, accuracy, and ε, proven and claimed."""
        return [record for _, record in lines(self.metrics_path)]

    def write_canaries(self, record: dict[str, Any]) -> None:
        self._write(CANARIES, record)

    def canaries(self) -> dict[str, Any]:
        """What was planted, and what the coins said."""
        return read(self._private(CANARIES))

    def write_findings(self, record: dict[str, Any]) -> None:
        """What the method found out about its own run."""
        self._write(FINDINGS, record)

    def write_audit(self, record: dict[str, Any]) -> None:
        """Keep what an audit found, and whether any audit of the run has refuted its ε."""
        before = self.audit() or {}
        ever = bool(record["refuted"] or before.get("ever_refuted"))
        self._write(AUDIT, {**record, "ever_refuted": ever})

    def audit(self) -> dict[str, Any] | None:
        """What an audit found, if there was one."""
        path = self._private(AUDIT)
        return read(path) if path.is_file() else None

    @property
    def curves_path(self) -> Path:
        """Where an audit's figure goes."""
        return self._private(CURVES)

    @property
    def shadows(self) -> Path:
        """Where shadow models leave their answers."""
        return self._private(SHADOWS)

    def write_result(self, record: dict[str, Any]) -> None:
        write_atomically(self.path / RESULT, json.dumps(record).encode())

    def result(self) -> dict[str, Any] | None:
        """What the run came to, if a comparison has finished it."""
        path = self.path / RESULT
        return read(path) if path.is_file() else None

    @property
    def has_checkpoint(self) -> bool:
        return self._private(CHECKPOINT).is_file()

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint, so that one is there whatever happens meanwhile.

        What was appended before is on the disk first: a run that goes on appends what follows.
        """
        for path in (self.path / METRICS, self._private(METRICS), self._private(DIAGNOSTICS)):
            if path.is_file():
                with writing(path):
                    sync(path)
        checkpoint.save(self._private(CHECKPOINT), state)

    @property
    def unspent(self) -> bool:
        """Whether a run stopped before its first checkpoint, so before its first step."""
        later = (self._private(n) for n in (CHECKPOINT, TAIL, METRICS, MODEL))
        if (self.path / METRICS).exists() or any(path.exists() for path in later):
            return False
        ledger = self.ledger()
        return not (ledger.runs or ledger.forks)

    def load_checkpoint(self) -> dict[str, Any]:
        """What the run goes on from; if it cannot go on, why not."""
        if self.has_checkpoint:
            return checkpoint.load(self._private(CHECKPOINT))
        written = b"\n" in content(self.ledger_path)
        if not written and (self._private(TAIL).exists() or (self.path / METRICS).exists()):
            raise InputError(f"{self.ledger_path}: is empty, and the run has begun; restore it")
        found = written and self.ledger().tuned
        if found and not found.chosen:
            raise InputError(
                f"{self.path}: is an interrupted tune; dpdt tune --resume {self.path} goes on"
            )
        if not written or not (ledger := self.ledger()).runs:
            raise InputError(_unspent(self.path))
        if ledger.closed:
            raise InputError(f"{self.path}: has no checkpoint, since the run was finished")
        raise InputError(
            f"{self.path}: has no checkpoint, so the run cannot go on; it was removed after the "
            "run began, and the ledger says what was spent"
        )

    def remove_checkpoint(self) -> None:
        for name in (CHECKPOINT, PLAN):  # in this order: the plan is there while a run may go on
            self._private(name).unlink(missing_ok=True)

    def save_model(self, model: Any) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_model

        path = self._private(MODEL)
        try:
            with replacing(path) as part:
                save_model(model, str(part))
        except SafetensorError as error:  # how it tells of a full disk
            raise CannotWrite(f"{path}: cannot be written ({error})") from None

    def load_model(self, model: Any) -> None:
        """Put the weights of the finished run into a model of the same shape."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        path = self._private(MODEL)
        if self.released() is not None and not path.exists():
            raise InputError(f"{self.path}: has forgotten its model, since it was released")
        try:
            load_model(model, str(path))
        except (OSError, RuntimeError, SafetensorError) as error:
            raise InputError(
                f"{path}: the run's model cannot be read ({str(error).splitlines()[0]})"
            ) from None

    @property
    def model_path(self) -> Path:
        """The weights that a finished run left."""
        return self._private(MODEL)

    def report_path(self, *, private: bool) -> Path:
        """Where a page about the run goes."""
        return self._private(REPORT) if private else self.path / REPORT

    @property
    def private_path(self) -> Path:
        """Where everything is that must never be published."""
        return self.path / PRIVATE

    def released(self) -> dict[str, Any] | None:
        """Which model was released, if one was."""
        path = self.path / RELEASES
        return read(path) if path.is_file() else None

    def write_released(self, record: dict[str, Any]) -> None:
        write_atomically(self.path / RELEASES, json.dumps(record, indent=2).encode())

    def _private(self, name: str) -> Path:
        return self.path / PRIVATE / name

    def _write(self, name: str, record: dict[str, Any]) -> None:
        write_atomically(self._private(name), json.dumps(record, indent=2).encode())


def _unspent(path: str | Path) -> str:
    return (
        f"{path}: stopped before its first step, so nothing was spent and nothing can be gone on "
        "with; remove it and start the run again"
    )
