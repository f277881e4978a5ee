"""Torch optimizers behind a noisy mean, or behind a plain gradient.

What an optimizer computes from noisy means is post-processing, and costs nothing. So it may be any
that sees nothing else: it is called without a closure, in which the loss would be computed again,
holds what is trained and nothing more, and begins without a memory of other gradients. A scheduler
is told nothing either.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from dpdt.algorithm.executor import Executor
from dpdt.errors import InputError

EXAMPLES = {
    "optimizer": "lambda p: torch.optim.SGD(p, lr=0.1)",
    "scheduler": "lambda o: torch.optim.lr_scheduler.StepLR(o, 10)",
}


class Optimized(Protocol):
    """The settings of a method that has an optimizer."""

    @property
    def optimizer(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def optimizer(method: Optimized, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD or AdamW, as a method's settings say."""
    lr, decay = method.lr, method.weight_decay
    if method.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=method.momentum, weight_decay=decay)


def of_ones_own(
    make: Callable[[list[nn.Parameter]], Any], parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer that a caller makes of what is trained; refused if it needs or holds more."""
    made = _made("optimizer", make, parameters)
    name = type(made).__name__
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            "optimizer: must make a torch optimizer of the parameters that it is given, found "
            f"{name}"
        )
    if _needed(made):
        raise InputError(
            f"optimizer: {name} computes the loss again within its step, on private data and "
            "without noise; take one that needs the gradient alone, such as torch.optim.AdamW"
        )
    held = [id(p) for group in made.param_groups for p in group["params"]]
    if sorted(held) != sorted(map(id, parameters)):
        raise InputError(
            f"optimizer: must hold the {len(parameters)} tensors that are trained, each once, and "
            f"no others, found {len(held)}; make it of the parameters that it is given"
        )
    if not _fresh(made):
        raise InputError(
            f"optimizer: this {name} was used before, and remembers gradients without noise; make "
            "a new one of the parameters that it is given"
        )
    return made


def _fresh(made: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has no memory yet. Adagrad's begins with sums that are all the same."""
    if not isinstance(made, torch.optim.Adagrad):
        return not made.state
    first = made.defaults["initial_accumulator_value"]
    return all(
        set(state) == {"step", "sum"} and not state["step"] and bool((state["sum"] == first).all())
        for state in made.state.values()
    )


def scheduler_of(make: Callable[[Any], Any], optimizer: torch.optim.Optimizer) -> Any:
    """The scheduler that a caller makes of the optimizer; refused if it asks for a number."""
    made = _made("scheduler", make, optimizer)
    name = type(made).__name__
    if getattr(made, "optimizer", None) is not optimizer or not hasattr(made, "state_dict"):
        raise InputError(
            "scheduler: must make a torch lr_scheduler of the optimizer that it is given, found "
            f"{name}"
        )
    if _needed(made):
        raise InputError(
            f"scheduler: {name} follows a number that it is told, and a loss on private data would "
            "leak by it; take one that depends on the epoch alone"
        )
    if getattr(made, "last_epoch", 0) > 0:
        raise InputError(
            f"scheduler: this {name} begins at epoch {made.last_epoch}, so it was used before; "
            "make a new one of the optimizer that it is given"
        )
    return made


def _made(what: str, make: Any, of: Any) -> Any:
    """What a caller's function makes. Its errors are about its own arguments, not about data."""
    if not callable(make):
        raise InputError(
            f"{what}: must be a function that makes one, as in {what}={EXAMPLES[what]}, found "
            f"{type(make).__name__}"
        )
    try:
        return make(of)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(f"{what}: cannot be made ({reason})") from error


def _needed(made: Any) -> list[str]:
    """What the step of an optimizer or scheduler must be told."""
    given = inspect.signature(made.step).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in given if p.default is p.empty and p.kind not in kinds]


def left_by(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What an optimizer goes on with: to see whether anything but its step has changed it.

    Tensors are told by torch's count of changes.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return id(value), value._version
        if isinstance(value, Mapping):
            return {key: plain(each) for key, each in value.items() if key != "params"}
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    held = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    state = [(id(p), plain(kept)) for p, kept in optimizer.state.items()]
    return copy.deepcopy([held, plain(optimizer.param_groups), state])


def saved(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    executor: Executor | None = None,
    scheduler: Any = None,
) -> dict[str, Any]:
    """A copy of everything that an optimizer's run needs to continue."""
    return {
        "steps": steps,
        "kind": _kind(optimizer, scheduler),
        "scheduler": scheduler and copy.deepcopy(scheduler.state_dict()),
        "executor": executor and executor.state_dict(),
        "parameters": {n: t.detach().clone() for n, t in _trained(model)},
        "optimizer": copy.deepcopy(optimizer.state_dict()),
    }


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    executor: Executor | None = None,
    scheduler: Any = None,
) -> int:
    """Continue from `saved`; returns the number of steps."""
    if state["kind"] != (mine := _kind(optimizer, scheduler)):
        raise InputError(f"the state belongs to a run with {state['kind']}, and this has {mine}")
    if executor is not None:
        executor.load_state_dict(state["executor"])
    with torch.no_grad():
        for name, tensor in _trained(model):
            tensor.copy_(state["parameters"][name])
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it writes to what it is given
    if scheduler is not None:
        scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))
    return int(state["steps"])


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def _kind(optimizer: torch.optim.Optimizer, scheduler: Any) -> str:
    """Whose state it is, in words."""
    return type(optimizer).__name__ + (f" and {type(scheduler).__name__}" if scheduler else "")
