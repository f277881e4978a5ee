"""Runs survive crashes, full disks and damaged files; what cannot go on says why in one sentence.

`python -m tests.kills` does the first of these tests a hundred times.
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdt import config
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.files import write_atomically
from dpdt.ledger import Ledger, LedgerWriter, Setting, Stretch
from dpdt.runs import Run, checkpoint
from dpdt.training import recorded
from dpdt.training import run as running
from dpdt.training.pace import Pace
from dpdt.training.recorder import Recorder
from dpdt.training.run import run
from tests.training.interrupted import cut

EXAMPLES = int(os.environ.get("DPDT_EXAMPLES", "100"))
SMALL = ("train.epochs=6", "privacy.noise_seed=1", "train.checkpoint=2")
ROOT = Path(__file__).parents[2]


def chosen(*overrides):
    return config.load("digits", (*SMALL, *overrides))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was interrupted after four steps, and one that was not."""
    home = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, chosen(), home / "cut")
    run(chosen(), home / "whole", show_progress=False)
    return home


@pytest.fixture
def folder(begun, tmp_path):
    shutil.copytree(begun / "cut", tmp_path / "cut")
    return tmp_path / "cut"


def resume(path, *overrides):
    return run(chosen(*overrides), path, show_progress=False, resume=True)


def refused(path, *overrides):
    """The sentence by which a run is not resumed."""
    with pytest.raises(InputError) as caught:
        resume(path, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def model(path):
    return (path / "private" / "model.safetensors").read_bytes()


def test_killed_anywhere_and_resumed_a_run_is_the_undisturbed_one(tmp_path):
    """In a process of its own, which forks: this one has threads."""
    script = "import sys, tests.kills as k, pathlib; print(k.kill(5, 3, ['auxiliary'], " \
        "pathlib.Path(sys.argv[1]), ('line', 'write', 'call', 'power'))['kills'])"  # fmt: skip
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    assert done.stdout == "5\n", done.stderr


# the checkpoint's file


def test_every_flipped_or_missing_byte_of_a_checkpoint_is_noticed(folder):
    path = folder / "private" / "checkpoint.pt"
    whole = path.read_bytes()
    generator = random.Random(1)
    places = {*range(64), *(generator.randrange(len(whole)) for _ in range(300)), len(whole) - 1}
    for place in places:
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises(InputError, match="damaged"):
            checkpoint.load(path)
    for kept in (0, 1, 47, 48, 49, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(InputError, match="says that it has" if kept >= 48 else "damaged"):
            checkpoint.load(path)
    path.write_bytes(whole + b"\0")
    assert "damaged" in refused(folder)
    path.write_bytes(whole)
    assert resume(folder).finished


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([0, 8, 16, 48]), st.booleans())
def test_whatever_a_checkpoint_begins_with_is_refused_or_right(saved, found, place, longer):
    path, state = saved
    whole = path.with_name("whole").read_bytes()
    rest = place if longer else place + len(found)
    path.write_bytes(whole[:place] + found + whole[rest:])
    same = path.read_bytes() == whole
    with nullcontext() if same else pytest.raises(InputError, match=r"^[^\n]*damaged[^\n]*$"):
        assert repr(checkpoint.load(path)) == state


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "checkpoint"
    state = {"a": torch.arange(7.0), "b": [1, "two", 2**100]}
    checkpoint.save(path, state)
    shutil.copy(path, path.with_name("whole"))
    return path, repr(state)


def test_no_code_in_a_checkpoint_is_run(tmp_path):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    checkpoint.save(tmp_path / "checkpoint", {"a": Code()})
    with pytest.raises(InputError, match="the checkpoint cannot be read") as refused:
        checkpoint.load(tmp_path / "checkpoint")
    assert "weights_only" not in str(refused.value)  # torch advises to run it
    assert not (tmp_path / "ran").exists()


# what is there when a run is resumed


def test_torn_metrics_are_left_out(begun, folder):
    for path in (folder / "metrics.jsonl", folder / "private" / "metrics.jsonl"):
        path.write_bytes(path.read_bytes() + b'{"epoch": 9, "st')
    resume(folder)
    whole = begun / "whole"
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert [r["loss"] for r in Run(folder).private_metrics()] == [
        r["loss"] for r in Run(whole).private_metrics()
    ]
    assert model(folder) == model(whole)


def test_the_record_of_an_epoch_that_was_interrupted_is_whole(tmp_path, monkeypatch):
    plain = ("sampling='partition'", "preconditioner='identity'", "lr=0.1", "penalty=1.0")
    overrides = ("train.batch_size=400", "train.epochs=2", *(f"method.{p}" for p in plain))
    run(chosen(*overrides), tmp_path / "whole", show_progress=False)
    cut(monkeypatch, chosen(*overrides), tmp_path / "cut", steps=4)
    resume(tmp_path / "cut", *overrides)
    one, other = (Run(tmp_path / n).private_metrics() for n in ("whole", "cut"))
    assert [{**r, "seconds": 0} for r in one] == [{**r, "seconds": 0} for r in other]


def test_a_run_that_was_killed_after_its_end_is_finished_again(begun, folder):
    """The ledger is closed, and neither the model nor the end of the checkpoint was reached."""
    state = (folder / "private" / "checkpoint.pt").read_bytes()
    resume(folder)
    ledger = (folder / "ledger.jsonl").read_bytes()
    (folder / "private" / "model.safetensors").unlink()
    (folder / "private" / "checkpoint.pt").write_bytes(state)
    assert resume(folder).finished
    assert (folder / "ledger.jsonl").read_bytes() == ledger
    assert model(folder) == model(begun / "whole")
    assert "has no checkpoint, since the run was finished" in refused(folder)


def test_a_ledger_that_has_ended_takes_no_step(begun):
    path = begun / "whole" / "ledger.jsonl"
    found = Ledger.read(path)
    writer = LedgerWriter(found.header)
    writer.reopen(path, repeats=True)
    with pytest.raises(InputError, match="has ended, and no step may follow"):
        writer.step(found.runs[0].setting, 0)


def test_a_run_that_stopped_before_its_first_step_says_so(folder, tmp_path):
    said = "stopped before its first step, so nothing was spent"
    (folder / "private" / "checkpoint.pt").unlink()
    assert "it was removed after the run began" in refused(folder)
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for content in (lines[0], lines[0][:-9], b""):
        (folder / "ledger.jsonl").write_bytes(content)
        assert said not in refused(folder)  # more is known of it
    (folder / "metrics.jsonl").unlink()
    (folder / "private" / "tail.json").unlink()
    for content in (lines[0], lines[0][:-9], b""):
        (folder / "ledger.jsonl").write_bytes(content)
        assert said in refused(folder)
    (folder / "ledger.jsonl").unlink()
    assert "the run has begun; what it spent is not known" in refused(folder)
    for path in (folder / "private").iterdir():
        path.unlink()
    assert said in refused(folder)
    assert "not the folder of a run" in refused(tmp_path)


def test_a_ledger_that_was_cut_is_refused(folder):
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    steps = [i for i, line in enumerate(lines) if b'"kind": "step"' in line]
    path.write_bytes(b"".join(lines[: steps[-1]]))
    assert "metrics.jsonl says that step 4 was taken; it was cut" in refused(folder)
    (folder / "metrics.jsonl").unlink()
    assert "tail.json; it was cut or changed" in refused(folder)
    (folder / "private" / "tail.json").unlink()
    assert "does not begin with the steps of the checkpoint: it was cut" in refused(folder)


def test_without_private_a_run_does_not_go_on(folder):
    shutil.rmtree(folder / "private")
    assert "private: is missing" in refused(folder)


def test_an_edited_configuration_is_refused(folder):
    said = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(said.replace("\nseed = 0", "\nseed = 1"))
    edited = Run.open(folder).config
    assert edited != chosen()
    with pytest.raises(InputError, match="the configuration changed since"):
        run(edited, folder, show_progress=False, resume=True)


def test_what_replaces_a_file_is_on_the_disk_first(tmp_path, monkeypatch):
    done = []
    for name in ("write", "fsync", "replace"):
        inner = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *given, n=name, f=inner: done.append((n, kind(given))) or f(*given)
        )
    write_atomically(tmp_path / "file", b"new")
    assert [n for n, _ in done] == ["write", "fsync", "replace", "fsync"]
    assert [k for n, k in done if n == "fsync"] == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == b"new"


