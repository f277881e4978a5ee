"""The preconditioner from public inputs."""

import math

import pytest
import torch
from torch import nn

from dpdt import config, data, models
from dpdt.errors import InputError
from dpdt.methods.dpdt.whitening import ROWS, Whitened, Whitening
from dpdt.runs import Run
from dpdt.training import run as running
from tests.numbers import prepare, train

generator = torch.Generator().manual_seed(0)
MIX = torch.randn(6, 6, generator=generator, dtype=torch.float64)
PUBLIC = torch.randn(50, 6, generator=generator, dtype=torch.float64) @ MIX + 3.0


def test_phi_is_the_formula():
    found = Whitening.of(PUBLIC)
    centred = PUBLIC - PUBLIC.mean(0)
    covariance = centred.t() @ centred / len(PUBLIC)
    values, vectors = torch.linalg.eigh(covariance)
    least = values.mean()
    root = vectors @ torch.diag(((values + least) / least) ** -0.25) @ vectors.t()
    expected = centred @ root
    expected *= 4.0 / expected.norm(dim=1).mean()
    assert torch.allclose(found.apply(PUBLIC), expected, atol=1e-10)


def test_directions_that_public_inputs_do_not_span_keep_their_length():
    flat = PUBLIC[:10].clone()
    flat[:, 5] = 7.0
    found = Whitening.of(flat)
    x = torch.zeros(2, 6, dtype=torch.float64)
    x[1, 5] = 1.0
    difference = found.apply(x).diff(dim=0)[0]
    assert difference.norm() == pytest.approx(found.scale)


def test_folding_gives_the_same_outputs():
    outer = nn.Linear(6, 3).double()
    whitened = Whitened(nn.Sequential(nn.Flatten(), outer), PUBLIC)
    with torch.no_grad():
        whitened.inner.weight.normal_(generator=generator)
        whitened.inner.bias.normal_(generator=generator)
    whitened.fold()
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    assert torch.allclose(outer(x), whitened.inner(whitened.whitening.apply(x)), atol=1e-9)


def test_a_layer_that_was_trained_is_where_it_starts_from():
    outer = nn.Linear(6, 3).double()
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    assert float(Whitened(outer, PUBLIC).inner.weight.detach().abs().sum()) == 0.0  # fresh: from 0
    with torch.no_grad():
        outer.weight.mul_(5.0)
    before, whitened = outer(x), Whitened(outer, PUBLIC)
    assert torch.allclose(before, whitened.inner(whitened.whitening.apply(x)), atol=1e-9)
    whitened.fold()
    assert torch.allclose(before, outer(x), atol=1e-9)


def test_only_what_can_be_whitened_is():
    """Not where a loss of one's own sees the inputs, nor where part of the layer is frozen."""
    x, y = torch.randn(40, 6, generator=generator), torch.arange(40) % 6
    given = {"public": PUBLIC.float(), "epsilon": 3.0, "batch_size": 10}
    given["preconditioner"] = "auto"
    assert prepare(nn.Linear(6, 6), (x, y), **given)[0].whitened is not None
    own = lambda model, batch: (model(batch[0]) - batch[0]).square().mean()  # noqa: E731
    assert prepare(nn.Linear(6, 6), (x, y), loss=own, **given)[0].whitened is None
    frozen = nn.Linear(6, 6)
    frozen.weight.requires_grad_(False)
    assert prepare(frozen, (x, y), **given)[0].whitened is None
    with pytest.raises(InputError, match="all of it trained"):
        prepare(frozen, (x, y), **{**given, "preconditioner": "public"})


def test_a_step_is_a_step_of_the_engine_on_transformed_inputs():
    x = torch.randn(40, 6, generator=generator)
    y = torch.arange(40) % 3
    public = PUBLIC.float()
    options = {
        "epochs": 2, "batch_size": 10, "noise": 0.01, "noise_seed": 1, "granularity": "model",
        "memory": "shared", "penalty": 1.0, "lr": 0.1,
    }  # fmt: skip
    model, reference = nn.Linear(6, 3), nn.Linear(6, 3)
    for p in reference.parameters():
        nn.init.zeros_(p)
    train(model, (x, y), public=public, preconditioner="public", **options)
    whitening = Whitening.of(public)
    train(reference, (whitening.apply(x), y), **options)
    folded = nn.Linear(6, 3)
    whitening.fold_(reference, folded)
    assert torch.allclose(model.weight, folded.weight, atol=1e-6)
    assert torch.allclose(model.bias, folded.bias, atol=1e-6)


def test_phi_does_not_depend_on_private_examples():
    """Two data sets, the same φ: it is a function of public inputs alone."""
    found = []
    for shift in (0.0, 100.0):
        x = torch.randn(40, 6) + shift
        step, _ = prepare(
            nn.Linear(6, 2), (x, torch.arange(40) % 2), public=PUBLIC.float(), batch_size=10,
            preconditioner="public", granularity="model", noise=1.0,
        )  # fmt: skip
        found.append(step.whitened.whitening)
    assert torch.equal(found[0].mean, found[1].mean)
    assert torch.equal(found[0].factors, found[1].factors)
    assert found[0].scale == found[1].scale


def test_phi_of_an_example_does_not_depend_on_the_others():
    """To the bit, also where a product rounds rows by their place or number."""
    for size in (6, 64, 777):
        whitening = Whitening.of(torch.randn(20, size, generator=generator))
        x = torch.randn(600, size, generator=generator)
        whole = whitening.apply(x)
        changed = x.clone()
        changed[300] *= 1e4
        others = [i for i in range(600) if i != 300]
        assert torch.equal(whitening.apply(changed)[others], whole[others])
        for number in (1, 5, 256, 257):  # those behind them are not there
            assert torch.equal(whitening.apply(x[:number]), whole[:number])


