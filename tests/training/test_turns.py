"""A run belongs to one process and one thread at a time, and cannot be copied."""

import copy
import os
import pickle
import threading

import pytest
import torch
from torch import nn

from dpdt.errors import InputError
from dpdt.ledger import Ledger
from tests.numbers import prepare

DATA = torch.randn(40, 5), torch.arange(40) % 2


def prepared(**options):
    method = {"method": "dpsgd"} if options.pop("dpsgd", False) else {"auxiliaries": 4}
    return prepare(nn.Linear(5, 2), DATA, noise=1.0, epochs=2, batch_size=8, **method, **options)


@pytest.mark.parametrize("dpsgd", [False, True])
@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_step_nor_loader_nor_engine_can_be_copied(copying, dpsgd):
    step, loader = prepared(dpsgd=dpsgd)
    for part in (step, loader, step.engine):
        with pytest.raises(InputError, match=r"^a run cannot be copied: the copy would draw the"):
            copying(part)


def in_a_fork(call):
    """What an InputError says that a call raises in a forked process, or what else happens."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            said = "nothing"
        except InputError as error:
            said = str(error)
        except BaseException as error:
            said = repr(error)
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with open(read) as file:
        return file.read()


def test_a_fork_takes_no_step_and_writes_nothing(tmp_path):
    step, loader = prepared()
    step.writer.open(tmp_path / "ledger.jsonl")
    batches = iter(loader)
    batch = next(batches)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    refused = "a run cannot go on in a forked process"
    take, step.engine.step = step.engine.step, lambda *_: pytest.fail("a step was begun")
    assert in_a_fork(lambda: step(batch)).startswith(refused)
    assert in_a_fork(lambda: next(batches)).startswith(refused)
    for call in (step.finish, lambda: step.export("a model")):
        assert "forked process cannot write its parent's ledger" in in_a_fork(call)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    step.engine.step = take
    step(batch)
    for later in batches:
        step(later)
    step.finish()
    assert Ledger.read(tmp_path / "ledger.jsonl").steps == 10


def test_a_second_thread_is_refused_while_a_step_is_taken():
    entered, go_on, said = threading.Event(), threading.Event(), []

    step, loader = prepared()
    first, second = list(zip(range(2), loader, strict=False))
    step.engine.step = lambda own, setting: (entered.set(), go_on.wait(60))
    one = threading.Thread(target=lambda: step(first[1]))
    one.start()
    assert entered.wait(60)
    with pytest.raises(InputError, match=r"^a run takes one step at a time, and another thread"):
        step(second[1])
    # another thread may ask for the next batch: its record waits for the step
    asking = threading.Thread(target=lambda: said.append(next(iter(loader)).step))
    asking.start()
    recorded = step.writer.ledger.steps
    go_on.set()
    one.join(60)
    asking.join(60)
    assert (recorded, said, step.writer.ledger.steps) == (2, [2], 3)


def test_a_step_within_a_step_is_refused():
    step, loader = prepared()
    batch = next(iter(loader))
    step.engine.step = lambda own, setting: step(batch)
    with pytest.raises(InputError, match=r"^a run takes one step at a time, and this was called"):
        step(batch)


def test_two_threads_get_different_batches():
    step, loader = prepared()
    found, start = [], threading.Barrier(4)

    def take():
        start.wait(60)
        try:
            for batch in loader:
                found.append(batch.step)
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found, key=str) == sorted(range(10), key=str)
    assert [run.steps for run in step.writer.ledger.runs] == [10]
