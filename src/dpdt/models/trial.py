"""What a model is trained for, found out on made-up examples before anything is spent.

A trial sees random inputs of the data's shape, never the data. It finds the task (suits.py), and
refuses what does not go together: a wrong width, a tuple of outputs, one logit where classes are
meant. What it finds says nothing about anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.batch import Data, on_device, tree_map
from dpdt.algorithm.gradients import Loss
from dpdt.algorithm.randomness import kept
from dpdt.algorithm.state import replica
from dpdt.data.access import count, take
from dpdt.data.given import Numbers
from dpdt.errors import InputError, meant, one_of
from dpdt.models import loss as losses
from dpdt.models.loss import Criterion, default_loss, outputs_of
from dpdt.models.metrics import HELD, ROWS, Judge, Metric
from dpdt.models.suits import is_own, refuse_shapes, refuse_values, targets_in, task_for
from dpdt.tasks import AUTO, METRICS, TASKS

EXAMPLES = 3  # that are made up: not 1 or 2, which may be the width of outputs
DOUBT = (ValueError, IndexError, AssertionError, ArithmeticError)  # real examples may do better
Call = Callable[[Callable[..., Any], Data], Any]  # a function of a model and a batch, on examples


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What training minimises, what it is judged by, and the numbers that the model reads."""

    loss: Loss
    judge: Judge
    numbers: Numbers


def tried(
    model: nn.Module,
    data: Any,
    device: torch.device,
    *,
    loss: Any = None,
    task: str = AUTO,
    metric: str | Metric | None = None,
    test: Any = None,
) -> Tried:
    """Try a model on made-up examples of the data's shape, and of the held-out examples'."""
    if task not in (AUTO, *TASKS):
        raise InputError(f"task: {one_of(task, (AUTO, *TASKS))}")
    if not count(data):
        raise InputError("data: has no examples")
    raw = take(data, torch.arange(1))
    chosen = None if loss is None else losses.given(loss, device, by_name=isinstance(raw, Mapping))
    if targets_in(raw) is None and not is_own(chosen):
        raise InputError(
            "data: has no targets; give (inputs, targets), or a mapping with 'labels' for models "
            "of transformers, or loss=, a function (model, batch) → mean loss"
        )
    if isinstance(raw, tuple | list) and len(raw) > 2 and not is_own(chosen):
        raise InputError(
            f"data: has {len(raw)} parts, and the usual losses read two, (inputs, targets); leave "
            "the others out, or give loss=, a function (model, batch) → mean loss"
        )
    with _calling(model, device) as call:
        said, numbers = _said(call, raw, Numbers.of(model), own=is_own(chosen))
        like = numbers(raw)
        y, by_name = targets_in(like), isinstance(like, Mapping)
        name = None if task == AUTO else task
        if said is None and y is not None and y.dim() == 1 and not is_own(chosen):
            name = name or (None if y.is_floating_point() else "classification")
        if said is not None and y is not None:
            name = task_for(chosen, task, said, y, by_name=by_name)
            if name is not None:
                refuse_values(name, said, data)
        if chosen is None or (chosen is default_loss and name == "next-token"):
            known = name is not None and not by_name
            chosen = losses.usual(name, device) if known and name else default_loss
        _try_loss(call, chosen, like)
        judge = _judge(call, chosen, name, metric, said, like)
        if test is not None and count(test):
            _try_test(call, judge, numbers, test, like)
    return Tried(loss=chosen, judge=judge, numbers=numbers)