def kind(given):
    return "folder" if os.path.isdir(f"/proc/self/fd/{given[0]}") else "file"


def test_a_model_that_cannot_be_kept_leaves_a_run_that_goes_on(begun, folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_model", not_saved)
        assert "model.safetensors: cannot be written (No space" in refused(folder)
    assert Ledger.read(folder / "ledger.jsonl").closed
    assert resume(folder).finished
    assert model(folder) == model(begun / "whole")


def not_saved(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# one process at a time


def test_a_second_process_is_told_that_one_is_writing(folder):
    with Run(folder).locked():
        assert "another process is writing to this run" in refused(folder)
    assert resume(folder).finished


def test_a_forked_process_does_not_keep_the_lock(folder):
    with Run(folder).locked():
        (asked, ask), (told, tell) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b".")
            os.read(asked, 1)
            os._exit(0)
        os.read(told, 1)  # the child is there
    with Run(folder).locked():
        pass
    os.write(ask, b".")
    os.waitpid(child, 0)


def test_whoever_locks_removes_what_a_crash_left(folder):
    left = [folder / "result.json.part", folder / "private" / "checkpoint.pt.part"]
    for path in left:
        path.write_bytes(b"half")
    with Run(folder).locked():
        assert not any(path.exists() for path in left)


# a full disk


def full(patch, allowed):
    """From now on so many bytes can be written."""
    inner, left = os.write, [allowed]

    def write(file, data):
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = inner(file, bytes(data)[: left[0]])
        left[0] -= written
        return written

    patch.setattr(os, "write", write)


@pytest.mark.parametrize("allowed", [0, 100, 200, 700, 3000])
def test_a_full_disk_ends_a_run_that_goes_on_later(allowed, begun, folder, monkeypatch):
    with monkeypatch.context() as patch:
        full(patch, allowed)
        said = refused(folder)
    assert "cannot be written (No space left on device)" in said
    assert f"dpdt train --resume {folder} goes on" in said
    assert not list(folder.rglob("*.part"))
    assert resume(folder).finished
    assert model(folder) == model(begun / "whole")
    assert (
        Ledger.read(folder / "ledger.jsonl").runs == Ledger.read(begun / "whole/ledger.jsonl").runs
    )


def test_a_step_that_cannot_be_recorded_is_not_taken(tmp_path, monkeypatch):
    """And the ledger goes on after its last whole line, when there is space again."""
    setting = Setting(
        clip=(1.0,), noise=(1.0,), penalty=1.0, lr=0.1, global_lr=1.0, step_size=1.0,
        contraction=1.0,
    )  # fmt: skip
    header = Ledger.read(made(tmp_path)).header
    setting = replace(setting, clip=(1.0,) * len(header.blocks), noise=(1.0,) * len(header.blocks))
    writer = LedgerWriter(header)
    writer.open(tmp_path / "ledger")
    writer.step(setting)
    for allowed in (0, 1, 60):
        with monkeypatch.context() as patch:
            full(patch, allowed)
            with pytest.raises(InputError, match="No space left"):
                writer.step(setting)
        assert Ledger.read(tmp_path / "ledger").steps == writer.ledger.steps == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(InputError, match="Input/output error"):
            writer.step(setting)
    writer.step(setting)
    assert Ledger.read(tmp_path / "ledger").steps >= 2


def failing(file):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def made(tmp_path):
    path = tmp_path / "run"
    run(config.load("digits", ("train.epochs=1",)), path, show_progress=False)
    return path / "ledger.jsonl"


def test_a_disk_that_is_full_at_the_start_costs_nothing(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        full(patch, 5_000)
        with pytest.raises(InputError, match=r"checkpoint.pt: cannot be written .No space left"):
            run(chosen(), tmp_path / "run", show_progress=False)
    assert "stopped before its first step" in refused(tmp_path / "run")


# signals, and when checkpoints are written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint(number, begun, tmp_path, monkeypatch):
    inner = Recorder.on_step

    def on_step(self, result, batch):
        if batch.step == 2:
            os.kill(os.getpid(), number)
        inner(self, result, batch)

    outside = signal.signal(number, signal.SIG_DFL)  # nohup, for one, ignores SIGHUP
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "on_step", on_step)
            outcome = run(chosen(), tmp_path / "run", show_progress=False)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, outside)
    assert (outcome.finished, outcome.steps, outcome.status) == (False, 3, 128 + number)
    assert resume(tmp_path / "run").status == 0
    assert model(tmp_path / "run") == model(begun / "whole")


