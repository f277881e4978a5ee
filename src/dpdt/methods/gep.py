"""Gradient embedding perturbation (Yu et al. 2021).

Public examples give a few directions in which gradients tend to lie. Each private gradient is split
into its coordinates in them (the embedding) and what is left (the residual); both are clipped,
summed and perturbed by themselves. The embedding has few coordinates and so little noise; the
residual is small and so clipped tightly.

    B = an orthonormal basis of the public gradients, by power iteration, for each group of layers
    w = clip_C(B g),  r = clip_R(g − Bᵀ B g)
    step along  Bᵀ(mean w + noise) + mean r + noise
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.algorithm.auxiliary import slack
from dpdt.algorithm.batch import Batch, Data
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.gradients import Loss, vectorised
from dpdt.algorithm.layout import Layout, row_norms
from dpdt.algorithm.readiness import refuse_unready
from dpdt.config import Gep, Settings
from dpdt.errors import InputError
from dpdt.methods.loader import count, take
from dpdt.methods.plain import optimizer, restore, saved
from dpdt.methods.plan import Plan
from dpdt.noise import Randomness

CHUNK = 128  # examples whose gradients are held at once


class GepEngine:
    """One step for each Poisson batch; the basis is computed anew at every step.

    Guarantees: an example adds a vector of norm at most `clip` to the embeddings' sum and one of
    norm at most `residual_clip` to the residuals'; a gradient that is not finite adds 0 to both.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, method: Gep, plan: Plan, public: Data, classes: int,
        *, noise: Randomness, seed: int,
    ):  # fmt: skip
        refuse_unready(model)
        self.model, self.loss, self.method, self.plan = model, loss, method, plan
        self.noise, self.seed, self.steps = noise, seed, 0
        self.layout = Layout(model, "model")
        drawn = np.random.default_rng((seed, 4)).integers(classes, size=count(public))
        self.anchors = (public, torch.from_numpy(drawn))  # labels at random: none are public
        self.groups = _groups(self.layout, method.groups)
        most = sum(min(count(public), g.stop - g.start) for g in self.groups)
        if method.directions > most:
            raise InputError(
                f"method.directions: {count(public)} public examples span at most {most}, found "
                f"{method.directions}"
            )
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer(method, trained)

    def step(self, batch: Batch) -> StepResult:
        setting, layout = self.plan.at(self.steps), self.layout
        basis = self.basis()
        embedded = torch.zeros(sum(len(b) for b in basis), dtype=layout.dtype)
        residual = torch.zeros(layout.size, dtype=layout.dtype)
        total, number, broken = 0.0, len(batch.sizes), 0
        for first in range(0, number, CHUNK):
            gradients, losses = self._gradients(batch.slice(first, min(first + CHUNK, number)))
            bad = ~torch.isfinite(row_norms(gradients))
            gradients[bad] = 0.0
            broken += int(bad.sum())
            total += float(losses.sum())
            parts = []
            for group, b in zip(self.groups, basis, strict=True):
                mine = gradients[:, group]
                parts.append(mine @ b.t())
                mine.addmm_(parts[-1], b, alpha=-1.0)  # what the basis leaves of it
            embedded += _clipped_sum(torch.cat(parts, 1), setting.clip[0])
            residual += _clipped_sum(gradients, setting.clip[1])
        noisy = []
        for part, sigma in zip((embedded, residual), setting.noise, strict=True):
            z = self.noise.gaussian(len(part), layout.dtype, layout.device)
            noisy.append(part / self.plan.header.auxiliaries + sigma * z)
        direction = self._expand(noisy[0], basis) + noisy[1]
        for tensor, part in zip(layout.tensors, layout.split(direction), strict=True):
            tensor.grad = part.clone()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return StepResult(loss=total / max(1, number), nonfinite=broken)

    def _gradients(self, data: Data) -> tuple[Tensor, Tensor]:
        """The gradient of every example: [examples, parameters]."""
        number = count(data)
        out = torch.empty(number, self.layout.size, dtype=self.layout.dtype)
        with torch.no_grad():
            losses = vectorised(self.model, self.loss, self.layout, data, out, 1)
        return out, losses

    def basis(self) -> list[Tensor]:
        """For each group an orthonormal basis, [directions, parameters], from public data alone."""
        anchors, _ = self._gradients(self.anchors)
        sizes = np.array([g.stop - g.start for g in self.groups], dtype=float) ** 0.5
        shares = np.maximum(1, np.floor(self.method.directions * sizes / sizes.sum())).astype(int)
        shares[-1] = max(1, self.method.directions - int(shares[:-1].sum()))
        generator = torch.Generator().manual_seed(self.seed)
        result = []
        for group, number in zip(self.groups, shares.tolist(), strict=True):
            a = anchors[:, group]
            number = min(number, *a.shape)
            q = torch.randn(number, a.shape[1], generator=generator, dtype=a.dtype)
            for _ in range(self.method.power_iterations):
                q = torch.linalg.qr(((q @ a.t()) @ a).t()).Q.t()
            result.append(q)
        return result

    def _expand(self, w: Tensor, basis: list[Tensor]) -> Tensor:
        """Coordinates back to a gradient; padding between groups stays 0."""
        out = torch.zeros(self.layout.size, dtype=w.dtype)
        parts = torch.split(w, [len(b) for b in basis])
        for group, part, b in zip(self.groups, parts, basis, strict=True):
            out[group] = part @ b
        return out

    def finish(self) -> None:
        """The model is as it is to be released."""

    def state_dict(self) -> dict[str, Any]:
        return {
            **saved(self.model, self.optimizer, self.steps),
            "noise": self.noise.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = restore(self.model, self.optimizer, state)
        self.noise.load_state_dict(state["noise"])


def _groups(layout: Layout, number: int) -> list[slice]:
    """Tensors in order, cut into groups of about equal size."""
    sizes = [t.numel() for t in layout.tensors]
    if number > len(sizes):
        raise InputError(f"method.groups: the model has {len(sizes)} tensors, found {number}")
    ends, total = np.cumsum(sizes), sum(sizes)
    cuts = [0]
    for i in range(1, number):
        cuts.append(int(ends[np.abs(ends - total * i / number).argmin()]))
    return [slice(a, b) for a, b in pairwise([*sorted(set(cuts)), total]) if b > a]


def _clipped_sum(x: Tensor, clip: float) -> Tensor:
    limit = clip * (1.0 - slack(x.dtype))
    norms = row_norms(x)  # if it overflows, a finite x is scaled to 0
    return torch.where(norms > limit, limit / norms, 1.0).to(x.dtype) @ x


def engine(
    model: nn.Module, loss: Loss, using: Settings, decided: Plan, *, noise: Randomness,
    public: Any, **_: Any,
) -> GepEngine:  # fmt: skip
    """GEP as one of the methods; refused without public examples."""
    method = using.method
    assert isinstance(method, Gep)
    if public is None:
        raise InputError(
            "data.public: gep needs public examples to find its directions; give their number, "
            "or public=… in Python"
        )
    with torch.no_grad():
        classes = model(take(public, torch.arange(1))).shape[-1]
    made = GepEngine(
        model, loss, method, decided, public, classes, noise=noise, seed=using.train.seed
    )
    try:
        made._gradients(take(made.anchors, torch.arange(1)))
    except RuntimeError as error:
        raise InputError(
            "method.name: gep writes out every example's gradient by torch.func, which this model "
            f"does not allow ({str(error).splitlines()[0][:80]} …); use another method or model"
        ) from error
    return made
