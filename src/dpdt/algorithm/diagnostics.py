"""The quantities of the convergence theory, on request.

The theory's conditions on the learning rates are η < 2τ/(L + 5ρ + 2) and η_θ ≤ 1. L is the
smoothness of the loss, τ the floor of the preconditioner (1 for the identity). All values depend on
the data and are private.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.gradients import Loss, looped
from dpdt.algorithm.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    lagrangian: float  # augmented Lagrangian after stage 1, the loss taken to first order
    consensus_residual: float  # root mean square of ‖θ_k − θ‖
    clipping_bias: float  # largest ‖κ_k‖ = ‖π_k − π̂_k‖
    path_length: float  # Σ ‖Δθ‖ so far
    share_cut: float  # share of auxiliaries and blocks whose learning rate was cut
    smoothness: float  # the estimate of L
    lr_limit: float  # 2τ/(L + 5ρ + 2)
    lr_condition: bool  # η < lr_limit
    global_lr_condition: bool  # η_θ ≤ 1


def smoothness(
    model: nn.Module, loss: Loss, layout: Layout, batch: Batch, iterations: int = 10
) -> float:
    """Estimate L, the largest curvature in absolute value, by power iteration.

    The curvature is that of the first micro-batch that is not empty. Products with the Hessian are
    differences of gradients, so that every model can be asked. The estimate is a lower one: more
    iterations can only raise it.
    """
    bounds = [b for b in batch.bounds if b[1] > b[0]]
    if not bounds:
        return 0.0
    data, theta = batch.slice(*bounds[0]), layout.gather()
    generator = torch.Generator(device=layout.device).manual_seed(0)
    v = torch.randn(layout.size, generator=generator, dtype=layout.dtype, device=layout.device)
    v *= layout.spread((1.0,) * layout.count)  # padding stays 0
    reach = (1e-3 if layout.dtype == torch.float32 else 1e-5) * max(1.0, float(theta.norm()))
    estimate = 0.0

    def gradient(at: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        layout.scatter(at)
        out = torch.empty_like(theta)
        looped(model, loss, layout, data, out.unsqueeze(0))
        return out

    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for _ in range(iterations):
                v = v / v.norm()
                product = (gradient(theta + reach * v) - gradient(theta - reach * v)) / (2 * reach)
                estimate = float(product.norm())
                if not 0.0 < estimate < float("inf"):
                    break
                v = product
    finally:
        layout.scatter(theta)
    return estimate
