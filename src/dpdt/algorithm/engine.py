"""Algorithm 1: one step is its stages in order. The only class a training loop needs.

    for every auxiliary k:   gradient at θ → contribution of norm ≤ C, new π_k     (auxiliary.py)
    θ ← Prox(θ − η̂ · direction(mean contribution + noise))                         (publish.py)
    ρ_k for the next epoch                                                         (schedule.py)

The auxiliaries themselves are never stored: the reset makes θ_k = θ, so after a step only what the
memory keeps (memory.py) and θ, in the model, remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dpdt.algorithm import memory, publish
from dpdt.algorithm.auxiliary import Tally, contribute_outer_products
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.diagnostics import Diagnostics, smoothness
from dpdt.algorithm.gradients import Head, Loss, channels_last, looped, vectorised
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.proximal import penalty_of
from dpdt.algorithm.readiness import Watch, refuse_unready
from dpdt.algorithm.recipe import Recipe
from dpdt.errors import InputError
from dpdt.noise import Randomness

CHUNK = 1 << 21  # entries of a buffer that is worked on at once: small enough for the cache
GROUPS = 64  # partial sums of a step, each computed by one thread
EXAMPLES = 512  # examples that are differentiated at once when vectorised
LANE = 48  # larger micro-batches keep all cores busy, and several at once would cost memory
OUTER = 8192  # examples of a linear head at once


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What the person training sees of a step. Private: it depends on the data."""

    loss: float
    nonfinite: int
    diagnostics: Diagnostics | None = None


