"""The folder of a tune. When the tune has ended, it is the folder of the run that was chosen.

ledger.jsonl     what the whole tune costs, from before its first run on; at the end, that of the
                 run that was chosen
tune.json        which setting was chosen, and its score
private/         besides what a run has, until the end:
    coins.json       how many runs there are, their settings, and the noise on their scores: drawn
                     once, before anything is spent. Also how far the tune is
    candidates/      the configuration of every setting
    runs/            the best run so far, and the one that is being made
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import tomli_w

from dpdt.config import Config, load
from dpdt.errors import InputError
from dpdt.files import replacing, sync_folder, write_atomically
from dpdt.ledger import Ledger, text_of
from dpdt.runs import CHECKPOINT, CHOSEN, CONFIG, LOCK, METRICS, Run
from dpdt.runs.records import read

COINS, CANDIDATES, RUNS = "coins.json", "candidates", "runs"
NOTE = """\
# The run that a tune has chosen. Its privacy.epsilon is the share of one run, which set the noise.
# The result guarantees the ε of the whole tune: dpdt account says it, from the ledger.

"""


class Tune:
    """A folder in which a tune goes on."""

    def __init__(self, run: Run):
        self.run = run

    def begin(self, candidates: list[Config], ledger: Ledger, coins: dict[str, Any]) -> None:
        """Keep what was drawn. The ledger comes last: before it, nothing can be spent."""
        folder = self.run.private_path / CANDIDATES
        folder.mkdir()
        for number, config in enumerate(candidates):
            text = tomli_w.dumps(config.as_tables())
            write_atomically(folder / f"{number}.toml", text.encode())
        (self.run.private_path / RUNS).mkdir()
        self.keep(coins)
        write_atomically(self.run.ledger_path, text_of(ledger).encode())

    @property
    def own(self) -> tuple[Path, ...]:
        """Folders that a tune has in private/, before its first run."""
        return self.run.private_path / CANDIDATES, self.run.private_path / RUNS

    @property
    def ended(self) -> bool:
        return self.run.ledger().closed

    def coins(self) -> dict[str, Any]:
        """What was drawn, and how far the tune is."""
        path = self.run.private_path / COINS
        if not path.is_file():
            raise InputError(
                f"{path}: is missing, so the tune cannot go on; other coins would make another "
                "tune of it, and its ledger says what was spent"
            )
        return read(path)

    def keep(self, coins: dict[str, Any]) -> None:
        path = self.run.private_path / COINS
        with replacing(path) as part:
            part.touch(mode=0o600)
            part.write_bytes(json.dumps(coins).encode())

    def candidate(self, number: int) -> Config:
        return load(str(self.run.private_path / CANDIDATES / f"{number}.toml"))

    def folder(self, number: int) -> Run:
        """The folder of one of the tune's runs."""
        return Run(self.run.private_path / RUNS / str(number))

    def drop_all_but(self, *kept: int | None) -> None:
        """Delete the runs that have lost."""
        for path in (self.run.private_path / RUNS).iterdir():
            if path.name not in map(str, kept):
                shutil.rmtree(path)

    def choose(self, number: int, ledger: Ledger, record: dict[str, Any]) -> None:
        """Make one of the runs the one of this folder. A ledger that is closed comes last."""
        best = self.folder(number)
        skipped = shutil.ignore_patterns(CHECKPOINT, LOCK)
        shutil.copytree(
            best.private_path, self.run.private_path, ignore=skipped, dirs_exist_ok=True
        )
        for path in (*self.run.private_path.iterdir(), self.run.private_path):
            sync_folder(path)
        config = tomli_w.dumps(best.config.as_tables())
        write_atomically(self.run.path / CONFIG, (NOTE + config).encode())
        write_atomically(self.run.path / METRICS, (best.path / METRICS).read_bytes())
        write_atomically(self.run.path / CHOSEN, json.dumps(record, indent=2).encode())
        text = text_of(ledger)
        self.run.keep_tail(json.loads(text.splitlines()[-1])["hash"])
        write_atomically(self.run.ledger_path, text.encode())

    def chosen(self) -> dict[str, Any]:
        """Which setting was chosen, and its score."""
        return read(self.run.path / CHOSEN)

    def forget(self) -> None:
        """Delete the coins, and every run but the chosen one's."""
        for name in (RUNS, CANDIDATES):
            shutil.rmtree(self.run.private_path / name, ignore_errors=True)
        (self.run.private_path / COINS).unlink(missing_ok=True)
        sync_folder(self.run.private_path)


def opened(path: Path) -> Tune:
    """The folder of a tune that was begun before."""
    run = Run.open(path)
    if run.ledger().tuned is None:
        raise InputError(f"{path}: is the folder of a run, not of a tune")
    return Tune(run)
