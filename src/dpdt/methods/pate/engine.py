"""PATE: teachers on disjoint shards vote on public examples, a student learns from noisy winners.

In confident GNMax a query is answered only if the winner's votes, with noise, reach a threshold.
The student sees only public examples and answers, so its training costs nothing more.
"""

from __future__ import annotations

import copy
import secrets
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpdt.accounting import pate as votes
from dpdt.algorithm.batch import Batch, Data, on_device, tree_map
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.randomness import kept, seed_of, seeded
from dpdt.algorithm.reachable import Snapshot
from dpdt.algorithm.state import Tainted
from dpdt.data.access import count, take
from dpdt.ledger import Setting
from dpdt.mechanism import full_precision, perturbed
from dpdt.methods.method import Job
from dpdt.methods.optimizers import optimizer
from dpdt.methods.public import classes_of, labelled, said
from dpdt.noise import Single

if TYPE_CHECKING:
    from dpdt.methods.pate import Pate


class PateEngine(Single):
    """The first steps train a teacher each, later ones take a query each; last, the student learns.

    Guarantees: each private example is seen by one teacher, and leaves a trace only in that
    teacher's votes. No more than `answers` queries are answered. A teacher starts from a copy of
    the first model. What is random in its training depends on the public seed and on its own number
    alone.

    Several ranks train the teachers in turn, each those whose shards it has. Their votes are summed
    once, after the last teacher. From then on all ranks hold the same votes and the same noise.
    """

    def __init__(self, method: Pate, job: Job):
        model, plan = job.model, job.plan
        self.world = job.world
        self.model, self.loss, self.method, self.plan = model, job.loss, method, plan
        # a copy: a model may write to what it is given
        self.device = next(model.parameters()).device
        self.public = tree_map(torch.clone, on_device(job.public, self.device))
        self.noise, self.train = job.noise, plan.training.train
        self.steps = 0
        self.start = copy.deepcopy(model)
        self.by_name = job.by_name
        classes = classes_of(model, self.public, method.name, by_name=job.by_name)
        self.queries = plan.steps - method.teachers
        self.limit = sum(n for s, n in plan.runs if s.clip[1])  # answers that are paid for
        self.counts = torch.zeros(self.queries, classes, dtype=torch.float64)  # private
        self.losses = 0.0  # of this rank's teachers
        self.answers: dict[int, int] = {}
        self.again: tuple[Data, int, Tensor] | None = None  # a teacher that is trained again
        self.taught = 0  # teachers of this rank that had examples
        # what teachers share: they are copies, but closures and global names are not copied
        self.shared = self._snapshot()

    def _snapshot(self) -> Snapshot:
        return Snapshot({"": self.start, "the loss": self.loss})

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        query = self.steps - self.method.teachers
        loss = 0.0
        with full_precision(), kept():
            if query < 0:
                if self.steps % self.world.size == self.world.rank:
                    loss = self._teach(batch.data, bool(batch.sizes))
                if query == -1:
                    loss += self._poll()
            elif len(self.answers) < self.limit:
                self._ask(query, setting)
            self.steps += 1
            if self.steps == self.plan.steps:
                seeded(self.train.seed, 0, self.steps)
                loss = self._study()
                if not self.world.alone:  # rank 0's, should ranks round differently
                    self.model.load_state_dict(self.world.from_first(_copied(self.model)))
        return StepResult(loss=loss, nonfinite=0)

    def _teach(self, shard: Data, some: bool) -> float:
        """Train a teacher on its shard and take its votes; an empty shard has an untaught one."""
        winners, loss = self._votes(shard, some, self.steps)
        self.counts[torch.arange(len(winners)), winners] += 1.0
        self.taught += some
        if some and not secrets.randbelow(self.taught):  # each of them is as likely in the end
            self.again = (tree_map(torch.clone, shard), self.steps, winners)
        self.losses += loss
        return loss

    def _poll(self) -> float:
        """Sum the votes of all ranks' teachers; the sum of the other ranks' losses."""
        if self.again is not None:
            shard, number, before = self.again
            if not torch.equal(self._votes(shard, True, number)[0], before):
                raise Tainted(
                    "a teacher votes otherwise after the others were trained: the model or the "
                    "loss keeps something between calls, which carries records to other teachers"
                )
            self.again = None
        start = torch.cat([p.detach().flatten() for p in self.start.parameters()])
        total, (losses,) = self.world.sum(self.counts.flatten(), [self.losses], start)
        self.counts.copy_(total.view_as(self.counts))
        return losses - self.losses

    def _votes(self, shard: Data, some: bool, number: int) -> tuple[Tensor, float]:
        """What a teacher of this shard says of every query, and its last loss."""
        seeded(self.train.seed, 0, number)
        self.shared.seed(seed_of(self.train.seed, 0, number))
        teacher, loss = copy.deepcopy(self.start), 0.0
        if some:
            own = tree_map(torch.clone, shard)  # a model may write to what it is given
            loss = self._fit(teacher, own, self.method.teacher_epochs, number)
        with torch.no_grad():
            queries = take(self.public, torch.arange(self.queries))
            queries = tree_map(torch.clone, queries)
            winners = said(teacher, queries, by_name=self.by_name).argmax(-1)
        self.shared.put_back(strict=True)
        return winners.cpu(), loss

    def _ask(self, query: int, setting: Setting) -> None:
        """Confident GNMax on one public example."""
        votes = self.counts[query]
        best, counts = (
            perturbed(total, divisor=1, noise=sigma, spacing=s, grid=g, source=self.noise)
            for total, sigma, s, g in zip(
                (votes.max().reshape(1), votes),
                setting.noise,
                setting.spacing,
                setting.grid,
                strict=True,
            )
        )
        if float(best) >= self.method.threshold * self.method.teachers:
            self.answers[query] = int(counts.argmax())

    def _study(self) -> float:
        """Train the student on what was answered."""
        if not self.answers:
            return 0.0
        chosen = torch.tensor(list(self.answers))
        labels = torch.tensor(list(self.answers.values()), device=self.device)
        examples = labelled(take(self.public, chosen), labels, by_name=self.by_name)
        return self._fit(self.model, examples, self.train.epochs, self.steps)

    def _fit(self, model: nn.Module, data: Data, epochs: int, number: int) -> float:
        """Plain training; returns the last loss."""
        method, generator = self.method, torch.Generator()
        generator.manual_seed(hash((self.train.seed, number)) % 2**63)
        trained = [p for p in model.parameters() if p.requires_grad]
        chosen = optimizer(method, trained)
        size, last = min(self.train.batch_size, 64), 0.0
        for _ in range(epochs):
            order = torch.randperm(count(data), generator=generator)
            for part in torch.split(order, size):
                loss = self.loss(model, take(data, part))
                loss.backward()  # type: ignore[no-untyped-call]
                chosen.step()
                chosen.zero_grad()
                last = float(loss.detach())
        return last

    def data_dependent(self, delta: float) -> dict[str, Any]:
        """What the votes cost given how they fell. Private: it must not be published."""
        first, second = self.plan.at(self.method.teachers).noise
        given: dict[str, Any] = {
            "queries": self.queries,
            "answered": [self.counts[q].tolist() for q in self.answers],
            "noise": second,
            "threshold_noise": first,
            "delta": delta,
        }
        return {
            "caveat": "computed from private votes: itself private, not to be published",
            "epsilon_data_dependent": votes.epsilon(**given, data_dependent=True),
            "epsilon_data_independent": votes.epsilon(**given, data_dependent=False),
            "answered": len(self.answers),
        }

    def check(self) -> None:
        """Nothing to check: teachers are copies, and the student sees public examples alone."""

    def finish(self) -> None:
        """The model is as it is to be released."""

    def state_dict(self) -> dict[str, Any]:
        counts = self.counts.clone()
        if self.steps < self.method.teachers:  # not polled yet: every rank has its own
            counts = torch.stack(self.world.gather(counts)).sum(0)
        return {
            "steps": self.steps,
            "counts": counts,
            "answers": dict(self.answers),
            "start": _copied(self.start),  # which teachers and the student grow from
            "model": _copied(self.model),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.answers = state["steps"], dict(state["answers"])
        self.counts.copy_(state["counts"])
        if self.steps < self.method.teachers and not self.world.first:
            self.counts.zero_()  # they count at rank 0
        self.start.load_state_dict(state["start"])
        self.model.load_state_dict(state["model"])
        self.shared = self._snapshot()


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
