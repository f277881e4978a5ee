"""Writes a ledger's file, line by line and ahead of each step."""

from __future__ import annotations

import io
import json
import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpdt.errors import InputError
from dpdt.files import sync_data, sync_folder, write_all, writing
from dpdt.ledger.ledger import Ledger
from dpdt.ledger.lines import FORMAT, chain, setting_of, told
from dpdt.ledger.records import Header, Setting, Stretch

SETTING = b'{"kind": "setting"'  # how the line of a setting begins


def nonce() -> str:
    """A number by which a run that goes on with fresh noise is told from its copies."""
    return secrets.token_hex(16)


class LedgerWriter:
    """Appends to a ledger in memory and, once a file is open, to the file.

    Guarantees: `step`, `export`, `void` and the end return only after their record is on the disk
    itself. What cannot be written is raised, so that its step is not taken. After that, or after an
    interrupt between any two instructions, the next record follows the last whole one. No step can
    be recorded after `pause` or `close`.
    """

    def __init__(self, header: Header):
        self.ledger = Ledger(header)
        self._setting: Setting | None = None
        self._path = Path()
        self._file: io.FileIO | None = None
        self._tail = (0, "")  # where the next line goes, and the hash of the line before it
        self._ended = False
        self._process = os.getpid()

    @property
    def tail(self) -> str:
        """The hash of the last line that was written."""
        return self._tail[1]

    def open(self, path: str | Path) -> None:
        """Write to a new file from now on, before the first step."""
        if self.ledger.runs or self._file is not None or self._ended:
            raise InputError(f"{path}: a ledger's file must be opened before the first step")
        self._path = Path(path)
        with writing(path):
            self._file = io.FileIO(path, "x")
        self._begin()
        self.sync()
        with writing(path):
            sync_folder(self._path.parent)

    def _begin(self) -> None:
        """Write what comes before the first step."""
        header = asdict(self.ledger.header)
        self._write({"kind": "header", "format": FORMAT, **header})
        if self.ledger.data:
            self._write({"kind": "data", "seal": self.ledger.data})
        if self.ledger.tuned:
            self._write(told(self.ledger.tuned))
        for why in self.ledger.voids:
            self._write({"kind": "void", "why": why})

    def reopen(self, path: str | Path, *, repeats: bool = False) -> None:
        """Continue the file of a run that was interrupted. A torn last line is cut off.

        The run must be the same: what its header says may not have changed. If it has ended, it is
        continued only to come out again as it did (`repeats`), and no step can be recorded.
        """
        found = Ledger.read(path)
        if found.closed and not repeats:
            raise InputError(f"{path}: the run has ended, and nothing may follow")
        if found.header != self.ledger.header:
            raise InputError(f"{path}: belongs to a run with other settings or data")
        text = Path(path).read_bytes()
        text = text[: text.rindex(b"\n") + 1]
        lines = text.splitlines()
        found.voids += [why for why in self.ledger.voids if why not in found.voids]
        self.ledger, self._tail = found, (len(text), json.loads(lines[-1])["hash"])
        latest = next((line for line in reversed(lines) if line.startswith(SETTING)), None)
        if latest is not None:
            self._setting = setting_of(json.loads(latest), len(found.header.blocks))
        self._path = Path(path)
        with writing(path):
            self._file = io.FileIO(path, "r+")
            self._file.truncate(len(text))
        self.sync()

    def follow(self, ledger: Ledger) -> None:
        """Go on, in memory, from what another rank's writer has reopened."""
        self.ledger = ledger

    def adopt(self, runs: list[Stretch]) -> None:
        """Take over what another ledger of the same run has recorded, before any own step."""
        for run in runs:
            for number in range(run.start, run.start + run.steps):
                self._record(run.setting, number)
        self.sync()

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
        if self.ledger.closed:
            raise InputError(f"{self._path}: the run has ended, and no step may follow")
        self._record(setting, self.ledger.position if number is None else number)
        self.sync()

    def _record(self, setting: Setting, number: int) -> None:
        if setting != self._setting:
            self._write({"kind": "setting", **asdict(setting)})
            self._setting = setting
        self._write({"kind": "step", "step": number})
        self.ledger.append(setting, start=number)

    def fork(self, number: str | None = None) -> None:
        """Record that the run goes on with fresh noise, so that a copy of it may end otherwise."""
        number = number or nonce()
        self._write({"kind": "fork", "nonce": number})
        self.ledger.forks.append(number)
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

    def close(self, model: str | None = None) -> None:
        """Record that the run ended on purpose. Nothing may follow.

        `model` is the hash of the weights that it leaves. It is part of the last line, so that an
        interrupted run says nothing about its model. A run that has ended, and was repeated since,
        must have left the same.
        """
        if self.ledger.closed and model != self.ledger.model:
            raise InputError(f"{self._path}: the run came out otherwise than it did before")
        if not self.ledger.closed:
            self._write({"kind": "end", "steps": self.ledger.steps, "model": model})
            self.ledger.closed, self.ledger.model = True, model
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
            with writing(self._path):
                sync_data(self._file.fileno())

    def _write(self, record: dict[str, Any]) -> None:
        """Write a line after the last whole one, over what a failed or stopped write has left."""
        if os.getpid() != self._process:  # both would go on with the same chain
            raise InputError("a forked process cannot write its parent's ledger")
        if self._file is None:
            return
        end, previous = self._tail
        line, digest = _line(previous, record)
        with writing(self._path):
            self._file.truncate(end)
            self._file.seek(end)
            write_all(self._file.fileno(), line)
        self._tail = (end + len(line), digest)


class _Memory(LedgerWriter):
    """Writes the lines of a file to memory."""

    def __init__(self, header: Header):
        super().__init__(header)
        self.lines: list[bytes] = []

    def _write(self, record: dict[str, Any]) -> None:
        line, digest = _line(self._tail[1], record)
        self._tail = (0, digest)
        self.lines.append(line)


def _line(previous: str, record: dict[str, Any]) -> tuple[bytes, str]:
    """The line of a record, and its hash."""
    digest = chain(previous, record)
    return (json.dumps({**record, "hash": digest}) + "\n").encode(), digest


def text_of(ledger: Ledger) -> str:
    """The file of a ledger that was kept in memory."""
    writer = _Memory(ledger.header)
    writer.ledger.data, writer.ledger.tuned = ledger.data, ledger.tuned
    writer._begin()
    writer.adopt(ledger.runs)
    for number in ledger.forks:
        writer.fork(number)
    for what in ledger.exports:
        writer.export(what)
    for why in ledger.voids:
        writer.void(why)
    if ledger.closed:
        writer.close(ledger.model)
    return b"".join(writer.lines).decode()
