"""What a run did, as far as privacy is concerned.

It is the one thing that passes from training to accounting. A ledger holds everything an
accountant may need and nothing private. In memory it is run-length coded: a list of `Run`s, each a
`Setting` and how many consecutive steps used it. On disk it is JSON lines, appended as the run goes
and written *ahead* of each step, so that a run that was cut short still knows what it spent. Every
line carries a hash over itself and the line before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from dpdt.errors import InputError

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Block:
    """A set of parameters that is clipped together, and whose noise has one scale."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one step does: per block the clipping threshold C and the noise σ, and the step on θ."""

    clip: tuple[float, ...]
    noise: tuple[float, ...]
    penalty: float  # mean ρ over the auxiliaries
    lr: float  # η, the cap on the auxiliaries' learning rate
    global_lr: float  # η_θ
    step_size: float  # η̂ = η_θ / mean ρ
    contraction: float  # Lipschitz constant of the proximal operator


@dataclass(frozen=True, kw_only=True)
class Header:
    """What does not change during a run."""

    method: str
    examples: int
    auxiliaries: int  # K, also the constant that sums are divided by
    batches: int  # M, steps in an epoch
    memory: str  # auxiliary | shared | none
    sampling: str  # partition | poisson
    unit: str  # example | shard | user
    relation: str  # replace-one | add-remove
    blocks: tuple[Block, ...]
    per_example: bool = False  # every contribution belongs to one example, by construction
    rate: float = 1.0  # q, the probability that an example joins a mini-batch (poisson)
    reshuffle: bool = False  # an example's mini-batch changes from epoch to epoch
    preconditioner: str = "identity"
    regularizer: str = "none"
    weight_decay: float = 0.0
    auxiliary_weight_decay: float = 0.0
    gradient_bound: float | None = None  # on any example's gradient, by construction of the model
    smoothness: float | None = None  # of a convex loss, by construction of the model
    averaging: float = 0.0  # the model that leaves is a moving average of all iterates
    private: bool = True  # False when noise or sampling came from a fixed seed


@dataclass(frozen=True, kw_only=True)
class Run:
    """`steps` consecutive steps with one setting."""

    setting: Setting
    steps: int


@dataclass
class Ledger:
    """A header, the runs of equal steps, and what left the run besides the last iterate."""

    header: Header
    runs: list[Run] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def steps(self) -> int:
        return sum(run.steps for run in self.runs)

    @property
    def epochs(self) -> float:
        return self.steps / self.header.batches

    def append(self, setting: Setting, steps: int = 1) -> None:
        """Add steps; equal neighbours are merged."""
        if self.runs and self.runs[-1].setting == setting:
            steps += self.runs.pop().steps
        self.runs.append(Run(setting=setting, steps=steps))

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Read a ledger file, checking its hash chain.

        A torn last line is what an interrupted run leaves behind; since lines are written before
        the step they announce, that step never ran. Any other damage is refused.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise InputError(f"{path}: cannot read the ledger ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a ledger (it is not text)") from None
        ledger: Ledger | None = None
        setting: Setting | None = None
        for number, record in _verified(path, text):
            try:
                match record["kind"]:
                    case "header" if ledger is None:
                        ledger = cls(_header(record))
                    case "setting" if ledger is not None and not ledger.closed:
                        setting = _setting(record, len(ledger.header.blocks))
                    case "step" if ledger is not None and setting is not None and not ledger.closed:
                        if record["step"] != ledger.steps:
                            raise ValueError("steps are not consecutive")
                        ledger.append(setting)
                    case "export" if ledger is not None:
                        ledger.exports.append(str(record["what"]))
                    case "end" if ledger is not None and record["steps"] == ledger.steps:
                        ledger.closed = True
                    case kind:
                        raise ValueError(f"a record of kind {kind!r} cannot stand here")
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{path}: line {number} of the ledger is damaged ({error})"
                ) from None
        if ledger is None:
            raise InputError(f"{path}: not a ledger (it has no header)")
        return ledger


class LedgerWriter:
    """Appends to a ledger in memory and, once a file is open, to that.

    Guarantees: `step` returns only after the record of the step was handed to the operating system.
    """

    def __init__(self, header: Header):
        self.ledger = Ledger(header)
        self._hash = ""
        self._setting: Setting | None = None
        self._file: TextIO | None = None

    def open(self, path: str | Path) -> None:
        """Write to a new file from now on, before the first step."""
        if self.ledger.runs or self._file is not None:
            raise InputError(f"{path}: a ledger's file must be opened before the first step")
        self._file = open(path, "x", encoding="utf-8")  # noqa: SIM115 - closed by close()
        header = asdict(self.ledger.header)
        self._write({"kind": "header", "format": FORMAT, **header})

    def reopen(self, path: str | Path) -> None:
        """Continue the file of a run that was interrupted; a torn last line is cut off.

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
        self.ledger, self._hash = found, records[-1]["hash"]
        latest = next((r for r in reversed(records) if r["kind"] == "setting"), None)
        self._setting = latest and _setting(latest, len(found.header.blocks))
        self._file = open(path, "r+", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._file.truncate(len(text))
        self._file.seek(0, 2)

    def step(self, setting: Setting) -> None:
        """Record one step, before it is taken."""
        if setting != self._setting:
            self._setting = setting
            self._write({"kind": "setting", **asdict(setting)})
        self._write({"kind": "step", "step": self.ledger.steps})
        self.ledger.append(setting)

    def export(self, what: str) -> None:
        """Record that something besides the last iterate leaves the run."""
        self._write({"kind": "export", "what": what})
        self.ledger.exports.append(what)

    def close(self) -> None:
        """Record that the run ended on purpose; nothing may follow."""
        if not self.ledger.closed:
            self._write({"kind": "end", "steps": self.ledger.steps})
            self.ledger.closed = True
        self.pause()

    def pause(self) -> None:
        """Close the file of a run that was interrupted and may be continued."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._hash = _chain(self._hash, record)
            self._file.write(json.dumps({**record, "hash": self._hash}) + "\n")
            self._file.flush()


def _chain(previous: str, record: dict[str, Any]) -> str:
    body = json.dumps(record, sort_keys=True)
    return hashlib.sha256((previous + body).encode()).hexdigest()[:32]


def _verified(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    previous = ""
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            record = json.loads(line)
            found = record.pop("hash")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise InputError(f"{path}: line {number} of the ledger is damaged") from None
        previous = _chain(previous, record)
        if found != previous:
            raise InputError(
                f"{path}: line {number} of the ledger does not match its hash; it was changed "
                "after it was written"
            )
        yield number, record


def _header(record: dict[str, Any]) -> Header:
    if record.pop("format") != FORMAT:
        raise ValueError("unknown format")
    values = {f.name: record[f.name] for f in fields(Header) if f.name in record}
    values["blocks"] = tuple(Block(**block) for block in record["blocks"])
    return Header(**values)


def _setting(record: dict[str, Any], blocks: int) -> Setting:
    values = {f.name: record[f.name] for f in fields(Setting)}
    for name in ("clip", "noise"):
        values[name] = tuple(float(x) for x in values[name])
        if len(values[name]) != blocks:
            raise ValueError(f"{name} has {len(values[name])} entries for {blocks} blocks")
    return Setting(**values)
