"""Training by any method: what a run is prepared from, and the loop around its step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.accounting import Privacy
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.blocks import Blocks
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.gradients import Head, Loss
from dpdt.algorithm.layout import parameters_of
from dpdt.config import Method, Settings, settings
from dpdt.data.access import count, fingerprint, take
from dpdt.errors import InputError
from dpdt.keys import AUTO, PUBLIC
from dpdt.methods import earlier, make
from dpdt.methods.augment import Augment
from dpdt.methods.loader import Loader
from dpdt.methods.loss import accuracy, default_loss
from dpdt.methods.plan import plan, settled
from dpdt.methods.reach import reach, typical
from dpdt.methods.step import Step
from dpdt.methods.whitening import Whitened, can_whiten
from dpdt.models.networks import bounds_of
from dpdt.noise import Randomness
from dpdt.partition import owners


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained model, what it guarantees, and a record an epoch (private: it has the loss)."""

    model: nn.Module
    privacy: Privacy
    history: list[dict[str, Any]]


def prepare(
    model: nn.Module,
    data: Any,
    *,
    loss: Loss = default_loss,
    users: Sequence[Any] | None = None,
    public: Any = None,
    absent: np.ndarray | None = None,
    ledger: str | Path | None = None,
    diagnose: bool = False,
    using: Settings | None = None,
    **options: Any,
) -> tuple[Step, Loader]:
    """A step and its loader, for a training loop of one's own.

        step, loader = dpdt.prepare(model, (x, y), epochs=20, batch_size=256, epsilon=8.0)
        for batch in loader:
            step(batch)
        step.finish()
        print(step.privacy())

    Args:
        model: any module; it is trained in place, in its current mode.
        data: a tuple or mapping of tensors, or a torch Dataset.
        loss: (model, micro-batch) → mean loss. Default: cross-entropy, or the model's own loss.
        users: who owns each example, for unit "user".
        public: inputs without labels that need no protection; some methods use them.
        absent: a mask of examples that never take part, for audits of adding and removing.
        ledger: where to write the ledger; kept in memory if left out.
        diagnose: compute the quantities of the convergence theory at every step.
        using: settings that were made already; otherwise give them as keywords (see docs).
    """
    usual = loss is default_loss  # one of the user's own may look at inputs as they are
    whiten = usual and can_whiten(model, data, public)
    chosen = settled(using or settings(**options), can_whiten=whiten)
    if (chosen.privacy.unit == "user") != (users is not None):
        raise InputError(
            "users: must be given, one owner for each example, exactly when privacy.unit is 'user'"
        )
    blocks = Blocks.group(parameters_of(model), chosen.method.granularity)
    bounds = bounds_of(model) if usual and _has_class_numbers(data) else None
    decided = plan(chosen, blocks, count(data), bounds, 0 if public is None else count(public))
    seen = earlier.sample(data)
    seen_before = earlier.why_not(model, seen)
    given, learner, inputs, whitened = (data, public), model, public, None
    if isinstance(chosen.method, Method) and chosen.method.preconditioner == PUBLIC:
        whitened = Whitened(model, public)
        learner, inputs, data = whitened.inner, whitened.inputs, whitened.data(data)
    measured = chosen.method.lr == AUTO
    if measured:
        by_name = isinstance(take(data, torch.arange(1)), Mapping)
        found = reach(learner, typical(inputs, data), by_name=by_name)
        decided = decided.tuned(found, linear=Head.layer_of(learner) is not None)
    noise, coins = map(Randomness, _seeds(chosen.privacy.noise_seed))
    engine = make(
        chosen.method.name,
        learner,
        loss,
        chosen,
        decided,
        noise=noise,
        diagnose=diagnose,
        public=public,
    )
    poisson = decided.header.sampling == "poisson"
    loader = Loader(
        data,
        decided.sampler(seed=chosen.train.seed, source=coins, users=users, absent=absent),
        batches=decided.header.batches,
        steps=decided.steps,
        device=next(model.parameters()).device,
        seed=chosen.train.seed,
        augment=Augment(chosen.train.seed, count(data)) if chosen.train.augment else None,
        alone=poisson and decided.header.per_example,
        fixed=not poisson and users is None,  # how much a user holds may be what is replaced
    )

    @cache
    def identity() -> dict[str, str]:
        """What a state must have in common with the run that takes it."""
        parts = [fingerprint(part) for part in given if part is not None]
        shapes = {n: list(p.shape) for n, p in model.named_parameters() if p.requires_grad}
        return {
            "settings": _digest([asdict(chosen), asdict(decided.header)]),
            "users": _digest(None if users is None else owners(users)[0].tolist()),
            "model": _digest(shapes),
            "training data or public inputs": _digest(parts),
        }

    step = Step(
        engine,
        loader,
        decided,
        model=model,
        learner=learner,
        delta=chosen.privacy.delta,
        allow_large_delta=chosen.privacy.allow_large_delta,
        noise=noise,
        coins=coins,
        identity=identity,
        seen=seen,
        whitened=whitened,
        measured=measured,
    )
    if seen_before is not None:
        step.writer.void(seen_before)
    earlier.remember(model, seen)
    if ledger is not None:
        step.writer.open(ledger)
    return step, loader


