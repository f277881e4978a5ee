"""Models of all sorts: frozen, tied, unused parameters, dropout, integer inputs, dict batches."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm.layout import Layout
from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.errors import InputError
from dpdt.models.loss import default_loss

from .problems import batch_of, classification, cross_entropy, engine_for, flat, take_step


def mean_gradient_step(model, loss, data, lr=0.5):
    """What an unclipped, noiseless step with one auxiliary must do: plain gradient descent."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss(model, data), trained, allow_unused=True)
    return [
        p.detach() - 2 * lr * (torch.zeros_like(p) if g is None else g)
        for p, g in zip(trained, gradients, strict=True)
    ]


def check(model, loss, data, n, vectorised=None):
    expected = mean_gradient_step(model, loss, data)
    engine = engine_for(model, loss, auxiliaries=n, lr=0.5, global_lr=1.0, penalty=(1.0,), clip=1e6)
    take_step(engine, batch_of(data, (1,) * n))
    if vectorised is not None:
        (how,) = engine.executor.found.values()
        assert bool(how.rows) == vectorised
    trained = [p for p in model.parameters() if p.requires_grad]
    for ours, theirs in zip(trained, expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-4, atol=1e-5)


def test_convolutions_per_example():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(1, 4), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(4 * 16, 3))
    x, y = torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))
    check(model, cross_entropy, (x, y), 8, vectorised=True)


class Images(nn.Module):
    """A small convolutional network; `view` demands that channels come first in memory."""

    def __init__(self, view):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 2, bias=False)
        self.head, self.view = nn.Linear(5 * 9, 3), view

    def forward(self, x):
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(x.view(len(x), -1) if self.view else x.flatten(1))


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
def test_channels_last_changes_nothing_and_is_given_up_where_it_fails(view, memory):
    """Two engines on the same model, one held to channels first."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (12,), generator=generator)
    results = []
    for held in (True, False):
        torch.manual_seed(0)
        model = Images(view).double()
        engine = engine_for(
            model,
            memory=memory,
            preconditioner=Preconditioner(name="identity" if memory == "none" else "rmsprop"),
        )
        engine.executor._arranged = held
        for step in range(4):
            take_step(engine, batch_of((x, y), (4, 3, 3, 2), step))
        assert engine.layout.channels_last == (not held and not view)
        results.append([p.detach().contiguous() for p in model.parameters()])
        # the flat order is another, but goes to the right places and back
        flat_theta = engine.layout.gather()
        for part, p in zip(engine.layout.split(flat_theta), engine.layout.tensors, strict=True):
            assert torch.equal(part, p)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_norm_behind_frozen_layers_keeps_channels_first(frozen):
    """With channels last torch's kernel would end the process there."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 5, 2))
    model.append(nn.Flatten()).append(nn.Linear(5 * 9, 3))
    model[0].requires_grad_(not frozen)
    engine = engine_for(model, memory="auxiliary")
    x, y = torch.randn(12, 3, 6, 6), torch.randint(0, 3, (12,))
    take_step(engine, batch_of((x, y), (4, 3, 3, 2)))
    assert engine.layout.channels_last == (not frozen)


def test_frozen_tied_and_unused_parameters():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.frozen = nn.Linear(6, 3)
            self.frozen.weight.requires_grad_(False)
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.frozen(torch.tanh(self.second(torch.tanh(self.first(x)))))

    model = Odd()
    layout = Layout(model, "layer")
    names = sorted(n for members in layout.blocks.members for n in members)
    assert names == sorted(n for n, p in model.named_parameters() if p.requires_grad)
    assert layout.size == 36 + 6 + 6 + 3 + 3  # the tied weight once, the frozen one not at all
    frozen = model.frozen.weight.detach().clone()
    check(model, cross_entropy, classification(5), 5)
    assert torch.equal(frozen, model.frozen.weight)
    assert model.second.weight is model.first.weight


def test_integer_inputs_and_embeddings():
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 3))
    kinds = {b.name: b.kind for b in Layout(model).blocks.blocks}
    assert kinds == {"0": "embedding", "2": "linear"}
    x, y = torch.randint(0, 20, (6, 5)), torch.randint(0, 3, (6,))
    check(model, cross_entropy, (x, y), 6)


class Classifier(nn.Module):
    """Like a transformers model: keyword inputs, an output with loss and logits."""

    def __init__(self):
        super().__init__()
        self.embed, self.score = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        if attention_mask.sum() == 0:  # data-dependent control flow, as in many such models
            raise ValueError("nothing to attend to")
        hidden = (self.embed(input_ids) * attention_mask.unsqueeze(-1)).sum(1)
        logits = self.score(hidden)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


def test_dict_batches_and_models_that_cannot_be_vectorised():
    data = {
        "input_ids": torch.randint(0, 20, (6, 5)),
        "attention_mask": torch.ones(6, 5),
        "labels": torch.randint(0, 2, (6,)),
    }
    check(Classifier(), default_loss, data, 6, vectorised=False)


def test_an_error_in_the_loss_is_the_users_own():
    def wrong(model, batch):
        raise RuntimeError("no such column")

    engine = engine_for(nn.Linear(6, 3), wrong)
    with pytest.raises(RuntimeError, match="no such column"):
        take_step(engine, batch_of(classification(4), (1,) * 4))


@pytest.mark.parametrize("size", [1, 3])
def test_dropout_is_random_between_steps_and_repeats_with_the_seed(size):
    def steps(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
        engine = engine_for(model, lr=0.5, engine={"seed": seed})
        data = classification(4 * size)
        seen = [flat(model)]
        for step in range(2):
            take_step(engine, batch_of(data, (size,) * 4, step))
            seen.append(flat(model))
        return seen

    one, again, other = steps(0), steps(0), steps(1)
    assert torch.equal(one[2], again[2])
    assert not torch.equal(one[2], other[2])
    assert not torch.allclose(one[1] - one[0], one[2] - one[1])


def test_training_leaves_the_global_generator_alone():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    data, engine = classification(4), engine_for(model)
    before = torch.get_rng_state()
    take_step(engine, batch_of(data, (1,) * 4))
    assert torch.equal(before, torch.get_rng_state())


def test_mixed_precision_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(InputError, match=r"all be float32, or all float64.*found"):
        Layout(model)
    with pytest.raises(InputError, match="bfloat16"):
        Layout(nn.Linear(2, 2).bfloat16())


def test_lazy_and_fully_frozen_models_are_refused():
    with pytest.raises(InputError, match="no shape yet"):
        Layout(nn.LazyLinear(2))
    model = nn.Linear(2, 2)
    model.requires_grad_(False)
    with pytest.raises(InputError, match="every one is frozen"):
        Layout(model)
