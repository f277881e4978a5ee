"""An interrupted run goes on, or is refused.

That it goes on bit for bit is said of every method in tests/methods/test_conformance.py.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpdt import config
from dpdt.data.access import fingerprint
from dpdt.errors import InputError
from dpdt.ledger import Ledger, LedgerWriter
from dpdt.runs import Run
from dpdt.training import recorder
from dpdt.training import run as running
from dpdt.training.depends import MACHINE, surroundings
from dpdt.training.run import run
from tests.numbers import prepare
from tests.training.interrupted import cut

FIXED = ("privacy.noise_seed=1", "privacy.epsilon=8.0", "audit.canaries=20")


def test_steps_after_the_checkpoint_are_taken_again_but_recorded_once(tmp_path, monkeypatch):
    """As after a crash: the ledger is ahead of the checkpoint, and its last line is torn."""
    chosen = config.load("digits", ("train.epochs=8", *FIXED))
    cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
    state = (tmp_path / "cut" / "private" / "checkpoint.pt").read_bytes()
    cut(monkeypatch, chosen, tmp_path / "cut", steps=2, resume=True)
    (tmp_path / "cut" / "private" / "checkpoint.pt").write_bytes(state)
    ledger = tmp_path / "cut" / "ledger.jsonl"
    assert Ledger.read(ledger).steps == 6
    ledger.write_text(ledger.read_text() + '{"kind": "st')
    outcome = run(chosen, tmp_path / "cut", show_progress=False, resume=True)
    found = Ledger.read(ledger)
    assert (found.steps, found.closed, outcome.steps) == (8, True, 8)
    assert not found.repeats


def test_an_older_checkpoint_goes_on_with_fresh_noise_once_there_was_any(
    tmp_path, monkeypatch, capsys
):
    """Its own noise would answer again for steps that were taken with other noise since."""
    chosen = config.load("digits", ("train.epochs=8", "privacy.epsilon=8.0"))
    cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
    folder = Run(tmp_path / "cut")
    checkpoint = folder.private_path / "checkpoint.pt"
    older = checkpoint.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "same_ranks", lambda *_: False)
        cut(patch, chosen, folder.path, steps=2, resume=True)
    assert (folder.ledger().steps, len(folder.ledger().forks)) == (6, 1)
    newer = checkpoint.read_bytes()
    checkpoint.write_bytes(older)
    cut(monkeypatch, chosen, folder.path, steps=1, resume=True)
    assert "from a checkpoint that is older than its last fresh noise" in capsys.readouterr().err
    assert (folder.ledger().steps, len(folder.ledger().forks)) == (8, 2)
    checkpoint.write_bytes(newer)  # of the first fork
    outcome = run(chosen, folder.path, show_progress=False, resume=True)
    assert (outcome.steps, len(folder.ledger().forks)) == (10, 3)


def test_a_ledger_without_the_fork_of_a_state_is_refused():
    model = nn.Linear(3, 2)
    examples = (torch.randn(40, 3), torch.randint(2, (40,)))
    step, _ = prepare(model, examples, method="dpdt", epochs=1, batch_size=20, epsilon=8.0)
    state = step.state_dict()
    step.writer.fork("0" * 32)
    step.resume(state, None)
    with pytest.raises(InputError, match="does not begin with the steps of the checkpoint"):
        step.resume({**state, "forks": ["1" * 32]}, None)


def test_diagnostics_of_steps_that_are_taken_again_are_written_once(tmp_path, monkeypatch):
    chosen = config.load("digits", ("train.epochs=8", "privacy.noise_seed=1"))
    run(chosen, tmp_path / "whole", show_progress=False, diagnose=True)
    cut(monkeypatch, chosen, tmp_path / "cut", steps=2, diagnose=True)
    state = (tmp_path / "cut" / "private" / "checkpoint.pt").read_bytes()
    cut(monkeypatch, chosen, tmp_path / "cut", steps=2, resume=True, diagnose=True)
    (tmp_path / "cut" / "private" / "checkpoint.pt").write_bytes(state)
    run(chosen, tmp_path / "cut", show_progress=False, resume=True, diagnose=True)
    whole, resumed = (Run(tmp_path / name).diagnostics() for name in ("whole", "cut"))
    assert [r["step"] for r in resumed] == list(range(1, 9))
    assert [r["path_length"] for r in resumed] == [r["path_length"] for r in whole]


def test_a_checkpoint_is_there_before_the_first_step_and_then_as_often_as_wanted(
    tmp_path, monkeypatch
):
    saved = []
    monkeypatch.setattr(
        Run, "save_checkpoint", lambda self, state: saved.append(state["step"]["engine"])
    )
    chosen = config.load("digits", ("train.epochs=5", "train.checkpoint=2"))
    run(chosen, tmp_path / "run", show_progress=False)
    assert [s["steps"] for s in saved] == [0, 2, 4]


@pytest.mark.parametrize("kind", ["mislabelled", "gradient"])
def test_a_run_does_not_go_on_with_other_coins_of_its_canaries(kind, tmp_path, monkeypatch):
    """Two continuations with the same noise would differ by the canary alone."""
    chosen = config.load("digits", ("train.epochs=5", *FIXED, f"audit.canary={kind}"))
    cut(monkeypatch, chosen, tmp_path / "cut")
    folder = Run(tmp_path / "cut")
    record = folder.canaries()
    record["included"][0] = not record["included"][0]
    folder.write_canaries(record)
    with pytest.raises(InputError, match=changed("training data or public inputs")):
        run(chosen, tmp_path / "cut", show_progress=False, resume=True)


def changed(what):
    """What is said if something is no longer what it was."""
    return rf"cut: the {what} changed since the run was interrupted"


def test_what_cannot_be_resumed(tmp_path, monkeypatch):
    chosen = config.load("digits", ("train.epochs=5", *FIXED))
    run(chosen, tmp_path / "done", show_progress=False)
    with pytest.raises(InputError, match="has no checkpoint, since the run was finished"):
        run(chosen, tmp_path / "done", show_progress=False, resume=True)
    cut(monkeypatch, chosen, tmp_path / "cut")
    other = config.load("digits", ("train.epochs=5", *FIXED, "train.batch_size=700"))
    with pytest.raises(InputError, match=changed("configuration")):
        run(other, tmp_path / "cut", show_progress=False, resume=True)
    for part in ("train", "test"):  # the first of the held-out inputs are public
        examples = running.load(chosen)
        x, y = getattr(examples, part)
        x = x.clone()
        x[0, 0] += 1.0
        with pytest.raises(InputError, match=changed("training data or public inputs")):
            run(
                chosen,
                tmp_path / "cut",
                show_progress=False,
                resume=True,
                examples=replace(examples, **{part: (x, y)}),
            )
    (tmp_path / "cut" / "private" / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"checkpoint.pt: is damaged, or not a"):
        run(chosen, tmp_path / "cut", show_progress=False, resume=True)


def test_a_state_is_refused_on_other_data():
    """In Python as in the command: the same noise on other data would give both away."""
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    options = {"epsilon": 3.0, "epochs": 2, "batch_size": 10}
    state = prepare(nn.Linear(4, 3), (x, y), **options)[0].state_dict()
    changed = x.clone()
    changed[0, 0] += 1.0
    other, _ = prepare(nn.Linear(4, 3), (changed, y), **options)
    with pytest.raises(InputError, match="other training data"):
        other.load_state_dict(state)


def test_a_ledger_that_has_ended_is_not_reopened(tmp_path):
    chosen = config.load("digits", ("train.epochs=2",))
    run(chosen, tmp_path / "done", show_progress=False)
    ledger = Ledger.read(tmp_path / "done" / "ledger.jsonl")
    writer = LedgerWriter(ledger.header)
    with pytest.raises(InputError, match="has ended, and nothing may follow"):
        writer.reopen(tmp_path / "done" / "ledger.jsonl")


def test_a_changed_example_changes_the_fingerprint():
    x, y = torch.zeros(10, 3), torch.arange(10)
    other = x.clone()
    other[7, 1] = 1e-6
    assert fingerprint((x, y)) == fingerprint((x.clone(), y))
    assert fingerprint((x, y)) != fingerprint((other, y))
    assert fingerprint((x, y)) != fingerprint((x, y + 1))


def test_no_epsilon_is_written_where_nothing_is_guaranteed(tmp_path):
    overrides = ("privacy.epsilon=3.0", "privacy.noise_seed=1", "train.epochs=10")
    run(config.load("digits", overrides, method="dpdt"), tmp_path / "run", show_progress=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epsilon"] for line in lines] == [None] * 10


@pytest.mark.parametrize("what", ["setting", "result"])
def test_libraries_that_compute_otherwise_are_another_machine(what, monkeypatch):
    """Noise that is repeated on a sum that differs in its last bit would show that bit."""
    before = surroundings()[MACHINE]
    assert surroundings()[MACHINE] == before
    if what == "setting":
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    else:
        inner = torch.conv2d
        monkeypatch.setattr(torch, "conv2d", lambda *given: inner(*given) * (1 + 1e-6))
    assert surroundings()[MACHINE] != before
