"""A run's folder. Nothing else knows its files.

config.toml      the whole configuration
ledger.jsonl     what was done; all that accounting needs
metrics.jsonl    a line for each epoch: ε so far
result.json      what a comparison keeps of a run
release.json     which model was released, and where to
private/         mode 0700. It holds the model until it is released, losses, counts, a line of
                 diagnostics for each step, the checkpoint that an interrupted run continues from,
                 and what audits found. It also holds the accuracy after each epoch, which would
                 tell about iterates that nobody may see
"""

from __future__ import annotations

import json
import os
import pickle
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from dpdt.config import Config, load
from dpdt.errors import InputError
from dpdt.ledger import Ledger

LEDGER, CONFIG, METRICS, RESULT, PRIVATE = (
    "ledger.jsonl",
    "config.toml",
    "metrics.jsonl",
    "result.json",
    "private",
)
RELEASES = "release.json"
AUDIT, CANARIES, FINDINGS = "audit.json", "canaries.json", "pate.json"  # in private/
DIAGNOSTICS, DIAGRAM = "diagnostics.jsonl", "diagnostics.png"  # in private/
CHECKPOINT, MODEL, SHADOWS, CURVES = "checkpoint.pt", "model.safetensors", "shadows", "audit.png"
SHOWN = ("epoch", "step", "epsilon")  # of the metrics: what depends on no data


class Run:
    """The folder of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path, config: Config) -> Run:
        """A new folder, with the configuration in it."""
        try:
            path.mkdir(parents=True)
            (path / PRIVATE).mkdir(mode=0o700)
        except FileExistsError:
            raise InputError(
                f"{path}: already exists; a run never overwrites another, choose a new name"
            ) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be created ({error.strerror})") from None
        (path / CONFIG).write_text(tomli_w.dumps(config.as_tables()), "utf-8")
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The folder of a run that was made before."""
        if not is_run(path):
            raise InputError(f"{path}: not the folder of a run (it has no {LEDGER})")
        return cls(Path(path))

    @cached_property
    def config(self) -> Config:
        """The configuration that the run was made with."""
        return load(str(self.path / CONFIG))

    @property
    def ledger_path(self) -> Path:
        return self.path / LEDGER

    def ledger(self) -> Ledger:
        """What was done."""
        return Ledger.read(self.ledger_path)

    def metrics(self, record: dict[str, Any]) -> None:
        """Append an epoch to the metrics; what depends on data or iterates goes to private/."""
        _append(self.path / METRICS, {k: v for k, v in record.items() if k in SHOWN})
        _append(self._private(METRICS), record)

    def add_diagnostics(self, record: dict[str, Any]) -> None:
        """Append a step to the diagnostics, all of which are private."""
        _append(self._private(DIAGNOSTICS), record)

    def diagnostics(self) -> list[dict[str, Any]]:
        """A record for each diagnosed step; none if the run was not diagnosed."""
        path = self._private(DIAGNOSTICS)
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    @property
    def diagram_path(self) -> Path:
        """Where the figure of the diagnostics goes."""
        return self._private(DIAGRAM)

    def forget_after(self, step: int) -> None:
        """Drop the epochs and steps that a resumed run takes again."""
        for path in (self.path / METRICS, self._private(METRICS), self._private(DIAGNOSTICS)):
            if path.is_file():
                lines = path.read_text("utf-8").splitlines(keepends=True)
                kept = [line for line in lines if json.loads(line)["step"] <= step]
                path.write_text("".join(kept), "utf-8")

    @property
    def metrics_path(self) -> Path:
        """Where losses and counts stand, which are private."""
        return self._private(METRICS)

    def private_metrics(self) -> list[dict[str, Any]]:
        """Every epoch with its losses, accuracy, and ε, proven and claimed."""
        return [json.loads(line) for line in self.metrics_path.read_text("utf-8").splitlines()]

    def write_canaries(self, record: dict[str, Any]) -> None:
        self._write(CANARIES, record)

    def canaries(self) -> dict[str, Any]:
        """What was planted, and what the coins said."""
        return _read(self._private(CANARIES))

    def write_findings(self, record: dict[str, Any]) -> None:
        """What the method found out about its own run."""
        self._write(FINDINGS, record)

    def write_audit(self, record: dict[str, Any]) -> None:
        self._write(AUDIT, record)

    def audit(self) -> dict[str, Any] | None:
        """What an audit found, if there was one."""
        path = self._private(AUDIT)
        return _read(path) if path.is_file() else None

    @property
    def curves_path(self) -> Path:
        """Where an audit's figure goes."""
        return self._private(CURVES)

    @property
    def shadows(self) -> Path:
        """Where shadow models leave their answers."""
        return self._private(SHADOWS)

    def write_result(self, record: dict[str, Any]) -> None:
        (self.path / RESULT).write_text(json.dumps(record), "utf-8")

    def result(self) -> dict[str, Any] | None:
        """What the run came to, if a comparison has finished it."""
        path = self.path / RESULT
        return _read(path) if path.is_file() else None

    @property
    def has_checkpoint(self) -> bool:
        return self._private(CHECKPOINT).is_file()

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint, so that one is there whatever happens meanwhile."""
        import torch

        path = self._private(CHECKPOINT)
        with open(path.with_suffix(".part"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".part").replace(path)

    def load_checkpoint(self) -> dict[str, Any]:
        import torch

        path = self._private(CHECKPOINT)
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        except FileNotFoundError:
            raise InputError(
                f"{self.path}: has no checkpoint; it was finished, or stopped too early"
            ) from None
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
        return state

    def remove_checkpoint(self) -> None:
        self._private(CHECKPOINT).unlink(missing_ok=True)

    def save_model(self, model: Any) -> None:
        from safetensors.torch import save_model

        save_model(model, str(self._private(MODEL)))

    def load_model(self, model: Any) -> None:
        """Put the weights of the finished run into a model of the same shape."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        path = self._private(MODEL)
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

    @property
    def private_path(self) -> Path:
        """Where everything is that must never be published."""
        return self.path / PRIVATE

    def released(self) -> dict[str, Any] | None:
        """Which model was released, if one was."""
        path = self.path / RELEASES
        return _read(path) if path.is_file() else None

    def write_released(self, record: dict[str, Any]) -> None:
        part = self.path / f"{RELEASES}.part"
        part.write_text(json.dumps(record, indent=2), "utf-8")
        part.replace(self.path / RELEASES)

    def _private(self, name: str) -> Path:
        return self.path / PRIVATE / name

    def _write(self, name: str, record: dict[str, Any]) -> None:
        self._private(name).write_text(json.dumps(record, indent=2), "utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    return record


def _append(path: Path, record: dict[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def default_path(name: str) -> Path:
    """runs/<name>-<time>, numbered if a run started in the same second."""
    stem = f"{Path(name).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = Path("runs") / stem, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path


def is_run(path: str | Path) -> bool:
    """Whether this is the folder of a run."""
    return (Path(path) / LEDGER).is_file()
