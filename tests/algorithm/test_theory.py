"""The quantities of the convergence theory, against a direct computation with θ_k and π_k.

The problem is quadratic: auxiliary k has ½ Σ_j c_j (θ_j − t_kj)², so that L is known and every
loss and gradient is one line of numpy.
"""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.algorithm.schedule import Exponential, Phase, Steps

from .problems import batch_of, classification, engine_for, flat, take_step

CURVATURE = np.array([1.0, 2.0, 4.0, 0.5, 3.0])
L = 4.0


class TwoBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        start = torch.tensor([0.3, -0.2, 0.5, 0.9, -0.7], dtype=torch.float64)
        self.first = nn.Parameter(start[:3].clone())
        self.second = nn.Parameter(start[3:].clone())


def quadratic(model, targets):
    at = torch.cat([model.first, model.second])
    return 0.5 * (torch.from_numpy(CURVATURE) * (at - targets) ** 2).sum(-1).mean()


BLOCKS = (slice(0, 3), slice(3, 5))
K = 4


def targets(seed=0, scale=1.0):
    return scale * torch.randn(
        2 * K, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


class Direct:
    """Algorithm 1 once more, with every θ_k and π_k written out."""

    def __init__(self, memory, *, clip, lr, rho, noise, decay, regularizer, strength, global_lr):
        self.memory, self.clip, self.lr, self.rho, self.noise = memory, clip, lr, rho, noise
        self.decay, self.regularizer, self.strength = decay, regularizer, strength
        self.eta = global_lr / np.mean(rho)
        self.pi = np.zeros((K, 5))
        self.path = 0.0

    def loss(self, theta, t):
        plain = 0.5 * (CURVATURE * (theta - t) ** 2).sum(-1).mean()
        return plain + 0.5 * self.decay * theta @ theta

    def r(self, theta):
        return {
            "none": 0.0,
            "l2": 0.5 * self.strength * theta @ theta,
            "l1": self.strength * np.abs(theta).sum(),
        }[self.regularizer]

    def rate(self, p, pi_hat, rho):
        """The largest η_k with ‖2ρη_k p − π̂‖ ≤ C, by bisection."""
        if np.linalg.norm(2 * rho * self.lr * p - pi_hat) <= self.clip:
            return self.lr
        low, high = 0.0, self.lr
        for _ in range(200):
            middle = 0.5 * (low + high)
            inside = np.linalg.norm(2 * rho * middle * p - pi_hat) <= self.clip
            low, high = (middle, high) if inside else (low, middle)
        return low

    def clipped(self, pi):
        hat = pi.copy()
        for b in BLOCKS:
            hat[b] *= self.clip / max(self.clip, np.linalg.norm(pi[b]))
        return hat

    def step(self, theta, new, micro, smooth):
        """What the theory says of a step from θ to `new`, on the targets of each auxiliary."""
        rho, found = self.rho, {}
        gradients = [CURVATURE * (theta - t.mean(0)) for t in micro]
        before = self.pi.copy()
        hats = np.array([self.clipped(pi) for pi in before])
        rates, moved = np.zeros((K, 2)), np.zeros((K, 5))
        for k in range(K):
            for i, b in enumerate(BLOCKS):
                g = gradients[k][b] + self.decay * theta[b]
                if self.memory == "shared":  # the data's part is clipped by itself
                    rates[k, i] = self.rate(gradients[k][b], 0 * g, rho[k])
                    moved[k, b] = rates[k, i] * gradients[k][b]
                    moved[k, b] += self.lr * (hats[k, b] + self.decay * theta[b])
                else:
                    p = g + before[k, b]
                    rates[k, i] = self.rate(p, hats[k, b], rho[k])
                    moved[k, b] = rates[k, i] * p
        at = theta - moved  # θ_k
        after = hats - np.array(rho)[:, None] * moved

        def lagrangian(published, auxiliaries, multipliers):
            terms = [
                self.loss(auxiliaries[k], micro[k])
                + multipliers[k] @ (auxiliaries[k] - published)
                + 0.5 * rho[k] * np.sum((auxiliaries[k] - published) ** 2)
                for k in range(K)
            ]
            return np.mean(terms) + self.r(published)

        here, there = np.tile(theta, (K, 1)), np.tile(new, (K, 1))
        found["lagrangian"] = lagrangian(theta, at, after)
        found["dual_ascent"] = lagrangian(theta, at, after) - lagrangian(theta, at, hats)
        found["dual_bias"] = lagrangian(theta, at, hats) - lagrangian(theta, at, before)
        found["global_change"] = lagrangian(new, at, after) - lagrangian(theta, at, after)
        found["reset_gap"] = lagrangian(new, there, after) - lagrangian(new, at, after)
        found["lyapunov"] = lagrangian(new, there, after)
        norms = [[np.linalg.norm(before[k, b]) for b in BLOCKS] for k in range(K)]
        found["clipping_bias"] = max(0.0, np.max(norms) - self.clip)
        found["consensus_residual"] = math.sqrt((moved**2).sum() / K)
        found["share_cut"] = np.mean(rates < self.lr * (1 - 1e-9))
        self.path += np.linalg.norm(new - theta)
        found["path_length"] = self.path
        # gradient deviation
        mean = np.mean(gradients, 0)
        deviations = [np.linalg.norm(g - mean) for g in gradients]
        found["gradient_deviation"] = max(deviations)
        found["gradient_deviation_rms"] = math.sqrt(np.mean(np.square(deviations)))
        # local descent
        stays = rates == 0.0  # a block that does not move has no c
        c = 1.0 / np.where(stays, 1.0, rates) - 0.5 * (smooth + np.array(rho)[:, None])
        least = c[~stays].min()
        found["descent_constant"] = least
        parts = np.array([[np.sum(moved[k, b] ** 2) for b in BLOCKS] for k in range(K)])
        changes = [
            self.loss(at[k], micro[k])
            - self.loss(theta, micro[k])
            + before[k] @ (at[k] - theta)
            + 0.5 * rho[k] * np.sum((at[k] - theta) ** 2)
            for k in range(K)
        ]
        held = np.array(changes) <= -(c * parts).sum(1) + 1e-12
        found["descent_held"] = held.mean()
        # global descent
        step2 = np.sum((new - theta) ** 2)
        B, noise = 1.0 / self.eta - 0.5 * np.mean(rho), self.eta * 5 * self.noise**2
        found["global_bound"] = -B * step2 + noise
        # Lyapunov
        whole = lagrangian(new, there, after) - lagrangian(theta, here, before)
        found["lyapunov_change"] = whole - found["gradient_deviation"] ** 2 / (2 * least)
        A = (0.5 * c - np.array(rho)[:, None] - 0.5) / K
        kappa = np.sum((before - hats) ** 2) / (2 * K)
        found["lyapunov_bound"] = (
            -(A * parts).sum() - B * step2 + found["reset_gap"] + noise + kappa
        )
        # limits
        if self.memory == "shared":
            contributions = moved - self.lr * (hats + self.decay * theta)
            mean = (2 * np.array(rho)[:, None] * contributions).mean(0)
        else:
            mean = (2 * np.array(rho)[:, None] * moved - hats).mean(0)
        sizes = [np.linalg.norm(mean[b]) for b in BLOCKS]
        found["share_step_bound"] = np.mean([s >= 0.9 * self.clip for s in sizes])
        found["noise_to_signal"] = self.noise * math.sqrt(5) / np.linalg.norm(mean)
        self.pi = after if self.memory == "auxiliary" else 0 * after
        return found


def compare(memory, *, steps=5, clips=(0.4,) * 5, data_scale=1.0, **options):
    """Run the engine and the direct computation side by side; returns all diagnostics."""
    settings = {
        "clip": clips[0], "lr": 0.05, "rho": (2.0,) * K, "noise": 0.03, "decay": 0.0,
        "regularizer": "none", "strength": 0.0, "global_lr": 0.9,
    } | options  # fmt: skip
    direct, model = Direct(memory, **settings), TwoBlocks()
    engine = engine_for(
        model,
        quadratic,
        granularity="tensor",
        seed=3,
        engine={"diagnose": True},
        memory=memory,
        auxiliaries=K,
        clip=1.0,
        clip_schedule=Steps(epochs=tuple(range(1, steps)), factors=tuple(clips)),
        noise=settings["noise"],
        lr=settings["lr"],
        penalty=settings["rho"] if len(set(settings["rho"])) > 1 else settings["rho"][:1],
        global_lr=settings["global_lr"],
        regularizer=settings["regularizer"],
        weight_decay=settings["strength"],
        auxiliary_weight_decay=settings["decay"],
    )
    found = []
    for step in range(steps):
        data = targets(step, data_scale)
        theta, direct.clip = flat(model).numpy().copy(), clips[step]
        if memory == "shared":  # what all auxiliaries know, noise included
            direct.pi = np.tile(_flat(engine, engine.memory.multiplier), (K, 1))
        result = take_step(engine, batch_of(data, (2,) * K, step, epoch=step))
        micro = data.numpy().reshape(K, 2, 5)
        d = result.diagnostics
        assert math.isclose(d.smoothness, L + settings["decay"], rel_tol=2e-3)
        expected = direct.step(theta, flat(model).numpy(), micro, d.smoothness)
        found.append(d)
        if memory == "shared":
            for name in ("descent_constant", "descent_held", "lyapunov_change", "lyapunov_bound"):
                assert expected.pop(name) is not None
                assert getattr(d, name) is None
            assert d.lyapunov_fell is None
        else:
            assert d.lyapunov_fell == (expected["lyapunov_change"] < 0)
        if memory == "none":
            assert d.clipping_bias is None
            assert d.dual_bias is None
            assert expected.pop("clipping_bias") == expected.pop("dual_bias") == 0.0
        for name, value in expected.items():
            ours = getattr(d, name)
            assert math.isclose(ours, value, rel_tol=1e-5, abs_tol=1e-8), (step, name, ours, value)
        assert d.looked == K
    return found


def _flat(engine, vector):
    return torch.cat([part.reshape(-1) for part in engine.layout.split(vector)]).numpy()


@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("regularizer", ["none", "l2", "l1"])
def test_every_quantity_against_its_definition(memory, decay, regularizer):
    found = compare(
        memory,
        decay=decay,
        regularizer=regularizer,
        strength=0.3,
        clips=(0.6, 0.6, 0.6, 0.15, 0.15),
    )
    assert {d.share_cut for d in found} - {0.0, 1.0}  # some are cut, and some are not
    if memory != "none":
        assert max(d.clipping_bias for d in found) > 0.01  # C has come down


@pytest.mark.parametrize("memory", ["auxiliary", "none"])
def test_auxiliaries_with_penalties_of_their_own(memory):
    compare(memory, rho=(1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize("memory", ["auxiliary", "none"])
def test_the_lemmas_hold_where_their_conditions_do(memory):
    """Without noise, with η < 2τ/(L + 5ρ + 2) and η_θ < 1: every inequality, at every step."""
    found = compare(memory, lr=0.1, noise=0.0, regularizer="l2", strength=0.2, clips=(5.0,) * 5)
    for d in found:
        assert d.lr_condition
        assert d.global_lr_condition
        assert d.descent_constant > 0
        assert d.descent_held == 1.0
        assert d.global_change <= d.global_bound + 1e-12
        assert d.lyapunov_change <= d.lyapunov_bound + 1e-9
        assert d.lyapunov_fell


def test_local_descent_fails_where_the_loss_is_steeper_than_its_smoothness():
    """L is estimated once. If later data curve more, the lemma's inequality need not hold."""
    model = TwoBlocks()

    def steeper(model, batch):
        factor, at = batch[:, :1], batch[:, 1:]
        return (factor * 0.5 * (torch.cat([model.first, model.second]) - at) ** 2).sum(-1).mean()

    engine = engine_for(model, steeper, lr=0.1, clip=100.0, engine={"diagnose": True})
    shares = []
    for step, steep in enumerate(([1.0] * 4, [1.0, 1.0, 1.0, 40.0])):
        data = torch.cat([torch.tensor(steep).double()[:, None], targets()[:4]], 1)
        result = take_step(engine, batch_of(data, (1,) * 4, step))
        shares.append(result.diagnostics.descent_held)
    assert shares == [1.0, 0.75]


def test_the_noise_in_the_bound_is_the_step_size_times_the_variance():
    """On average the bound with η̂dσ² is met; with η̂²dσ² it would be broken, as η̂ < 1."""
    rho, noise, eta = 5.0, 1.0, 0.9 / 5.0
    engine = engine_for(
        TwoBlocks(), quadratic, noise=noise, penalty=(rho,), global_lr=0.9, lr=0.01, clip=10.0,
        engine={"diagnose": True},
    )  # fmt: skip
    gaps = []
    for step in range(300):
        d = take_step(engine, batch_of(targets(), (2,) * K, step)).diagnostics
        gaps.append(d.global_change - d.global_bound)
    error = np.std(gaps) / math.sqrt(len(gaps))
    assert abs(np.mean(gaps)) < 4 * error
    assert np.mean(gaps) + (eta - eta**2) * 5 * noise**2 > 4 * error


def test_what_limits_a_step():
    """Contributions that agree reach the bound; those that do not cancel, and noise is left."""
    limits = []
    for signs in ((1, 1, 1, 1), (1, -1, 1, -1)):
        model = TwoBlocks()
        data = torch.tensor(signs, dtype=torch.float64)[:, None].expand(4, 5) * 1e3
        engine = engine_for(
            model, quadratic, granularity="model", clip=0.2, noise=0.1, lr=1.0,
            engine={"diagnose": True},
        )  # fmt: skip
        limits.append(take_step(engine, batch_of(data, (1,) * 4)).diagnostics)
    agree, cancel = limits
    assert agree.share_cut == cancel.share_cut == 1.0
    assert (agree.share_step_bound, cancel.share_step_bound) == (1.0, 0.0)
    assert math.isclose(agree.noise_to_signal, 0.1 * math.sqrt(5) / 0.2, rel_tol=1e-3)
    assert cancel.noise_to_signal > 100


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


WAYS = [(memory, way) for memory in ("shared", "none") for way in ("head", "poisson")]
WAYS += [
    (memory, way) for memory in ("auxiliary", "shared", "none") for way in ("together", "apart")
]


@pytest.mark.parametrize(("memory", "way"), WAYS)
def test_diagnosing_leaves_the_model_as_it_would_be(memory, way):
    sizes = {"apart": (1, 2, 3, 0)}.get(way, (1,) * 4 if way == "head" else (2,) * 4)
    sizes = (1,) * 7 if way == "poisson" else sizes
    start = nn.Linear(6, 3) if way == "head" else network()
    name = "identity" if way == "head" or memory == "none" else "rmsprop"
    models, before = [], torch.get_rng_state()
    for diagnose in (False, True):
        model = copy.deepcopy(start)
        engine = engine_for(
            model,
            granularity="model",
            memory=memory,
            noise=0.1,
            preconditioner=Preconditioner(name=name, decay=0.9, floor=0.1),
            engine={"diagnose": diagnose},
        )
        for step in range(4):
            data = classification(sum(sizes), seed=step)
            keys = tuple(range(3, 3 + len(sizes))) if way == "poisson" else None
            batch = Batch(
                step=step, epoch=0, data=data, sizes=sizes, keys=keys, fixed=way != "poisson"
            )
            result = take_step(engine, batch)
            assert (result.diagnostics is not None) == diagnose
        models.append(flat(model))
    assert torch.equal(*models)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_mini_batch_has_no_signal():
    engine = engine_for(nn.Linear(6, 3), noise=0.1, engine={"diagnose": True})
    batch = Batch(step=0, epoch=0, data=classification(0), sizes=(), keys=(), fixed=False)
    d = take_step(engine, batch).diagnostics
    assert d.noise_to_signal is None
    assert (d.looked, d.share_cut, d.gradient_deviation) == (0, 0.0, 0.0)
    assert d.descent_constant is d.descent_held is None
    assert d.global_change > 0  # only noise has moved θ


def test_what_is_not_finite_counts_as_nothing():
    x, y = classification(8)
    x[0] = math.nan
    for memory in ("auxiliary", "shared", "none"):
        engine = engine_for(nn.Linear(6, 3), memory=memory, engine={"diagnose": True})
        result = take_step(engine, batch_of((x, y), (2,) * 4))
        assert result.nonfinite == 1
        assert math.isfinite(result.diagnostics.consensus_residual)
        assert math.isfinite(result.diagnostics.global_change)


def test_many_auxiliaries_are_looked_at_in_part():
    """The largest deviation is that of 16, its root mean square that of all."""
    model, (x, y) = nn.Linear(6, 3).double(), classification(50, dtype=torch.float64)
    rows = []
    for i in range(50):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]))
    deviations = (torch.stack(rows) - torch.stack(rows).mean(0)).norm(dim=1)
    engine = engine_for(model, auxiliaries=50, engine={"diagnose": True})
    d = take_step(engine, batch_of((x, y), (1,) * 50)).diagnostics
    looked = [i * 50 // 16 for i in range(16)]
    assert d.looked == 16
    assert math.isclose(d.gradient_deviation, deviations[looked].max(), rel_tol=1e-9)
    assert math.isclose(d.gradient_deviation_rms, deviations.square().mean().sqrt(), rel_tol=1e-9)


def test_the_path_goes_on_after_a_state_is_loaded():
    results, data = [], targets()
    for resumed in (False, True):
        engine = engine_for(TwoBlocks(), quadratic, memory="auxiliary", engine={"diagnose": True})
        for step in range(4):
            if resumed and step == 2:
                state = engine.state_dict()
                engine = engine_for(
                    TwoBlocks(), quadratic, memory="auxiliary", engine={"diagnose": True}
                )
                engine.load_state_dict(state)
            result = take_step(engine, batch_of(data, (2,) * K, step))
        results.append(result.diagnostics)
    assert results[0] == results[1]


def test_a_growing_penalty_lets_the_changes_come_to_rest():
    engine = engine_for(
        TwoBlocks(), quadratic, memory="auxiliary", lr=0.02, clip=100.0, noise=0.1, global_lr=0.9,
        penalty_schedule=(Exponential(phases=(Phase(rate=1.1, every=1, start=1),)),),
        engine={"diagnose": True},
    )  # fmt: skip
    found = [
        take_step(engine, batch_of(targets(), (2,) * K, step, epoch=step)).diagnostics
        for step in range(200)
    ]
    assert abs(found[-1].reset_gap) < 1e-3 * abs(found[0].reset_gap)
    assert abs(found[-1].lyapunov - found[-2].lyapunov) < 1e-6
