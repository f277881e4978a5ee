"""What the convergence theory promises, and the quantities it speaks of."""

import math

import pytest
import torch
from torch import nn

from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.algorithm.schedule import Exponential, Phase

from .problems import batch_of, engine_for, flat, take_step


class Point(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.at = nn.Parameter(torch.zeros(size, dtype=torch.float64))


CURVATURE = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)


def quadratic(model, targets):
    """Strongly convex: ½ Σ c (θ − target)², its minimum over all targets is their mean."""
    return 0.5 * (CURVATURE * (model.at - targets) ** 2).sum(-1).mean()


def targets(n=8):
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def run(steps, engine, data, sizes):
    results = []
    for step in range(steps):
        results.append(take_step(engine, batch_of(data, sizes, step, epoch=step)))
    return results


@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
def test_without_noise_a_strongly_convex_problem_is_solved(memory):
    model, data = Point(3), targets()
    engine = engine_for(
        model, quadratic, memory=memory, lr=0.2, penalty=(1.0,), clip=100.0, global_lr=0.9
    )
    run(400, engine, data, (2,) * 4)
    torch.testing.assert_close(flat(model), data.mean(0), rtol=0, atol=1e-6)


def test_l2_optimum_is_the_regularised_one():
    model, data, strength = Point(3), targets(), 0.5
    engine = engine_for(
        model,
        quadratic,
        lr=0.2,
        clip=100.0,
        regularizer="l2",
        weight_decay=strength,
        global_lr=0.9,
    )
    run(400, engine, data, (2,) * 4)
    # At a fixed point θ = (θ − s·c(θ − m)) / (1 + λη̂) with s = 2·η_θ·η, so weights s and λη̂.
    s, shrink = 2 * 0.9 * 0.2, strength * 0.9
    expected = s * CURVATURE * data.mean(0) / (s * CURVATURE + shrink)
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-6)


def test_with_growing_penalty_the_path_stays_finite():
    lengths = {}
    for rate in (1.0, 1.04):
        model = Point(3)
        engine = engine_for(
            model,
            quadratic,
            memory="auxiliary",
            lr=0.05,
            clip=100.0,
            noise=0.1,
            penalty_schedule=(Exponential(phases=(Phase(rate=rate, every=1, start=1),)),),
            engine={"diagnose": True},
        )
        results = run(600, engine, targets(), (2,) * 4)
        path = [r.diagnostics.path_length for r in results]
        lengths[rate] = (path[299], path[599])
    # geometric growth of ρ makes η̂ and so the steps summable; constant ρ keeps walking
    assert lengths[1.04][1] - lengths[1.04][0] < 1e-2 * lengths[1.04][0]
    assert lengths[1.0][1] > 1.8 * lengths[1.0][0]


def test_smoothness_estimate_is_the_largest_curvature():
    model = Point(3)
    engine = engine_for(model, quadratic, engine={"diagnose": True})
    before = flat(model)
    result = take_step(engine, batch_of(targets(), (2,) * 4))
    assert math.isclose(result.diagnostics.smoothness, 4.0, rel_tol=1e-3)
    # η < 2τ/(L + 5ρ + 2) = 2/11 with the identity (τ = 1) and ρ = 1
    assert math.isclose(result.diagnostics.lr_limit, 2 / 11, rel_tol=1e-3)
    assert result.diagnostics.lr_condition
    assert result.diagnostics.global_lr_condition
    assert not torch.equal(before, flat(model))


def test_diagnostics_against_their_definitions():
    """One auxiliary, hand computation: θ_k = θ − u, π_new = π̂ − ρu."""
    model, data, rho, lr = Point(3), targets(2), 2.0, 0.05
    engine = engine_for(
        model,
        quadratic,
        memory="auxiliary",
        auxiliaries=1,
        lr=lr,
        penalty=(rho,),
        clip=0.2,
        engine={"diagnose": True},
    )
    pi = torch.zeros(3, dtype=torch.float64)
    for step in range(4):
        theta = flat(model)
        gradient = CURVATURE * (theta - data.mean(0))
        pi_hat = pi * min(1.0, 0.2 / max(float(pi.norm()), 1e-300))
        p = gradient + pi
        rates = torch.linspace(0, lr, 200_001, dtype=torch.float64)
        allowed = (2 * rho * rates[:, None] * p - pi_hat).norm(dim=1) <= 0.2
        rate = float(rates[allowed].max())
        u = rate * p
        new = pi_hat - rho * u
        result = take_step(engine, batch_of(data, (2,), step))
        d = result.diagnostics
        loss = float(0.5 * (CURVATURE * (theta - u - data) ** 2).sum(-1).mean())
        expected = loss - new @ u + 0.5 * rho * u @ u
        assert math.isclose(d.lagrangian, float(expected), rel_tol=1e-4)
        assert math.isclose(d.consensus_residual, float(u.norm()), rel_tol=1e-4)
        assert d.share_cut == float(rate < lr * (1 - 1e-9))
        assert d.clipping_bias <= 1e-9  # C does not shrink, so the lemma says κ = 0
        pi = new


def test_clipping_bias_obeys_the_lemma():
    """‖κ‖ ≤ C_{t−1} − C_t for a clipping threshold that shrinks."""
    from dpdt.algorithm.schedule import Steps

    model = Point(3)
    engine = engine_for(
        model,
        quadratic,
        memory="auxiliary",
        lr=0.5,
        clip=1.0,
        clip_schedule=Steps(epochs=(2, 4), factors=(1.0, 0.5, 0.1)),
        preconditioner=Preconditioner(name="rmsprop", decay=0.99),
        engine={"diagnose": True},
    )
    results = run(6, engine, targets() * 100, (2,) * 4)
    bias = [r.diagnostics.clipping_bias for r in results]
    drops = [0, 0, 0.5, 0, 0.4, 0]
    assert all(b <= drop + 1e-6 for b, drop in zip(bias, drops, strict=True))
    assert bias[2] > 0
