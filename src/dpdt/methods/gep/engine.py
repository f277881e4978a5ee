"""Gradient embedding perturbation (Yu et al. 2021).

Public examples give a few directions in which gradients tend to lie. Each private gradient is split
into its coordinates in these directions (the embedding) and what is left (the residual). Each part
is clipped, summed and perturbed by itself. The embedding has few coordinates, so it gets little
noise. The residual is small, so it can be clipped tightly.

    B = an orthonormal basis of the public gradients, by power iteration, for each group of layers
    w = clip_C(B g),  r = clip_R(g − Bᵀ B g)
    step along  Bᵀ(mean w + noise) + mean r + noise
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch, Data, on_device
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.gradients import vectorised
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.randomness import kept, seeded
from dpdt.algorithm.ranks import arrange, everywhere
from dpdt.data.access import count, take
from dpdt.errors import InputError
from dpdt.ledger import Setting
from dpdt.mechanism import Columns, full_precision, perturbed
from dpdt.methods.method import Job
from dpdt.methods.optimizers import optimizer, restore, saved
from dpdt.methods.public import classes_of, labelled
from dpdt.noise import Single

if TYPE_CHECKING:
    from dpdt.methods.gep import Gep


class GepEngine(Single):
    """One step for each Poisson batch. The basis is computed anew at every step.

    Guarantees: an example adds a vector of norm at most `clip` to the sum of embeddings, and one of
    norm at most `residual_clip` to the sum of residuals. A gradient that is not finite adds 0 to
    both. Bounding, summing and noise are done by the core that all methods share (mechanism.py).
    """

    def __init__(self, method: Gep, job: Job):
        model, public = job.model, job.public
        self.model, self.loss, self.method, self.plan = model, job.loss, method, job.plan
        self.noise, self.seed, self.steps, self.world = job.noise, job.seed, 0, job.world
        self.layout = Layout(model, "model")
        expected = -(-job.plan.header.auxiliaries // job.world.size)
        self.executor = Executor(model, job.loss, self.layout, auxiliaries=expected, seed=job.seed)
        classes = classes_of(model, public, method.name, by_name=job.by_name)
        drawn = np.random.default_rng((job.seed, 4)).integers(classes, size=count(public))
        # labels at random: none are public
        anchors = labelled(public, torch.from_numpy(drawn), by_name=job.by_name)
        self.anchors = on_device(anchors, self.layout.place)
        self.groups = _groups(self.layout, method.groups)
        most = sum(min(count(public), g.stop - g.start) for g in self.groups)
        if method.directions > most:
            raise InputError(
                f"method.directions: {count(public)} public examples span at most {most}, found "
                f"{method.directions}"
            )
        self.optimizer = optimizer(method, list(self.layout.tensors))
        try:
            self._gradients(take(self.anchors, torch.arange(1)))
        except RuntimeError as error:
            raise InputError(
                "method.name: gep writes out every example's gradient by torch.func, which this "
                f"model does not allow ({str(error).splitlines()[0][:80]} …); use another method "
                "or model"
            ) from error

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        layout = self.layout
        with full_precision():
            arrange(self.world, self.executor, batch)
            basis = self.basis()
            width = sum(len(b) for b in basis)

            def contribute(rows: slice, gradient: Tensor, scratch: Tensor) -> tuple[Tensor, Tally]:
                return self._split(gradient, basis), Tally()

            found = self.executor.total(
                batch,
                columns=Columns([width, layout.size], device=layout.device),
                clip=setting.clip,
                contribute=contribute,
                whole=True,
            )
            total, loss, tally = everywhere(self.world, self.executor, batch, found)
            parts = torch.split(total, [width, layout.size])
            noisy = [
                perturbed(part, divisor=self.plan.header.auxiliaries, noise=sigma, spacing=s,
                          grid=g, source=self.noise).to(layout.dtype)
                for part, sigma, s, g in zip(
                    parts, setting.noise, setting.spacing, setting.grid, strict=True)
            ]  # fmt: skip
            direction = self._expand(noisy[0], basis) + noisy[1]
        layout.set_gradient(direction)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return StepResult(loss=loss, nonfinite=tally.nonfinite // 2)

    def _split(self, gradients: Tensor, basis: list[Tensor]) -> Tensor:
        """Coordinates in the basis, and what it leaves, side by side.

        Of a gradient that is not finite, neither is.
        """
        width = sum(len(b) for b in basis)
        out = gradients.new_empty(len(gradients), width + self.layout.size)
        out[:, width:], start = gradients, 0
        for group, b in zip(self.groups, basis, strict=True):
            found = gradients[:, group] @ b.t()
            out[:, start : start + len(b)] = found
            out[:, width:][:, group].addmm_(found, b, alpha=-1.0)  # what the basis leaves of it
            start += len(b)
        return out

    def _gradients(self, data: Data) -> Tensor:
        """The gradient of every public example: [examples, parameters]."""
        layout = self.layout
        out = torch.empty(count(data), layout.size, dtype=layout.dtype, device=layout.device)
        keys = (self.seed, self.steps, torch.arange(count(data), device=layout.place))
        with torch.no_grad(), kept():
            seeded(self.seed, self.steps, -1)
            vectorised(self.executor.copy(), self.loss, layout, data, out, 1, keys)
        return out

    def basis(self) -> list[Tensor]:
        """For each group an orthonormal basis, [directions, parameters], from public data alone."""
        anchors = self._gradients(self.anchors)
        sizes = np.array([g.stop - g.start for g in self.groups], dtype=float) ** 0.5
        shares = np.maximum(1, np.floor(self.method.directions * sizes / sizes.sum())).astype(int)
        shares[-1] = max(1, self.method.directions - int(shares[:-1].sum()))
        generator = torch.Generator().manual_seed(self.seed)
        result = []
        for group, number in zip(self.groups, shares.tolist(), strict=True):
            a = anchors[:, group]
            number = min(number, *a.shape)
            q = torch.randn(number, a.shape[1], generator=generator, dtype=a.dtype).to(a.device)
            for _ in range(self.method.power_iterations):
                q = torch.linalg.qr(((q @ a.t()) @ a).t()).Q.t()
            result.append(q)
        return result

    def _expand(self, w: Tensor, basis: list[Tensor]) -> Tensor:
        """Coordinates back to a gradient; padding between groups stays 0."""
        out = w.new_zeros(self.layout.size)
        parts = torch.split(w, [len(b) for b in basis])
        for group, part, b in zip(self.groups, parts, basis, strict=True):
            out[group] = part @ b
        return out

    def finish(self) -> None:
        """The model is as it is to be released."""

    def check(self) -> None:
        """Refuse a model in which anything that is not trained has changed."""
        self.executor.check()

    def state_dict(self) -> dict[str, Any]:
        return saved(self.model, self.optimizer, self.steps, self.executor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = restore(self.model, self.optimizer, state, self.executor)


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
