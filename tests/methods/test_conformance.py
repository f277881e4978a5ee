"""One suite that every method must pass. A new one is added to METHODS and to SMALL below.

That the plan of a configuration is the plan of its run is said in tests/test_told.py, for every
method and preset.
"""

import copy
import json
import math
import shutil
import sys
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from dpdt import config
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.mechanism import perturbed
from dpdt.methods import METHODS
from dpdt.methods.plan import decide
from dpdt.methods.problem import Problem
from dpdt.models.loss import default_loss
from dpdt.models.metrics import accuracy
from dpdt.training import run as running
from dpdt.training.loop import fit, prepare
from dpdt.training.run import run
from tests.test_bands import written_out
from tests.training.interrupted import cut


@dataclass(frozen=True, kw_only=True)
class Small:
    """What the suite is told of a method."""

    method: str
    options: dict[str, Any]  # its settings, for a run of a few steps
    empty: dict[str, Any] | None = None  # with these some mini-batch is empty; None: none ever is
    users: dict[str, Any] | None = None  # what goes with unit "user"; None: it is refused


RARE = {"batch_size": 1, "epochs": 1}  # Poisson sampling: one step in three has nobody
SMALL = {
    "dpdt": Small(
        method="dpdt",
        options={"noise": 0.5, "clip": 2.0, "lr": 0.3, "penalty": 1.0, "averaging": 0.5},
        empty=RARE,
    ),
    "dpdt-memory": Small(
        method="dpdt",
        options={
            "noise": 0.2, "clip": 0.5, "lr": 0.3, "penalty": 1.0, "averaging": 0.0,
            "sampling": "partition", "reshuffle": True, "memory": "auxiliary", "auxiliaries": 3,
            "preconditioner": "rmsprop", "floor": 0.1, "granularity": "layer",
        },
        users={"batch_size": 2},
    ),
    "dpsgd": Small(
        method="dpsgd", options={"noise": 4.0, "optimizer": "adamw"}, empty=RARE
    ),
    "dpdt-correlated": Small(
        method="dpdt",
        options={
            "noise": 0.5, "clip": 2.0, "lr": 0.3, "penalty": 1.0, "averaging": 0.5,
            "sampling": "cyclic-poisson", "noise_bands": 2,
        },
        empty=RARE,
    ),
    "dpsgd-correlated": Small(
        method="dpsgd",
        options={"noise": 4.0, "sampling": "partition", "noise_bands": 2},
    ),
    "gep": Small(method="gep", options={"noise": 4.0, "directions": 3}, empty=RARE),
    "pate": Small(
        method="pate",
        options={"noise": 2.0, "teachers": 4, "teacher_epochs": 1},
        empty={"teachers": 24},
    ),
    "plain": Small(method="plain", options={}, users={"batch_size": 2}),
}  # fmt: skip
TRAIN = {"epochs": 2, "batch_size": 12}
EXAMPLES, PUBLIC, SEED = 24, 12, {"noise_seed": 1}

generator = torch.Generator().manual_seed(0)
X = torch.randn(EXAMPLES, 4, generator=generator)
Y = torch.arange(EXAMPLES) % 3
INPUTS = torch.randn(PUBLIC, 4, generator=generator)
TEST = (INPUTS, torch.arange(PUBLIC) % 3)

every_row = pytest.mark.parametrize("name", SMALL)
every_method = pytest.mark.parametrize("method", METHODS)


def rows(chosen):
    """The rows of the table that a test is about."""
    return pytest.mark.parametrize("name", [name for name, row in SMALL.items() if chosen(row)])


private_row = rows(lambda row: METHODS[row.method].private)


def network():
    """The same weights at every call."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


class Named(nn.Module):
    """The same network for keywords, as language models are: its answer holds loss and logits."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x, labels=None):
        logits = self.inner(x)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


def kind(name):
    return METHODS[SMALL[name].method]


def begin(name, model=None, data=(X, Y), public=INPUTS, **changes):
    """A model, and the step and loader of a run of a few steps."""
    model = network() if model is None else model
    given = {"public": public} if kind(name).needs_public else {}
    options = {**TRAIN, **SMALL[name].options, **given, **changes}
    return model, *prepare(model, data, method=SMALL[name].method, **options)


def ended(name, *args, **changes):
    """The model and the step of a run that has come to its end."""
    model, step, loader = begin(name, *args, **changes)
    for batch in loader:
        step(batch)
    step.finish()
    return model, step


