"""Noise: the right scale in every block, independent, from the operating system."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from randomgen import AESCounter
from scipy import stats
from torch import nn

from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.recipe import Recipe
from dpdt.errors import InputError
from dpdt.noise import KEY_BITS, Randomness

from .problems import Constant, batch_of, engine_for, flat, take_step

BLOCKS = (5_000, 5_000, 3_000, 700)
SIGMAS = (0.5, 2.0, 0.01, 1.0)


def p_value(draws, sigma):
    """Two-sided test that draws have variance σ², normal."""
    n = len(draws)
    statistic = float((draws / sigma) @ (draws / sigma))
    return 2 * min(stats.chi2.cdf(statistic, n), stats.chi2.sf(statistic, n))


def draws_of_a_step(source=None, **options):
    model = Constant(*BLOCKS)
    layout = Layout(model, "tensor")
    by_name = {f"parts.{i}": s for i, s in enumerate(SIGMAS)}
    sigmas = tuple(by_name[b.name] for b in layout.blocks.blocks)
    recipe = Recipe(auxiliaries=3, clip=(1.0,) * 4, noise=sigmas, lr=0.1, global_lr=1.0, **options)
    engine = Decoupled(model, lambda m, x: m(x), recipe, granularity="tensor", noise=source)
    take_step(engine, batch_of(torch.ones(3, 1), (1, 1, 1)))
    scale = engine.recipe.at(0).step_size
    return [(-p.detach() / scale).double() for p in model.parts]


@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
def test_noise_has_the_right_scale_in_every_block(memory):
    for draws, sigma in zip(draws_of_a_step(memory=memory, penalty=(2.5,)), SIGMAS, strict=True):
        assert p_value(draws, sigma) > 1e-6
        # the test has teeth: it would notice a wrong scale
        assert p_value(draws, 2 * sigma / 3) < 1e-6
        assert p_value(draws, 3 * sigma / 2) < 1e-6
        assert stats.kstest(draws / sigma, "norm").pvalue > 1e-6


def test_noise_does_not_shrink_with_auxiliaries_or_examples():
    """σ is the noise on the mean: it is not divided by K."""
    model = Constant(20_000)
    engine = engine_for(model, lambda m, x: m(x), auxiliaries=50, noise=1.0, global_lr=1.0)
    take_step(engine, batch_of(torch.ones(50, 1), (1,) * 50))
    assert p_value(-flat(model).double(), 1.0) > 1e-6


def test_an_empty_batch_still_gets_noise():
    model = Constant(20_000)
    engine = engine_for(model, lambda m, x: m(x), auxiliaries=5, noise=1.0, global_lr=1.0)
    take_step(engine, batch_of(torch.ones(0, 1), (0,) * 5))
    assert p_value(-flat(model).double(), 1.0) > 1e-6
    take_step(engine, batch_of(None, ()))
    assert p_value(-flat(model).double(), 2**0.5) > 1e-6


def test_noise_is_independent_between_steps():
    model = Constant(20_000)
    engine = engine_for(model, lambda m, x: m(x), noise=1.0, global_lr=1.0)
    seen = [flat(model)]
    for step in range(3):
        take_step(engine, batch_of(torch.ones(4, 1), (1,) * 4, step))
        seen.append(flat(model))
    draws = np.diff(torch.stack(seen).double().numpy(), axis=0)
    correlation = np.corrcoef(draws)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 5 / 20_000**0.5


def test_noise_comes_from_the_operating_system_not_from_any_seed():
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        results.append(torch.cat(draws_of_a_step()))
    assert not torch.equal(*results)
    assert Randomness().private
    assert not Randomness(0).private


def test_a_fixed_seed_repeats_and_its_state_restores():
    first, second = Randomness(3), Randomness(3)
    assert np.array_equal(first.gaussian(10), second.gaussian(10))
    kept = first.secrets()
    third = Randomness()
    third.resume(kept)
    assert np.array_equal(first.gaussian(1001), third.gaussian(1001))
    assert np.array_equal(first.coins(77, 0.3), third.coins(77, 0.3))
    assert not third.private  # what was seeded stays marked


def test_the_stream_is_aes_with_a_key_of_128_bits():
    """The vector of FIPS 197, appendix C.1; and the whole key matters, both halves of it."""
    key = int.from_bytes(bytes(range(16)), "little")
    block = int.from_bytes(bytes.fromhex("00112233445566778899aabbccddeeff"), "little")
    cipher = AESCounter(key=key, counter=block).random_raw(2).tobytes()
    assert cipher.hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    assert KEY_BITS == 128


def test_the_key_is_what_the_operating_system_gives(monkeypatch):
    """All of its bits: keys that differ in one bit, anywhere, give other streams."""
    asked = []

    def entropy(key):
        return lambda bits: asked.append(bits) or key

    draws = []
    for key in (0, 1, 2**31, 2**32, 2**63, 2**64, 2**127):
        monkeypatch.setattr("dpdt.noise.secrets.randbits", entropy(key))
        draws.append(tuple(Randomness().gaussian(4)))
        inside = Randomness()._generator.bit_generator.state["s"]["seed"][:2]
        assert int(inside[0]) + (int(inside[1]) << 64) == key
    assert set(asked) == {128}
    assert len(set(draws)) == len(draws)


def test_a_stream_cannot_be_copied_or_forked():
    source = Randomness()
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InputError, match="cannot be copied"):
            copying(source)
    source._process += 1  # as a forked process sees it
    for draw in (lambda: source.gaussian(1), lambda: source.coins(1, 0.5)):
        with pytest.raises(InputError, match="forked process"):
            draw()


def test_noise_reaches_every_trained_parameter_and_no_frozen_one():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    engine = engine_for(model, lambda m, x: m(x).sum() * 0.0, noise=1.0)
    take_step(engine, batch_of(torch.ones(4, 4), (1,) * 4))
    for name, parameter in model.named_parameters():
        assert bool((parameter != before[name]).all()) == (name != "0.weight")


def test_draws_made_ahead_are_those_of_the_stream_and_are_handed_out_once():
    first, second = Randomness(5), Randomness(5)
    ahead = first.ahead(7)
    assert np.array_equal(ahead.gaussian(7), second.gaussian(7))
    assert np.array_equal(first.gaussian(3), second.gaussian(3))  # the stream has gone on
    with pytest.raises(InputError, match="for one release alone"):
        ahead.gaussian(7)
    with pytest.raises(InputError, match="7 numbers were drawn"):
        first.ahead(7).gaussian(8)


def test_a_forked_process_has_a_thread_of_its_own():
    Randomness(5).ahead(3).gaussian(3)  # the thread is there now
    stale = Randomness(6)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        told = b"drew"
        try:
            Randomness(5).ahead(3).gaussian(3)
            stale.ahead(3)
        except InputError as error:
            told = str(error).encode()
        os.write(write, told)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"cannot go on in a forked process" in os.read(read, 1000)
