"""The step of any method with its ledger and its guarantee.

Guarantees: a step is recorded before it is taken, with the very setting it is taken with. Only the
loader's own batches are taken, each once, unchanged. Noise and coins are never drawn twice: a
loaded state continues with fresh draws, and steps that are taken again are recorded again. Only
`resume` repeats draws, bit for bit. It is for the folder of a run, where everything else was found
to be the same. Whatever is found to break a guarantee voids the ledger.

Where several ranks (processes) train one model, each has a step and a ledger, and rank 0's is the
one that is written. What ends or voids one rank's run does so on all. All ranks must call `finish`,
`pause`, `state_dict`, `load_state_dict` and `resume` together. A state is rank 0's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from typing import Any

from torch import Tensor, nn

from dpdt.accounting import Privacy, account
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.places import same_bits
from dpdt.distributed.world import World
from dpdt.errors import InputError, Tainted
from dpdt.fields import AUTO
from dpdt.ledger import LedgerWriter
from dpdt.methods.dpdt.whitening import Whitened
from dpdt.methods.method import Engine
from dpdt.methods.plan import Plan
from dpdt.models.metrics import Held
from dpdt.noise import Randomness, Single
from dpdt.training import earlier, recorded
from dpdt.training.device import repeatable
from dpdt.training.loader import Loader
from dpdt.training.recorded import begins_with, between, number_of, refuse_unplanned, runs_of
from dpdt.training.turns import Turns
from dpdt.weights import hash_of_model


class Step(Single):
    """Takes one step of a method for each batch of its loader, and keeps the ledger."""

    held: Held  # held-out examples, and what a model is judged by on them

    def __init__(
        self,
        engine: Engine,
        loader: Loader,
        plan: Plan,
        *,
        model: nn.Module,
        learner: nn.Module,
        noise: Randomness,
        identity: Callable[[], dict[str, str]],
        seen: str,
        world: World,
        whitened: Whitened | None = None,
    ):
        self.engine, self.loader, self.plan = engine, loader, plan
        self.delta = plan.training.privacy.delta
        self.noise, self.world, self._turns = noise, world, Turns(noise)
        self.whole = model  # with what is frozen
        self.whitened = whitened  # the model that is trained, if it is not the user's own
        self.writer = LedgerWriter(plan.header)
        self.run = secrets.token_hex(16)  # which run this is; says nothing about it
        self._identity, self.seen = identity, seen
        self._trained = [p for p in learner.parameters() if p.requires_grad]
        self._left, self._model, self._start = self._weights(), model, earlier.hashes_of(model)
        self._recorded = 0  # steps before this number stand in the ledger already
        self._finished, self._shown = False, False  # what was guaranteed so far was asked for
        loader.announce = self._turns.recorded(self._record)
        loader.void = self.writer.void

    def __call__(self, batch: Batch) -> StepResult:
        """Take the step of a batch, the next one of the loader, which has recorded it."""
        self.writer.refuse_ended()
        with self._turns.step(), self._voiding():
            own = self.loader.used(batch, self.engine.steps)
            self._refuse_other_weights()
            self.noise.begin(own.step)
            with repeatable(self.loader.device):
                result = self.engine.step(own, self.plan.at(own.step))
            self._settle()
        return result

    def _record(self, step: int) -> None:
        """Record a step before its batch is handed out: a batch that was seen counts as used."""
        if self._shown:
            self.writer.export("what was guaranteed on the way")
            self._shown = False
        if step >= self._recorded:
            self.writer.step(self.plan.at(step), step)

    def _refuse_other_weights(self) -> None:
        if not all(map(same_bits, self._weights(), self._left)):
            raise Tainted(
                "the weights were changed between steps, past the norm bound and the noise; only "
                "the step may change what is trained"
            )

    def _weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._trained]

    def _settle(self) -> None:
        """Bring the user's model up to date, and remember what the step has left."""
        if self.whitened is not None:
            self.whitened.fold()
        self._left = self._weights()

    @contextmanager
    def _voiding(self) -> Iterator[None]:
        """What is found inside voids the ledger, and the other ranks hear of it."""
        with self.world.telling():
            try:
                yield
            except Tainted as error:
                self.writer.void(str(error))
                raise

    def agree(self) -> None:
        """Refuse, and void, a run whose ranks hold different weights.

        What left any rank, or voids its ledger, enters the ledgers of all.
        """
        if self.world.alone or self.world.left:
            return
        with self._voiding():
            ledger = self.writer.ledger
            mine = (earlier.weights_of(self._model), ledger.exports, ledger.voids)
            weights, exports, voids = zip(*self.world.gather(mine), strict=True)
            for what in dict.fromkeys(chain(*exports)):
                self.writer.export(what)
            for why in dict.fromkeys(chain(*voids)):
                self.writer.void(why)
            if len(set(weights)) > 1:
                raise Tainted("the ranks of the run ended up with different weights")

    def privacy(self, delta: float | None = None) -> Privacy:
        """What the steps taken so far guarantee. If more follow, an iterate was shown."""
        self._shown = not self.writer.ledger.closed
        if self._shown:
            with suppress(Tainted):  # which the ledger says
                self.check()
        delta = self.delta if delta is None else delta
        large = self.plan.training.privacy.allow_large_delta
        return account(self.writer.ledger, delta, allow_large_delta=large)

    def export(self, what: str) -> None:
        """Record that something besides the last iterate is shown."""
        self.writer.export(what)

    def check(self) -> None:
        """Refuse, and void, a run in which anything has changed but by its steps."""
        with self._voiding():
            self._refuse_other_weights()
            self.loader.check()
            self.engine.check()

    def finish(self) -> None:
        """End the run: close the ledger, and leave in the model what is to be released."""
        if not self._finished:
            self.check()
            self.agree()
            recorded.end_early(self.writer, self.plan, self.engine.steps, self.loader.position)
            self.engine.finish()
            self._finished = True
            self._settle()
            self._remember()
            self.writer.close(hash_of_model(self.whole))

    def pause(self) -> None:
        """Stop early. The run can be continued from an earlier `state_dict()`.

        The model is left as it is, which shows it, unless the run has said that only the last
        iterate leaves.
        """
        self.check()
        self.agree()
        if self.plan.header.release != "last":
            self.engine.finish()
            self._settle()
            self.writer.export(f"the model when the run was paused after {self.engine.steps} steps")
        self._remember()
        self.writer.pause()

    def _remember(self) -> None:
        """Remember the weights that leave, to recognise a copy of them on the same data."""
        earlier.remember_weights(earlier.hashes_of(self._model) - self._start, self.seen)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, without its noise. As secret as the data."""
        ledger = self.writer.ledger
        with self.world.telling():
            identity, engine = self._identity(), self.engine.state_dict()
        return {
            "run": self.run,
            "identity": identity,
            "engine": engine,
            "ledger": [[asdict(run.setting), run.steps, run.start] for run in ledger.runs],
            "forks": list(ledger.forks),
            "exports": list(ledger.exports),
            "voids": list(ledger.voids),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()`, with fresh noise.

        What its run did before enters this ledger, if it is not there yet. Steps that this run has
        taken since are taken again, and counted again.
        """
        with self.world.telling():
            state = self._from_first(state)
            self.refuse_another(state)
            ledger, runs = self.writer.ledger, runs_of(state)
            if not ledger.runs:
                self.run = state["run"]
                self.writer.adopt(runs)
            elif state["run"] != self.run or not begins_with(ledger.runs, runs):
                raise InputError("the state belongs to another run than was begun here")
            else:
                self._refuse_going_back()
            for what in state["exports"]:
                self.writer.export(what)
            for why in state["voids"]:
                self.writer.void(why)
            self._recorded = 0
            self._load(state)

    def _refuse_going_back(self) -> None:
        if not self.plan.training.method.goes_back:
            raise InputError(
                f"{self.plan.header.method} cannot go back: what was asked again would be answered "
                "again, and the bill for answers is made beforehand; prepare another run"
            )

    def _from_first(self, state: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's state; what auxiliaries remember goes to their own ranks alone (engine)."""
        if self.world.alone:
            return state
        rest = state
        if self.world.first and self.plan.header.memory == "auxiliary":
            engine = dict(state["engine"])
            if "memory" in engine:
                engine["memory"] = dict.fromkeys(engine["memory"])
            rest = {**state, "engine": engine}
        given: dict[str, Any] = self.world.from_first(rest)
        return state if self.world.first else given

    def secrets(self) -> dict[str, Any]:
        """The noise and coins from here on, for a run's folder. As secret as the data."""
        return {"noise": self.noise.secrets(), "coins": self.loader.draws.secrets()}

    def resume(self, state: dict[str, Any], kept: dict[str, Any] | None) -> None:
        """Go on bit for bit, with the same draws. The ledger's file must be open again.

        Only for the very same run on the very same data, which the caller has checked. Steps that
        stand in the ledger are not recorded again: they come out as they did. Without `kept` draws
        are fresh, and steps that stand in the ledger are taken and recorded again. So it must be
        where sums may round differently, as with another number of ranks, and where steps in the
        ledger had fresh draws that the state knows nothing of.
        """
        with self.world.telling():
            state, kept = self._from_first(state), self.world.from_first(kept)
            self.refuse_another(state)
            ledger, runs = self.writer.ledger, runs_of(state)
            forks = state["forks"]
            if not begins_with(ledger.runs, runs) or ledger.forks[: len(forks)] != forks:
                raise InputError(
                    "the ledger does not begin with the steps of the checkpoint: it was cut or "
                    "exchanged, and would not count what was spent; put the run's own ledger back"
                )
            position = state["engine"]["steps"]
            since = between(ledger.runs, number_of(runs), number_of(ledger.runs))
            self.run, self._recorded = state["run"], 0
            self._load(state)
            if kept is None:
                if since:
                    self._refuse_going_back()
                return
            self._recorded = position + number_of(since)
            refuse_unplanned(ledger.runs, since, position, self.plan.runs)
            self.noise.resume(kept["noise"])
            self.loader.draws.resume(kept["coins"])

    def refuse_another(self, state: dict[str, Any]) -> None:
        """Refuse the state of another run. It is rank 0's."""
        mine, theirs = self._identity(), self.world.from_first(state.get("identity"))
        for name in mine:
            if mine[name] != theirs.get(name):
                raise InputError(f"the state belongs to a run with other {name}")

    def _load(self, state: dict[str, Any]) -> None:
        self.engine.load_state_dict(state["engine"])
        if (runs := self.writer.ledger.runs) and self.plan.training.method.lr == AUTO:  # measured
            self.plan = self.plan.at_rate(runs[-1].setting.lr)
        self.noise.restart(self.engine.steps)
        self.loader.move(self.engine.steps)
        self._settle()
