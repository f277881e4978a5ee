"""Training by any method: the step with its ledger and its guarantee, and the loop around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpdt.accounting import Privacy, account
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.blocks import Blocks
from dpdt.algorithm.engine import Engine as Decoupled
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.gradients import Head, Loss
from dpdt.algorithm.layout import parameters_of
from dpdt.config import Method, Settings, settings
from dpdt.errors import InputError
from dpdt.keys import AUTO, PUBLIC
from dpdt.ledger import LedgerWriter, Setting
from dpdt.methods import Engine, make
from dpdt.methods.augment import Augment
from dpdt.methods.loader import Loader, count, fingerprint, take
from dpdt.methods.loss import accuracy, default_loss
from dpdt.methods.plan import Plan, plan, settled
from dpdt.methods.reach import reach, typical
from dpdt.methods.whitening import Whitened, can_whiten
from dpdt.models.networks import bounds_of
from dpdt.noise import Randomness


class Step:
    """Takes one step of a method for each batch of its loader, and keeps the ledger."""

    def __init__(
        self,
        engine: Engine,
        loader: Loader,
        plan: Plan,
        delta: float,
        whitened: Whitened | None = None,
        measured: bool = False,
    ):
        self.engine, self.loader, self.plan, self.delta = engine, loader, plan, delta
        self.whitened = whitened  # the model that is trained, if it is not the user's own
        self.measured = measured  # the learning rate was, on the model as it is at the start
        self.writer = LedgerWriter(plan.header)

    def __call__(self, batch: Batch) -> StepResult:
        """Record the step, then take it. `batch` must be the next one of the loader."""
        if not isinstance(batch, Batch) or batch.step != self.engine.steps:
            raise InputError(
                "batch: each batch of the loader that prepare() returned must be used once, in "
                "order; the guarantee rests on it"
            )
        if batch.step >= self.writer.ledger.steps:  # else it was recorded before an interruption
            self.writer.step(self.plan.at(batch.step))
        result = self.engine.step(batch)
        self._fold()
        return result

    def privacy(self, delta: float | None = None) -> Privacy:
        """What the steps taken so far guarantee."""
        return account(self.writer.ledger, self.delta if delta is None else delta)

    def finish(self) -> None:
        """End the run: close the ledger, and leave in the model what is to be released."""
        if not self.writer.ledger.closed:
            self.engine.finish()
            self._fold()
            self.writer.close()

    def pause(self) -> None:
        """Stop early: as `finish`, but the run can be continued from an earlier `state_dict()`."""
        self.engine.finish()
        self._fold()
        self.writer.pause()

    def _fold(self) -> None:
        if self.whitened is not None:
            self.whitened.fold()

    def state_dict(self) -> dict[str, Any]:
        """Everything the run needs to continue bit for bit. As secret as the data."""
        taken = [[asdict(run.setting), run.steps] for run in self.writer.ledger.runs]
        return {
            "engine": self.engine.state_dict(),
            "loader": self.loader.state_dict(),
            "ledger": taken,
            "data": self._trained_on,
        }

    @cached_property
    def _trained_on(self) -> str:
        return fingerprint(self.loader.data)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()`; what its run did before enters this ledger, if it is not
        there yet."""
        if state["data"] != self._trained_on:  # the same noise on other data would give both away
            raise InputError("the state belongs to a run on other training data or public inputs")
        self.engine.load_state_dict(state["engine"])
        settings = [Setting(**setting) for setting, steps in state["ledger"] for _ in range(steps)]
        for setting in settings[self.writer.ledger.steps :]:
            self.writer.step(setting)
        if self.measured and settings and isinstance(self.engine, Decoupled):
            self.plan = self.plan.at_rate(settings[-1].lr)
            assert self.plan.recipe is not None
            self.engine.recipe = self.plan.recipe
        self.loader.load_state_dict(state["loader"])
        self._fold()


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
    bounds = bounds_of(model) if usual else None
    decided = plan(chosen, blocks, count(data), bounds, 0 if public is None else count(public))
    learner, inputs, whitened = model, public, None
    if isinstance(chosen.method, Method) and chosen.method.preconditioner == PUBLIC:
        whitened = Whitened(model, public)
        learner, inputs, data = whitened.inner, whitened.inputs, whitened.data(data)
    measured = chosen.method.lr == AUTO
    if measured:
        by_name = isinstance(take(data, torch.arange(1)), Mapping)
        found = reach(learner, typical(inputs, data), by_name=by_name)
        decided = decided.tuned(found, linear=Head.layer_of(learner) is not None)
    seeds = _seeds(chosen.privacy.noise_seed)
    engine = make(
        chosen.method.name,
        learner,
        loss,
        chosen,
        decided,
        noise=Randomness(seeds[0]),
        diagnose=diagnose,
        public=public,
    )
    loader = Loader(
        data,
        decided.sampler(
            seed=chosen.train.seed, source=Randomness(seeds[1]), users=users, absent=absent
        ),
        batches=decided.header.batches,
        steps=decided.steps,
        device=next(model.parameters()).device,
        augment=Augment(chosen.train.seed, count(data)) if chosen.train.augment else None,
    )
    step = Step(engine, loader, decided, chosen.privacy.delta, whitened, measured)
    if ledger is not None:
        step.writer.open(ledger)
    return step, loader


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
    """Run a prepared step over its loader."""
    history: list[dict[str, Any]] = []
    losses: list[float] = []
    nonfinite = 0
    model.train()
    try:
        for batch in loader:
            result = step(batch)
            losses.append(result.loss)
            nonfinite += result.nonfinite
            if (batch.step + 1) % loader.batches == 0:
                record: dict[str, Any] = {
                    "epoch": batch.epoch + 1,
                    "step": batch.step + 1,
                    "loss": sum(losses) / len(losses),
                    "nonfinite": nonfinite,
                    "accuracy": None if test is None else accuracy(model, test),
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