def test_a_second_signal_ends_at_once():
    with running.Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Talking(World):
    """Two ranks, of which this is the first; it counts exchanges."""

    talks = 0
    alone = property(lambda self: False)

    def from_first(self, value):
        self.talks += 1
        return value


def taken(setting, world, seconds, cost, steps):
    """After which steps checkpoints are taken, if each step and each checkpoint takes so long."""
    clock = Clock()
    pace, found = Pace(setting, world, clock), []
    for step in range(1, steps + 1):
        clock.now += seconds
        if pace.due(step):
            began = clock.now
            clock.now += cost
            pace.taken(step, began)
            found.append(step)
    return found


def test_checkpoints_keep_their_pace():
    assert taken(3, World(), 1.0, 1.0, 10) == [3, 6, 9]
    assert taken("4s", World(), 1.0, 0.0, 10) == [4, 8]
    assert taken("1m", World(), 29.0, 9.0, 6) == [3, 6]
    assert taken("auto", World(), 1.0, 0.01, 11) == [5, 10]  # 1% of the time
    assert taken("auto", World(), 1.0, 1.0, 120) == [5, 55, 105]  # 2%


def test_ranks_seldom_talk_about_checkpoints():
    world = Talking()
    found = taken("auto", world, 0.01, 0.1, 10_000)
    assert found[0] <= 1000  # five seconds are 500 steps; twice that at most
    assert 0.01 <= len(found) * 0.1 / 100 <= 0.025
    assert world.talks < 12 * (len(found) + 1)


