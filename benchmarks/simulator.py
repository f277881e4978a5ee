"""A fast stand-in for the package's step, for benchmarks/rates.py. It guarantees nothing.

It takes the step of memory "shared" with penalty "auto", but draws from torch's generator, and
trains many learning rates and noises side by side, with the same mini-batches and the same noise up
to its size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.methods import rate

CLIP = 0.1  # the package's default, of contributions 2ρη·g


class Dense:
    """Gradients of many fully connected networks with ReLU, on the same examples."""

    def __init__(self, model: nn.Sequential, copies: int):
        layers = [m for m in model if isinstance(m, nn.Linear)]
        self.shapes = [(layer.out_features, layer.in_features) for layer in layers]
        flat = torch.cat([p.detach().flatten() for m in layers for p in (m.weight, m.bias)])
        self.theta = flat.repeat(copies, 1)

    def weights(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        sizes = [n for out, into in self.shapes for n in (out * into, out)]
        pieces = theta.split(sizes, 1)
        return [
            (pieces[2 * i].view(-1, *shape), pieces[2 * i + 1].unsqueeze(1))
            for i, shape in enumerate(self.shapes)
        ]

    def _inputs(self, theta: Tensor, x: Tensor) -> list[Tensor]:
        """What every layer sees, and the outputs."""
        seen = [x.flatten(1).expand(len(theta), -1, -1)]
        for i, (weight, bias) in enumerate(self.weights(theta)):
            z = torch.baddbmm(bias, seen[-1], weight.mT)
            seen.append(z if i == len(self.shapes) - 1 else z.relu_())
        return seen

    def total(self, x: Tensor, y: Tensor, bound: float) -> Tensor:
        """Σ over examples of gradients of norm at most `bound`, a row for each network."""
        *seen, outputs = self._inputs(self.theta, x)
        slope = outputs.softmax(2)
        slope.scatter_add_(
            2, y.expand(len(slope), -1).unsqueeze(2), -torch.ones_like(slope[..., :1])
        )
        slopes, squares = [slope], torch.zeros_like(slope[..., 0])
        weights = self.weights(self.theta)
        for i in reversed(range(len(seen))):
            squares += slopes[0].square().sum(2) * (seen[i].square().sum(2) + 1.0)
            if i:
                slopes.insert(0, torch.bmm(slopes[0], weights[i][0]) * (seen[i] > 0))
        factors = (bound / squares.sqrt().clamp_min(1e-30)).clamp_max(1.0).unsqueeze(2)
        found = []
        for a, b in zip(seen, slopes, strict=True):
            b = b * factors
            found += [torch.bmm(b.mT, a).flatten(1), b.sum(1)]
        return torch.cat(found, 1)

    def accuracy(self, theta: Tensor, x: Tensor, y: Tensor) -> list[float]:
        right = torch.zeros(len(theta))
        for some in torch.split(torch.arange(len(x)), 500):
            right += (self._inputs(theta, x[some])[-1].argmax(2) == y[some]).sum(1)
        return [round(float(r) / len(x), 4) for r in right]


class Convolving:
    """The same for the small CNN, one network after the other."""

    def __init__(self, model: nn.Sequential, copies: int):
        self.model = model
        self.names = [n for n, _ in model.named_parameters()]
        self.like = [p.detach() for p in model.parameters()]
        self.theta = torch.cat([p.flatten() for p in self.like]).repeat(copies, 1)

    def _split(self, theta: Tensor) -> dict[str, Tensor]:
        pieces = theta.split([p.numel() for p in self.like])
        return {n: t.view(p.shape) for n, t, p in zip(self.names, pieces, self.like, strict=True)}

    def total(self, x: Tensor, y: Tensor, bound: float) -> Tensor:
        return torch.stack([self._one(theta, x, y, bound) for theta in self.theta])

    def _one(self, theta: Tensor, x: Tensor, y: Tensor, bound: float) -> Tensor:
        named, seen, made = self._split(theta), [], []
        h = x
        for i, layer in enumerate(self.model):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                w, b = named[f"{i}.weight"], named[f"{i}.bias"]
                seen.append((layer, h.detach()))
                h = (
                    F.linear(h, w, b)
                    if isinstance(layer, nn.Linear)
                    else F.conv2d(h, w, b, layer.stride, layer.padding)
                )
                if not h.requires_grad:
                    h.requires_grad_()
                made.append(h)
            else:
                h = layer(h)
        slopes = torch.autograd.grad(F.cross_entropy(h, y, reduction="sum"), made)
        rows = []
        for (layer, a), b in zip(seen, slopes, strict=True):
            if isinstance(layer, nn.Linear):
                rows += [(b.unsqueeze(2) * a.unsqueeze(1)).flatten(1), b]
            else:
                windows = F.unfold(a, layer.kernel_size, padding=layer.padding, stride=layer.stride)
                rows += [torch.bmm(b.flatten(2), windows.mT).flatten(1), b.flatten(2).sum(2)]
        squares = sum((r.square().sum(1) for r in rows), torch.zeros(len(x)))
        factors = (bound / squares.sqrt().clamp_min(1e-30)).clamp_max(1.0)
        return torch.cat([factors @ r for r in rows])

    def accuracy(self, theta: Tensor, x: Tensor, y: Tensor) -> list[float]:
        found = []
        with torch.no_grad():
            for own in theta:
                call = [torch.func.functional_call(self.model, self._split(own), (x[i : i + 1000],))
                        for i in range(0, len(x), 1000)]  # fmt: skip
                found.append(round(float((torch.cat(call).argmax(1) == y).float().mean()), 4))
        return found


def simulate(
    model: nn.Sequential,
    train: tuple[Tensor, Tensor],
    *,
    batch: int,
    steps: int,
    lr: Tensor,
    noise: Tensor,
    seed: int,
    bounded: Tensor | None = None,
) -> tuple[Dense | Convolving, Tensor]:
    """Networks and the weights that are released, for every pair of η and σ.

    The multiplier is clipped where `bounded` says so; everywhere, if it is left out.
    """
    x, y = train
    convolves = any(isinstance(m, nn.Conv2d) for m in model)
    nets = (Convolving if convolves else Dense)(model, len(lr))
    a, rho = rate.FORGOTTEN, rate.FORGOTTEN / lr.unsqueeze(1)
    multiplier, average = torch.zeros_like(nets.theta), torch.zeros_like(nets.theta)
    weight = rate.averaging(steps)
    limit = torch.full((len(lr), 1), CLIP)
    if bounded is not None:
        limit[~bounded] = torch.inf
    coins = torch.Generator().manual_seed(seed)
    for step in range(steps):
        chosen = torch.rand(len(x), generator=coins) < batch / len(x)
        total = nets.total(x[chosen], y[chosen], CLIP / (2 * a))
        z = torch.randn(nets.theta.shape[1], generator=coins)
        noisy = 2 * a * total / batch + noise.unsqueeze(1) * z
        norms = multiplier.norm(dim=1, keepdim=True)
        multiplier *= (limit / norms.clamp_min(1e-30)).clamp_max(1.0)
        direction = noisy + (2 * a - 1) * multiplier
        multiplier = (1 - a) * multiplier - noisy / 2
        nets.theta -= direction / rho
        average.lerp_(nets.theta, (1.0 - weight) / (1.0 - weight ** (step + 1)))
    return nets, average