def weights(model):
    return torch.cat([p.detach().clone().flatten() for p in model.parameters()])


def relation(name):
    return begin(name)[1].plan.header.relation


def releases(monkeypatch):
    """Every call of the core, from wherever: σ as it was given, and what was added to the mean.

    A run must have been prepared, since engines are imported late.
    """
    found = []

    def spy(total, *, divisor, noise, **given):
        noisy = perturbed(total, divisor=divisor, noise=noise, **given)
        sigma = torch.as_tensor(noise, dtype=torch.float64).expand(len(total))
        found.append((sigma, noisy - total / divisor))
        return noisy

    for name, module in list(sys.modules.items()):
        if name.startswith("dpdt.") and getattr(module, "perturbed", None) is perturbed:
            monkeypatch.setattr(module, "perturbed", spy)
    return found


def digits(name, tmp_path, **tables):
    """The configuration of a short run on a few digits."""
    whole = {
        "data": {"name": "digits", "limit": 100, "public": PUBLIC},
        "method": {"name": SMALL[name].method, **SMALL[name].options},
        "train": {"epochs": 3, "batch_size": 50},
        **tables,
    }
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(whole))
    return config.load(str(path))


def test_every_method_is_in_the_table():
    assert {row.method for row in SMALL.values()} == set(METHODS)


# settings


def test_a_method_that_is_not_known_is_refused():
    with pytest.raises(InputError, match=rf"^method\.name: must be one of {', '.join(METHODS)}, "):
        config.training(method="sgd", epsilon=1.0)


@every_method
def test_every_key_says_what_it_must_be_and_its_default_is_that(method):
    """A default of None stands for a key that was left out."""
    assert METHODS[method]().name == method
    for field in fields(METHODS[method]):
        check, text = field.metadata["check"], field.metadata["text"]
        assert text, field.name
        assert field.default is None or check(field.default), field.name
        assert not check(object()), field.name


@every_method
def test_keys_of_others_and_of_nobody_are_refused(method):
    own = {f.name for f in fields(METHODS[method])}
    others = {f.name for other in METHODS.values() for f in fields(other)} - own
    for key in (*sorted(others), "nonsense"):
        with pytest.raises(InputError, match=f"^{key}: no such setting"):
            config.training(method=method, epsilon=1.0, **{key: 1.0})
        with pytest.raises(InputError, match=rf"^method\.{key}: no such key"):
            config.load("digits", (f"method.{key}=1.0",), method)


@every_method
def test_what_has_a_guarantee_needs_noise_or_a_target(method):
    if METHODS[method].private:
        with pytest.raises(InputError, match=r"^method\.noise: missing"):
            config.training(method=method)
    else:
        config.training(method=method)
    assert config.training(method=method, epsilon=1.0).privacy.epsilon == 1.0


@every_row
def test_what_needs_public_inputs_is_not_planned_without(name):
    row, problem = SMALL[name], Problem.of(network(), (X, Y), None, default_loss)
    training = config.training(method=row.method, **TRAIN, **row.options)
    if kind(name).needs_public:
        with pytest.raises(InputError, match=rf"^data\.public: {row.method} needs public examples"):
            decide(training, problem)
    else:
        assert decide(training, problem).header.method == row.method


# progress


@every_row
@pytest.mark.parametrize("test", [None, TEST])
def test_history_has_a_record_an_epoch(name, test):
    model, step, loader = begin(name, test=test)
    plan, results = step.plan, []
    fitted = fit(model, step, loader, on_step=lambda result, batch: results.append(result))
    assert [r["epoch"] for r in fitted.history] == list(range(1, plan.epochs + 1))
    assert len(results) == plan.steps
    for record in fitted.history:
        first, last = record["step"] - plan.header.batches, record["step"]
        assert last == record["epoch"] * plan.header.batches
        losses = [result.loss for result in results[first:last]]
        assert record["loss"] == pytest.approx(sum(losses) / len(losses))
        assert 0.0 < record["loss"] < math.inf
        assert record["nonfinite"] == 0
        assert (record["accuracy"] is None) == (test is None)
    if test is not None and not plan.header.averaging:  # else another iterate is released
        assert fitted.history[-1]["accuracy"] == accuracy(model, test)


