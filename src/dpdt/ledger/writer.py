"""Writes a ledger's file, line by line and ahead of each step."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from dpdt.errors import InputError
from dpdt.ledger.ledger import Ledger
from dpdt.ledger.lines import FORMAT, chain, setting_of
from dpdt.ledger.records import Header, Setting, Stretch

SYNC = 1.0  # seconds: a step's record reaches the disk within them, and before anything leaves


class LedgerWriter:
    """Appends to a ledger in memory and, once a file is open, to the file.

    Guarantees: `step` returns only after the record of the step was handed to the operating system.
    The record is on the disk itself before anything leaves the run: exports, voids and the end
    call `sync`, and so does a step once in SYNC seconds. Whoever writes a checkpoint must call
    `sync` first. No step can be recorded after `pause` or `close`.
    """

    def __init__(self, header: Header):
        self.ledger = Ledger(header)
        self._hash = ""
        self._setting: Setting | None = None
        self._file: TextIO | None = None
        self._synced = 0.0
        self._ended = False
        self._process = os.getpid()

    def open(self, path: str | Path) -> None:
        """Write to a new file from now on, before the first step."""
        if self.ledger.runs or self._file is not None or self._ended:
            raise InputError(f"{path}: a ledger's file must be opened before the first step")
        self._file = open(path, "x", encoding="utf-8")  # noqa: SIM115 - closed by close()
        header = asdict(self.ledger.header)
        self._write({"kind": "header", "format": FORMAT, **header})
        for why in self.ledger.voids:
            self._write({"kind": "void", "why": why})
        self.sync()
        _sync_folder(Path(path).parent)

    def reopen(self, path: str | Path) -> None:
        """Continue the file of a run that was interrupted. A torn last line is cut off.

        The run must be the same: what its header says may not have changed.
        """
        found = Ledger.read(path)
        if found.closed:
            raise InputError(f"{path}: the run has ended, and nothing may follow")
        if found.header != self.ledger.header:
            raise InputError(f"{path}: belongs to a run with other settings or data")
        text = Path(path).read_bytes()
        text = text[: text.rindex(b"\n") + 1]
        records = [json.loads(line) for line in text.splitlines()]
        found.voids += [why for why in self.ledger.voids if why not in found.voids]
        self.ledger, self._hash = found, records[-1]["hash"]
        latest = next((r for r in reversed(records) if r["kind"] == "setting"), None)
        self._setting = latest and setting_of(latest, len(found.header.blocks))
        self._file = open(path, "r+", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._file.truncate(len(text))
        self._file.seek(0, 2)

    def follow(self, ledger: Ledger) -> None:
        """Go on, in memory, from what another rank's writer has reopened."""
        self.ledger = ledger

    def adopt(self, runs: list[Stretch]) -> None:
        """Take over what another ledger of the same run has recorded, before any own step."""
        for run in runs:
            for number in range(run.start, run.start + run.steps):
                self.step(run.setting, number)

    def refuse_ended(self) -> None:
        """Refuse a step after the end."""
        if self._ended:
            raise InputError(
                "the run has ended or is paused, and its ledger takes no further step; continue "
                "it with load_state_dict() on a newly prepared step, or resume the run's folder"
            )

    def step(self, setting: Setting, number: int | None = None) -> None:
        """Record one step, before it is taken. `number` is the step's own in the plan."""
        self.refuse_ended()
        number = self.ledger.position if number is None else number
        if setting != self._setting:
            self._setting = setting
            self._write({"kind": "setting", **asdict(setting)})
        self._write({"kind": "step", "step": number})
        self.ledger.append(setting, start=number)
        if time.monotonic() - self._synced > SYNC:
            self.sync()

    def export(self, what: str) -> None:
        """Record that something besides the last iterate leaves the run."""
        if what not in self.ledger.exports:
            self._write({"kind": "export", "what": what})
            self.ledger.exports.append(what)
            self.sync()

    def void(self, why: str) -> None:
        """Record that the run guarantees nothing, and why."""
        if why not in self.ledger.voids:
            self._write({"kind": "void", "why": why})
            self.ledger.voids.append(why)
            self.sync()

    def close(self) -> None:
        """Record that the run ended on purpose. Nothing may follow."""
        if not self.ledger.closed:
            self._write({"kind": "end", "steps": self.ledger.steps})
            self.ledger.closed = True
        self.pause()

    def pause(self) -> None:
        """End what this writer records. Another writer may continue a run that was interrupted."""
        self._ended = True
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def sync(self) -> None:
        """Bring everything written so far to the disk itself."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def _write(self, record: dict[str, Any]) -> None:
        if os.getpid() != self._process:  # both would go on with the same chain
            raise InputError("a forked process cannot write its parent's ledger")
        if self._file is not None:
            self._hash = chain(self._hash, record)
            self._file.write(json.dumps({**record, "hash": self._hash}) + "\n")
            self._file.flush()


def _sync_folder(path: Path) -> None:
    """Make a new file's name as durable as its content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
