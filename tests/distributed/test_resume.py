"""A run of several ranks goes on: bit for bit, or with fresh noise if their number is another."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpdt import config
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.runs import Run
from dpdt.training import run as running
from dpdt.training.run import run
from tests.distributed.cases import deep, examples, options_of
from tests.numbers import prepare
from tests.training.interrupted import Cut

REMEMBERS = (
    "method.memory=auxiliary", "method.sampling=partition", "method.auxiliaries=5", "method.lr=0.1",
    "method.penalty=1.0", "train.batch_size=300", "train.epochs=2", "method.preconditioner=rmsprop",
)  # fmt: skip


def go(overrides, path, resume=False, cut=None):
    """A run, whole or cut after some steps; the weights of its model, and who wrote."""
    before = running.Interrupt
    if cut is not None:
        running.Interrupt = type("Here", (Cut,), {"steps": cut})
    try:
        outcome = run(config.load("digits", overrides), path, show_progress=False, resume=resume)
    finally:
        running.Interrupt = before
    return {
        "steps": outcome.steps,
        "finished": outcome.finished,
        "epsilon": outcome.privacy.epsilon,
    }


def weights(path):
    from safetensors.torch import load_file

    return {k: v.numpy() for k, v in load_file(path / "private" / "model.safetensors").items()}


def equal(one, other):
    a, b = weights(one), weights(other)
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_as_many_ranks_go_on_bit_for_bit(group, tmp_path):
    fixed = (*REMEMBERS, "privacy.noise_seed=1")
    group.each(go, fixed, tmp_path / "whole")
    for found in group.each(go, fixed, tmp_path / "cut", False, 2):
        assert not found["finished"]
    state = (tmp_path / "cut" / "private" / "checkpoint.pt").read_bytes()
    group.each(go, fixed, tmp_path / "cut", True, 0)  # as in a crash, the ledger is ahead
    (tmp_path / "cut" / "private" / "checkpoint.pt").write_bytes(state)
    for found in group.each(go, fixed, tmp_path / "cut", True):
        assert found["finished"]
    assert equal(tmp_path / "whole", tmp_path / "cut")
    whole, resumed = (Ledger.read(tmp_path / n / "ledger.jsonl") for n in ("whole", "cut"))
    assert resumed.runs == whole.runs
    assert not resumed.repeats


def asked_on_one_rank(path):
    if torch.distributed.get_rank() == 1:
        return go(REMEMBERS, path, False, 3)
    return go(REMEMBERS, path)


def test_ctrl_c_on_one_rank_stops_all_after_the_same_step(group, tmp_path):
    for found in group.each(asked_on_one_rank, tmp_path / "run"):
        assert (found["steps"], found["finished"]) == (4, False)
    assert Run(tmp_path / "run").has_checkpoint


def draws(state):
    return state["secrets"]["noise"]["s"]["seed"]


def test_another_number_of_ranks_goes_on_with_fresh_noise_and_counts_again(group, tmp_path):
    """From many to one and back to many; steps that were taken again are recorded again."""
    cut, one = tmp_path / "cut", tmp_path / "one"
    group.each(go, REMEMBERS, cut, False, 2)
    first = Run(cut).load_checkpoint()
    state = (cut / "private" / "checkpoint.pt").read_bytes()
    group.each(go, REMEMBERS, cut, True, 0)
    (cut / "private" / "checkpoint.pt").write_bytes(state)
    assert Ledger.read(cut / "ledger.jsonl").steps == 4
    assert first["step"]["engine"]["memory"]["multiplier"].shape[0] == 5
    shutil.copytree(cut, one)
    found = go(REMEMBERS, one, True, 1)  # two steps, and again interrupted
    ledger = Ledger.read(one / "ledger.jsonl")
    assert [(r.start, r.steps) for r in ledger.runs] == [(0, 4), (3, 2)]
    assert (len(Ledger.read(cut / "ledger.jsonl").forks), len(ledger.forks)) == (0, 1)
    second = Run(one).load_checkpoint()
    assert draws(first) != draws(second)
    for found in group.each(go, REMEMBERS, one, True):
        assert found["finished"]
        total = Ledger.read(one / "ledger.jsonl")
        assert found["steps"] == total.steps == 4 + (total.reached - 3)
    for rank in group.each(go, REMEMBERS, tmp_path / "whole"):
        assert found["epsilon"] > rank["epsilon"]  # one step more was paid for


def test_fresh_noise_is_kept_before_it_is_drawn(group, tmp_path, monkeypatch):
    """Else the old checkpoint would be gone on from twice, with the noise of the first time."""
    group.each(go, REMEMBERS, tmp_path / "cut", False, 2)
    before = draws(Run(tmp_path / "cut").load_checkpoint())

    def stop(*_, **__):
        raise InputError("before the first step")

    monkeypatch.setattr(running, "fit", stop)
    with pytest.raises(InputError, match="before the first step"):
        go(REMEMBERS, tmp_path / "cut", True)
    assert draws(Run(tmp_path / "cut").load_checkpoint()) != before


def carried(path, load):
    """Python's own states: rank 0's is saved, and loaded into ranks of any number."""
    model = deep()
    step, loader = prepare(model, examples(), **options_of("auxiliary"))
    if load:
        state = torch.load(path, weights_only=True) if step.world.first else None
        step.load_state_dict(state)
    for batch in loader:
        if batch.step == 2 and not load:
            break
        step(batch)
    if not load:
        step.loader.move(2)
        state = step.state_dict()
        if step.world.first:
            torch.save(state, path)
        return None
    rows = step.state_dict()["engine"]["memory"]["multiplier"]
    return step.writer.ledger.steps, len(rows), step.engine.memory.multiplier.shape[0]


def test_a_state_is_carried_between_numbers_of_ranks(group, tmp_path):
    size = len(group.pipes)
    group.each(carried, tmp_path / "many", False)
    steps, rows, own = carried(tmp_path / "many", True)
    assert (rows, own) == (5, 5)
    carried(tmp_path / "one", False)
    found = group.each(carried, tmp_path / "one", True)
    assert [rows for _, rows, _ in found] == [5] + [0] * (size - 1)
    assert sum(own for _, _, own in found) == 5
    assert {n for n, _, _ in found} == {steps}


def asked(steps, state=None, runs=None):
    """PATE: some teachers and questions; or from a state, with a ledger that is ahead of it."""
    step, loader = prepare(deep(), examples(), **options_of("pate"))
    if state is not None:
        step.writer.ledger.runs += runs
        step.resume(state, None)
    batches = iter(loader)
    while step.engine.steps < steps:
        step(next(batches))
    return step


def test_questions_are_not_asked_again_with_fresh_noise():
    step = asked(7)
    state, runs = step.state_dict(), list(step.writer.ledger.runs)
    assert asked(8, state, runs).writer.ledger.steps == 8
    with pytest.raises(InputError, match="pate cannot go back"):
        asked(8, state, [*runs[:-1], replace(runs[-1], steps=runs[-1].steps + 1)])


def test_torchrun_starts_ranks_again_and_they_go_on_bit_for_bit(tmp_path):
    """Rank 1 is killed after the fourth step, and the ledger is ahead of the checkpoint."""
    script = Path(__file__).parent / "killed.py"
    root = script.parents[2]
    overrides = ("train.epochs=5", "privacy.noise_seed=1", "train.checkpoint=1")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts",
        "1", "--standalone", str(script), "3", "train", "digits", "--out",
        str(tmp_path / "run"), *(a for o in overrides for a in ("--set", o)),
    ]  # fmt: skip
    paths = os.pathsep.join([str(root / "src"), str(root)])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder") == 1
    found = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert (found.steps, found.closed, found.repeats) == (5, True, False)