@every_row
def test_the_folder_of_a_run_has_its_metrics_and_the_ledger_that_was_told(name, tmp_path):
    chosen = digits(name, tmp_path)
    outcome = run(chosen, tmp_path / "run", show_progress=False)
    told = config.plan_of(chosen)
    open_to_all, secret = (
        [json.loads(line) for line in (tmp_path / "run" / place / "metrics.jsonl").open()]
        for place in (".", "private")
    )
    for lines in (open_to_all, secret):
        assert [line["epoch"] for line in lines] == list(range(1, told.epochs + 1))
        assert [line["step"] for line in lines] == [
            line["epoch"] * told.header.batches for line in lines
        ]
        epsilon = outcome.privacy.epsilon if kind(name).private else None
        assert lines[-1]["epsilon"] == epsilon
    assert all(set(line) == {"epoch", "step", "epsilon"} for line in open_to_all)
    for line in secret:
        assert 0.0 < line["loss"] < math.inf
        assert 0.0 <= line["accuracy"] <= 1.0
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ledger.header == told.header
    assert ledger.runs == told.ledger().runs
    assert ledger.closed


# ledger


@every_row
def test_the_ledger_of_a_finished_run_is_the_plans(name, tmp_path):
    path = tmp_path / "ledger.jsonl"
    _, step = ended(name, ledger=path)
    told = step.plan.ledger()
    assert told.header.method == SMALL[name].method
    assert told.steps == step.engine.steps == step.plan.steps
    for found in (step.writer.ledger, Ledger.read(path)):
        assert (found.header, found.runs, found.closed) == (told.header, told.runs, True)
        assert found.voids == []


@every_row
def test_a_step_is_recorded_when_its_batch_is_handed_out(name, tmp_path):
    path = tmp_path / "ledger.jsonl"
    _, step, loader = begin(name, ledger=path)
    assert Ledger.read(path).steps == 0
    batches = iter(loader)
    for number in (1, 2):
        next(batches)
        assert step.writer.ledger.steps == Ledger.read(path).steps == number
        assert step.engine.steps == 0


@every_row
def test_a_step_is_taken_with_the_very_setting_that_is_recorded(name, monkeypatch):
    _, step, loader = begin(name)
    inner, taken = step.engine.step, []

    def spy(batch, setting):
        taken.append(setting is step.writer.ledger.runs[-1].setting)
        return inner(batch, setting)

    monkeypatch.setattr(step.engine, "step", spy)
    for batch in loader:
        step(batch)
    assert taken == [True] * step.plan.steps


# states


def interrupted(name, tmp_path):
    """A whole run's weights, and its state, secrets and ledger as they were after a third of it."""
    path = tmp_path / "ledger.jsonl"
    model, step, loader = begin(name, ledger=path)
    for batch in loader:
        step(batch)
        if step.engine.steps == step.plan.steps // 3:
            state, kept = step.state_dict(), step.secrets()
            shutil.copy(path, tmp_path / "kept.jsonl")
    step.finish()
    return weights(model), state, kept, tmp_path / "kept.jsonl"


@every_row
def test_a_resumed_run_is_the_whole_one_bit_for_bit(name, tmp_path):
    whole, state, kept, path = interrupted(name, tmp_path)
    model, step, loader = begin(name)
    step.writer.reopen(path)
    step.resume(state, kept)
    assert len(loader) == step.plan.steps - step.plan.steps // 3
    for batch in loader:
        step(batch)
    step.finish()
    assert torch.equal(weights(model), whole)
    assert Ledger.read(path).runs == step.plan.ledger().runs


@every_row
def test_a_loaded_state_goes_on_with_fresh_noise(name, tmp_path):
    whole, state, _, _ = interrupted(name, tmp_path)
    found = [whole]
    for _ in range(2):
        model, step, loader = begin(name)
        step.load_state_dict(copy.deepcopy(state))
        for batch in loader:
            step(batch)
        step.finish()
        assert step.writer.ledger.runs == step.plan.ledger().runs
        for other in found:
            assert torch.equal(weights(model), other) == (not kind(name).private)
        found.append(weights(model))


@every_row
def test_steps_that_are_taken_again_are_paid_for_again_or_refused(name):
    _, step, loader = begin(name)
    batches = iter(loader)
    step(next(batches))
    state = step.state_dict()
    step(next(batches))
    if not kind(name).goes_back:
        with pytest.raises(InputError, match="cannot go back"):
            step.load_state_dict(state)
        return
    step.load_state_dict(state)
    step(next(iter(loader)))
    assert (step.engine.steps, step.writer.ledger.steps) == (2, 3)
    assert step.writer.ledger.repeats


