"""A ledger in memory, and how it is read from its file."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dpdt.errors import InputError
from dpdt.ledger.lines import (
    fork_of,
    header_of,
    lines,
    model_of,
    seal_of,
    setting_of,
    tuned_of,
    verified,
)
from dpdt.ledger.records import Header, Setting, Stretch, Tuned
from dpdt.reading import opened


@dataclass
class Ledger:
    """A header, the runs of equal steps, and what left the run besides the last iterate.

    `voids` are reasons why nothing is guaranteed: facts that were found out during the run.
    `model` is the hash of the weights that the run left, known only once it is closed. `data` is a
    sealed identity of the data, which says nothing to whoever has no key (seal.py). No two runs
    have the same. `forks` has a random number for each time that the run went on with fresh noise:
    two copies of a run may then differ from there on. `tuned` is the tune that the run is one of:
    what the whole tune costs is then what the run costs, from before its first step on.
    """

    header: Header
    runs: list[Stretch] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    voids: list[str] = field(default_factory=list)
    closed: bool = False
    model: str | None = None
    data: str = ""
    forks: list[str] = field(default_factory=list)
    tuned: Tuned | None = None

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
        """Add steps that are numbered from `start`, or else from where the last one ended.

        Consecutive steps of one setting become one run.
        """
        start = self.position if start is None else start
        if self.runs and self.runs[-1].setting == setting and self.position == start:
            last = self.runs.pop()
            steps, start = steps + last.steps, last.start
        self.runs.append(Stretch(setting=setting, steps=steps, start=start))

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Read a ledger file (see `parse`)."""
        path = Path(path)
        with opened(path) as file:
            return cls._of(lines(path, file), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Ledger:
        """Read the text of a ledger file, and check its hash chain; `path` is for messages.

        An interrupted run may leave a torn last line. A line is written before the step that it
        announces, so that step never ran. Any other damage is refused, and so is what this version
        does not know.
        """
        return cls._of(lines(path, io.BytesIO(text.encode("utf-8", "surrogatepass"))), path)

    @classmethod
    def _of(cls, lines: Iterable[bytes], path: Path) -> Ledger:
        ledger: Ledger | None = None
        setting: Setting | None = None
        reached = 0
        for number, record in verified(path, lines):
            try:
                match record["kind"]:
                    case "header" if ledger is None:
                        ledger = cls(header_of(record))
                    case "data" if ledger is not None and not (ledger.data or ledger.runs):
                        ledger.data = seal_of(record)
                    case "tuned" if ledger is not None and not (ledger.tuned or ledger.runs):
                        ledger.tuned = tuned_of(record, ledger.header)
                    case "setting" if ledger is not None and not ledger.closed:
                        setting = setting_of(record, len(ledger.header.blocks))
                    case "step" if ledger is not None and setting is not None and not ledger.closed:
                        number_of = record["step"]
                        if not (type(number_of) is int and 0 <= number_of <= reached):
                            raise ValueError("steps are not consecutive")
                        ledger.append(setting, start=number_of)
                        reached = max(reached, number_of + 1)
                    case "fork" if ledger is not None and not ledger.closed:
                        ledger.forks.append(fork_of(record))
                    case "export" if ledger is not None:
                        ledger.exports.append(str(record["what"]))
                    case "void" if ledger is not None:
                        ledger.voids.append(str(record["why"]))
                    case "end" if (
                        ledger is not None and not ledger.closed and record["steps"] == ledger.steps
                    ):
                        ledger.closed, ledger.model = True, model_of(record)
                    case kind:
                        raise ValueError(f"a record of kind {kind!r} cannot stand here")
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{path}: line {number} of the ledger is damaged ({error})"
                ) from None
        if ledger is None:
            raise InputError(f"{path}: not a ledger (it has no header)")
        return ledger
