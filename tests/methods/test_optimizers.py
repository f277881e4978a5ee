"""Torch optimizers and schedulers of one's own behind DP-SGD's noise."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import dpdt
from dpdt.errors import InputError, Tainted
from dpdt.ledger import Ledger

torch.manual_seed(0)
DATA = torch.randn(40, 5), torch.arange(40) % 2
OPTIONS = {"method": "dpsgd", "noise": 1.0, "epochs": 3, "batch_size": 10, "noise_seed": 1}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def train(**options):
    return dpdt.train(model(), DATA, **{**OPTIONS, **options})


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def test_one_s_own_is_the_same_as_the_built_in_one():
    mine = train(optimizer=lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9))
    theirs = train(optimizer="sgd", lr=0.3, momentum=0.9)
    assert torch.equal(weights(mine), weights(theirs))
    assert mine.ledger.runs == theirs.ledger.runs  # with the rate that it begins with
    assert mine.privacy.as_json() == theirs.privacy.as_json()


@pytest.mark.parametrize(
    "make",
    [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam,
     lambda p: torch.optim.SGD([{"params": p[:2], "lr": 0.5}, {"params": p[2:]}], lr=0.1)],
)  # fmt: skip
def test_any_that_needs_the_gradient_alone(make):
    result = train(optimizer=make)
    assert not torch.equal(weights(result), weights(train()))
    assert result.privacy.steps == 12


def test_a_scheduler_is_stepped_after_each_epoch():
    rates = []

    def schedule(optimizer):
        return lr_scheduler.LambdaLR(optimizer, lambda epoch: rates.append(epoch) or 0.5**epoch)

    step, loader = dpdt.prepare(
        model(), DATA, optimizer=lambda p: torch.optim.SGD(p, lr=0.4), scheduler=schedule, **OPTIONS
    )
    seen = []
    for _ in range(3):
        for batch in loader:
            step(batch)
            seen.append(step.engine.optimizer.param_groups[0]["lr"])
    assert seen == [0.4] * 3 + [0.2] * 4 + [0.1] * 4 + [0.05]
    assert rates == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "kind", [partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW, torch.optim.Adagrad]
)
def test_an_optimizer_that_remembers_other_gradients_is_refused(kind):
    mine = model()
    used = kind(mine.parameters(), lr=0.1)
    mine(DATA[0]).sum().backward()
    used.step()
    with pytest.raises(InputError, match=r"^optimizer: this \w+ was used before, and remembers"):
        dpdt.train(mine, DATA, **OPTIONS, optimizer=lambda p: used)


def test_a_scheduler_that_was_stepped_is_refused():
    def stepped(optimizer):
        made = lr_scheduler.StepLR(optimizer, 1)
        optimizer.step()
        made.step()
        return made

    with pytest.raises(InputError, match=r"^scheduler: this StepLR begins at epoch 1, so it was"):
        train(optimizer=lambda p: torch.optim.SGD(p, lr=0.1), scheduler=stepped)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, "optimizer: LBFGS computes the loss again within its step, on private"),
        (lambda p: torch.optim.SGD(p[1:], lr=0.1), "must hold the 4 tensors that are trained, eac"),
        (lambda p: torch.optim.SGD([*p, nn.Parameter(torch.ones(1))], lr=0.1), "and no others, f"),
        (lambda p: torch.optim.SGD(model().parameters(), lr=0.1), "make it of the parameters tha"),
        (lambda p: None, "must make a torch optimizer of the parameters that it is given, found N"),
        (
            torch.optim.AdamW(model().parameters()),
            "optimizer: must be a function that makes one, as",
        ),
        (
            lambda p: torch.optim.SGD(p, lr=-1),
            r"optimizer: cannot be made \(ValueError: Invalid le",
        ),
        (lambda: None, r"optimizer: cannot be made \(TypeError: .* takes 0 positional arguments"),
        (lambda p: torch.optim.SGD(p, lr=0.0), "must begin with a positive learning rate, found 0"),
        (lambda p: torch.optim.SGD(p, lr=1e300), "must begin with a positive learning rate, found"),
    ],
)
def test_optimizers_that_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        train(optimizer=make)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lr_scheduler.ReduceLROnPlateau, "scheduler: ReduceLROnPlateau follows a number that it i"),
        (lambda o: lr_scheduler.StepLR(torch.optim.SGD(model().parameters()), 1), "of the optimiz"),
        (lr_scheduler.StepLR, r"scheduler: cannot be made \(TypeError: .* missing 1 required"),
        ("cosine", "scheduler: must be a function that makes one, as in .*, found str"),
        (lambda o: None, "scheduler: must make a torch lr_scheduler of the optimizer that it is g"),
    ],
)
def test_schedulers_that_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        train(optimizer=torch.optim.AdamW, scheduler=make)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": lambda o: None}, "scheduler: needs an optimizer of your own"),
        ({"optimizer": "own"}, "method.optimizer: 'own' is a torch optimizer that is given in Py"),
        ({"optimizer": torch.optim.AdamW, "lr": 0.1}, "lr: is the optimizer's own; give it where"),
        ({"optimizer": torch.optim.AdamW, "momentum": 0.5}, "momentum: is the optimizer's own"),
        ({"optimizer": torch.optim.AdamW, "method": "dpdt"}, "goes with method 'dpsgd', found 'd"),
        ({"optimizer": torch.optim.AdamW, "method": "gep"}, "goes with method 'dpsgd', found 'ge"),
        ({"optimizer": torch.optim.AdamW, "noise_bands": "auto", "sampling": "partition",
          "epsilon": 3.0},
         "noise_bands: 'auto' needs to know what the optimizer does with noise"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(options, message):
    with pytest.raises(InputError, match=message):
        train(**options)


def prepared(optimizer=torch.optim.AdamW):
    """A run in which nothing is random, as fresh noise and coins would be after a load."""
    return dpdt.prepare(
        model(), DATA, optimizer=optimizer, scheduler=lambda o: lr_scheduler.StepLR(o, 1, 0.5),
        **{**OPTIONS, "noise": 0.0, "sampling": "partition"},
    )  # fmt: skip


def test_a_state_goes_on_bit_for_bit():
    step, loader = prepared()
    for batch in loader:
        step(batch)
    state = copy.deepcopy(step.state_dict())
    for _ in range(2):
        for batch in loader:
            step(batch)
    other, rest = prepared()
    other.load_state_dict(state)
    for _ in range(2):
        for batch in rest:
            other(batch)
    assert torch.equal(weights(step.result()), weights(other.result()))
    assert other.privacy().steps == step.privacy().steps == 12
    wrong, _ = prepared(torch.optim.Adam)
    with pytest.raises(InputError, match="with AdamW and StepLR, and this has Adam and StepLR"):
        wrong.load_state_dict(state)


def test_the_optimizer_sees_the_noisy_mean_and_nothing_else():
    seen = []

    class Looking(torch.optim.SGD):
        def step(self, closure=None):
            assert closure is None
            seen.append(torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]]))
            return super().step()

    result = train(optimizer=lambda p: Looking(p, lr=0.1), batch_size=1, noise=100.0, clip=1.0)
    spread = torch.stack(seen).std()
    assert (
        80 < float(spread) < 120
    )  # noise of 100 on a sum of one, which gradients of at most 1 hide
    assert all(p.grad is None for p in result.model.parameters())


def slower(optimizer):
    optimizer.param_groups[0]["lr"] *= 0.5


def remembering(optimizer):
    next(iter(optimizer.state.values()))["momentum_buffer"].add_(1.0)


def forgetting(optimizer):
    optimizer.state.clear()


def growing(optimizer):
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


@pytest.mark.parametrize("change", [slower, remembering, forgetting, growing])
@pytest.mark.parametrize("last", [False, True])
def test_only_its_steps_change_an_optimizer(change, last, tmp_path):
    """Whoever sees a loss (on_step, here) could let it choose the learning rate."""
    made = []

    def make(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        return made[-1]

    def on_step(result, batch):
        if batch.step == (11 if last else 4):
            change(made[-1])

    with pytest.raises(Tainted, match="the optimizer was changed between steps, perhaps by a pri"):
        train(optimizer=make, on_step=on_step, ledger=tmp_path / "ledger")
    assert "optimizer was changed" in Ledger.read(tmp_path / "ledger").voids[0]


def test_a_rate_that_is_a_tensor_and_a_scheduler_are_its_own():
    train(
        optimizer=lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
        scheduler=lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=4),
    )