@every_row
def test_an_interrupted_folder_goes_on_bit_for_bit(name, tmp_path, monkeypatch):
    audit = {"canaries": 20}
    chosen = digits(name, tmp_path, audit=audit, privacy=SEED)
    outcome = cut(monkeypatch, chosen, tmp_path / "cut")
    assert not outcome.finished
    assert outcome.steps == 4
    again = run(chosen, tmp_path / "cut", show_progress=False, resume=True)
    assert again.finished
    # the coins of the canaries are secret, so a whole run needs the same ones
    record = json.loads((tmp_path / "cut" / "private" / "canaries.json").read_text())
    monkeypatch.setattr(
        running.Planted,
        "plant",
        classmethod(lambda cls, data, settings: cls.again(data, settings, record)),
    )
    whole = run(chosen, tmp_path / "whole", show_progress=False)
    models = [load_file(tmp_path / n / "private" / "model.safetensors") for n in ("cut", "whole")]
    for key in models[0]:
        assert torch.equal(models[0][key], models[1][key]), key
    assert (again.accuracy, again.steps) == (whole.accuracy, whole.steps)
    found, full = (Ledger.read(tmp_path / n / "ledger.jsonl") for n in ("cut", "whole"))
    assert (found.header, found.runs) == (full.header, full.runs)
    assert found.closed
    assert full.closed
    assert found.voids == full.voids == []
    # what was shown in between stands in the ledger, and is all that it has more
    shown = [what for what in found.exports if what not in full.exports]
    assert shown == ["the model when the run was paused after 4 steps"]
    assert [what for what in found.exports if what not in shown] == full.exports
    metrics = [
        [json.loads(line)["step"] for line in (tmp_path / n / "metrics.jsonl").open()]
        for n in ("cut", "whole")
    ]
    assert metrics[0] == metrics[1]
    assert not (tmp_path / "cut" / "private" / "checkpoint.pt").exists()


# what can be in a batch


@rows(lambda row: row.empty is not None)
def test_an_empty_batch_is_a_step_like_any_other(name):
    model, step, loader = begin(name, **SMALL[name].empty)
    empty = 0
    for batch in loader:
        before = weights(model)
        result = step(batch)
        if not sum(batch.sizes):
            empty += 1
            assert math.isfinite(result.loss)
            if kind(name).takes_pulls:  # a method that moves along gradients at every step
                assert not torch.equal(weights(model), before)
    step.finish()
    assert 0 < empty < step.plan.steps
    assert torch.isfinite(weights(model)).all()
    assert step.writer.ledger.runs == step.plan.ledger().runs


@private_row
def test_where_nobody_takes_part_there_is_noise_all_the_same(name):
    if relation(name) != "zero-out":
        with pytest.raises(InputError, match="where examples are replaced, none can be absent"):
            begin(name, absent=np.ones(EXAMPLES, dtype=bool))
        return
    first, second = (ended(name, absent=np.ones(EXAMPLES, dtype=bool))[0] for _ in range(2))
    assert torch.isfinite(weights(first)).all()
    assert not torch.equal(weights(first), weights(network()))
    assert not torch.equal(weights(first), weights(second))


@private_row
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_a_record_that_is_not_finite_counts_as_nothing(name, value):
    """Otherwise one record could make the model NaN, which everybody would see."""
    x = X.clone()
    x[3] = value
    model, step, loader = begin(name, data=(x, Y), **SEED)
    nonfinite = sum(step(batch).nonfinite for batch in loader)
    step.finish()
    assert torch.isfinite(weights(model)).all()
    if value == 1e38 or not kind(name).takes_pulls:  # clipped; a teacher that has one vote still
        return
    assert nonfinite > 0
    if step.plan.header.relation == "zero-out":
        without, _ = ended(name, data=(x, Y), absent=np.arange(EXAMPLES) == 3, **SEED)
        torch.testing.assert_close(weights(model), weights(without), rtol=1e-5, atol=1e-6)
        finite, _ = ended(name, **SEED)  # the record that it could have been does count
        assert float((weights(finite) - weights(without)).abs().max()) > 1e-4


@every_row
def test_mappings_train_as_tuples_do(name):
    plain, _ = ended(name, **SEED)
    given = {"data": {"x": X, "labels": Y}, "public": {"x": INPUTS}}
    given["test"] = {"x": TEST[0], "labels": TEST[1]}
    model, step, loader = begin(name, Named(), **given, **SEED)
    fitted = fit(model, step, loader)
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-5, atol=1e-6)
    assert fitted.history[-1]["accuracy"] is not None


