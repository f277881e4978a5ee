"""The rule for the learning rate, whole: what `lr = "auto"` stands for.

The noise z of a step, in units of a contribution 2ρη·g, moves θ by z/(2ρ²η) over all later steps.
So the noise of T steps moves θ by σ√T/(2ρ²η). It moves an output of the model by that times the
output's *reach*, the norm of its gradient with respect to θ. With ρη fixed, exactly one η lets
noise of a given deviation through to the outputs. For a linear model the rule takes that η: a
larger one would let more noise through, and a smaller one would use less of the signal.

A network's reach grows as it learns, so it is measured on weights that are twice as large. And a
network that must learn features needs a way to go, whatever the noise. Its η is 0.6/√(σ·T·reach):
the exponents and the number were fitted to many small problems (benchmarks/rates.py), on training
parts alone (docs/rule.md). docs/results.md shows how well both do.

A network with frozen weights, as one with adapters, was trained before, and the noise must leave
what it knows. Reach does not show whether it does: an adapter is a product with one factor 0, and
noise in both factors is quadratic. So noise is tried out, and η is lowered until what the noise
does to the outputs is at least as much linear in it as not.

Guarantees: the rule looks at the initial model, and at public inputs or random ones that stand in
for them. Of private examples it sees only the shape.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpdt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpdt.algorithm.batch import Data

UNIT = math.sqrt(2.0)  # the reach of a linear model with a bias, on inputs of norm 1
FORGOTTEN = 0.1  # of the multiplier at every step, ρη; one minus it is a momentum
FASTEST = 32.0  # with hardly any noise η is limited as for gradient descent
CLIP, WHITENED_CLIP = 0.1, 0.3  # of contributions 2ρη·g
AVERAGED = 0.04  # the share of a run that averages go over
NETWORK, NETWORK_FASTEST = 0.6, 16.0  # of a network: η·√(σ·T·reach), and at most η·reach
GROWN = 2.0  # times a network's weights, when its reach is measured
INPUTS = 32  # on which the reach is measured
TRIALS, LEAST, SEARCH = 2, 1 / 64, 6  # draws of noise, the least share of it, steps of bisection
TOKENS = "input_ids"  # what tokens are called among inputs with names


def fitting(noise: float, steps: int, reach: float, *, linear: bool) -> float:
    """The learning rate that fits the noise of every step."""
    if linear:
        spread = noise * math.sqrt(steps)
        allowed = 2 * FORGOTTEN**2 / spread if spread else math.inf  # η · reach
        return min(FASTEST / reach**2, allowed / reach)
    spread = math.sqrt(noise * steps * reach)
    return min(NETWORK_FASTEST / reach, NETWORK / spread if spread else math.inf)


def moved(noise: float, steps: int, lr: float, norm: float) -> float:
    """What the noise of all steps moves an entry of θ by, as a standard deviation.

    It is σ√T/(2ρ²η), unless the multiplier is clipped. With `norm`, a step's whole noise in units
    of C, a multiplier of noise alone settles at the norm √((1 − ρη)² + norm²/4) · C.
    """
    kept = min(1.0, 1.0 / math.hypot(1.0 - FORGOTTEN, norm / 2))  # of the multiplier, by its clip
    later = (1.0 - 2 * FORGOTTEN) * kept / 2 / (1.0 - (1.0 - FORGOTTEN) * kept)
    return noise * math.sqrt(steps) * lr / FORGOTTEN * (1.0 + later)


def penalty(lr: float) -> float:
    """The penalty that goes with a learning rate: ρη is fixed."""
    return FORGOTTEN / lr


def clip(*, whitened: bool, length: float | None) -> float:
    """The bound on contributions. Gradients of a linear model are as long as inputs and bias are.

    Whitened inputs have a length of their own. Others have a known one, or count as of norm 1.
    """
    if whitened:
        return WHITENED_CLIP
    return CLIP if length is None else CLIP * math.hypot(length, 1.0) / UNIT


def averaging(steps: int) -> float:
    """The weight of the past, for an average over the last few percent of a run."""
    return 1.0 - 1.0 / max(1.0, AVERAGED * steps)


def reach_of(model: nn.Module, inputs: Data, *, by_name: bool = False, grown: float = 1.0) -> float:
    """‖∂output/∂θ‖, as a root mean square over inputs and outputs, at `grown` times θ.

    Noise of deviation s in every entry of θ becomes noise of about s·reach in an output. Each
    output gets a random sign, so that one backward pass for each input is enough. With `by_name`
    inputs are keyword arguments of the model, as in training on a mapping.
    """
    import torch

    from dpdt.algorithm.layout import in_float64
    from dpdt.data.access import count, take

    generator = torch.Generator().manual_seed(0)
    theta = {n: (p * grown).requires_grad_() for n, p in _trained(model).items()}
    trained = list(theta.values())
    inputs = _like(trained[0], inputs)
    squares = []
    with _evaluating(model):
        for i in range(count(inputs)):
            with torch.enable_grad():
                outputs = _outputs(model, theta, take(inputs, torch.tensor([i])), by_name)
                signs = torch.randint(2, outputs.shape, generator=generator).to(outputs) * 2.0 - 1.0
                total = (outputs * signs).sum()  # of a vector, torch would import sympy: 0.3 s
            gradients = torch.autograd.grad(total, trained, allow_unused=True)
            found = sum(float(in_float64(g).square().sum()) for g in gradients if g is not None)
            squares.append(found / outputs.numel())
    reach = math.sqrt(sum(squares) / len(squares))
    if not 0.0 < reach < math.inf:
        raise InputError(
            "method.lr: 'auto' needs a model whose outputs change with its parameters, and finite "
            f"inputs; found gradients of norm {reach:g}, so give numbers for lr and penalty"
        )
    return reach


def bearable(model: nn.Module, inputs: Data, deviation: float, *, by_name: bool = False) -> float:
    """The share of noise of this deviation in all of θ that goes through a network almost linearly.

    That is, what it does to the outputs beyond its linear part is no more than that part, as root
    mean squares over inputs, outputs and a few draws from a public seed. The linear part is that
    of the least noise that is tried.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    theta = _trained(model)
    inputs = _like(next(iter(theta.values())), inputs)
    draws = [
        {n: torch.randn(p.shape, generator=generator).to(p) * deviation for n, p in theta.items()}
        for _ in range(TRIALS)
    ]
    with _evaluating(model), torch.no_grad():
        start = _outputs(model, theta, inputs, by_name)

        def slopes(share: float) -> Tensor:
            """The change of the outputs for each draw, divided by the share of it that made it."""
            noisy = [{n: p + share * z[n] for n, p in theta.items()} for z in draws]
            found = [_outputs(model, some, inputs, by_name) - start for some in noisy]
            return torch.stack(found).cpu().double() / share

        linear = slopes(LEAST)

        def bears(share: float) -> bool:
            return float((slopes(share) - linear).norm()) <= float(linear.norm())

        if bears(1.0):
            return 1.0
        low, high = LEAST, 1.0
        for _ in range(SEARCH):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if bears(middle) else (low, middle)
    return low