@pytest.mark.parametrize("found", [None, 16, 1])
def test_rows_are_transformed_together_only_if_places_are_equal(found, monkeypatch):
    monkeypatch.setattr("dpdt.methods.dpdt.whitening.equal_places", lambda *_: found)
    turned, turn = [], Whitening._turn
    whitening = Whitening.of(PUBLIC)
    monkeypatch.setattr(
        Whitening, "_turn", lambda w, rows: turned.append(len(rows)) or turn(w, rows)
    )
    whitening.apply(PUBLIC[:20])
    assert turned == ([1] * 20 if found is None else [ROWS])


def test_inputs_are_in_memory_once_if_the_old_ones_may_go():
    """Only if they may: what is the user's own stays as it is."""
    y = torch.arange(40) % 2
    options = {
        "public": PUBLIC.float(), "batch_size": 10, "epochs": 2, "preconditioner": "public",
        "granularity": "model", "noise": 0.1, "noise_seed": 1,
    }  # fmt: skip
    results = []
    for overwrite in (False, True):
        x = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(1))
        before, model = x.clone(), nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
        step, loader = prepare(model, (x, y), overwrite=overwrite, **options)
        assert (loader.data[0].data_ptr() == x.data_ptr()) == overwrite
        assert torch.equal(x, before) != overwrite
        identity = step.state_dict()["identity"]
        for batch in loader:
            step(batch)
        assert step.state_dict()["identity"] == identity
        results.append((identity, model[1].weight.detach().clone()))
    assert results[0][0] == results[1][0]  # of the data as they were given
    assert torch.equal(results[0][1], results[1][1])


def test_a_run_overwrites_only_what_it_has_loaded_itself(tmp_path):
    chosen = config.load("digits", ("train.epochs=1", "privacy.noise_seed=1"))
    shared = running.load(chosen)
    before = shared.train[0].clone()
    weights = []
    for name, given in (("shared", shared), ("own", None)):
        running.run(chosen, tmp_path / name, show_progress=False, examples=given)
        model = models.build(chosen.model, data.facts("digits"), 0)
        Run(tmp_path / name).load_model(model)
        weights.append(model[1].weight)
    assert torch.equal(shared.train[0], before)
    assert torch.equal(*weights)


@pytest.mark.parametrize("exact", [True, False])
def test_state_continues_where_it_was(exact):
    x, y = torch.randn(40, 6), torch.arange(40) % 2
    options = {
        "public": PUBLIC.float(), "batch_size": 10, "epochs": 2, "preconditioner": "public",
        "granularity": "model", "noise": 0.1,
    }  # fmt: skip
    first = nn.Linear(6, 2)
    step, loader = prepare(first, (x, y), **options)
    batches = iter(loader)
    for _ in range(3):
        step(next(batches))
    state = step.state_dict()
    second = nn.Linear(6, 2)
    again, other = prepare(second, (x, y), **options)
    if exact:
        again.writer.adopt(step.writer.ledger.runs)
        again.resume(state, step.secrets())
    else:
        again.load_state_dict(state)
    assert torch.equal(first.weight, second.weight)
    assert again.privacy().steps == 3  # what was done before is not forgotten
    assert again.writer.ledger.runs == step.writer.ledger.runs
    for s, ls in ((step, batches), (again, iter(other))):
        for batch in ls:
            s(batch)
        s.finish()
    assert torch.equal(first.weight, second.weight) == exact  # otherwise its noise is fresh
    assert again.writer.ledger.runs == step.writer.ledger.runs


def refused(message, model, given, **options):
    with pytest.raises(InputError, match=message):
        prepare(
            model, given, preconditioner="public", noise=1.0, batch_size=5, **options
        )  # fmt: skip


def test_what_cannot_be_whitened():
    x, y = torch.randn(20, 6), torch.arange(20) % 2
    public = PUBLIC.float()
    refused("needs public examples", nn.Linear(6, 2), (x, y))
    refused("for linear models", nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), (x, y),
            public=public)  # fmt: skip
    refused("for linear models", nn.Linear(6, 2, bias=False), (x, y), public=public)
    refused("at least 2 public", nn.Linear(6, 2), (x, y), public=public[:1])
    refused("at least 2 public", nn.Linear(6, 2), (x, y), public=public * math.nan)
    rows = torch.utils.data.Subset(torch.utils.data.TensorDataset(x, y), range(20))
    refused(r"tuple of tensors \(x, y\)", nn.Linear(6, 2), rows, public=public)
    refused("leave it false", nn.Linear(6, 2), (x, y), public=public, augment=True)


def test_the_rule_beats_what_it_replaces_on_digits():
    """ε = 1, five runs each: whitening and its learning rate against plain coordinates."""
    examples = data.load("digits")
    public, examples = data.set_aside(examples, 100)
    means = []
    for overrides in ((), ("method.preconditioner=identity", "method.lr=1.8",
                           "method.penalty=0.17", "method.clip=1.2")):  # fmt: skip
        chosen = config.load("digits", ("privacy.epsilon=1.0", *overrides), "dpdt")
        accuracies = []
        for _ in range(5):
            model = models.build(chosen.model, data.facts("digits"), 0)
            fitted = train(model, examples.train, test=examples.test, public=public,
                                using=chosen)  # fmt: skip
            accuracies.append(fitted.history[-1]["accuracy"])
        means.append(sum(accuracies) / 5)
    assert means[0] > means[1] + 0.01
