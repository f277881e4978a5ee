"""The sum of a mini-batch's bounded contributions, computed in the way that fits the model.

An auxiliary holds a few examples of the mini-batch, its micro-batch. Its contribution is made from
the gradient of these. Under Poisson sampling an example's place in the batch depends on who else
was drawn. A matrix product may round a row differently at another place, or among another number
of rows. An attacker could blow such differences up. So an example's gradient must be the same to
the bit wherever the example stands:

    one by one    Each auxiliary is computed in a call of its own, on a copy of its examples.
                  Lanes are threads that do this at the same time, one core for each.
    together      Auxiliaries are computed in chunks, on one core: a constant number of rows, filled
                  up with copies of a row. It is a multiple of 64, since what is left over of a
                  block of numbers may be rounded otherwise (places.py). Before the first step a
                  chunk of equal rows is tried. If all rows
                  come out equal to the bit, any place will do. If only those do whose places are
                  equal modulo 16, where rows lie alike in memory, then examples keep to the places
                  of their own number. Otherwise the model is computed one by one.
    by taps       Together, but gradients are not written out: norms and the sum follow from what
                  every layer saw (taps.py). Chunks and places are as above.

Which way a model is computed is found out on made-up inputs, never on the data (ways.py). There,
rows must also keep their bits when other rows are exchanged, in fixed partitions as well. A hostile
kernel that behaves on made-up inputs and mixes rows on others is out of reach.

Guarantees: a contribution is a function of θ, of its auxiliary's own examples and of public
numbers, to the bit. Nothing that is not trained changes (state.py). What is random inside the model
depends on the auxiliary's key alone (randomness.py). The caller's autocast is switched off.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dpdt.algorithm import ways
from dpdt.algorithm.auxiliary import Contribute, Tally
from dpdt.algorithm.batch import Batch, leaves
from dpdt.algorithm.gradients import Loss
from dpdt.algorithm.lanes import Lanes, keep_memory
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.passes import Pass
from dpdt.algorithm.places import same_bits
from dpdt.algorithm.randomness import kept
from dpdt.algorithm.reachable import MODULE_TABLES, Counted, Snapshot, Table
from dpdt.algorithm.readiness import refuse_unready
from dpdt.algorithm.sample import Sample
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.state import Kept, Tainted, replica
from dpdt.algorithm.ways import How
from dpdt.mechanism import BoundedSum, Columns, full_precision

AGAIN = 16  # one step in so many, by a secret coin, computes some auxiliary twice


class Executor:
    """Sums the bounded contributions of a mini-batch's auxiliaries.

    Args:
        model: any module without layers that mix examples or keep running statistics.
        loss: (model, micro-batch) → mean loss of the micro-batch.
        layout: the flat order of the trained parameters.
        auxiliaries: the planned number of micro-batches.
        seed: public, for what is random inside the model.
        expected: the planned size of a micro-batch.
        scales: whether contributions are gradients times numbers, so that gradients need not be
            written out.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        layout: Layout,
        *,
        auxiliaries: int,
        seed: int = 0,
        expected: int = 1,
        scales: bool = False,
    ):
        refuse_unready(model)
        keep_memory()
        self.model, self.loss, self.layout, self.seed = model, loss, layout, seed
        self.auxiliaries, self.expected = auxiliaries, expected
        self.outside = self._snapshot()  # of the model itself and the loss; copies are apart
        self.shared: Snapshot | None = None  # the part of it that copies and the loss can reach
        self.kept = Kept(model, self._reachable_tensors())
        self._common: list[Any] = []  # tensors and large arrays that all copies share
        self.base = self._based(model)  # as the model is now; called once, on made-up inputs
        self.scales = scales
        self.found: dict[tuple[Any, ...], How] = {}
        self.checked = False  # by content, which is done after the first pass
        self._start = [
            place
            for place in self.outside.places
            if isinstance(place, Table) and place.kind in ("module", *MODULE_TABLES)
        ]
        self._sample: Sample | None = None
        self.images = any(isinstance(m, nn.Conv2d) for m in model.modules())
        self.convolves = any(isinstance(m, _ConvNd) for m in model.modules())
        self._arranged = False
        self.lanes = Lanes()

    def total(
        self,
        batch: Batch,
        *,
        columns: Columns,
        clip: tuple[float, ...],
        contribute: Contribute,
        scaled: Scaled | None = None,
        whole: bool = False,
    ) -> tuple[Tensor, Tensor, Tally]:
        """The sum of all contributions, the loss of every auxiliary, and what was seen.

        `contribute` turns gradients into contributions, and may overwrite the gradients. `columns`
        are the blocks of a contribution, `clip` their bounds. With `scaled`, contributions are
        gradients times numbers, and `contribute` need not be called. With `whole`, `contribute`
        gets whole chunks, fillers included: it mixes the entries of a row by matrix products, which
        may round a row by the number of rows.
        """
        self.arrange(batch)
        with full_precision(), torch.no_grad(), kept():
            if self.base is self.model:  # it cannot be copied
                self._restore()
            self._refuse_between()
            theta = self.layout.gather()
            how = self._settle(batch, contribute, scaled, columns)
            if self.outside.difference():  # such as what an evaluation has left on the model
                self.outside = self._snapshot()
            target = BoundedSum(columns, clip)
            losses = torch.zeros(len(batch.sizes), dtype=torch.float64)
            work = Pass(self, how, batch, columns, clip, contribute, whole, losses)
            again = not self.checked or not secrets.randbelow(AGAIN)
            chosen = work.choose() if again else None
            before = None if chosen is None else work.recompute(chosen, self.copy())
            if how.taps is not None:
                assert scaled is not None
                tally = work.tapped(how.taps, scaled, target)
            else:
                tally = work.together(target) if how.rows else work.apart(target)
            self._clear_gradients()
            self._refuse_changes(theta)
            if chosen is not None and work.recompute(chosen, work.used()) != before:
                raise Tainted(
                    "an auxiliary's gradient is another after the others were computed: the model "
                    "or the loss keeps something between calls, which would carry private data "
                    "from one auxiliary to the next"
                )
            if chosen is not None:
                self._refuse_another_loss()
            if not self.checked and any(batch.sizes):
                self.kept.check()
                self.checked = True
        return target.total, losses, tally

    def copy(self) -> nn.Module:
        """A module to call, in the mode that the model is in. The copy shares all tensors."""
        made = replica(self.base, self._common)
        modes = {name: module.training for name, module in self.model.named_modules()}
        for name, module in made.named_modules():
            module.training = modes.get(name, module.training)
        return made

    def check(self) -> None:
        """Set the model's attributes back, and refuse any change of what is not trained."""
        with full_precision(), torch.no_grad(), kept():  # no other run is in a pass
            self._refuse_between()
            self._refuse_another_loss()
        self._restore()
        self.kept.check()

    def snapshot(self, copy: nn.Module) -> Snapshot:
        """Take a snapshot of what belongs to a copy alone."""
        return Snapshot({"": copy}, skip=None if copy is self.model else self.outside)

    def _based(self, model: nn.Module) -> nn.Module:
        """Copy what copies are made from. Tensors that it has made by itself are shared from now.

        So whatever one copy writes to them past torch's count is found by content.
        """
        held = Snapshot({"": model}, trained=tuple(self.layout.tensors))
        for place in held.places:
            if isinstance(place, Counted) and place.obj.is_leaf:
                place.obj.grad = None
        found = dict(held.tensors())
        self._common = list(found.values())
        own = {id(t) for t in (*self.model.parameters(), *self.model.buffers())}
        self.kept.add({label: t for label, t in found.items() if id(t) not in own})
        return replica(model, self._common)

    def _clear_gradients(self) -> None:
        """Throw away what a loss may have computed by itself."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def _snapshot(self) -> Snapshot:
        self._clear_gradients()
        roots = {"": self.model, "the loss": self.loss}
        return Snapshot(roots, trained=tuple(self.layout.tensors), modes=False)

    def _reachable_tensors(self) -> dict[str, Any]:
        """Return what is neither a buffer nor a parameter, but can be read in a pass."""
        own = {id(t) for t in (*self.model.parameters(), *self.model.buffers())}
        return {label: value for label, value in self.outside.tensors() if id(value) not in own}

    def _restore(self) -> None:
        for place in self._start:
            if not place.same():
                place.write()

    def _share(self) -> None:
        """Note which objects a pass shares with the model itself, or with the next pass."""
        self.outside = self._snapshot()
        copy = self.copy()
        reached = Snapshot({"": copy, "the loss": self.loss}).seen
        if copy is self.model:
            own = Snapshot({"": copy}).seen
            reached = {key: obj for key, obj in reached.items() if key not in own}
        self.shared = self.outside.only(reached)

    def _refuse_between(self) -> None:
        """Refuse a loss or a model whose surroundings were changed since the last pass."""
        if self.shared is not None and (what := self.shared.difference()):
            raise Tainted(
                f"{what} changed between steps, and the model or the loss can read it: a number "
                "that comes from private data would pass the norm bound and the noise; what "
                "changes over steps must be a schedule of the configuration"
            )

    def _refuse_another_loss(self) -> None:
        """Refuse a loss that gives another value for the same inputs, weights and seed."""
        if self._sample is not None and not self._sample.same(self):
            raise Tainted(
                "the loss of the same made-up inputs and weights is another than before: the model "
                "or the loss reads something that changes from step to step, which could carry "
                "private data past the norm bound and the noise"
            )

    def _refuse_changes(self, theta: Tensor) -> None:
        """Refuse a pass that wrote to the model itself."""
        self.kept.passed()
        if what := self.outside.difference():
            raise Tainted(
                f"{what} changed during a training pass: the loss must call the model that it is "
                "given, not another one, and keep nothing"
            )
        if not same_bits(self.layout.gather(), theta):
            now = self.layout.split(self.layout.gather())
            pairs = zip(self.layout.names, now, self.layout.split(theta), strict=True)
            name = next(name for name, a, b in pairs if not same_bits(a, b))
            self.layout.scatter(theta)
            raise Tainted(
                f"parameter {name!r} was changed by the forward pass itself, past the norm bound "
                "and the noise; use a layer that leaves its parameters alone"
            )

    def _settle(
        self, batch: Batch, contribute: Contribute, scaled: Scaled | None, columns: Columns
    ) -> How:
        """Find out, on made-up inputs, how this model can be computed, once for every case."""
        if not sum(batch.sizes):
            return How()
        modes = (m.training for m in self.model.modules())
        shapes = (t.shape[1:] for t in leaves(batch.data))
        weighted = None if scaled is None else scaled.weights is not None
        case = (batch.alone, batch.fixed, ways.equal_size(batch), weighted, *shapes, *modes)
        if case not in self.found:
            drawn = self._warm_up(batch)
            found = None
            if not drawn:
                found = None if scaled is None else ways.tapped(self, batch, scaled, columns)
                found = found or ways.together(self, batch, contribute)
            if found and not found.keyed and not ways.as_alone(self, batch):
                found = None
            self.found[case] = found or ways.apart(self, batch)
            self.kept.passed()
            self._share()
        return self.found[case]

    def _warm_up(self, batch: Batch) -> bool:
        """Call a copy once: attributes that a model sets at its first call are then public.

        Returns whether a generator that belongs to the model or the loss was used. Such a model is
        computed one by one, so that the generator can be set for every example.
        """
        made = self.copy()
        reached = Snapshot({"": made, "the loss": self.loss})
        before = reached.draws()
        ways.call_once(self, made, batch)
        if replica(made) is not made:  # it has left nothing on itself that cannot be copied
            self.base = self._based(made)
        if self._sample is None:
            self._sample = Sample.of(self, batch)
        self._share()
        return reached.draws() != before

    def arrange(self, batch: Batch) -> None:
        """Choose the order of images in memory, before the first pass.

        The flat order of convolution weights follows. Flat buffers from before lose their meaning.
        """
        layout = self.layout
        if self._arranged or not sum(batch.sizes):
            return
        self._arranged = True
        if not self.convolves or layout.place.type != "cpu":
            return
        together = ways.equal_size(batch) if self.scales else ways.size_of(self, batch)
        with full_precision(), torch.no_grad(), kept():
            if ways.takes_channels_last(self, batch) and self.images and not together:
                layout.arrange(channels_last=True)
                if not ways.runs_channels_last(self, batch):
                    layout.arrange(channels_last=False)
        self.kept.passed()

    def words(self) -> list[str]:
        """In which ways the model was computed so far."""
        return [how.words() for how in self.found.values()]

    def state_dict(self) -> dict[str, Any]:
        return {"channels_last": self.layout.channels_last, "arranged": self._arranged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.layout.arrange(state["channels_last"])
        self._arranged = state["arranged"]
