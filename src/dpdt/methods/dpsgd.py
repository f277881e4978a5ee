"""DP-SGD on Opacus: per-example gradients, clipped, summed, with noise."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.gradients import Loss, each
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.readiness import Watch, refuse_unready
from dpdt.config import Dpsgd, Settings
from dpdt.errors import InputError
from dpdt.methods.loader import count
from dpdt.methods.loss import default_loss
from dpdt.methods.plain import optimizer, restore, saved
from dpdt.methods.plan import Plan
from dpdt.noise import Randomness

PHYSICAL = 2**26  # numbers in the gradients that are held at once
GHOST = 8192  # examples at once where gradients are not written out
APART = (nn.Linear, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Dropout)


def _opacus() -> Any:
    try:
        import opacus.grad_sample
        import opacus.optimizers
        import opacus.utils.fast_gradient_clipping_utils
    except ImportError:
        raise InputError(
            "method.name: dpsgd needs opacus, which is not installed; pip install 'dpdt[peers]'"
        ) from None
    return opacus


class DpsgdEngine:
    """One Opacus step for each Poisson batch; batches may be empty, then only noise is added.

    Guarantees: an example's contribution has norm at most `clip` in all three ways of clipping. Per
    layer each of L tensors is clipped to clip/√L; automatically, g becomes g·clip/(‖g‖ + γ). An
    example whose gradient is not finite contributes 0; Opacus alone would make the model NaN.
    A gradient is computed from its example alone: Opacus' own hooks, which take the first dimension
    that a layer sees for examples, are left to chains of layers where it is.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, method: Dpsgd, *, multiplier: float, expected: int,
        noise: Randomness, seed: int,
    ):  # fmt: skip
        refuse_unready(model)
        opacus = _opacus()
        self.model, self.loss, self.method, self.seed = model, loss, method, seed
        self.steps = 0
        self.layout = Layout(model, "model")
        # A chain of linear layers is faster without its gradients being written out.
        self.ghost = loss is default_loss and method.clipping == "flat" and _is_chain(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.generator = torch.Generator().manual_seed(int(noise.choices(1, 2**62)[0]))
        # Opacus sums squares in single precision, which for long tensors gives norms that are too
        # small: the clip that it is given is shorter by more than was seen. The noise stays.
        short = 1.0 - 1e-6 - 1e-9 * max(p.numel() for p in trained)
        kind: Any = opacus.optimizers.DPOptimizer
        most = method.clip * short
        clip: float | list[float] = most
        if self.ghost:
            kind = opacus.optimizers.DPOptimizerFastGradientClipping
            self.samples = opacus.grad_sample.GradSampleModuleFastGradientClipping(
                model, max_grad_norm=most, use_ghost_clipping=True
            )
        if method.clipping == "layer":
            kind = opacus.optimizers.DPPerLayerOptimizer
            clip = [most / math.sqrt(len(trained))] * len(trained)
        elif method.clipping == "automatic":
            kind = automatic(opacus.optimizers.DPOptimizer, method.stability)
        self.optimizer = kind(
            optimizer(method, trained),
            noise_multiplier=multiplier / short,
            max_grad_norm=clip,
            expected_batch_size=expected,
            generator=self.generator,
        )
        if self.ghost:
            self.criterion = opacus.utils.fast_gradient_clipping_utils.DPLossFastGradientClipping(
                self.samples, self.optimizer, nn.CrossEntropyLoss()
            )

    def step(self, batch: Batch) -> StepResult:
        number = len(batch.sizes)
        total, broken = 0.0, 0
        size = GHOST if self.ghost else max(1, PHYSICAL // self.layout.size)
        starts = range(0, max(1, number), size)
        for first in starts:
            self.optimizer.zero_grad()
            data, bad = batch.slice(first, min(first + size, number)), 0
            if self.ghost and number:
                data, bad = self._drop_broken(data)
            left = count(data) if number else 0
            if left:
                with Watch(self.model):
                    total += self._differentiate(data) * left
                bad += 0 if self.ghost else self._zero_broken()
            else:
                for p in self.optimizer.params:
                    p.grad = torch.zeros_like(p)
                    p.grad_sample = torch.zeros(0, *p.shape, dtype=p.dtype)
            broken += bad
            self.optimizer.signal_skip_step(do_skip=first != starts[-1])
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return StepResult(loss=total / max(1, number), nonfinite=broken)

    def _differentiate(self, data: Any) -> float:
        """Find the gradients, or their norms; returns the mean loss."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((self.seed, self.steps)) % 2**63)
            if not self.ghost:
                return self._write_gradients(data)
            loss = self.criterion(self.samples(data[0]), data[1])
            with warnings.catch_warnings():  # about inputs that need no gradient, as usual
                warnings.simplefilter("ignore")
                loss.backward()
        return float(loss.item())

    def _write_gradients(self, data: Any) -> float:
        layout, number, offset = self.layout, count(data), 0
        out = torch.empty(number, layout.size, dtype=layout.dtype, device=layout.device)
        with torch.no_grad():
            losses = each(self.model, self.loss, layout, data, out)
        for tensor in layout.tensors:
            part = out[:, offset : offset + tensor.numel()]
            tensor.grad_sample = part.view(number, *tensor.shape)  # type: ignore[attr-defined]
            offset += tensor.numel()
        return float(losses.mean())

    def _drop_broken(self, data: Any) -> tuple[Any, int]:
        """Linear layers: leave out examples whose inputs or outputs are not finite."""
        x, y = data
        with torch.no_grad():
            finite = torch.isfinite(x).flatten(1).all(1) & torch.isfinite(self.model(x)).all(1)
        return ((x, y), 0) if bool(finite.all()) else ((x[finite], y[finite]), int((~finite).sum()))

    def _zero_broken(self) -> int:
        """Written-out gradients: an example with an entry that is not finite contributes 0."""
        samples = [p.grad_sample for p in self.optimizer.params]
        broken = torch.stack([~torch.isfinite(g).flatten(1).all(1) for g in samples]).any(0)
        for g in samples:
            g[broken] = 0.0
        return int(broken.sum())

    def finish(self) -> None:
        """The model is as it is to be released; nothing of Opacus stays in it."""
        if self.ghost:
            self.samples.remove_hooks()

    def state_dict(self) -> dict[str, Any]:
        return {
            **saved(self.model, self.optimizer.original_optimizer, self.steps),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = restore(self.model, self.optimizer.original_optimizer, state)
        self.generator.set_state(state["generator"])


def _is_chain(model: nn.Module) -> bool:
    """Whether a model is a chain of layers, used once, that treat every example apart."""
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    tied = len(list(model.named_parameters(remove_duplicate=False))) > len(list(model.parameters()))
    return (
        len({id(layer) for layer in layers}) == len(layers)
        and not tied
        and type(model) in (nn.Sequential, nn.Linear)
        and all(
            type(layer) in APART or (type(layer) is nn.Flatten and layer.start_dim == 1)
            for layer in layers
        )
    )


def automatic(base: Any, stability: float) -> type:
    """Opacus' optimizer with automatic clipping (Bu et al. 2023): every gradient is normalised."""

    class AutomaticClipping(base):  # type: ignore[misc]
        max_grad_norm: float

        def clip_and_accumulate(self) -> None:
            flat = [g.flatten(1).norm(2, dim=-1) for g in self.grad_samples]
            norms = torch.stack(flat, dim=1).norm(2, dim=1)
            factor = self.max_grad_norm / (norms + stability)
            for p in self.params:
                p.grad_sample = torch.einsum("i,i...->i...", factor, p.grad_sample)
            limit, self.max_grad_norm = self.max_grad_norm, math.inf
            super().clip_and_accumulate()  # sums; nothing is left to clip
            self.max_grad_norm = limit

    return AutomaticClipping


def engine(
    model: nn.Module, loss: Loss, using: Settings, decided: Plan, *, noise: Randomness, **_: Any
) -> DpsgdEngine:
    """DP-SGD as one of the methods."""
    assert isinstance(using.method, Dpsgd)
    setting = decided.at(0)
    expected = decided.header.auxiliaries
    return DpsgdEngine(
        model,
        loss,
        using.method,
        multiplier=setting.noise[0] * expected / setting.clip[0],
        expected=expected,
        noise=noise,
        seed=using.train.seed,
    )
