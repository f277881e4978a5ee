"""Correlated noise through whole runs: what is added, how runs go on, and what is refused."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import dpdt
from dpdt import config
from dpdt.bands import response as np_response
from dpdt.errors import InputError
from dpdt.methods import bands
from dpdt.training import streams
from dpdt.training.run import run
from tests.numbers import prepare
from tests.test_bands import written_out
from tests.training.interrupted import cut

ENTRIES, STEPS, SIGMA = 20_000, 12, 0.5
ZEROS = (torch.zeros(STEPS, ENTRIES // 2), torch.zeros(STEPS, dtype=torch.long))
DPSGD = {
    "method": "dpsgd", "lr": 1.0, "momentum": 0.0, "clip": 1.0, "noise": 3 * SIGMA,
    "batch_size": 3, "epochs": 3, "sampling": "partition", "noise_bands": 3,
}  # fmt: skip
DPDT = {
    "lr": 0.5, "penalty": 1.0, "clip": 1.0, "noise": SIGMA, "memory": "none", "global_lr": 1.0,
    "batch_size": 3, "epochs": 3, "sampling": "partition", "noise_bands": 3,
    "granularity": "model", "auxiliaries": 3,
}  # fmt: skip


def started(options, **given):
    """A run whose gradients are 0: the model moves by noise alone."""
    model = nn.Linear(ENTRIES // 2, 2, bias=False)
    return model, *prepare(model, ZEROS, noise_seed=7, **options, **given)


def moves(model, step, loader, steps=None):
    """What each step adds to the weights, in units of σ."""
    found, before = [], model.weight.detach().clone()
    for batch in itertools.islice(loader, steps):
        step(batch)
        after = model.weight.detach().clone()
        found.append((before - after).flatten().double().numpy() / SIGMA)
        before = after
    return np.array(found)


def p_value(draws, c, *, first=0, horizon=STEPS):
    """Whether draws of consecutive steps, from `first` on, are C⁻¹z with independent normal z."""
    z = written_out(c, horizon)[first : first + len(draws), first : first + len(draws)] @ draws
    n = z.shape[1]
    variances = (z**2).sum(axis=1)
    found = [2 * min(stats.chi2.cdf(v, n), stats.chi2.sf(v, n)) for v in variances]
    correlations = np.corrcoef(z)[np.triu_indices(len(z), 1)]
    found += list(2 * stats.norm.sf(np.abs(correlations) * math.sqrt(n)))
    return min(found) * len(found)


def coefficients(step):
    return step.plan.header.coefficients


@pytest.mark.parametrize("options", [DPSGD, DPDT], ids=["dpsgd", "dpdt"])
@pytest.mark.parametrize("sampling", ["partition", "cyclic-poisson"])
def test_what_is_added_has_the_covariance_that_is_accounted(options, sampling):
    model, step, loader = started({**options, "sampling": sampling})
    c = coefficients(step)
    assert len(c) == 3
    draws = moves(model, step, loader)
    assert p_value(draws, c) > 1e-6
    # the test has teeth: another band, a lost buffer, a start in the middle, another end
    assert p_value(draws, (1.0,)) < 1e-6
    assert p_value(draws, (*c[:2], c[2] * 0.8)) < 1e-6
    assert p_value(draws, c[:2]) < 1e-6
    assert p_value(draws, c, horizon=STEPS + 2) < 1e-6
    assert p_value(draws[4:], c, first=4) < 1e-6


def test_the_noise_in_the_model_is_what_was_expected_when_bands_were_chosen():
    """Noise far longer than C: a multiplier that is clipped would forget what is to come back."""
    options = {**DPDT, "memory": "shared", "lr": 0.1, "averaging": 0.5, "noise_bands": 4}
    model, step, loader = started({**options, "epochs": 20})
    start, header = model.weight.detach().clone(), step.plan.header
    for batch in loader:
        step(batch)
    spread = float((model.weight.detach() - start).std())
    moved = spread * 2 * 0.1 / SIGMA  # a step counts 1/2ρη in the end
    smoothing = replace(step.plan.smoothing, averaging=0.0)
    response = np.square(np_response(header.coefficients, header.horizon, smoothing))
    expected = np.linalg.norm(header.coefficients) * math.sqrt(response.sum())
    assert moved == pytest.approx(expected, rel=0.1)


def test_a_loaded_state_goes_on_with_noise_that_knows_nothing_of_the_old():
    model, step, loader = started(DPSGD)
    moves(model, step, loader, 5)
    state = step.state_dict()
    moves(model, step, loader, 3)
    step.load_state_dict(state)
    again = moves(model, step, loader)
    assert len(again) == STEPS - 5
    assert p_value(again, coefficients(step), first=5) > 1e-6
    assert step.writer.ledger.steps == STEPS + 3


def test_a_state_holds_no_noise():
    model, step, loader = started(DPSGD)
    draws = moves(model, step, loader, 3)

    def tensors(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return [t for part in value for t in tensors(part)]
        return [value] if isinstance(value, torch.Tensor) else []

    weights = model.weight.detach().flatten()
    for tensor in tensors(step.state_dict()):
        if tensor.numel() == weights.numel():
            assert torch.equal(tensor.flatten(), weights)
    kept = step.secrets()["noise"]["earlier"]
    assert len(kept) == 2
    assert np.corrcoef(kept[0][:ENTRIES], draws[-1])[0, 1] > 0.99


CHOSEN = (
    'data.name="digits"', 'model.name="linear"', "train.epochs=2", "train.batch_size=240",
    "privacy.epsilon=4.0", 'method.sampling="cyclic-poisson"', "method.noise_bands=3",
)  # fmt: skip


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    chosen = config.load("digits", (*CHOSEN, "privacy.noise_seed=3"))
    whole = run(chosen, tmp_path / "whole", show_progress=False)
    cut(monkeypatch, chosen, tmp_path / "cut", steps=5)
    again = run(chosen, tmp_path / "cut", show_progress=False, resume=True)
    assert again.steps == whole.steps
    ledgers = [dpdt.Ledger.read(tmp_path / name / "ledger.jsonl") for name in ("whole", "cut")]
    assert ledgers[0].model == ledgers[1].model
    assert ledgers[0].runs == ledgers[1].runs


def test_a_whole_run_has_a_guarantee(tmp_path):
    path = tmp_path / "run"
    run(config.load("digits", CHOSEN), path, show_progress=False)
    ledger = dpdt.Ledger.read(path / "ledger.jsonl")
    header = ledger.header
    assert header.groups == len(header.coefficients) == 3
    assert header.rate == pytest.approx(3 * 240 / header.examples)
    proven = dpdt.account(ledger, 1e-5).proven
    assert proven.epsilon <= 4.0
    assert proven.relation == "zero-out"


def test_an_example_takes_part_at_its_turns_alone():
    _, step, _ = started({**DPSGD, "sampling": "cyclic-poisson"})
    sampler, turns = step.loader.draws.sampler, {}
    for number in range(60):
        for example in sampler.batch(number)[0].tolist():
            turns.setdefault(example, set()).add(number % 3)
    assert len(turns) == STEPS
    assert all(len(found) == 1 for found in turns.values())


def test_groups_follow_from_the_number_of_an_example_alone():
    from dpdt.noise import Randomness
    from dpdt.partition import PoissonSampler

    few, many = (
        PoissonSampler(
            examples=n, rate=1.0, auxiliaries=1, per_example=True, source=Randomness(0), groups=4,
            seed=2,
        )
        for n in (30, 31)
    )  # fmt: skip
    for step in range(8):
        mine, theirs = few.batch(step)[0], many.batch(step)[0]
        assert mine.tolist() == [i for i in theirs.tolist() if i < 30]
    assert sorted(i for step in range(4) for i in few.batch(step)[0]) == list(range(30))


class TestAuto:
    def plan(self, *overrides):
        wanted = ('method.noise_bands="auto"', "privacy.epsilon=8.0", *overrides)
        return config.plan_of(config.load("fashion-mnist", wanted))

    def test_small_batches_and_few_epochs_gain(self):
        found = self.plan(
            'method.sampling="cyclic-poisson"', "train.batch_size=500", "train.epochs=10"
        )
        assert found.training.method.noise_bands > 1
        assert found.header.groups == len(found.header.coefficients)
        assert dpdt.account(found.ledger(), 1e-5).epsilon <= 8.0

    def test_large_batches_gain_nothing(self):
        found = self.plan(
            'method.sampling="cyclic-poisson"', "train.batch_size=20000", "train.epochs=40",
            "privacy.epsilon=1.0",
        )  # fmt: skip
        assert found.training.method.noise_bands == 1
        assert found.header.coefficients == (1.0,)

    def test_a_partition_takes_as_many_as_are_free(self):
        found = self.plan('method.sampling="partition"', "train.batch_size=6000")
        assert found.training.method.noise_bands == found.header.batches == 10


BAD = [
    ({"sampling": "poisson"}, "with sampling 'poisson' it must be 1"),
    ({"noise_bands": "auto"}, "'auto' needs a target privacy.epsilon"),
    ({"noise_bands": 0}, "method.noise_bands: must be a whole number from 1"),
    ({"noise_bands": 2.5}, "method.noise_bands: must be a whole number from 1"),
    ({"sampling": "cyclic-poisson", "noise_bands": 9}, "give at most 4"),
]


@pytest.mark.parametrize(("options", "why"), BAD)
def test_what_cannot_be_is_refused(options, why):
    with pytest.raises(InputError, match=why):
        started({**DPSGD, **options})


@pytest.mark.parametrize(
    "options", [{"memory": "auxiliary"}, {"reshuffle": True}, {"unit": "shard"}]
)
def test_records_that_may_take_part_anywhere_are_refused(options):
    with pytest.raises(InputError, match="steps are known beforehand"):
        started({**DPDT, **options})


def test_noise_that_does_not_fit_is_refused_with_the_number(monkeypatch):
    monkeypatch.setattr(streams, "available", lambda: 100_000)
    with pytest.raises(InputError, match=r"2 earlier steps takes 0.3 MB .* 0.1 MB free"):
        started(DPSGD)


def test_the_memory_is_that_of_the_bands():
    _, step, _ = started(DPSGD)
    assert bands.memory(step.plan) == 2 * ENTRIES * 8