def _has_class_numbers(data: Any) -> bool:
    """Whether labels are class numbers, which the bounds on gradients rest on."""
    y = data[1] if isinstance(data, tuple) and len(data) == 2 else None
    if not isinstance(y, Tensor) or y.dim() != 1 or y.dtype != torch.int64:
        return False
    return bool((y >= 0).all())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _seeds(seed: int | None) -> tuple[int | None, int | None]:
    """Separate streams for noise and sampling."""
    return (None, None) if seed is None else (2 * seed, 2 * seed + 1)


def train(
    model: nn.Module,
    data: Any,
    *,
    test: Any = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[StepResult, Batch], None] | None = None,
    **options: Any,
) -> Fitted:
    """Train a model and say what the result guarantees.

    `test` is held-out (x, y) whose accuracy is measured after each epoch; the other arguments are
    those of `prepare`. Data and test should not overlap: accuracy on training data is private.
    """
    step, loader = prepare(model, data, **options)
    if on_epoch is not None or on_step is not None:
        step.export("what callbacks saw on the way")
    return fit(model, step, loader, test=test, on_epoch=on_epoch, on_step=on_step)


def fit(
    model: nn.Module,
    step: Step,
    loader: Loader,
    *,
    test: Any = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[StepResult, Batch], None] | None = None,
) -> Fitted:
    """Run a prepared step over its loader.

    Where the run has said that only the last iterate leaves, accuracy is measured at the end alone.
    """
    history: list[dict[str, Any]] = []
    losses: list[float] = []
    nonfinite, hidden = 0, step.plan.header.release == "last"
    model.train()
    try:
        for batch in loader:
            result = step(batch)
            losses.append(result.loss)
            nonfinite += result.nonfinite
            if (batch.step + 1) % loader.batches == 0:
                last = batch.step + 1 == loader.steps
                shown = test is not None and (last or not hidden)
                if shown and not last:
                    step.export("the accuracy after each epoch")
                record: dict[str, Any] = {
                    "epoch": batch.epoch + 1,
                    "step": batch.step + 1,
                    "loss": sum(losses) / len(losses),
                    "nonfinite": nonfinite,
                    "accuracy": accuracy(model, test) if shown else None,
                }
                if result.diagnostics is not None:
                    record["diagnostics"] = vars(result.diagnostics)
                history.append(record)
                losses, nonfinite = [], 0
                if on_epoch is not None:
                    on_epoch(record)
            if on_step is not None:  # last, since it may raise to stop
                on_step(result, batch)
    except KeyboardInterrupt:
        step.pause()
        raise
    finally:
        model.eval()
    step.finish()
    return Fitted(model=model, privacy=step.privacy(), history=history)
