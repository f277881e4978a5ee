"""Reading ahead changes nothing but the time: not the numbers, not the bill, not the coins."""

import gc
import logging
import multiprocessing
import pickle
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from dpdt.data.access import READ
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.noise import Randomness
from dpdt.partition import Part, Partition, PoissonSampler
from dpdt.training.ahead import Draws, Reader
from dpdt.training.loader import Loader
from tests.numbers import prepare

N = 40
PARTITION = {"sampling": "partition", "auxiliaries": 5}
POISSON = {"sampling": "poisson", "granularity": "model", "memory": "shared", "auxiliaries": 4}
# What Datasets here see without its being put back: objects of loggers are taken to be fixed.
OUTSIDE = logging.getLogger("tests.training.test_ahead")
OUTSIDE.noise, OUTSIDE.broken = None, False
CASES = pytest.mark.parametrize("options", [PARTITION, POISSON], ids=["partition", "poisson"])


class Restless(Dataset):
    """Draws from every generator there is, for each example."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        drawn = torch.rand(()) + random.random() + np.random.rand()
        return torch.full((6,), float(i)).div_(N).add_(drawn).float(), i % 3


def started(data=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    given = {"epochs": 2, "batch_size": 8, "noise": 1.0, "noise_seed": 1} | options
    return model, *prepare(model, Restless() if data is None else data, **given)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@CASES
def test_numbers_are_the_same_to_the_bit_however_many_read(options):
    found = []
    for workers in (0, 1, 2):
        before = torch.get_rng_state()
        model, step, loader = started(workers=workers, **options)
        torch.set_rng_state(before)
        seen = [batch.data[0] for batch in loader if step(batch)]
        step.finish()
        assert torch.equal(torch.get_rng_state(), before)
        found.append((weights(model), torch.cat(seen)))
    assert len(found[0][1]) > N
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        assert torch.equal(other[1], found[0][1])


def test_what_is_read_ahead_is_not_paid_for():
    _, step, loader = started(workers=2, **POISSON)
    batches = iter(loader)
    step(next(batches))
    next(batches)  # handed out, so it counts, used or not
    assert loader.draws._ahead  # more was read
    assert step.writer.ledger.steps == 2


@CASES
def test_processes_end_with_the_loader_that_has_them(options, monkeypatch):
    # torch waits so many seconds for a process before it kills it; a slow machine needs more than 5
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 300)
    others = set(multiprocessing.active_children())  # of other tests in this process
    _, step, loader = started(workers=2, **options)
    step(next(iter(loader)))
    reading = set(multiprocessing.active_children()) - others
    assert len(reading) == 2
    del step, loader
    gc.collect()
    assert not reading & set(multiprocessing.active_children())
    assert [process.exitcode for process in reading] == [0, 0]  # told to, not killed


@CASES
def test_a_checkpoint_holds_the_coins_of_the_next_batch(options):
    kept = []
    for workers in (0, 2):
        _, step, loader = started(workers=workers, **options)
        kept.append([step.secrets() for batch in loader if step(batch)])
    assert kept[0] == kept[1]


@CASES
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_resumed_bit_for_bit(options, workers, tmp_path):
    model, step, loader = started(workers=workers, ledger=tmp_path / "ledger", **options)
    for batch in loader:
        step(batch)
        if batch.step == 4:
            state, secrets = step.state_dict(), step.secrets()
    whole = weights(model)
    again, other, rest = started(workers=workers, **options)
    other(next(iter(rest)))  # something was read ahead, of another run's coins
    other.writer = step.writer
    other.resume(state, secrets)
    sizes = [batch.sizes for batch in rest if other(batch)]
    assert len(sizes) == 5
    assert torch.equal(weights(again), whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_coins_are_used_in_order_wherever_the_run_goes_on(workers):
    """Going back tosses no coin away: who has seen it could otherwise wait for a better one."""
    _, step, loader = started(workers=workers, **POISSON)
    for batch in loader:
        step(batch)
        if batch.step == 2:
            break
    state = step.state_dict()
    sizes = [batch.sizes for batch in loader if step(batch)][:2]
    step.load_state_dict(state)
    sizes += [batch.sizes for batch in loader if step(batch)]
    source = Randomness(3)  # the coins of noise seed 1
    sampler = PoissonSampler(
        examples=N, rate=8 / N, auxiliaries=4, per_example=False, source=source
    )
    drawn = [sampler.batch(0)[1] for _ in range(17)][3:]
    assert sizes == drawn[:2] + drawn[7:]


def test_draws_ahead_keep_their_order_and_their_secrets():
    sampler, plain = (
        PoissonSampler(examples=9, rate=0.5, auxiliaries=2, per_example=True, source=Randomness(5))
        for _ in range(2)
    )
    draws = Draws(sampler, sampler.source)
    for step in range(6):
        for ahead in range(3):
            draws.look(draws.used + ahead, step + ahead)
        assert draws.secrets() == plain.source.secrets()
        if step == 3:
            draws.move()
        assert np.array_equal(draws.use(step).indices, plain.batch(step)[0])
    draws.look(draws.used, 6)
    kept = draws.secrets()
    first = draws.use(6).indices
    draws.look(draws.used, 7)
    draws.resume(kept)
    assert np.array_equal(draws.use(6).indices, first)


def test_a_partition_is_looked_up_anew_at_another_step():
    sampler = Partition(examples=9, batches=3, auxiliaries=1)
    draws = Draws(sampler, Randomness(0))
    draws.look(0, 0)
    draws.move()
    assert np.array_equal(draws.use(2).indices, sampler.batch(2)[0])


class Curious(Dataset):
    """Tries to draw the noise of the run that reads it."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        if OUTSIDE.noise is not None:
            OUTSIDE.noise.gaussian(1)
        return torch.zeros(6), i % 3


