"""A run belongs to one process and one thread at a time, and cannot be copied."""

import copy
import os
import pickle
import threading

import pytest
import torch
from torch import nn

from dpdt import models
from dpdt.algorithm import passes, randomness
from dpdt.algorithm.randomness import kept
from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.models import networks
from dpdt.models.settings import ModelSettings
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


class Shown:
    """A lock that says when somebody finds it taken."""

    def __init__(self):
        self.lock, self.taken = threading.RLock(), threading.Event()

    def acquire(self, blocking=True):
        if self.lock.acquire(blocking=False):
            return True
        self.taken.set()
        return blocking and self.lock.acquire()

    def release(self):
        self.lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


def test_a_step_waits_for_the_record_of_another_thread():
    step, loader = prepared()
    step._turns._lock = lock = Shown()
    batches, said = iter(loader), []
    first = next(batches)

    def take():
        try:
            step(first)
        except InputError as error:
            said.append(str(error))

    stepping, record = threading.Thread(target=take), step.writer.step

    def slowly(setting, number):
        stepping.start()
        assert lock.taken.wait(60)
        record(setting, number)

    step.writer.step = slowly
    feeding = threading.Thread(target=lambda: next(batches))
    feeding.start()
    feeding.join(60)
    stepping.join(60)
    assert (said, step.engine.steps, step.writer.ledger.steps) == ([], 1, 2)


class Drawing(nn.Linear):
    def __init__(self):
        super().__init__(5, 2)
        nn.init.constant_(self.weight, 0.1)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return super().forward(x + torch.randn_like(x) if self.training else x)


def of_model_that_draws():
    step, loader = prepare(
        Drawing(), DATA, auxiliaries=4, noise=1.0, epochs=2, batch_size=8, noise_seed=3
    )
    return step, next(iter(loader))


def weights(step):
    return torch.cat([p.detach().flatten() for p in step.whole.parameters()])


def test_what_a_model_draws_does_not_follow_a_run_in_another_thread(monkeypatch):
    alone, batch = of_model_that_draws()
    alone(batch)
    (one, batch_of_one), (other, batch_of_other) = of_model_that_draws(), of_model_that_draws()
    inside, drawn, ended, compute = threading.Event(), Shown(), threading.Event(), passes.looped

    def looped(*arguments):
        if threading.current_thread() is first:  # its generators are set
            inside.set()
            assert drawn.taken.wait(60)  # the other has drawn, or waits
            return compute(*arguments)
        found = compute(*arguments)
        drawn.taken.set()
        assert ended.wait(60)
        return found

    def take():
        try:
            one(batch_of_one)
        finally:
            ended.set()

    monkeypatch.setattr(passes, "looped", looped)
    monkeypatch.setattr(randomness, "_LOCK", drawn, raising=False)
    first = threading.Thread(target=take)
    first.start()
    assert inside.wait(60)
    other(batch_of_other)
    first.join(60)
    assert torch.equal(weights(one), weights(alone))
    assert torch.equal(weights(other), weights(alone))


def test_a_fork_does_not_wait_for_the_draws_of_another_thread():
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with kept():
            held.set()
            go_on.wait(60)

    def draw():
        assert randomness._LOCK.acquire(blocking=False)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        assert in_a_fork(draw) == "nothing"
    finally:
        go_on.set()
        thread.join(60)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(DATA[1])

    def __getitem__(self, number):
        return DATA[0][number], DATA[1][number]


def test_checks_and_new_models_wait_while_another_thread_draws(monkeypatch):
    step, loader = prepare(
        nn.Linear(5, 2), Rows(), auxiliaries=4, noise=1.0, epochs=2, batch_size=8
    )
    step(next(iter(loader)))
    lock, held, order = Shown(), threading.Event(), []
    monkeypatch.setattr(randomness, "_LOCK", lock)

    def hold():
        with kept():
            held.set()
            assert lock.taken.wait(60)
            order.append("read")

    loader.data.reads.check = lambda: order.append("data")
    step.engine.executor._refuse_between = lambda: order.append("model")
    monkeypatch.setattr(networks, "mlp", lambda *_: order.append("weights"))
    small = ModelSettings(name="linear"), Facts(examples=1, shape=(5,), classes=2), 0
    calls = (loader.check, step.engine.check, lambda: models.build(*small))
    for call, what in zip(calls, ("data", "model", "weights"), strict=True):
        order.clear(), held.clear(), lock.taken.clear()
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        call()
        lock.taken.set()
        thread.join(60)
        assert order == ["read", what]
