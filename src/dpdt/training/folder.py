"""A run's folder: what may be read by others, and what must never leave.

config.toml      the whole configuration
ledger.jsonl     what was done; all that accounting needs
metrics.jsonl    an epoch a line: ε so far
private/         mode 0700: the model until it is released, losses, diagnostics, counts, the
                 accuracy after each epoch, which would tell about iterates that nobody may see,
                 the checkpoint that an interrupted run continues from, and what audits found
"""

from __future__ import annotations

import json
import os
import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from dpdt.config import Config
from dpdt.errors import InputError

LEDGER = "ledger.jsonl"
AUDIT = "audit.json"
CHECKPOINT = "checkpoint.pt"
MODEL = "model.safetensors"


class RunFolder:
    """Creates and fills the folder of one run."""

    def __init__(self, path: Path):
        self.path = path
        try:
            path.mkdir(parents=True)
            (path / "private").mkdir(mode=0o700)
        except FileExistsError:
            raise InputError(
                f"--out {path}: already exists; a run never overwrites another, choose a new name"
            ) from None
        except OSError as error:
            raise InputError(f"--out {path}: cannot be created ({error.strerror})") from None

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that was made before."""
        folder = cls.__new__(cls)
        folder.path = path
        return folder

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER

    def write_config(self, config: Config) -> None:
        (self.path / "config.toml").write_text(tomli_w.dumps(config.as_tables()), "utf-8")

    def metrics(self, record: dict[str, Any]) -> None:
        """Append an epoch to the metrics; what depends on data or iterates goes to private/."""
        shown = ("epoch", "step", "epsilon")
        public = {k: v for k, v in record.items() if k in shown}
        _append(self.path / "metrics.jsonl", public)
        _append(self.path / "private" / "metrics.jsonl", record)

    def write_private(self, name: str, record: dict[str, Any]) -> None:
        (self.path / "private" / name).write_text(json.dumps(record, indent=2), "utf-8")

    def read_private(self, name: str) -> dict[str, Any]:
        path = self.path / "private" / name
        try:
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from None
        return record

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint, so that one is there whatever happens meanwhile."""
        import torch

        path = self.path / "private" / CHECKPOINT
        with open(path.with_suffix(".part"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".part").replace(path)

    def load_checkpoint(self) -> dict[str, Any]:
        import torch

        path = self.path / "private" / CHECKPOINT
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except FileNotFoundError:
            raise InputError(
                f"--resume {self.path}: has no checkpoint; it was finished, or stopped too early"
            ) from None
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
        return state

    @property
    def has_checkpoint(self) -> bool:
        return (self.path / "private" / CHECKPOINT).is_file()

    def remove_checkpoint(self) -> None:
        (self.path / "private" / CHECKPOINT).unlink(missing_ok=True)

    def forget_metrics_after(self, step: int) -> None:
        """Drop the epochs that a resumed run takes again."""
        for path in (self.path / "metrics.jsonl", self.path / "private" / "metrics.jsonl"):
            if path.is_file():
                lines = path.read_text("utf-8").splitlines(keepends=True)
                kept = [line for line in lines if json.loads(line)["step"] <= step]
                path.write_text("".join(kept), "utf-8")

    def save_model(self, model: Any) -> None:
        from safetensors.torch import save_model

        save_model(model, str(self.path / "private" / MODEL))

    def load_model(self, model: Any) -> None:
        """Put the weights of the finished run into a model of the same shape."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        path = self.path / "private" / MODEL
        try:
            load_model(model, str(path))
        except (OSError, RuntimeError, SafetensorError) as error:
            raise InputError(
                f"{path}: the run's model cannot be read ({str(error).splitlines()[0]})"
            ) from None


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


def is_run(path: str) -> bool:
    return os.path.isfile(os.path.join(path, LEDGER))
