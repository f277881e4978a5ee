"""What a run did, as far as privacy is concerned.

It is the one thing that passes from training to accounting. A ledger holds everything an
accountant may need and nothing private. In memory it is run-length coded: a list of `Run`s, each a
`Setting` and how many consecutive steps used it. On disk it is JSON lines, appended as the run goes
and written *ahead* of each step, so that a run that was cut short still knows what it spent.

Every line carries a hash over itself and the line before it. The chain is there for accidents: it
notices a line that was lost, doubled or damaged. It is no protection against forgery, since anyone
can compute it anew. A tail that was cut off leaves a chain that is whole; the only sign is that the
ledger was not closed, which is said wherever its ε is shown.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from dpdt.errors import InputError

FORMAT = 2
SYNC = 1.0  # seconds: a step's record reaches the disk within them, and before anything leaves


KNOWN = {
    "method": ("dpdt", "dpsgd", "gep", "pate", "plain"),
    "memory": ("auxiliary", "shared", "none"),
    "sampling": ("partition", "poisson"),
    "unit": ("example", "shard", "user"),
    "relation": ("replace-one", "add-remove"),
    "preconditioner": ("identity", "rmsprop", "adam", "public"),
    "regularizer": ("none", "l2", "l1"),
    "release": ("all", "last"),
}


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
    spacing: tuple[float, ...] = ()  # of the lattice that a block's noisy mean lies on
    rounding: tuple[float, ...] = ()  # what rounding can add to the sensitivity of a block's mean


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
    one_penalty: bool = True  # all auxiliaries have the same ρ
    release: str = "all"  # what may be seen: all iterates, or only the "last"
    private: bool = True  # False when noise or sampling came from a fixed seed

    def __post_init__(self) -> None:
        for name, options in KNOWN.items():
            if getattr(self, name) not in options:
                found = getattr(self, name)
                raise InputError(f"{name} is {found!r}, which this version does not know")


@dataclass(frozen=True, kw_only=True)
class Run:
    """`steps` consecutive steps with one setting; the first is number `start` of the plan.

    Runs follow each other without a gap, unless a state was loaded and steps were taken again.
    """

    setting: Setting
    steps: int
    start: int = 0


@dataclass
class Ledger:
    """A header, the runs of equal steps, and what left the run besides the last iterate.

    `voids` are reasons why nothing is guaranteed: facts that were found out during the run.
    """

    header: Header
    runs: list[Run] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    voids: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def steps(self) -> int:
        return sum(run.steps for run in self.runs)

    @property
    def epochs(self) -> float:
        return self.steps / self.header.batches

    @property
    def position(self) -> int:
        """The number, in the plan, of the step that comes next."""
        return self.runs[-1].start + self.runs[-1].steps if self.runs else 0

    @property
    def reached(self) -> int:
        """How many steps of the plan were taken at least once."""
        return max((run.start + run.steps for run in self.runs), default=0)

    @property
    def repeats(self) -> bool:
        """Whether some step of the plan was taken more than once."""
        return self.steps != self.reached

    def append(self, setting: Setting, steps: int = 1, start: int | None = None) -> None:
        """Add steps, numbered from `start` (otherwise where the last ended); merges equal ones."""
        start = self.position if start is None else start
        if self.runs and self.runs[-1].setting == setting and self.position == start:
            last = self.runs.pop()
            steps, start = steps + last.steps, last.start
        self.runs.append(Run(setting=setting, steps=steps, start=start))

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Read a ledger file, checking its hash chain.

        A torn last line is what an interrupted run leaves behind; since lines are written before
        the step they announce, that step never ran. Any other damage is refused, and so is what
        this version does not know.
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
                        number_of = record["step"]
                        if not (type(number_of) is int and 0 <= number_of <= ledger.reached):
                            raise ValueError("steps are not consecutive")
                        ledger.append(setting, start=number_of)
                    case "export" if ledger is not None:
                        ledger.exports.append(str(record["what"]))
                    case "void" if ledger is not None:
                        ledger.voids.append(str(record["why"]))
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
    It is on the disk itself before anything leaves the run: `sync` is called by exports and by the
    end, must be called before a checkpoint is written, and else once in SYNC seconds. No step can
    be recorded after `pause` or `close`.
    """

    def __init__(self, header: Header):
        self.ledger = Ledger(header)
        self._hash = ""
        self._setting: Setting | None = None
        self._file: TextIO | None = None
        self._synced = 0.0
        self._ended = False

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
        found.voids += [why for why in self.ledger.voids if why not in found.voids]
        self.ledger, self._hash = found, records[-1]["hash"]
        latest = next((r for r in reversed(records) if r["kind"] == "setting"), None)
        self._setting = latest and _setting(latest, len(found.header.blocks))
        self._file = open(path, "r+", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._file.truncate(len(text))
        self._file.seek(0, 2)

    def adopt(self, runs: list[Run]) -> None:
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
        """Record one step, before it is taken; `number` is its own in the plan."""
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
        """Record that the run ended on purpose; nothing may follow."""
        if not self.ledger.closed:
            self._write({"kind": "end", "steps": self.ledger.steps})
            self.ledger.closed = True
        self.pause()

    def pause(self) -> None:
        """End what this writer records; a run that was interrupted may be continued by another."""
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
        if self._file is not None:
            self._hash = _chain(self._hash, record)
            self._file.write(json.dumps({**record, "hash": self._hash}) + "\n")
            self._file.flush()


def _sync_folder(path: Path) -> None:
    """Make a new file's name as durable as its content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
        raise ValueError(f"its format is not {FORMAT}, the one that this version knows")
    values = _fields(Header, record)
    values["blocks"] = tuple(Block(**block) for block in record["blocks"])
    return Header(**values)


def _setting(record: dict[str, Any], blocks: int) -> Setting:
    values = _fields(Setting, record)
    for name in ("clip", "noise", "spacing", "rounding"):
        values[name] = tuple(float(x) for x in values[name])
        empty = name in ("spacing", "rounding") and not values[name]
        if len(values[name]) != blocks and not empty:
            raise ValueError(f"{name} has {len(values[name])} entries for {blocks} blocks")
        if not all(math.isfinite(x) and x >= 0 for x in values[name]):
            raise ValueError(f"{name} must be finite and 0 or more")
    return Setting(**values)


def _fields(kind: type, record: dict[str, Any]) -> dict[str, Any]:
    """The values of a dataclass; an unknown key, or a missing one without default, is refused."""
    known = {f.name: f for f in fields(kind)}
    unknown = set(record) - set(known) - {"kind", "hash"}
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}")
    missing = [n for n, f in known.items() if n not in record and f.default is MISSING]
    if missing:
        raise ValueError(f"key {missing[0]!r} is missing")
    return {name: record[name] for name in known if name in record}