def warn_of_zeros(model: nn.Module) -> None:
    """Say so if layers of a network start at 0: their reach is still to come."""
    weights = {name: p for name, p in _trained(model).items() if p.dim() > 1}
    zero = [name for name, p in weights.items() if not bool(p.any())]
    if zero and len(weights) > 1:
        warnings.warn(
            f"method.lr: 'auto' was not tried on networks with weights that start at 0 (here "
            f"{zero[0]}{f' and {len(zero) - 1} more' if len(zero) > 1 else ''}): the rate may be "
            "far too large; give lr and penalty, or use dpsgd",
            stacklevel=2,
        )


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}


def _like(parameter: Tensor, inputs: Data) -> Data:
    """Inputs where the parameters are, and as precise."""
    from dpdt.algorithm.batch import tree_map

    def moved(t: Tensor) -> Tensor:
        return t.to(parameter if t.is_floating_point() else parameter.device)

    return tree_map(moved, inputs)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """All modules as in use, and afterwards as they were."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _outputs(model: nn.Module, theta: dict[str, Tensor], one: Any, by_name: bool) -> Tensor:
    import torch
    from torch.func import functional_call

    try:
        args = ((), one) if by_name else ((one,), {})
        found = functional_call(model, theta, *args)
        outputs: Tensor = getattr(found, "logits", found)
        if not isinstance(outputs, torch.Tensor):
            raise TypeError(f"it gives a {type(outputs).__name__}, not one tensor")
        if torch.is_grad_enabled() and not outputs.requires_grad:
            raise TypeError("its outputs do not depend on what is trained")
        return outputs
    except Exception as error:  # a model of the user's own can fail in any way
        raise InputError(
            "method.lr: 'auto' tries what the model makes of inputs alone, which failed "
            f"({error}); give numbers for lr and penalty"
        ) from error


def typical(public: Any, data: Any, model: nn.Module, length: float | None = None) -> Data:
    """Some public inputs; if there are none, made-up ones of their shape.

    Numbers are random from −1 to 1, and then of the inputs' length if that is known. Tokens are
    random among those that the model knows. All of a text is attended to.
    """
    import torch
    from torch.nn import functional as F

    from dpdt.data.access import count, take

    if public is not None and count(public):
        return take(public, torch.arange(min(INPUTS, count(public))))
    one = take(data, torch.arange(1))
    x = one[0] if isinstance(one, tuple | list) else one
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    generator = torch.Generator().manual_seed(0)

    def made_up(t: Any, name: str) -> Tensor:
        shape = (INPUTS, *t.shape[1:])
        if t.is_floating_point():
            found = torch.rand(shape, generator=generator).to(t) * 2.0 - 1.0
            return found if length is None else F.normalize(found, dim=1) * length
        if name != TOKENS:
            return torch.full(shape, int("mask" in name), dtype=t.dtype)
        if not tables:
            raise InputError(
                "method.lr: 'auto' needs public inputs here, since the inputs are whole numbers "
                "and the model has no table of tokens; give data.public (public=… in Python), "
                "numbers for lr and penalty, or inputs that are no tokens as floats, x.float()"
            )
        return torch.randint(tables[0], shape, generator=generator).to(t)

    if isinstance(x, Mapping):
        return {name: made_up(t, name) for name, t in x.items() if name != "labels"}
    return made_up(x, TOKENS)
