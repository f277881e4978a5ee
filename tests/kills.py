"""Kills runs at random moments, resumes them, and compares them with runs that nobody disturbed.

    python -m tests.kills                  100 kills, some minutes on one core
    python -m tests.kills --kills 1000 --seed 7

Each kill is one of these, at a moment that a generator draws:

  line    SIGKILL before a line of Python in a file that writes
  write   SIGKILL inside a write: a part of the bytes is written
  call    SIGKILL before or after a write, fsync, rename or removal
  power   the same, and what had not been brought to the disk is lost, as by a power cut
  clock   SIGKILL from outside, after some time

Some runs begin anew, with noise of a fixed seed. The others go on from the first checkpoint of one
run, with its secret noise. After each kill the ledger must have at least the steps whose batches
were read. Each killed run is resumed, and perhaps killed again, until it is finished. Then model,
ledger and metrics must be those of the undisturbed run, to the byte.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from dpdt import config, seal
from dpdt.config import plan_of
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.training.loader import Loader
from dpdt.training.recorder import Recorder
from dpdt.training.run import load, run

KINDS = ("line", "write", "call", "power", "clock")
WATCHED = ("/files.py", "/runs/", "/ledger/writer.py", "/training/")  # where lines are counted
COMMON = ("train.epochs=4", "train.batch_size=360", "train.checkpoint=3", "method.lr=0.1")
DPDT = ("method.penalty=1.0", "method.preconditioner=identity", "method.auxiliaries=6")
METHODS = {
    "auxiliary": ("dpdt", (*DPDT, "method.memory=auxiliary", "method.sampling=partition")),
    "shared": ("dpdt", (*DPDT, "method.memory=shared", "method.sampling=partition")),
    "shared, poisson": ("dpdt", (*DPDT, "method.memory=shared", "method.sampling=poisson")),
    "none": ("dpdt", (*DPDT, "method.memory=none", "method.sampling=poisson")),
    "average": ("dpdt", (*DPDT, "method.memory=none", "method.averaging=0.9")),
    "dpsgd": ("dpsgd", ()),
}


class Killer:
    """In a child process: counts, and kills at the moment that was drawn."""

    def __init__(self, kind: str, moment: int, part: float):
        self.kind, self.left, self.part = kind, moment, part
        self.synced: dict[str, int] = {}  # how much of a file is on the disk
        self.renamed: list[tuple[Path, Path | None]] = []  # and not brought to the disk yet

    def install(self) -> None:
        if self.kind == "line":
            sys.settrace(self._trace)
        elif self.kind != "clock":
            for name in ("write", "fsync", "fdatasync", "replace", "unlink", "ftruncate"):
                self._wrap(name, getattr(os, name))

    def _trace(self, frame, event, argument):
        if not any(part in frame.f_code.co_filename for part in WATCHED):
            return None
        if event == "line":
            self.count()
        return self._trace

    def _wrap(self, name, inner):
        def wrapped(*given):
            if self.kind == "write" and name == "write" and self.left == 1:
                inner(given[0], bytes(given[1])[: int(self.part * len(given[1]))])
            self.count()
            self._remember(name, given)
            found = inner(*given)
            self._settle(name, given)
            if self.kind != "write":
                self.count()
            return found

        setattr(os, name, wrapped)

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.kind == "power":
                self._cut()
            os.kill(os.getpid(), signal.SIGKILL)

    def _remember(self, name, given):
        """What a power cut would bring back."""
        if self.kind != "power":
            return
        if name == "write":
            path = os.readlink(f"/proc/self/fd/{given[0]}")
            self.synced.setdefault(path, os.fstat(given[0]).st_size)
        if name == "replace":
            old, new = (Path(p).absolute() for p in given)
            kept = None
            if new.exists():
                kept = new.with_name(f"{new.name}.old{len(self.renamed)}")
                kept.unlink(missing_ok=True)
                kept.hardlink_to(new)
            self.renamed.append((new, kept))
            self.synced[str(new)] = self.synced.pop(str(old), old.stat().st_size)

    def _settle(self, name, given):
        """What is on the disk now."""
        if self.kind != "power" or name not in ("fsync", "fdatasync"):
            return
        path = Path(os.readlink(f"/proc/self/fd/{given[0]}"))
        if not path.is_dir():
            self.synced[str(path)] = path.stat().st_size
            return
        for new, kept in self.renamed:
            if kept and new.parent == path:
                kept.unlink()
        self.renamed = [(new, kept) for new, kept in self.renamed if new.parent != path]

    def _cut(self):
        for name, length in self.synced.items():
            path = Path(name)
            if path.is_file():
                size = path.stat().st_size
                os.truncate(path, length + int(self.part * max(0, size - length)))
        for new, kept in reversed(self.renamed):
            if kept is None:
                new.unlink(missing_ok=True)
            else:
                kept.rename(new)


class AfterCheckpoint:
    """Kills right after the first checkpoint."""

    def install(self) -> None:
        inner = Recorder.checkpoint

        def checkpoint(recorder):
            inner(recorder)
            os.kill(os.getpid(), signal.SIGKILL)

        Recorder.checkpoint = checkpoint


class Child:
    """A forked process that trains. `taken` counts the steps whose batches were read."""

    def __init__(self, chosen, examples, path: Path, resume: bool, killer: Any):
        self.counter = mmap.mmap(-1, 8)
        self.report = path.parent / f"{path.name}.said"
        self.pid = os.fork()
        if self.pid == 0:
            self._train(chosen, examples, path, resume, killer)

    def _train(self, chosen, examples, path, resume, killer):
        status = 1
        try:
            inner = Loader._batch

            def batch(loader, step):
                self.counter[:] = struct.pack("q", max(self.taken, step + 1))
                return inner(loader, step)

            Loader._batch = batch
            seal.sealed = lambda *given: "0" * 128  # which is fresh in every run
            if killer is not None:
                killer.install()
            run(chosen, path, show_progress=False, examples=examples, resume=resume)
            status = 0
        except InputError as error:
            self.report.write_text(str(error))
            status = 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    @property
    def taken(self) -> int:
        return struct.unpack("q", self.counter[:])[0]

    def end(self) -> int:
        """The exit status, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def compared(path: Path) -> dict[str, object]:
    """All that must be equal."""
    private = path / "private"
    found: dict[str, object] = {
        name: (path / name).read_bytes()
        for name in ("ledger.jsonl", "metrics.jsonl", "private/model.safetensors")
    }
    for name in ("metrics.jsonl", "diagnostics.jsonl"):
        if (private / name).is_file():
            records = map(json.loads, (private / name).read_text().splitlines())
            found[f"private/{name}"] = [{**r, "seconds": None} for r in records]
    found["left"] = sorted(p.name for p in (*path.iterdir(), *private.iterdir()))
    return found