class Engine:
    """Trains `model` by Algorithm 1, one `step` at a time.

    Args:
        model: any module without layers that mix examples or keep running statistics.
        loss: (model, micro-batch) → mean loss of the micro-batch.
        recipe: the algorithm's settings.
        granularity: what is one block: layer, tensor, kind or model.
        noise: the source of noise; operating-system entropy unless given.
        seed: data-independent randomness inside the model (dropout).
        diagnose: compute the quantities of the convergence theory at every step.
        cross_entropy: the loss is the cross-entropy of (x, y), which linear models are fast with.

    Guarantees: each step releases θ plus Gaussian noise whose sensitivity is 2C/K in every block
    (see recipe and publish), for any model, loss and data. All state is in the model and in
    `state_dict()`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        recipe: Recipe,
        *,
        granularity: str = "layer",
        noise: Randomness | None = None,
        seed: int = 0,
        diagnose: bool = False,
        cross_entropy: bool = False,
    ):
        refuse_unready(model)
        self.model, self.loss, self.recipe, self.seed = model, loss, recipe, seed
        self.layout = Layout(model, granularity)
        for name, values in (("clip", recipe.clip), ("noise", recipe.noise)):
            if len(values) != self.layout.count:
                raise InputError(
                    f"{name}: {len(values)} values for a model of {self.layout.count} blocks"
                )
        self.noise = noise or Randomness()
        self.memory = memory.make(
            recipe.memory, self.layout, recipe.preconditioner, recipe.auxiliaries
        )
        self.diagnose = diagnose
        self.steps = 0
        # Of published iterates, so it is free: an exponential average, its start corrected for.
        self.average = self.layout.gather().zero_() if recipe.averaging else None
        self.path_length = 0.0
        self.smoothness: float | None = None  # estimate of L, made at the first diagnosed step
        self.random: bool | None = None  # whether the model draws random numbers; None: unknown
        self._has_conv = any(isinstance(m, _ConvNd) for m in model.modules())
        self._vectorise = True
        plain = not recipe.preconditioner.stateful and recipe.memory != "auxiliary"
        decays = recipe.memory == "none" and recipe.auxiliary_weight_decay
        fast = cross_entropy and plain and not decays and not diagnose and recipe.shared_penalty
        self._head = Head.of(model, self.layout) if fast else None
        self._lanes: tuple[int, ThreadPoolExecutor] | None = None

    def step(self, batch: Batch) -> StepResult:
        """Take one step on a mini-batch."""
        if self.random is None and self._head is None and not self._vector_size(batch):
            self._learn(batch)
        recipe, setting = self.recipe, self.recipe.at(batch.epoch)
        layout, decay = self.layout, recipe.auxiliary_weight_decay
        theta = layout.gather()
        penalties = self.recipe.penalties(batch.epoch)
        now = memory.Step(
            index=self.steps,
            clip=torch.tensor(setting.clip, dtype=torch.float64, device=layout.device),
            penalty=torch.tensor(penalties, dtype=torch.float64, device=layout.device)[:, None],
            lr=setting.lr,
            decay=theta * decay if decay else None,
            diagnose=self.diagnose,
        )
        if self.diagnose and self.smoothness is None:
            self.smoothness = smoothness(self.model, self.loss, layout, batch)

        with Watch(self.model), torch.no_grad():
            total, losses, tally = self._auxiliaries(batch, now)
        noisy = publish.aggregate_(
            layout, total, self.recipe.auxiliaries, setting.noise, self.noise
        )
        direction = self.memory.publish(noisy, now)
        new = publish.descend(
            theta,
            direction,
            step_size=setting.step_size,
            regularizer=self.recipe.regularizer,
            weight_decay=self.recipe.weight_decay,
        )
        layout.scatter(new)
        self.steps += 1
        if self.average is not None:
            self.average.lerp_(new, (1.0 - recipe.averaging) / (1.0 - recipe.averaging**self.steps))
        weights = torch.tensor(batch.sizes, dtype=torch.float64) / max(1, sum(batch.sizes))
        loss = float(losses.double() @ weights)
        return StepResult(
            loss=loss,
            nonfinite=tally.nonfinite,
            diagnostics=self._diagnose(batch, tally, loss, new - theta) if self.diagnose else None,
        )

    def finish(self) -> None:
        """Leave in the model what is to be released: the average, if there is one, else θ."""
        if self.average is not None and self.steps:
            self.layout.scatter(self.average)

    def _auxiliaries(self, batch: Batch, now: memory.Step) -> tuple[Tensor, Tensor, Tally]:
        """Stage 1: the sum of all contributions, the loss of every auxiliary, what was seen.

        Works on chunks of auxiliaries that fit the cache. Without vectorisation a chunk is one
        auxiliary, and groups of chunks run on as many lanes as there are threads: a lane is a
        thread that computes on one core, since small micro-batches keep one core busy but not
        several. The groups and the order of their sum do not depend on the number of lanes. A
        model that draws random numbers stays on one lane, because the generator is shared.
        """
        number, layout = len(batch.sizes), self.layout
        if self._head is not None and number and set(batch.sizes) == {1}:
            return self._outer_products(self._head, batch, now)
        size = self._vector_size(batch)
        rows = max(1, min(CHUNK // layout.size, EXAMPLES // size)) if size else 1
        chunks = [slice(k, min(k + rows, number)) for k in range(0, number, rows)]
        groups = [
            chunks[i * len(chunks) // GROUPS : (i + 1) * len(chunks) // GROUPS]
            for i in range(GROUPS)
        ]
        small = max(batch.sizes, default=0) <= LANE
        parallel = not size and small and self.random is False and layout.device.type == "cpu"
        losses = torch.zeros(number)
        total = torch.zeros(layout.size, dtype=layout.dtype, device=layout.device)
        tally = Tally()

        def run(group: list[slice]) -> tuple[Tensor, Tally]:
            """The sum of a group's contributions, and what was seen."""
            part, seen = torch.zeros_like(total) if len(group) > 1 else total, Tally()
            buffer, scratch = total.new_empty(rows, layout.size), total.new_empty(rows, layout.size)
            with torch.no_grad():
                for chunk in group:
                    if not parallel:
                        torch.manual_seed(hash((self.seed, self.steps, chunk.start)) % 2**63)
                    length = chunk.stop - chunk.start
                    gradient = self._gradients_(batch, chunk, buffer[:length], losses)
                    seen.add(self.memory.contribute_(chunk, gradient, scratch[:length], now))
                    here = gradient[0] if length == 1 else gradient.sum(0)
                    part = here if len(group) == 1 else part.add_(here)
            return part, seen

        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            for part, seen in (self._on_lanes if parallel else map)(run, filter(None, groups)):
                total += part
                tally.add(seen)
            if parallel and not torch.equal(before, torch.get_rng_state()):
                self.random = True
        return total, losses, tally

    def _outer_products(
        self, head: Head, batch: Batch, now: memory.Step
    ) -> tuple[Tensor, Tensor, Tally]:
        """Stage 1 for single examples of a linear head, some thousands at a time."""
        total = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=self.layout.device)
        losses, tally = [], Tally()
        for first in range(0, len(batch.sizes), OUTER):
            x, y = batch.slice(first, min(first + OUTER, len(batch.sizes)))
            part, values, seen = contribute_outer_products(
                self.layout,
                head,
                x.flatten(1).to(self.layout.dtype),
                y,
                clip=float(now.clip[0]),
                penalty=float(now.penalty),
                lr=now.lr,
            )
            total += part
            losses.append(values)
            tally.add(seen)
        return total, torch.cat(losses), tally

    def _vector_size(self, batch: Batch) -> int:
        """The size of the micro-batches if they should be differentiated many at once, else 0.

        Convolutions are slower that way unless there is one example in each, and so are models
        too large for several rows of gradients to fit the cache.
        """
        sizes = set(batch.sizes) - {0}
        if not self._vectorise or len(sizes) != 1 or 4 * self.layout.size > CHUNK:
            return 0
        if self._has_conv and sizes != {1}:
            return 0
        return sizes.pop()

    def _gradients_(self, batch: Batch, chunk: slice, out: Tensor, losses: Tensor) -> Tensor:
        """The gradients of a chunk of auxiliaries; an empty micro-batch has gradient 0."""
        bounds = batch.bounds[chunk]
        filled = [i for i, (first, last) in enumerate(bounds) if last > first]
        if len(filled) < len(out):
            out.zero_()
        size = self._vector_size(batch)
        if size and filled:
            data = batch.slice(bounds[0][0], bounds[-1][1])
            part = out if len(filled) == len(out) else torch.empty_like(out[: len(filled)])
            try:
                values = vectorised(self.model, self.loss, self.layout, data, part, size)
            except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError):
                self._vectorise = False  # this model or loss does not allow it: loop below
            else:
                if part is not out:
                    out[filled] = part
                losses[chunk][filled] = values.to(losses)
                return out
        for i in filled:
            data = batch.slice(*bounds[i])
            if self.layout.channels_last:
                data = channels_last(data)
            losses[chunk][i] = looped(self.model, self.loss, self.layout, data, out[i : i + 1])
        return out

    def _learn(self, batch: Batch) -> None:
        """Find out, on a first micro-batch, what the model allows: lanes, channels last.

        Before the first step all buffers are 0, so their order may still be chosen.
        """
        bounds = [b for b in batch.bounds if b[1] > b[0]]
        if not bounds:
            return
        data, layout = batch.slice(*bounds[0]), self.layout
        out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
        images = any(isinstance(m, nn.Conv2d) for m in self.model.modules())
        with Watch(self.model), torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            if images and self.steps == 0 and layout.device.type == "cpu":
                layout.arrange(channels_last=True)
                try:
                    looped(self.model, self.loss, layout, channels_last(data), out)
                except RuntimeError:  # such as view() of a tensor that lies in another order
                    layout.arrange(channels_last=False)
                    torch.set_rng_state(before)
            if not layout.channels_last:
                looped(self.model, self.loss, layout, data, out)
            self.random = not torch.equal(before, torch.get_rng_state())

    def _on_lanes(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """map, on as many lanes as there are threads."""
        threads = torch.get_num_threads()
        if self._lanes is None or self._lanes[0] != threads:
            self._lanes = (threads, ThreadPoolExecutor(threads, initializer=_use_one_core))
        torch.set_num_threads(1)  # whoever adds up the results must not disturb the lanes
        try:
            yield from self._lanes[1].map(function, items)
        finally:
            torch.set_num_threads(threads)

    def _diagnose(self, batch: Batch, tally: Tally, loss: float, moved: Tensor) -> Diagnostics:
        setting, recipe = self.recipe.at(batch.epoch), self.recipe
        auxiliaries = max(1, len(batch.sizes))
        floor = recipe.preconditioner.floor if recipe.preconditioner.stateful else 1.0
        estimate = self.smoothness or 0.0
        limit = 2.0 * floor / (estimate + 5.0 * max(recipe.penalties(batch.epoch)) + 2.0)
        self.path_length += float(moved.double().norm())
        return Diagnostics(
            lagrangian=loss
            + tally.lagrangian / auxiliaries
            + penalty_of(self.layout.gather(), recipe.regularizer, recipe.weight_decay),
            consensus_residual=(tally.spread / auxiliaries) ** 0.5,
            clipping_bias=tally.bias,
            path_length=self.path_length,
            share_cut=tally.cut / max(1, tally.total),
            smoothness=estimate,
            lr_limit=limit,
            lr_condition=setting.lr < limit,
            global_lr_condition=setting.global_lr <= 1.0,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything the run needs to continue bit for bit. As secret as the data."""
        return {
            "steps": self.steps,
            "parameters": {
                n: t.detach().clone()
                for n, t in zip(self.layout.names, self.layout.tensors, strict=True)
            },
            "memory": {name: t.clone() for name, t in self.memory.state().items()},
            "average": None if self.average is None else self.average.clone(),
            "noise": self.noise.state_dict(),
            "path_length": self.path_length,
            "smoothness": self.smoothness,
            "random": self.random,
            "channels_last": self.layout.channels_last,
            "vectorise": self._vectorise,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of an engine made with the same arguments."""
        mine = self.memory.state()
        if set(mine) != set(state["memory"]) or set(self.layout.names) != set(state["parameters"]):
            raise InputError("the state belongs to a run with another model or memory")
        self.layout.arrange(state["channels_last"])
        with torch.no_grad():
            for name, tensor in zip(self.layout.names, self.layout.tensors, strict=True):
                tensor.copy_(state["parameters"][name])
            for name, kept in mine.items():
                kept.copy_(state["memory"][name])
        if self.average is not None:
            self.average.copy_(state["average"])
        self.noise.load_state_dict(state["noise"])
        self.steps = state["steps"]
        self.path_length, self.smoothness = state["path_length"], state["smoothness"]
        self.random, self._vectorise = state["random"], state["vectorise"]


def _use_one_core() -> None:
    """Keep this thread's operations on one core, for reproducible and undisturbed lanes."""
    torch.get_num_threads()  # a thread adopts the global number at its first operation: do it now
    torch.set_num_threads(1)
