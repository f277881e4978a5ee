"""The engine agrees with the slow transcription of Algorithm 1."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm.auxiliary import move_
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.layout import STRETCH, Layout
from dpdt.algorithm.preconditioner import DECAYS, Preconditioner
from dpdt.algorithm.recipe import Recipe
from dpdt.algorithm.schedule import PAPER_CLIP, Constant, Exponential, Phase, Steps
from dpdt.noise import Randomness

from .problems import batch_of, classification, engine_for, flat
from .reference import Reference


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def network(unused):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double()
    if unused:
        model.register_parameter("unused", nn.Parameter(torch.ones(5, dtype=torch.float64)))
    return model


@st.composite
def cases(draw):
    memory = draw(st.sampled_from(["auxiliary", "shared", "none"]))
    K = draw(st.integers(1, 5))
    name = draw(st.sampled_from(list(DECAYS))) if memory != "none" else "identity"
    single = memory == "shared" or draw(st.booleans())
    positive = st.floats(0.05, 20.0)
    return {
        "granularity": draw(st.sampled_from(["layer", "tensor", "kind", "model"])),
        "unused": draw(st.booleans()),
        "equal": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31)),
        "options": {
            "auxiliaries": K,
            "lr": draw(st.floats(1e-3, 1.0)),
            "global_lr": draw(st.floats(0.1, 1.0)),
            "penalty": (draw(positive),) if single else tuple(draw(positive) for _ in range(K)),
            "clip_schedule": draw(
                st.sampled_from(
                    [Constant(), Steps(epochs=(1, 2), factors=(4.0, 2.0, 0.5)), PAPER_CLIP]
                )
            ),
            "penalty_schedule": draw(
                st.sampled_from(
                    [(Constant(),), (Exponential(phases=(Phase(rate=1.5, every=1, start=1),)),)]
                )
            ),
            "memory": memory,
            "preconditioner": Preconditioner(
                name=name, decay=DECAYS[name], floor=draw(st.sampled_from([1e-8, 1e-2, 1.0]))
            ),
            "regularizer": draw(st.sampled_from(["none", "l2", "l1"])),
            "weight_decay": draw(st.floats(0.0, 0.2)),
            "auxiliary_weight_decay": draw(st.sampled_from([0.0, 0.1])),
        },
        "clip": draw(st.floats(1e-3, 3.0)),
        "noise": draw(st.sampled_from([0.0, 0.01, 0.5])),
        "stretch": draw(st.sampled_from([1, 40, STRETCH])),
    }


@settings(max_examples=150)
@given(cases())
def test_engine_equals_transcription(case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpdt.algorithm.layout.STRETCH", case["stretch"])
        equals_transcription(case)


def equals_transcription(case):
    torch.manual_seed(case["seed"])
    generator = np.random.default_rng(case["seed"])
    K = case["options"]["auxiliaries"]
    model = network(case["unused"])
    twin = copy.deepcopy(model)
    layout = Layout(model, case["granularity"])
    clip = tuple(case["clip"] * generator.uniform(0.5, 2, layout.count))
    noise = tuple(case["noise"] * generator.uniform(0.5, 2, layout.count))
    recipe = Recipe(clip=clip, noise=noise, **case["options"])
    engine = Decoupled(
        model,
        loss,
        recipe,
        granularity=case["granularity"],
        noise=Randomness(case["seed"]),
        diagnose=case["seed"] % 2 == 0,
    )
    reference = Reference(twin, loss, recipe, layout.blocks.members)
    draws = Randomness(case["seed"])
    for t in range(8):
        sizes = (3,) * K if case["equal"] else tuple(int(s) for s in generator.integers(0, 4, K))
        n = sum(sizes)
        x, y = torch.randn(n, 3, dtype=torch.float64) * 2, torch.randint(0, 2, (n,))
        batch = Batch(step=t, epoch=t // 2, data=(x, y), sizes=sizes)
        z = torch.from_numpy(draws.gaussian(layout.size))
        parts = dict(zip(layout.names, layout.split(z), strict=True))
        z = [
            sigma * np.concatenate([parts[n].reshape(-1).numpy() for n in members])
            for sigma, members in zip(recipe.at(t // 2).noise, layout.blocks.members, strict=True)
        ]
        micro = [(x[a:b], y[a:b]) if b > a else None for a, b in batch.bounds]
        reference.step(micro, t // 2, z)
        engine.step(batch, recipe.at(t // 2))
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("memory", ["auxiliary", "none"])
def test_a_step_is_a_function_of_the_setting_that_it_is_given(memory):
    """Whatever the engine's own recipe says: the setting is what the ledger has recorded."""
    data = classification(8)
    found = []
    for lr, penalty in ((0.1, (1.0, 2.0, 3.0, 4.0)), (0.7, (5.0,))):
        torch.manual_seed(0)
        engine = engine_for(
            nn.Linear(6, 3), memory=memory, lr=lr, penalty=penalty, engine={"diagnose": True}
        )
        if not found:
            setting = engine.recipe.at(0)
        results = [engine.step(batch_of(data, (2,) * 4, step), setting) for step in range(2)]
        found.append((flat(engine.model).tolist(), results))
    assert setting.penalties == (1.0, 2.0, 3.0, 4.0)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", list(DECAYS))
def test_an_auxiliary_moves_alike_in_any_stretches(name, monkeypatch):
    """Also where multipliers are longer than the clip, by another share in every block."""
    generator = torch.Generator().manual_seed(0)
    layout = Layout(nn.ParameterList([torch.zeros(n) for n in (300, 5, 900)]), "tensor")
    clip = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)

    def moved(stretch):
        monkeypatch.setattr("dpdt.algorithm.layout.STRETCH", stretch)
        gradient, multiplier, decay, second = (
            torch.randn(2, layout.size, generator=generator.manual_seed(seed)) for seed in range(4)
        )
        gradient[1, 20] = torch.inf
        norms = layout.norms(multiplier)
        assert bool((norms > clip).any())
        second = second.square() if name != "identity" else None
        move_(
            layout, gradient, torch.empty_like(gradient), multiplier, norms, second,
            preconditioner=Preconditioner(name=name, decay=DECAYS[name]), updates=3,
            decay=decay[0], clip=clip, penalty=torch.tensor([[3.0]], dtype=torch.float64), lr=0.1,
        )  # fmt: skip
        return [t.tolist() for t in (gradient, multiplier, norms, second) if t is not None]

    assert moved(1) == moved(700) == moved(STRETCH)