class Trial:
    """Runs of one configuration that are killed and resumed."""

    def __init__(self, name: str, fresh: bool, home: Path, generator: random.Random):
        method, overrides = METHODS[name]
        seeded = ("privacy.noise_seed=5",) if fresh else ()
        self.name, self.fresh, self.home, self.generator = name, fresh, home, generator
        self.config = config.load("digits", (*COMMON, *overrides, *seeded), method=method)
        self.examples = load(self.config)
        plan_of(self.config)  # the noise is calibrated once, not in each child
        self.start = None if fresh else self._first_checkpoint()
        whole, began = self._begin("whole"), time.monotonic()
        child = self._child(whole, not fresh, None)
        assert child.end() == 0, f"{name}: the undisturbed run failed"
        self.seconds = time.monotonic() - began
        self.expected, self.steps = compared(whole), child.taken
        assert "checkpoint.pt" not in self.expected["left"]

    def _child(self, path: Path, resume: bool, killer: Any) -> Child:
        return Child(self.config, self.examples, path, resume, killer)

    def _first_checkpoint(self) -> Path:
        """A run's folder right after its first checkpoint, with the secret noise in it."""
        path = self.home / "first"
        assert self._child(path, False, AfterCheckpoint()).end() == -signal.SIGKILL
        assert Ledger.read(path / "ledger.jsonl").steps == 0
        return path

    def _begin(self, name: str) -> Path:
        path = self.home / name
        if self.start is not None:
            shutil.copytree(self.start, path)
        return path

    def _killer(self, kind: str) -> Killer:
        moments = {"line": 6000, "write": 300, "call": 700, "power": 700, "clock": 1}
        moment = 1 + int(moments[kind] * self.generator.random() ** 2)  # a resumed run is shorter
        return Killer(kind, moment, self.generator.random())

    def once(self, number: int, kinds: list[str]) -> int:
        """One run, killed in the ways of `kinds` one after the other, then finished; the kills."""
        path, kills, taken = self._begin(f"run{number}"), 0, 0
        resume = self.start is not None
        for kind in [*kinds, ""]:
            child = self._child(path, resume, self._killer(kind) if kind else None)
            if kind == "clock":
                time.sleep(self.generator.uniform(0.0, self.seconds))
                os.kill(child.pid, signal.SIGKILL)
            status, taken = child.end(), max(taken, child.taken)
            if status == 0:
                break
            if status == 2:
                self._begin_again(path, child, taken)
                resume = False
                continue
            assert status == -signal.SIGKILL, f"{self.name}, {kind}: ended with {status}"
            kills += 1
            self._check_ledger(path, taken)
            resume = path.exists()
        else:
            assert self._child(path, resume, None).end() == 0, f"{self.name}: could not be resumed"
        found = compared(path)
        for name, value in self.expected.items():
            assert found[name] == value, (
                f"{path}, killed by {kinds}: {name} is not that of the undisturbed run:\n"
                f"{found[name]!r:.2000}\n{value!r:.2000}"
            )
        shutil.rmtree(path)
        return kills

    def _begin_again(self, path: Path, child: Child, taken: int) -> None:
        """Only a run that stopped before its first step may be refused."""
        said = child.report.read_text()
        assert "stopped before its first step" in said or "not the folder of a run" in said, said
        assert taken == 0, f"{path}: is refused though {taken} steps were taken"
        shutil.rmtree(path, ignore_errors=True)

    def _check_ledger(self, path: Path, taken: int) -> None:
        file = path / "ledger.jsonl"
        if taken == 0 and not (file.is_file() and b"\n" in file.read_bytes()):
            return
        recorded = Ledger.read(file).steps
        assert recorded >= taken, f"{path}: {taken} steps were taken, the ledger has {recorded}"


def kill(number: int, seed: int, names: list[str], home: Path, kinds=KINDS) -> dict[str, int]:
    """Kill runs `number` times in all; how often in which way."""
    torch.set_num_threads(1)
    generator = random.Random(seed)
    trials: dict[tuple[str, bool], Trial] = {}
    counts = {"kills": 0, "runs": 0}
    while counts["kills"] < number:
        key = (names[counts["runs"] % len(names)], generator.random() < 0.5)
        if key not in trials:
            folder = home / f"{key[0]}-{key[1]}"
            folder.mkdir()
            trials[key] = Trial(*key, folder, generator)
        ways = generator.choices(kinds, k=min(4, number - counts["kills"]))
        counts["kills"] += trials[key].once(counts["runs"], ways)
        counts["runs"] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        found = kill(given.kills, given.seed, list(METHODS), Path(home))
    print(
        f"{found['kills']} kills of {found['runs']} runs (seed {given.seed}): every run was "
        "finished, with the model, ledger and metrics of the undisturbed run to the byte; no "
        f"ledger was short ({time.monotonic() - began:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
