"""Crop and flip: the right pictures, and nothing that depends on others; several views of each."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpdt import config
from dpdt.accounting import account
from dpdt.errors import InputError
from dpdt.models.loss import default_loss
from dpdt.training.augment import Augment, OverViews, crop_and_flip
from tests.numbers import prepare


@pytest.mark.parametrize(("row", "column", "flip"), [(0, 0, 0), (3, 8, 1), (8, 4, 0), (4, 4, 1)])
def test_a_crop_is_a_window_of_the_padded_image(row, column, flip):
    x = torch.randn(2, 3, 32, 32)
    draws = torch.tensor([[(row + 0.5) / 9, (column + 0.5) / 9, 0.75 if flip else 0.25]] * 2)
    window = F.pad(x, (4,) * 4)[:, :, row : row + 32, column : column + 32]
    assert torch.equal(crop_and_flip(x, draws, 4), window.flip(3) if flip else window)


def test_all_offsets_and_flips_occur():
    x = torch.arange(64.0).view(1, 1, 8, 8) + 1
    seen = {
        tuple(Augment(0)((x, torch.zeros(1)), np.array([0]), step)[0].flatten().tolist())
        for step in range(400)
    }
    assert len(seen) == 3 * 3 * 2


def test_an_example_looks_the_same_whoever_else_is_there():
    x = torch.randn(10, 3, 16, 16)
    augment = Augment(3)
    all_of_them = augment((x, torch.arange(10)), np.arange(10), 5)[0]
    some = np.array([7, 2])
    assert torch.equal(augment((x[some], torch.arange(2)), some, 5)[0], all_of_them[some])
    assert not torch.equal(augment((x, torch.arange(10)), np.arange(10), 6)[0], all_of_them)


def test_only_images_can_be_changed():
    model = torch.nn.Linear(4, 2)
    x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    step, loader = prepare(model, (x, y), noise=1.0, batch_size=8, augment=True)
    with pytest.raises(InputError, match=r"train.augment: needs images"):
        step(next(iter(loader)))


def images(n, classes=3):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 2, 8, 8, generator=generator)
    return x, torch.randint(0, classes, (n,), generator=generator)


def network():
    torch.manual_seed(1)
    layers = nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
    return nn.Sequential(*layers)


def test_views_are_an_example_s_own_whoever_else_is_there():
    x, y = images(10)
    views = Augment(3, 4)((x, y), np.arange(10), 5)[0]
    assert views.shape == (10, 4, 2, 8, 8)
    some = np.array([7, 2])
    assert torch.equal(Augment(3, 4)((x[some], y[some]), some, 5)[0], views[some])
    assert not torch.equal(Augment(3, 4)((x, y), np.arange(10), 6)[0], views)
    assert len({tuple(v.flatten().tolist()) for v in views[0]}) > 1
    windows = F.pad(x[0], (1,) * 4).unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4)
    possible = torch.cat([windows.flatten(0, 1), windows.flatten(0, 1).flip(-1)])
    assert all(bool((possible == view).flatten(1).all(1).any()) for view in views[0])


WAYS = [
    {"method": "dpdt", "sampling": "poisson", "memory": "none"},
    {"method": "dpdt", "sampling": "poisson", "memory": "shared"},
    {"method": "dpdt", "sampling": "partition", "memory": "auxiliary", "auxiliaries": 3},
    {"method": "dpsgd"},
]


@pytest.mark.parametrize("options", WAYS, ids=lambda o: " ".join(map(str, o.values())))
def test_gradients_of_views_are_averaged_before_they_are_bounded(options, monkeypatch):
    """One step against the formula: Σ bounded(2ρη · mean over views of ∇ℓ), written out."""
    data, clip, sums = images(12), 0.05, []

    def spy(total, **_):
        sums.append(total.clone())
        return torch.zeros_like(total)

    monkeypatch.setattr("dpdt.algorithm.publish.perturbed", spy)
    model, twin = network(), network()
    dpdt = {"granularity": "model", "lr": 0.5} if options["method"] == "dpdt" else {}
    step, loader = prepare(
        model, data, noise=1.0, batch_size=6, noise_seed=1, clip=clip, augment=True, views=3,
        **options, **dpdt,
    )  # fmt: skip
    batch = next(iter(loader))
    x, y = batch.data
    bounds, layout = batch.bounds, step.engine.layout
    step(batch)
    total = torch.zeros(layout.size, dtype=torch.float64)
    for first, last in bounds:
        each = []
        for i in range(first, last):
            for view in range(3):
                loss = default_loss(twin, (x[i, view : view + 1], y[i : i + 1]))
                each.append(torch.autograd.grad(loss, list(twin.parameters())))
        if each:
            mean = [sum(g) / len(each) for g in zip(*each, strict=True)]
            own = torch.zeros(1, layout.size)
            layout.join([g.unsqueeze(0) for g in mean], out=own)
            own = own[0].double() * (1.0 if not dpdt else 2 * 1.0 * 0.5)
            total += own * min(1.0, clip / float(own.norm()))
    assert len(sums) == 1
    assert torch.allclose(sums[0].flatten(), total, rtol=1e-4, atol=1e-6)


class Read(torch.utils.data.Dataset):
    """Images that are read one by one."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, i):
        return self.data[0][i], self.data[1][i]


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_a_dataset_are_changed_as_those_of_tensors(workers):
    data = images(12)
    loaders = [
        prepare(
            network(), some, noise=1.0, batch_size=6, augment=True, memory="none", workers=number
        )[1]
        for some, number in ((data, 0), (Read(data), workers))
    ]
    for one, other in zip(*loaders, strict=True):
        assert all(map(torch.equal, one.data, other.data))


def test_every_label_goes_to_the_views_of_its_own_image():
    x, y = images(4)
    views = torch.stack([x, 2 * x, 3 * x], 1)
    model, seen = network(), []

    def loss(model, data):
        seen.append(data)
        return default_loss(model, data)

    found = OverViews(loss, 3)(model, (views, y))
    apart = [default_loss(model, (views[i], y[i].expand(3))) for i in range(4)]
    assert torch.allclose(found, torch.stack(apart).mean())
    assert torch.equal(seen[0][1], y.repeat_interleave(3))
    assert torch.equal(OverViews(loss, 3)(model, (x, y)), default_loss(model, (x, y)))


def test_views_cost_no_privacy_and_are_trained_with_by_every_method():
    data, public = images(24), images(8)[0]
    for options in ({}, {"method": "dpsgd"}, {"method": "gep", "directions": 2, "groups": 1},
                    {"method": "pate", "teachers": 2}, {"method": "plain"}):  # fmt: skip
        noise = {} if options.get("method") == "plain" else {"noise": 1.0}
        found = []
        for views in (1, 4):
            step, loader = prepare(
                network(), data, batch_size=8, epochs=1, augment=True, views=views, public=public,
                **options, **noise,
            )  # fmt: skip
            for batch in loader:
                step(batch)
            found.append((step.plan.header, step.plan.runs, account(step.plan.ledger(), 1e-5)))
        assert found[0] == found[1]


def test_views_need_something_that_makes_them_differ():
    with pytest.raises(InputError, match=r"train.views: .* train.augment is true, found 4"):
        config.training(views=4, noise=1.0)
    with pytest.raises(InputError, match=r"train.views: must be a whole number from 1 to 1024"):
        config.training(views=0, augment=True, noise=1.0)
    x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    step, loader = prepare(nn.Linear(4, 2), (x, y), noise=1.0, batch_size=8, augment=True, views=2)
    with pytest.raises(InputError, match=r"train.augment: needs images"):
        step(next(iter(loader)))
