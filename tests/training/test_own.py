"""A training loop of one's own: no habit of loops trains in vain, or makes ε false."""

import pytest
import torch
from torch import nn

import dpdt
from dpdt.errors import InputError, Tainted
from tests.numbers import NUMBERS

DATA = torch.randn(40, 5), torch.arange(40) % 2
POISSON = {"noise": 1.0, "epochs": 3, "batch_size": 10}
PARTITION = {**NUMBERS, **POISSON, "auxiliaries": 5}


def prepared(**options):
    torch.manual_seed(0)
    return dpdt.prepare(nn.Linear(5, 2), DATA, **{**POISSON, **options})


def trained(step, loader, epochs=3):
    for _ in range(epochs):
        for batch in loader:
            step(batch)


def test_an_epoch_each_time_and_an_error_after_the_last():
    step, loader = prepared()
    found = [[(batch.epoch, batch.step) for batch in loader if step(batch)] for _ in range(3)]
    assert found == [[(e, 4 * e + i) for i in range(4)] for e in range(3)]
    assert len(loader) == 4
    with pytest.raises(InputError, match=r"^loader: all 3 epochs of this run were handed out"):
        iter(loader)
    assert step.writer.ledger.steps == 12


def test_the_step_ends_the_run_and_installs_the_average():
    step, loader = prepared(averaging=0.9, noise_seed=1)
    trained(step, loader)
    assert step.privacy().closed
    engine = step.engine
    assert torch.equal(engine.layout.gather(), engine.average.to(engine.layout.gather().dtype))
    torch.manual_seed(0)
    same = dpdt.train(nn.Linear(5, 2), DATA, averaging=0.9, noise_seed=1, **POISSON)
    assert torch.equal(step.whole.weight, same.model.weight)
    assert step.result().ledger.runs == same.ledger.runs  # it ends nothing twice
    with pytest.raises(InputError, match="the run has ended"):
        step(None)


def test_a_loop_that_breaks_off_costs_what_was_planned(tmp_path):
    step, loader = prepared()
    for batch in loader:
        step(batch)
        break
    so_far = step.privacy()
    assert (so_far.steps, so_far.closed) == (1, False)
    assert [batch.step for batch in loader if step(batch)] == [1, 2, 3]  # the rest of the epoch
    with pytest.warns(UserWarning, match="ended after 4 of 12 steps, and costs what was plan"):
        step.finish()
    assert (step.privacy().steps, step.privacy().closed) == (12, True)
    result = step.result()
    whole, batches = prepared()
    trained(whole, batches)
    assert (result.taken, result.ledger.runs) == (4, whole.writer.ledger.runs)
    assert result.privacy.epsilon == whole.privacy().epsilon
    with pytest.raises(InputError, match="the run has ended"):
        next(iter(loader))
    assert (
        dpdt.release(result, to=tmp_path / "release").guarantee["epsilon"] == step.privacy().epsilon
    )


@pytest.mark.parametrize("early", [False, True])
def test_a_model_that_was_changed_after_its_run_has_no_result(early):
    step, loader = prepared()
    trained(step, loader, 1 if early else 3)
    step.finish()
    with torch.no_grad():
        step.whole.weight.add_(1e-3)  # a plain optimizer, perhaps
    with pytest.raises(InputError, match=r"^result: the model's weights are not those that the"):
        step.result()


@pytest.mark.parametrize("change", [
    lambda x: x.sub_(x.mean(0)),
    lambda x: x.numpy().__isub__(x.numpy().mean(0)),  # which torch does not count
    lambda x: x[7].add_(1e-3),  # of which 64 are looked at, and this is not
])  # fmt: skip
def test_data_that_change_on_the_way_void_the_run(change):
    x = torch.randn(200, 5)
    step, loader = dpdt.prepare(nn.Linear(5, 2), (x, torch.arange(200) % 2), **POISSON)
    for _ in range(2):
        trained(step, loader, 1)
    change(x)
    with pytest.raises(Tainted, match=r"^the training data were changed during the run"):
        trained(step, loader, 1)
    assert "the training data were changed" in step.writer.ledger.voids[0]


def test_a_batch_that_was_looked_at_counts_and_cannot_be_skipped():
    step, loader = prepared()
    next(iter(loader))
    assert step.writer.ledger.steps == 1
    with pytest.raises(InputError, match="must be used once, in order"):
        trained(step, loader)
    assert step.writer.ledger.steps == 2


def test_a_batch_is_used_once():
    step, loader = prepared()
    batch = next(iter(loader))
    step(batch)
    with pytest.raises(InputError, match="must be used once, in order"):
        step(batch)


@pytest.mark.parametrize("options", [POISSON, PARTITION])
def test_two_at_once_share_the_epoch(options):
    step, loader = prepared(**options)
    found = []
    for one, two in zip(loader, loader, strict=True):
        step(one)
        step(two)
        found += [one.step, two.step]
    assert found == [0, 1, 2, 3]
    assert step.writer.ledger.steps == 4
    old = iter(loader)
    next(old)  # of the second epoch, and never used
    for _ in loader:
        pass
    assert next(old, None) is None  # it does not run on into the third
    assert step.writer.ledger.steps == 8


def test_an_earlier_state_is_gone_on_from_and_counted_again():
    step, loader = prepared()
    trained(step, loader, 1)
    state = step.state_dict()
    trained(step, loader, 1)
    step.load_state_dict(state)
    trained(step, loader, 2)
    assert step.privacy().steps == 16
    assert step.privacy().closed


def test_neither_step_nor_loader_is_pickled():
    import pickle

    for part in prepared():
        with pytest.raises(InputError, match="a run cannot be copied"):
            pickle.dumps(part)