@pytest.mark.parametrize("wrong", ["0", "-1", "true", "'5'", "'0s'", "'5h'", "1.5", "''"])
def test_what_is_no_pace_is_refused(wrong):
    with pytest.raises(InputError, match=r"train.checkpoint: must be a number of steps, or a time"):
        config.load("digits", (f"train.checkpoint={wrong}",))


# long runs


def setting_of(number):
    return Setting(
        clip=(1.0,), noise=(float(number),), penalty=1.0, lr=0.1, global_lr=1.0, step_size=1.0,
        contraction=1.0,
    )  # fmt: skip


def stretches(draws):
    ledger = Ledger.__new__(Ledger)
    ledger.runs = []
    place = 0
    for number, steps, back in draws:
        place = max(0, place - back)
        ledger.append(setting_of(number), steps, place)
        place += steps
    return ledger.runs


def listed(runs):
    return [(run.start + i, run.setting) for run in runs for i in range(run.steps)]


DRAWS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(0, 2)), max_size=6)


@settings(max_examples=EXAMPLES, deadline=None)
@given(DRAWS, DRAWS, st.integers(0, 12), st.integers(0, 12))
def test_runs_of_equal_steps_are_compared_as_their_steps_would_be(one, other, first, last):
    a, b = stretches(one), stretches(other)
    assert listed(recorded.between(a, first, last)) == listed(a)[first:last]
    assert recorded.begins_with(a, b) == (listed(a)[: len(listed(b))] == listed(b))
    plan = [(run.setting, run.steps) for run in b]
    steps = [setting for setting, number in plan for _ in range(number)]
    right = all(n < len(steps) and steps[n] == setting for n, setting in listed(a))
    since = listed(a)[first:]
    follows = [n for n, _ in since] == list(range(first, first + len(since)))
    try:
        recorded.refuse_unplanned(a, recorded.between(a, first, 99), first, plan)
        assert right
        assert follows
    except InputError:
        assert not (right and follows)


def test_a_run_of_very_many_steps_is_compared_at_once():
    long = [Stretch(setting=setting_of(0), steps=10**12, start=0)]
    assert recorded.begins_with(long, [replace(long[0], steps=10**11)])
    since = recorded.between(long, 10**11, 10**12)
    recorded.refuse_unplanned(long, since, 10**11, [(setting_of(0), 10**12)])
    assert json.dumps([run.steps for run in since]) == "[900000000000]"