@every_row
def test_users_are_protected_or_refused(name):
    owners = [i // 5 for i in range(EXAMPLES)]
    if SMALL[name].users is None:
        with pytest.raises(InputError, match=r"^privacy\.unit"):
            begin(name, unit="user", users=owners)
        return
    options = {"unit": "user", **SMALL[name].users}
    with pytest.raises(InputError, match="users: must be given"):
        begin(name, **options)
    model, step = ended(name, users=owners, **options)
    assert not torch.equal(weights(model), weights(network()))
    assert step.writer.ledger.header.unit == "user"
    privacy = step.privacy()
    assert privacy.proven.unit == "user"
    assert math.isfinite(privacy.epsilon) == kind(name).private


# noise


@every_row
def test_noise_is_fresh_in_every_run_unless_it_has_a_seed(name):
    private = kind(name).private
    first, second = (ended(name)[0] for _ in range(2))
    assert torch.equal(weights(first), weights(second)) == (not private)
    (first, step), (second, _) = (ended(name, **SEED) for _ in range(2))
    assert torch.equal(weights(first), weights(second))
    assert step.writer.ledger.header.private == (not private)
    told = step.privacy()
    assert told.epsilon == math.inf
    if private:
        assert told.proven is None


@private_row
def test_noise_has_the_scale_of_the_setting(name, monkeypatch):
    begin(name)
    found, standard = releases(monkeypatch), []
    while sum(map(len, standard)) < 400:
        _, step, loader = begin(name)
        run = []
        for batch in loader:
            found.clear()
            step(batch)
            if not found:  # a step that releases nothing
                continue
            sigma = torch.cat([sigma for sigma, _ in found])
            added = torch.cat([z for _, z in found])
            assert not added[sigma == 0].any()  # padding
            scales = sigma[sigma > 0].unique_consecutive()
            told = torch.tensor(step.plan.at(batch.step).noise, dtype=torch.float64)
            assert scales.tolist() == told.unique_consecutive().tolist()
            run.append(added[sigma > 0] / sigma[sigma > 0])
        assert run
        header = step.plan.header
        if len(header.coefficients) > 1:  # what it was before steps were correlated
            inverse = torch.from_numpy(written_out(header.coefficients, header.horizon))
            run = [inverse @ torch.stack(run)]
        standard += [draws.flatten() for draws in run]
    assert 0.85 < float(torch.cat(standard).std()) < 1.2


# what is released


@every_row
def test_the_released_model_is_as_it_was_but_for_its_weights(name):
    model = network()
    model.register_buffer("scale", torch.ones(2))
    model[0].bias.requires_grad_(False)
    model[2].eval()

    def looks():
        return {
            where: (
                {key: len(v) if isinstance(v, dict) else v for key, v in vars(module).items()},
                [(id(p), p.requires_grad, p.dtype, vars(p)) for p in module.parameters(False)],
            )
            for where, module in model.named_modules()
        }

    before, bias = looks(), model[0].bias.clone()
    started = weights(model)
    ended(name, model)
    assert looks() == before
    assert torch.equal(model[0].bias, bias)
    assert torch.equal(model.scale, torch.ones(2))
    assert not torch.equal(weights(model), started)


@every_row
def test_no_gradient_is_left_on_the_released_model(name):
    model, _ = ended(name)
    assert all(p.grad is None for p in model.parameters())


@every_row
def test_a_state_holds_everything_wherever_the_model_starts(name, tmp_path):
    whole, state, kept, path = interrupted(name, tmp_path)
    model = network()
    for p in model.parameters():
        nn.init.normal_(p)
    model, step, loader = begin(name, model)
    step.writer.reopen(path)
    step.resume(state, kept)
    for batch in loader:
        step(batch)
    step.finish()
    assert torch.equal(weights(model), whole)


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value.clone()]
    parts = value.values() if isinstance(value, dict) else value
    return [t for part in parts for t in tensors(part)] if isinstance(value, dict | list) else []


@every_row
def test_a_state_stays_as_it_was_when_a_run_goes_on_from_it(name, tmp_path):
    _, state, _, _ = interrupted(name, tmp_path)
    before = tensors(state)
    _, step, loader = begin(name)
    step.load_state_dict(state)
    for batch in loader:
        step(batch)
    assert all(map(torch.equal, tensors(state), before))