@contextmanager
def _calling(model: nn.Module, device: torch.device) -> Iterator[Call]:
    """Calls functions of a copy of the model, and of examples that are made up."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]  # of a loss that differentiates
    copied = replica(model).eval()  # the model itself, if it cannot be copied

    def call(function: Callable[..., Any], like: Data) -> Any:
        try:
            return function(copied, on_device(_made_up(like, 1), device))
        except DOUBT:
            return function(copied, on_device(_made_up(like, 0), device))

    try:
        with torch.no_grad(), kept():
            yield call
    finally:
        for module, training in modes:
            module.training = training
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _made_up(like: Data, fill: int) -> Data:
    """Random numbers from 0 to 1; of whole numbers all are 1, or 0."""
    generator = torch.Generator().manual_seed(0)

    def make(t: Tensor) -> Tensor:
        shape = (EXAMPLES, *t.shape[1:])
        if t.is_floating_point():
            return torch.rand(shape, generator=generator).to(t)
        return torch.full(shape, fill, dtype=t.dtype)

    return tree_map(make, like)


def _said(call: Call, raw: Data, numbers: Numbers, *, own: bool) -> tuple[Tensor | None, Numbers]:
    """The outputs for made-up inputs, and the numbers that the model reads.

    None if outputs cannot be known, or need not be, since the loss is the user's own. Whole-number
    inputs become numbers with a point if the model cannot read them otherwise.
    """
    like = numbers(raw)
    try:
        try:
            found: Any = call(outputs_of, like)
        except (RuntimeError, TypeError):
            x = like[0] if isinstance(like, tuple | list) else None
            if not isinstance(x, Tensor) or x.is_floating_point():
                raise
            others = numbers.with_inputs(numbers.floats.get(torch.float32, torch.float32))
            found, numbers = call(outputs_of, others(like)), others
    except DOUBT:
        return None, numbers
    except Exception as error:  # a model of the user's own can fail in any way
        if own:
            return None, numbers
        raise _failed("model", "the data's", like, error) from error
    if isinstance(found, Tensor) and found.dim() and len(found) == EXAMPLES:
        return found, numbers
    if own:
        return None, numbers
    form = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    raise InputError(
        f"model: must give one tensor with a row for each example, or an object with logits; found "
        f"{form} for {EXAMPLES} examples. Let forward() return what is compared with the targets, "
        "or give loss=, a function (model, batch) → mean loss"
    )


def _failed(what: str, whose: str, like: Data, error: Exception) -> InputError:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return InputError(
        f"{what}: fails on examples of {whose} shape, {_shapes(like)} "
        f"({type(error).__name__}: {first})"
    )


def _shapes(data: Data) -> str:
    if isinstance(data, Mapping):
        return ", ".join(f"{k} {tuple(v.shape[1:])}" for k, v in data.items())
    x = data[0] if isinstance(data, tuple | list) else data
    return str(tuple(x.shape[1:])) if isinstance(x, Tensor) else _shapes(x)


def _try_loss(call: Call, loss: Loss, like: Data) -> None:
    """Refuse a loss that fails, or is no single number."""
    try:
        with torch.enable_grad():
            found = call(loss, like)
    except DOUBT as error:
        if isinstance(error, InputError) and not is_own(loss):
            raise
        return
    except Exception as error:  # a loss of the user's own can fail in any way
        raise _failed("loss", "the data's", like, error) from error
    if not isinstance(found, Tensor) or found.dim():
        form = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"loss: must be one number, the mean over examples, found {form}")


def _judge(
    call: Call,
    loss: Loss,
    name: str | None,
    metric: str | Metric | None,
    said: Tensor | None,
    like: Data,
) -> Judge:
    """What the model is judged by: the metric that was asked for, or that of the task."""
    y, shifted, own = targets_in(like), False, None
    usual = "test_loss" if name is None else TASKS[name].metric
    positions = said is not None and said.dim() == 3 and y is not None and y.dim() == 2
    if isinstance(like, Mapping) and loss is default_loss and positions:
        shifted, name = call(_is_shifted, like), "next-token"
        usual = "perplexity" if shifted else "accuracy"  # of every position's own label
    if isinstance(loss, Criterion) and name == "regression":
        usual = "mse" if type(loss.module) is nn.MSELoss else "mae"
    chosen = usual if metric is None else metric
    if callable(chosen):
        own, chosen = chosen, getattr(chosen, "__name__", type(chosen).__name__)
    elif chosen not in METRICS:
        raise InputError(
            f"metric: must be {', '.join(METRICS)}, or a function (outputs, targets) → number, "
            f"found {chosen!r}{meant(chosen, METRICS)}"
        )
    elif METRICS[chosen] and name not in METRICS[chosen]:
        raise InputError(
            f"metric: {chosen!r} is for {' and '.join(METRICS[chosen])}, and the task is "
            f"{name or 'not known, as the loss is your own: say task=…'}"
        )
    rows = ROWS if said is None else max(1, min(ROWS, HELD // max(1, said[0].numel())))
    task = None if name is None else TASKS[name]
    return Judge(task=task, name=chosen, loss=loss, own=own, shifted=shifted, rows=rows)


def _is_shifted(model: Any, batch: Any) -> bool:
    """Whether a model compares the outputs at a position with the label of the next one.

    Then a label at the first position alone is compared with nothing.
    """
    labels = torch.full_like(batch["labels"], losses.IGNORED)
    labels[:, 0] = batch["labels"][:, 0]
    return not float(model(**{**batch, "labels": labels}).loss) > 0.0


def _try_test(call: Call, judge: Judge, numbers: Numbers, test: Any, like: Data) -> None:
    """Refuse held-out examples that the model or the metric cannot read."""
    theirs = numbers(take(test, torch.arange(1)))
    y, mine = targets_in(theirs), targets_in(like)
    if isinstance(theirs, Mapping) != isinstance(like, Mapping) or (y is None) != (mine is None):
        raise InputError("test: must have the form of the data, with targets beside the inputs")
    if y is not None and mine is not None and y.is_floating_point() != mine.is_floating_point():
        raise InputError(f"test: has targets in {y.dtype}, and the data have {mine.dtype}")
    try:
        if judge.task is not None and judge.name != "test_loss" and y is not None:
            said = call(outputs_of, theirs)
            refuse_shapes(judge.task.name, said, y, "test")
            refuse_values(judge.task.name, said, test, "test")
        call(judge.tried, theirs)
    except InputError:
        raise
    except DOUBT:
        return
    except Exception as error:  # a metric of the user's own can fail in any way
        raise _failed("test", "its", theirs, error) from error