def test_a_process_that_reads_has_no_noise_and_no_coins(monkeypatch):
    _, step, loader = started(Curious(), workers=1, **POISSON)
    monkeypatch.setattr(OUTSIDE, "noise", step.noise)
    with pytest.raises(InputError, match=r"^a run cannot go on in a forked process"):
        next(iter(loader))
    reader = Reader(Restless(), 0)
    assert set(vars(reader)) == {"data", "seed"}
    pickle.dumps(reader)
    for secret in (loader, loader.draws):
        with pytest.raises((InputError, TypeError, AttributeError)):
            pickle.dumps(secret)


class Broken(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.zeros(6), "a word" if OUTSIDE.broken else 0


def test_a_complaint_from_another_process_is_one_sentence(monkeypatch):
    for workers in (0, 1):
        monkeypatch.setattr(OUTSIDE, "broken", False)
        _, _, loader = started(Broken(), workers=workers, **PARTITION)
        monkeypatch.setattr(OUTSIDE, "broken", True)
        with pytest.raises(InputError, match=r"^data: must be tensors[^\n]*$"):
            next(iter(loader))


class Failing(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        if OUTSIDE.broken:
            raise OSError("the disk is gone")
        return torch.full((6,), float(i)), i % 3


def test_after_a_failure_the_next_batch_is_the_next_one(monkeypatch):
    sizes = []
    for workers in (0, 1):
        _, step, loader = started(Failing(), workers=workers, **POISSON)
        monkeypatch.setattr(OUTSIDE, "broken", True)
        with pytest.raises(OSError, match="the disk is gone"):
            next(iter(loader))
        monkeypatch.setattr(OUTSIDE, "broken", False)
        sizes.append([batch.data[0][:, 0].tolist() for batch in loader])
        assert step.writer.ledger.steps == 10
    assert len(sizes[0]) == 9
    assert sizes[0] == sizes[1]


class Counting(Dataset):
    """More examples than may be in memory at once."""

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        x = OUTSIDE.counted(torch.zeros(6))
        return x, i % 3


def test_a_dataset_need_not_fit_the_memory(monkeypatch):
    alive, most = weakref.WeakSet(), 0

    def counted(x):
        nonlocal most
        alive.add(x)
        most = max(most, len(alive))
        return x

    monkeypatch.setattr(OUTSIDE, "counted", counted, raising=False)
    _, step, loader = started(
        Counting(), batch_size=100, epochs=1, **{**PARTITION, "memory": "none"}
    )
    for batch in loader:
        step(batch)
    step.finish()
    step.state_dict()  # reads all of it, for its hash
    assert most <= READ + 1


def test_pinned_memory_is_for_a_gpu(monkeypatch):
    asked = []

    class Nothing:
        def __init__(self, *_, **options):
            asked.append(options)

        def __iter__(self):
            raise OSError("nothing to read")

    monkeypatch.setattr("dpdt.training.ahead.DataLoader", Nothing)
    for device in ("cpu", "cuda"):
        loader = Loader(
            Restless(),
            Draws(Partition(examples=N, batches=5, auxiliaries=1), Randomness(0)),
            batches=5,
            steps=5,
            device=torch.device(device),
            alone=False,
            fixed=True,
            workers=3,
            world=World(),
        )
        with pytest.raises(OSError, match="nothing to read"):
            next(iter(loader))
    assert [(o["num_workers"], o["pin_memory"]) for o in asked] == [(3, False), (3, True)]


def test_a_batch_is_copied_only_for_who_looks_at_it():
    _, step, loader = started((torch.randn(N, 6), torch.arange(N) % 3), **PARTITION)
    batches = iter(loader)
    first = next(batches)
    step(first)
    assert "data" not in vars(first)
    second = next(batches)
    second.data[0].data.numpy()[0, 0] += 1.0  # which torch does not count
    with pytest.raises(InputError, match=r"^batch: was changed"):
        step(second)


def test_training_data_are_never_handed_out():
    """A partition that keeps the order would otherwise be a view."""
    x = torch.randn(N, 6)
    _, _, loader = started((x, torch.arange(N) % 3), **PARTITION)
    loader.draws.sampler = Ordered()
    batch = next(iter(loader))
    for t in (batch.data[0], loader._handed[0][1].data[0]):
        t.zero_()
    assert bool(x.any(1).all())


class Ordered:
    def part(self, step, rank, size):
        return Part(indices=np.arange(8), keys=np.arange(8), sizes=(8,), whole=(8,))
