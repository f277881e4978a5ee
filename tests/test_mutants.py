"""Breakages that no other test noticed, each with a test that does (see tests/mutations.py)."""

import json
import math
import os
import random
import threading
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpdt import config
from dpdt.accounting import account
from dpdt.accounting.composition import sensitivities
from dpdt.accounting.gaussian import epsilon_of, log_delta
from dpdt.accounting.hidden_state import HiddenStateConvex
from dpdt.algorithm import executor, passes, ways
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.passes import Pass
from dpdt.algorithm.places import Digests, equal_places, rows_of, same_bits, unmoved
from dpdt.algorithm.randomness import seeded
from dpdt.algorithm.reachable import Snapshot
from dpdt.algorithm.state import Tainted
from dpdt.algorithm.taps import Taps
from dpdt.algorithm.ways import How
from dpdt.errors import InputError
from dpdt.lattice import FINE, on_lattice, spacing
from dpdt.ledger import Block, Ledger, LedgerWriter, Setting
from dpdt.ledger.lines import chain
from dpdt.mechanism import BoundedSum, Columns, perturbed
from dpdt.methods.gep.engine import GepEngine
from dpdt.models import frozen
from dpdt.models.networks import BoundedLinear
from dpdt.noise import Randomness
from dpdt.partition import PartitionOfUsers, PoissonSampler
from dpdt.parts import Products, Rows
from dpdt.runs import Run
from dpdt.training import depends, grid
from dpdt.training import run as running
from dpdt.training.loop import fit
from dpdt.training.step import Step
from dpdt.users import Users
from tests.numbers import prepare, train, unseen

from .accounting.test_composition import ledger as accounted
from .accounting.test_conformance import make

SMALL = {"epochs": 2, "batch_size": 10}
RULE = {"sampling": "poisson", "lr": 0.1, "penalty": 5.0, "granularity": "model"}
FIXED = {"sampling": "partition", "lr": 0.1, "memory": "none"}


def examples(n=40, inputs=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator)
    return x, torch.randint(0, classes, (n,), generator=generator)


def deep():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Branching(nn.Linear):
    """Control flow on the data: it cannot be mapped, and is computed one by one."""

    def forward(self, x):
        return super().forward(2 * x if float(x.detach().sum()) > 2.0**100 else x)


def options_of(method):
    """What each private method needs to be prepared on `examples`."""
    public = examples(30, seed=5)[0]
    return {
        "dpdt": RULE,
        "dpsgd": {},
        "gep": {"public": public, "directions": 3},
        "pate": {"public": public, "teachers": 4, "teacher_epochs": 1, "answers": 10},
    }[method]


METHODS = ("dpdt", "dpsgd", "gep", "pate")


class TestCore:
    @pytest.mark.parametrize("size", [3, 12, 700])
    def test_a_contribution_in_one_block_is_cut_to_the_clip_exactly(self, size):
        """A norm in single precision is off by 1e-7, to either side."""
        generator = torch.Generator().manual_seed(size)
        for _ in range(20):
            total = BoundedSum(Columns([size]), (1.0,))
            total.add(5.0 * torch.randn(1, size, generator=generator, dtype=torch.float64))
            square = sum(Fraction(v) ** 2 for v in total.total.tolist())
            assert 1 - Fraction(1, 10**11) <= square <= 1

    @pytest.mark.parametrize("pieces", [[8], [5, 3]])
    def test_sums_are_in_double_precision(self, pieces):
        """Small terms beside a large sum, rows one by one and many at once."""
        rows = torch.full((3000, 8), 0.1, dtype=torch.float64)
        rows[::3] = 3e-9
        whole, single = (BoundedSum(Columns(pieces), (1.0,)) for _ in range(2))
        whole.add(rows)
        for row in rows:
            single.add(row.unsqueeze(0))
        expected = 2000 * 0.1 + 1000 * 3e-9
        for found in (whole, single):
            assert np.allclose(found.total.numpy(), expected, rtol=1e-12, atol=0.0)

    def test_a_product_whose_norm_underflows_is_not_blown_up(self):
        """The norm on the right is lost below 1e-154; a long left side would make up for it."""
        for left, right in ((1e150, 1e-165), (1e-165, 1e150), (1e200, 1e-200), (1e35, 1e-36)):
            total = BoundedSum(Columns([9]), (1e-30,))
            for positions in (1, 2):
                sides = [
                    torch.full((1, positions, 3), v, dtype=torch.float64) for v in (left, right)
                ]
                found = torch.zeros(3, 3, dtype=torch.float64)
                part = (Products(*sides), 0, found)
                total.add_parts([part], torch.tensor([True]), torch.ones_like)
                assert 0.0 < float(found.norm()) <= 1e-30

    @pytest.mark.parametrize("large", [1e40, 1e140])
    def test_a_norm_that_underflows_is_not_blown_up_by_a_rule(self, large):
        x = torch.full((1, 4), 1e-165, dtype=torch.float64)
        for rule in (lambda n: torch.full_like(n, large), lambda n: 1.0 / (n + 1e-200)):
            total, bounded = (
                torch.zeros(4, dtype=torch.float64),
                BoundedSum(Columns([4]), (1e-100,)),
            )
            bounded.add_parts([(Rows(x), 0, total)], torch.tensor([True]), rule)
            assert float(total.norm()) <= 1e-100
        x = torch.full((1, 4), 1e150, dtype=torch.float64)
        total, bounded = torch.zeros(4, dtype=torch.float64), BoundedSum(Columns([4]), (1e-100,))
        rule = lambda n: torch.full_like(n, 1e73)  # noqa: E731
        bounded.add_parts([(Rows(x), 0, total)], torch.tensor([True]), rule)
        assert float(total.norm()) <= 1e-100


class Given:
    """A source of noise that gives these numbers."""

    def __init__(self, values):
        self.values = np.asarray(values, dtype=np.float64)

    def gaussian(self, size):
        assert size == len(self.values)
        return self.values


class TestLattice:
    @pytest.mark.parametrize("last", [0.0, 2.0**-12])  # with entries off the lattice, and without
    @pytest.mark.parametrize("each", [50, 30_000])  # in one stretch, and in several
    def test_mean_and_noise_are_rounded_each_by_itself(self, last, each):
        generator = np.random.default_rng(0)
        total, z = generator.standard_normal((2, 4 * each)) * 3
        s = np.repeat([2.0**-6, 2.0**-9, last, 2.0**-30], each)
        noisy = perturbed(
            torch.from_numpy(total), divisor=7,
            noise=torch.full((4 * each,), 0.3, dtype=torch.float64),
            spacing=torch.from_numpy(s), grid=torch.from_numpy(4 * s), source=Given(z.copy()),
        )  # fmt: skip
        on = s > 0
        step = np.where(on, s, 1.0)
        rounded = np.round(total / 7 / step) + np.round(0.3 * z / step)
        rounded = np.round(rounded / 4) * 4 * step
        assert np.array_equal(noisy.numpy(), np.where(on, rounded, total / 7 + 0.3 * z))
        multiples = noisy.numpy()[on] / s[on]
        assert np.array_equal(multiples, np.round(multiples))

    def test_noise_keeps_its_low_bits(self):
        """All 53: not those of single precision, in the stream or on the way."""
        z = 1.0 + 2.0 ** -np.arange(30.0, 52.0)
        total = torch.zeros(len(z), dtype=torch.float64)
        found = perturbed(total, divisor=1, noise=1.0, spacing=0.0, grid=0.0, source=Given(z))
        assert np.array_equal(found.numpy(), z)
        draws = Randomness().gaussian(1000)
        assert draws.dtype == np.float64
        assert (draws != draws.astype(np.float32)).mean() > 0.99

    @pytest.mark.parametrize("size", [1, 7, 1000])
    @pytest.mark.parametrize("divisor", [1, 3, 256])
    def test_what_rounding_costs(self, size, divisor):
        setting = Setting(
            clip=(0.3, 0.0), noise=(1.0, 1.0), penalty=1.0, lr=0.1, global_lr=1.0, step_size=1.0,
            contraction=1.0,
        )  # fmt: skip
        blocks = [Block(name=n, kind="linear", size=size) for n in "ab"]
        found = on_lattice(setting, blocks, divisor, 5000)
        s = found.spacing[0]
        assert s == spacing(0.3, size, divisor)
        assert math.frexp(s)[0] == 0.5  # a power of two, so that rounding to it is exact
        ideal = FINE * 0.3 / (divisor * math.sqrt(size))
        assert ideal / 2 < s <= ideal
        summed = (2.0**-51 * 5000 + 2.0**-31) * 5000 * 0.3 / divisor
        expected = s * math.sqrt(size) + summed
        assert found.rounding[0] == pytest.approx(expected, rel=1e-12, abs=0.0)
        assert (found.spacing[1], found.grid[1], found.rounding[1]) == (0.0, 0.0, 0.0)
        assert found.grid[0] == max(s, 2.0**-20)

    def test_a_poisson_sum_may_have_as_many_terms_as_there_are_examples(self):
        for options, terms in ((RULE, 40), ({**FIXED, "granularity": "model"}, 10)):
            step, _ = prepare(nn.Linear(6, 3), examples(), noise=1.0, clip=0.5, **SMALL, **options)
            found = step.plan.at(0)
            lattice = found.spacing[0] * math.sqrt(21)
            added = (2.0**-51 * terms**2 + 2.0**-31 * terms) * 0.5 / 10
            assert found.rounding[0] == pytest.approx(lattice + added, rel=1e-12, abs=0.0)

    @pytest.mark.parametrize("method", METHODS)
    def test_what_is_told_beforehand_is_recorded_and_reaches_the_core(self, method, monkeypatch):
        """Noise and lattice of every release are those of the ledger's last step."""
        found = []

        def spy(total, *, source, divisor, **given):
            order = ("noise", "spacing", "grid")
            found.append((divisor, *(torch.as_tensor(given[v]).unique() for v in order)))
            return perturbed(total, divisor=divisor, source=source, **given)

        for where in ("algorithm.publish", "methods.gep.engine", "methods.pate.engine"):
            monkeypatch.setattr(f"dpdt.{where}.perturbed", spy)
        step, loader = prepare(
            deep(), examples(), method=method, noise=0.7, **SMALL, **options_of(method)
        )
        for batch in loader:
            found.clear()
            step(batch)
            recorded = step.writer.ledger.runs[-1].setting
            assert recorded == step.plan.at(batch.step)
            assert all(r > 0 for r, c in zip(recorded.rounding, recorded.clip, strict=True) if c)
            for (divisor, noise, spaced, coarse), *told in zip(
                found, recorded.noise, recorded.spacing, recorded.grid, strict=False
            ):
                assert divisor == step.plan.header.auxiliaries
                assert noise[-1] == told[0]  # padding has none
                assert spaced[-1] == told[1]
                assert coarse[-1] == told[2]
        assert step.writer.ledger.runs == step.plan.ledger().runs


class TestLedgerFile:
    def path(self, tmp_path):
        path = tmp_path / "ledger.jsonl"
        step, loader = prepare(
            nn.Linear(6, 3), examples(), noise=1.0, ledger=path, **SMALL, **FIXED
        )
        for batch in loader:
            step(batch)
        step.finish()
        return path

    def rewritten(self, path, change):
        """The file after a change of its records, with a chain that is right."""
        records = [json.loads(line) for line in path.read_text().splitlines()]
        previous, lines = "", []
        for record in change(records):
            record = {k: v for k, v in record.items() if k != "hash"}
            previous = chain(previous, record)
            lines.append(json.dumps({**record, "hash": previous}) + "\n")
        path.write_text("".join(lines))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda r: [*r[:3], *({**s, "step": s["step"] + 1} for s in r[3:-1])], "consecutive"),
            (lambda r: [*r[:-1], {**r[-1], "steps": 2}], "'end' cannot stand"),
            (lambda r: [*r, r[3]], "'step' cannot stand"),
            (lambda r: [*r, r[2]], "'setting' cannot stand"),
            (lambda r: [*r[:2], {**r[2], "clip": [-1.0]}, *r[3:]], "finite and"),
            (lambda r: [*r[:2], {**r[2], "noise": [math.inf] * 5}, *r[3:]], "entries for|finite"),
            (lambda r: [*r[:2], {**r[2], "new": 1.0}, *r[3:]], "unknown key 'new'"),
            (lambda r: [*r[:2], {k: v for k, v in r[2].items() if k != "lr"}, *r[3:]], "'lr' is"),
            (lambda r: [*r[:2], *r[1:]], "'data' cannot stand"),
            (lambda r: [r[0], *r[2:4], r[1], *r[4:]], "'data' cannot stand"),
            (lambda r: [r[0], {**r[1], "seal": "0" * 127}, *r[2:]], "128 hexadecimal"),
            (lambda r: [r[0], {**r[1], "seal": 5}, *r[2:]], "128 hexadecimal"),
            (lambda r: [{**r[0], "format": 1}, *r[1:]], "format is not"),
            (lambda r: [{**r[0], "unit": "row"}, *r[1:]], "'row', which this version"),
        ],
    )
    def test_what_no_run_writes_is_refused(self, change, message, tmp_path):
        path = self.path(tmp_path)
        self.rewritten(path, list)
        assert Ledger.read(path).closed
        self.rewritten(path, change)
        with pytest.raises(InputError, match=message):
            Ledger.read(path)

    def test_what_voids_a_run_stands_in_its_file(self, tmp_path, monkeypatch):
        model, data = nn.Linear(6, 3), examples()
        train(model, data, noise=1.0, **SMALL, **FIXED)
        path, synced = tmp_path / "ledger.jsonl", []
        step, _ = prepare(model, data, noise=1.0, ledger=path, **SMALL, **FIXED)
        assert "trained on these data" in Ledger.read(path).voids[0]
        monkeypatch.setattr(
            "dpdt.files.os.fdatasync",
            lambda handle: synced.append(len(Ledger.read(path).voids)),
        )
        step.writer.void("something was found")
        assert synced == [2]
        step.writer.pause()
        again = LedgerWriter(step.writer.ledger.header)
        again.void("something else was found")
        again.reopen(path)
        assert len(again.ledger.voids) == 3
        other = LedgerWriter(replace(step.writer.ledger.header, examples=41))
        with pytest.raises(InputError, match="belongs to a run with other settings or data"):
            other.reopen(path)

    def test_a_step_reaches_the_disk_first_and_so_does_the_name_of_the_file(
        self, tmp_path, monkeypatch
    ):
        kinds = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(
                f"dpdt.files.os.{name}",
                lambda handle: kinds.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}")
                                            else "file"),
            )  # fmt: skip
        _, loader = prepare(
            nn.Linear(6, 3), examples(), noise=1.0, ledger=tmp_path / "l", **SMALL, **FIXED
        )
        assert kinds == ["file", "folder"]
        batches = iter(loader)
        for number in (3, 4, 5):
            next(batches)
            assert len(kinds) == number


class TestSampling:
    def test_the_others_stay_with_their_auxiliaries_if_one_leaves(self):
        absent = np.zeros(60, dtype=bool)
        absent[7] = True
        given = {"examples": 60, "rate": 0.7, "auxiliaries": 5, "per_example": False}
        whole = PoissonSampler(**given, source=Randomness(1))
        less = PoissonSampler(**given, source=Randomness(1), absent=absent)
        for step in range(10):
            homes = [
                dict(zip(i.tolist(), np.repeat(np.arange(5), sizes).tolist(), strict=True))
                for i, sizes in (whole.batch(step), less.batch(step))
            ]
            homes[0].pop(7, None)
            assert homes[0] == homes[1]

    def test_poisson_batches_are_what_is_accounted_and_may_be_empty(self):
        step, loader = prepare(
            nn.Linear(6, 3), examples(), method="dpsgd", noise=1.0, batch_size=1, epochs=10
        )
        assert loader.draws.sampler.rate == step.plan.header.rate == 1 / 40
        batches = list(loader)
        assert len(batches) == step.plan.steps == 400
        empty = [batch for batch in batches if not batch.sizes]
        assert 0.36 * 400 - 50 < len(empty) < 0.36 * 400 + 50
        assert not any(batch.fixed for batch in batches)
        x, _ = examples()
        for batch in batches:
            assert len(batch.keys) == len(batch.sizes)
            if batch.sizes:
                assert torch.equal(batch.data[0], x[list(batch.keys)])

    def test_what_users_hold_is_not_fixed(self):
        given = {**FIXED, "auxiliaries": 5, "unit": "user", "users": [i % 7 for i in range(40)]}
        _, loader = prepare(nn.Linear(6, 3), examples(), noise=1.0, epochs=2, batch_size=3, **given)
        assert not any(batch.fixed for batch in loader)
        _, loader = prepare(nn.Linear(6, 3), examples(), noise=1.0, **SMALL, **FIXED)
        assert all(batch.fixed for batch in loader)

    def test_shared_auxiliaries_have_no_keys_of_examples(self):
        given = {**RULE, "auxiliaries": 3, "memory": "none"}
        _, loader = prepare(nn.Linear(6, 3), examples(), noise=1.0, **SMALL, **given)
        batch = next(iter(loader))
        assert batch.keys is None
        assert not batch.fixed
        assert not batch.alone

    def test_equal_owners_are_one_whatever_their_type_or_order(self):
        for owner in (1, 1.0, True, np.int64(1), torch.tensor(1)):
            assert Users.of([1, owner], 2).owner.tolist() == [0, 0]
        for some in ([0, 8], [8, 0], ["a", "b"], ["b", "a"], [1.0, None], [None, 1]):
            both = [frozenset(some), frozenset(reversed(some))]
            assert Users.of(both, 2).owner.tolist() == [0, 0]
        several = [1, "1", b"1", (1,), frozenset([1]), None, 1.5]
        assert Users.of(several, 7).owner.tolist() == [*range(7)]

    def test_the_order_of_examples_does_not_decide_where_users_go(self):
        def homes(users):
            held = Users.of(users, len(users))
            indices, sizes = PartitionOfUsers(batches=1, auxiliaries=3, users=held).batch(0)
            home = np.repeat(np.arange(3), sizes)
            return {users[i]: int(k) for i, k in zip(indices, home, strict=True)}

        users = [f"user {i % 7}" for i in range(35)]
        assert homes(users) == homes(users[::-1])

    def test_how_much_a_user_holds_moves_no_others_examples(self):
        def cells(users, seed):
            held = Users.of(users, len(users))
            partition = PartitionOfUsers(users=held, batches=3, auxiliaries=3, seed=seed)
            found = {}
            for m in range(3):
                indices, sizes = partition.batch(m)
                for i, k in zip(indices, np.repeat(np.arange(3), sizes), strict=True):
                    found[(users[i], users[:i].count(users[i]))] = (int(k), m)
            return found

        users = list("abcdef") * 4
        for seed in range(10):
            before, after = cells(users, seed), cells([*users, "a"], seed)
            (home,) = {k for (name, _), (k, _) in before.items() if name == "a"}
            others = [key for key, (k, _) in before.items() if k != home]
            assert others
            assert all(before[key] == after[key] for key in others)

    def test_users_share_an_auxiliary_so_examples_cannot_be_alone(self):
        with pytest.raises(InputError, match="all of a user's examples share an auxiliary"):
            prepare(
                nn.Linear(6, 3), examples(), users=[0] * 40, unit="user", noise=1.0,
                auxiliaries="per-example", **SMALL, **FIXED,
            )  # fmt: skip


def poisson_step(model, n=40, **options):
    """A run whose mini-batches hold about half of the examples, and two of them."""
    given = {"noise": 1.0, "batch_size": n // 2, "epochs": 3, "method": "dpsgd", **options}
    step, loader = prepare(model, examples(n), **given)
    return step, iter(loader)


def hows(step):
    return list(step.engine.executor.found.values())


class TestPlaces:
    def test_a_chunk_that_may_be_filled_up_has_whole_blocks_of_rows(self):
        """Of 64: what is left over of a block may be rounded otherwise."""
        assert [rows_of(n, 2048) for n in (1, 48, 64, 65, 200)] == [64, 64, 64, 128, 256]

    @pytest.mark.parametrize("make", [deep, lambda: nn.Linear(6, 3)])
    @pytest.mark.parametrize("found", [None, 1, 16])
    def test_places_are_compared_and_what_was_found_is_kept_to(self, make, found, monkeypatch):
        monkeypatch.setattr(ways, "equal_places", lambda *_: found)
        monkeypatch.setattr(ways, "unmoved", lambda *_: True)
        step, batches = poisson_step(make())
        step(next(batches))
        (how,) = hows(step)
        assert (how.rows > 0) == (found is not None)
        if found is not None:
            assert how.classes == found
            assert how.taps is not None

    def test_which_places_are_equal_is_found_on_made_up_inputs(self):
        like = (torch.full((5, 4), 777.0), torch.full((5,), 7))

        def off_by(classes):
            def compute(data, trial):
                assert not (data[0] == 777.0).any()
                assert not (data[1] == 7).any()
                places = torch.arange(len(data[0])) % classes if classes else torch.arange(32)
                return [data[0] * (1.0 + (places % 3 == 1) * 2.0**-23).unsqueeze(1)]

            return compute

        assert equal_places(off_by(1), like, 1, 32, 4) == 1
        assert equal_places(off_by(16), like, 1, 32, 4) == 16
        assert equal_places(off_by(0), like, 1, 32, 4) is None

    @pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
    def test_a_trial_that_shows_nothing_does_not_count(self, value):
        like = torch.zeros(5, 4)

        def mostly(data, trial):
            """Places differ, which one trial in four shows."""
            different = 1.0 + (torch.arange(32.0) % 3).unsqueeze(1)
            return [data * different if trial % 4 == 3 else torch.full((32, 4), value)]

        assert equal_places(mostly, like, 1, 32, 4) is None
        assert equal_places(lambda *_: [torch.full((32, 4), value)], like, 1, 32, 4) is None

    @pytest.mark.parametrize("make", [deep, lambda: nn.Linear(6, 3)])
    @pytest.mark.parametrize("taps", [True, False])
    def test_places_are_compared_under_made_up_weights(self, make, taps, monkeypatch):
        """Weights of 0 would make all places equal; others come with every trial."""
        found, inner = [], ways.equal_places
        if not taps:
            monkeypatch.setattr(ways, "tapped", lambda *_: None)

        def spy(compute, like, size, rows, tries):
            def call(data, trial):
                result = [t.clone() for t in compute(data, trial)]
                found.append(torch.cat([t[0].flatten().double() for t in result]))
                return result

            return inner(call, like, size, rows, tries)

        monkeypatch.setattr(ways, "equal_places", spy)
        model = make()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        step, batches = poisson_step(model)
        step(next(batches))
        assert len(found) > 3
        distinct = {tuple(result.abs().sort().values.tolist()) for result in found}
        assert len(distinct) == len(found)

    @pytest.mark.parametrize(
        ("odd", "seen"),
        [
            (lambda x: x, ()),
            (lambda x: x + 1e-3 * (torch.arange(64) > 60).unsqueeze(1), (1, 16)),  # the last rows
            (lambda x: x + 1e-3 * (torch.arange(64) % 16).unsqueeze(1), (1,)),
            (lambda x: x + 1e-9 * x.mean(0), (None, 1, 16)),
            (lambda x: x / 0.0, (None, 1, 16)),  # which shows nothing
        ],
    )
    def test_rows_keep_their_bits_elsewhere_and_among_others(self, odd, seen):
        like = torch.zeros(1, 3, dtype=torch.float64)
        for classes in (None, 1, 16):
            found = unmoved(lambda x, _: [odd(x)], like, 1, 64, classes)
            assert found == (classes not in seen)

    def test_every_number_of_a_row_counts(self):
        x = torch.randn(5, 7)

        def changed(y, z):
            pairs = zip(Digests.of([y, z]).rows, Digests.of([x, x[:, 0]]).rows, strict=True)
            return [a != b for a, b in pairs]

        for column in range(7):
            y = x.clone()
            y[3, column] = torch.nextafter(y[3, column], torch.tensor(9.0))
            assert changed(y, x[:, 0]) == [False, False, False, True, False]
            y = x.clone()
            y[3, column:] *= -1.0  # several at once, too
            assert changed(y, x[:, 0]) == [False, False, False, True, False]
        assert all(changed(x, -x[:, 0]))
        assert not any(changed(x.t().contiguous().t(), x[:, 0]))  # the order in memory does not

    def test_what_is_not_finite_or_nothing_is_told(self):
        one, zero = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
        for tensors, finite, some in (
            ([one, zero], True, True),
            ([zero, one * 0.0], True, False),
            ([one, one / 0.0], False, True),
            ([one * math.nan, one], False, True),
        ):
            found = Digests.of(iter(tensors))
            assert (found.finite, found.any) == (finite, some)

    def test_bits_are_compared_not_numbers(self):
        one = torch.ones(3)
        assert same_bits(one, one.clone())
        assert same_bits(one * math.nan, one * math.nan)
        assert not same_bits(one, one * (1 + 2.0**-23))
        assert not same_bits(one * 0.0, one * -0.0)
        double = one.double()
        assert not same_bits(double, double * (1 + 2.0**-52))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
    def test_bits_are_compared_to_the_last_however_many_there_are(self, dtype):
        for size in range(1, 20):
            a = torch.zeros(size, dtype=dtype)
            b = a.clone()
            b[-1] = 1
            assert same_bits(a, a.clone())
            assert not same_bits(a, b)
            assert same_bits(a[:1].expand(size), a)  # strides of 0, of a single number too

    def test_examples_keep_to_the_places_of_their_number(self):
        numbers = [3, 19, 4, 35, 40, 51, 68, 67, 83, 99, 5]
        batch = Batch(
            step=0, epoch=0, data=torch.zeros(11, 1), sizes=(1,) * 11, keys=tuple(numbers),
            fixed=False,
        )  # fmt: skip
        work = Pass(None, How(rows=32, classes=16), batch, None, (), None, False, None)
        chunks = list(work._chunks())
        assert sorted(int(p) for c in chunks for p in c if p >= 0) == list(range(11))
        for chunk in chunks:
            assert len(chunk) == 32
            for place, member in enumerate(chunk.tolist()):
                assert member < 0 or numbers[member] % 16 == place % 16

    @pytest.mark.parametrize("method", ["dpsgd", "gep", "dpdt"])
    def test_as_many_rows_are_computed_whoever_was_drawn(self, method, monkeypatch):
        rows, split = [], []

        def spy(inner):
            def call(model, loss, layout, data, out, *rest):
                rows.append(len(out))
                return inner(model, loss, layout, data, out, *rest)

            return call

        inner = GepEngine._split
        for module in (ways, passes):
            monkeypatch.setattr(module, "vectorised", spy(module.vectorised))
        monkeypatch.setattr(
            GepEngine, "_split",
            lambda self, g, basis: split.append(len(g)) or inner(self, g, basis),
        )  # fmt: skip
        monkeypatch.setattr(ways, "equal_places", lambda *_: 1)
        monkeypatch.setattr(ways, "unmoved", lambda *_: True)
        monkeypatch.setattr(ways, "EXAMPLES", 64)
        monkeypatch.setattr(ways, "tapped", lambda *_: None)
        monkeypatch.setattr(ways, "as_alone", lambda *_: True)
        step, batches = poisson_step(deep(), **{**options_of(method), "method": method})
        numbers = set()
        for batch in batches:
            numbers.add(len(batch.sizes))
            step(batch)
        assert len(numbers) > 2
        assert set(rows) == {64}
        assert set(split) == ({64} if method == "gep" else set())

    def test_as_many_rows_are_computed_by_taps(self, monkeypatch):
        rows, inner = [], Taps.run

        def run(self, model, loss, data, number, *rest):
            rows.append(number)
            return inner(self, model, loss, data, number, *rest)

        monkeypatch.setattr(ways, "equal_places", lambda *_: 1)
        monkeypatch.setattr(ways, "unmoved", lambda *_: True)
        monkeypatch.setattr(executor, "AGAIN", 10**12)  # no second look, at fewer rows
        monkeypatch.setattr(ways, "EXAMPLES", 64)
        sums = []
        for fast in (True, False):
            torch.manual_seed(0)
            if not fast:
                monkeypatch.setattr(ways, "tapped", lambda *_: None)
            step, batches = poisson_step(nn.Linear(6, 3), noise_seed=1)
            step(next(batches))
            monkeypatch.setattr(Taps, "run", run)
            for batch in batches:
                step(batch)
            sums.append(step.engine.layout.gather())
        assert set(rows) == {64}
        torch.testing.assert_close(*sums, rtol=1e-5, atol=1e-6)  # fillers count for nothing

    @pytest.mark.parametrize("make", [deep, lambda: nn.Linear(6, 3)])
    @pytest.mark.parametrize("taps", [True, False])
    def test_the_rows_of_a_chunk_do_not_depend_on_who_was_drawn_first(
        self, make, taps, monkeypatch
    ):
        monkeypatch.setattr(ways, "equal_places", lambda *_: 1)
        monkeypatch.setattr(ways, "unmoved", lambda *_: True)
        if not taps:
            monkeypatch.setattr(ways, "tapped", lambda *_: None)
        rows = []
        for number in (5, 70, 200):
            step, _ = poisson_step(make())
            x, y = examples(number)
            batch = Batch(
                step=0, epoch=0, data=(x, y), sizes=(1,) * number, keys=tuple(range(number)),
                fixed=False,
            )  # fmt: skip
            step.engine.step(batch, step.plan.at(0))
            assert [how.taps is not None for how in hows(step)] == [taps]
            rows += [how.rows for how in hows(step)]
        assert rows == [64, 64, 64]  # 20 are expected

    @pytest.mark.parametrize("size", [1, 2])
    def test_sizes_that_are_equal_by_chance_change_nothing(self, size):
        given = {**RULE, "auxiliaries": 4, "memory": "none"}
        step, _ = prepare(nn.Linear(6, 3), examples(), noise=1.0, **SMALL, **given)
        x, y = examples(4 * size)
        batch = Batch(step=0, epoch=0, data=(x, y), sizes=(size,) * 4, fixed=False)
        step.engine.step(batch, step.plan.at(0))
        assert [(how.rows, how.taps) for how in hows(step)] == [(0, None)]


class Reads(nn.Module):
    """Stands in for an encoder: counts how many texts it is shown at once."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __deepcopy__(self, memo):
        return self

    def features(self, tokens):
        self.rows.append(len(tokens["input_ids"]))
        return tokens["input_ids"].double().cumsum(1)[:, -1:]


@pytest.mark.parametrize("found", [None, 16, 1])
def test_texts_are_computed_together_only_if_places_are_equal(found, monkeypatch):
    monkeypatch.setattr(frozen, "equal_places", lambda *_: found)
    tokens = {
        "input_ids": torch.randint(1, 9, (100, 16)),
        "attention_mask": torch.ones(100, 16, dtype=torch.long),
    }
    model = Reads()
    rows, _ = frozen.features(model, (tokens, torch.zeros(100)))
    assert torch.equal(rows, tokens["input_ids"].double().sum(1, keepdim=True))
    seen = set(model.rows[frozen.TRIES :])  # behind the trial of one text, again and again
    assert seen == ({frozen.TEXTS + 1} if found == 1 else {2})  # and one that is full


class TestDecisions:
    """How a model is computed is found out on made-up inputs."""

    def tried(self, model, monkeypatch, shape=(6,), **options):
        seen = []

        def spy(inner):
            def call(model, loss, layout, data, *rest):
                seen.append(data[0])
                return inner(model, loss, layout, data, *rest)

            return call

        for name in ("vectorised", "looped"):
            monkeypatch.setattr(ways, name, spy(getattr(ways, name)))
        data = (torch.full((40, *shape), 777.0), torch.zeros(40, dtype=torch.long))
        step, loader = prepare(model, data, noise=1.0, batch_size=20, **options)
        step(next(iter(loader)))
        assert seen
        for x in seen:
            assert not (x == 777.0).any()
        return step

    def test_whether_it_can_be_mapped(self, monkeypatch):
        step = self.tried(deep(), monkeypatch, auxiliaries=5, **FIXED)
        assert all(how.rows for how in hows(step))
        step = self.tried(deep(), monkeypatch, method="dpsgd")

    def test_whether_it_may_run_on_lanes(self, monkeypatch):
        step = self.tried(Branching(6, 3), monkeypatch, auxiliaries=5, **FIXED)
        assert [how.lanes for how in hows(step)] == [True]

    def test_the_order_of_images(self, monkeypatch):
        monkeypatch.setattr(ways, "PIXELS", 0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
        given = {**FIXED, "memory": "auxiliary"}
        step = self.tried(model, monkeypatch, shape=(1, 4, 4), auxiliaries=5, **given)
        assert step.engine.layout.channels_last

    @pytest.mark.parametrize(
        "draw", [lambda: torch.rand(()), lambda: random.random(), lambda: np.random.rand()]
    )
    def test_what_draws_random_numbers_does_not_run_on_lanes(self, draw):
        class Draws(Branching):
            def forward(self, x):
                return super().forward(x + float(draw()))

        step, loader = prepare(Draws(6, 3), examples(), noise=1.0, auxiliaries=5, **SMALL, **FIXED)
        step(next(iter(loader)))
        assert [how.lanes for how in hows(step)] == [False]

    def test_every_generator_is_set_for_an_auxiliary(self):
        draws = []
        for key in (5, 5, 6):
            for _ in range(key):  # whatever was drawn before
                torch.rand(3), random.random(), np.random.rand()
            seeded(1, 2, key)
            draws.append((float(torch.rand(())), random.random(), float(np.random.rand())))
        assert draws[0] == draws[1]
        assert all(a != b for a, b in zip(draws[1], draws[2], strict=True))


class TestLanes:
    def test_a_lane_has_a_module_of_its_own(self, monkeypatch):
        """Nothing runs on the model itself, nor two threads on one module."""
        monkeypatch.setattr(executor, "AGAIN", 10**9)  # the last step computes nothing twice
        now = unseen(seen=[])

        class Says(Branching):
            def forward(self, x):
                now.seen.append((threading.get_ident(), id(self)))
                return super().forward(x)

        model = Says(6, 3)
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            step, loader = prepare(
                model, examples(400), noise=1.0, auxiliaries=40, batch_size=200, epochs=2, **FIXED
            )
            for batch in loader:
                now.seen.clear()
                step(batch)  # the first also computes one auxiliary on the model, twice
        finally:
            torch.set_num_threads(before)
        assert [how.lanes for how in hows(step)] == [True]
        assert len(now.seen) == 40
        assert id(model) not in {module for _, module in now.seen}
        assert len({module for _, module in now.seen}) == len({thread for thread, _ in now.seen})

    @pytest.mark.parametrize("how", ["draws", "another model"])
    def test_what_would_disturb_other_lanes_voids_the_run(self, how):
        """Made-up inputs do not show it: it happens on some examples only."""

        class Late(nn.Linear):
            def forward(self, x):
                if float(x.detach().abs().max()) > 50.0:
                    x = x + disturb(x)
                return super().forward(x)

        def leave(x):
            now.model.left = float(x.detach().sum())
            return 0.0

        disturb = torch.randn_like if how == "draws" else leave

        told = {"draws": "draws random numbers in some steps", "another model": "'left' of layer"}
        model, (x, y) = Late(6, 3), examples()
        now, x[7] = unseen(model=model), 60.0
        step, loader = prepare(model, (x, y), noise=1.0, auxiliaries=5, **SMALL, **FIXED)

        def go():
            for batch in loader:
                step(batch)

        with pytest.raises(InputError, match=told[how]):
            go()
        assert math.isinf(step.privacy().epsilon)

    def test_a_model_that_cannot_be_copied_does_not_run_on_lanes(self):
        model = Branching(6, 3)
        model.lock = threading.Lock()
        step, loader = prepare(model, examples(), noise=1.0, auxiliaries=5, **SMALL, **FIXED)
        step(next(iter(loader)))
        assert [how.lanes for how in hows(step)] == [False]


class TestState:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ([], [1]), (None, ()), (1, True), (0.0, -0.0), (math.nan, 0.0), ("1", 1),
            ({}, {"a": 1}),
            ([torch.zeros(5000)], [torch.zeros(5000).index_fill(0, torch.tensor(2500), 1.0)]),
        ],
    )  # fmt: skip
    def test_an_attribute_is_compared_by_all_that_it_holds(self, before, after):
        """Also by what is not printed of it, and by its type."""
        model = nn.Linear(2, 2)
        model.kept = before
        then = Snapshot({"": model})
        then.put_back(strict=True)
        model.kept = after
        with pytest.raises(Tainted, match="attribute 'kept'"):
            then.put_back(strict=True)
        assert model.kept is before

    @pytest.mark.parametrize("method", ["dpdt", "dpsgd", "gep"])
    def test_models_that_are_not_ready_are_refused_by_every_method(self, method):
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
        with pytest.raises(InputError, match="BatchNorm1d"):
            prepare(model, examples(), method=method, noise=1.0, **SMALL, **options_of(method))

    @pytest.mark.parametrize("late", [0, 2])
    @pytest.mark.parametrize("frozen", [True, False])
    @pytest.mark.parametrize("options", [{**FIXED, "auxiliaries": 5}, {"method": "dpsgd"}])
    def test_a_change_that_torch_counts_stops_the_very_step(self, late, frozen, options):
        """Not only the first one, which is also compared by content."""

        class Keeps(Branching):
            def __init__(self):
                super().__init__(6, 3)
                self.register_buffer("kept", torch.zeros(6))
                self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)

            def forward(self, x):
                if now.step >= late:
                    with torch.no_grad():
                        (self.frozen if frozen else self.kept).add_(1.0)
                return super().forward(x)

        now, model = unseen(step=0), Keeps()
        step, loader = prepare(model, examples(), noise=1.0, **SMALL, **options)
        batches = iter(loader)
        for number in range(late):
            step(next(batches))
            now.step = number + 1
        before = model.weight.detach().clone()
        with pytest.raises(InputError, match=r"(buffer 'kept'|frozen parameter 'frozen') changed"):
            step(next(batches))
        assert torch.equal(model.weight, before)
        assert math.isinf(step.privacy().epsilon)

    @pytest.mark.parametrize("options", [{**FIXED, "auxiliaries": 5}, {"method": "dpsgd"}])
    def test_a_change_by_content_stops_the_first_step(self, options):
        class Lists(nn.Linear):
            def __init__(self):
                super().__init__(6, 3)
                self.kept = []

            def forward(self, x):
                self.kept.append(1)
                return super().forward(x)

        model = Lists()
        step, loader = prepare(model, examples(), noise=1.0, **SMALL, **options)
        before = model.weight.detach().clone()
        with pytest.raises(InputError, match="attribute 'kept'"):
            step(next(iter(loader)))
        assert torch.equal(model.weight, before)

    @pytest.mark.parametrize("method", ["dpdt", "dpsgd", "gep"])
    def test_a_change_that_torch_does_not_count_stops_the_first_step(self, method):
        class Hides(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(6, 3)
                self.register_buffer("kept", torch.zeros(6))

            def forward(self, x):
                if now.begun:
                    now.view[:] += 1.0
                return self.layer(x)

        model = Hides()
        now = unseen(begun=False, view=model.kept.numpy())
        step, loader = prepare(
            model, examples(), method=method, noise=1.0, **SMALL, **options_of(method)
        )
        now.begun = True
        before = model.layer.weight.detach().clone()
        with pytest.raises(InputError, match="buffer 'kept' changed"):
            step(next(iter(loader)))
        assert torch.equal(model.layer.weight, before)

    @pytest.mark.parametrize("options", [{**FIXED, "auxiliaries": 5}, {"method": "dpsgd"}])
    def test_a_pass_that_writes_to_what_is_trained_stops_the_very_step(self, options, monkeypatch):
        """From the second step on, when nothing is computed twice."""
        monkeypatch.setattr(executor, "AGAIN", 10**9)

        class Writes(Branching):
            def forward(self, x):
                if now.late:
                    self.weight.data.mul_(0.9)
                return super().forward(x)

        now, model = unseen(late=False), Writes(6, 3)
        step, loader = prepare(model, examples(), noise=1.0, **SMALL, **options)
        batches = iter(loader)
        step(next(batches))
        now.late, before = True, model.weight.detach().clone()
        with pytest.raises(InputError, match="parameter 'weight' was changed by the forward pass"):
            step(next(batches))
        assert torch.equal(model.weight, before)

    def test_no_gradient_is_left_on_the_model(self):
        """By a loss that computes one by itself; there is no optimizer here that clears it."""

        def loss(model, batch):
            value = F.cross_entropy(model(batch[0]), batch[1])
            value.backward(retain_graph=True)
            return value

        model = Branching(6, 3)
        train(model, examples(), loss=loss, noise=1.0, auxiliaries=5, **SMALL, **FIXED)
        assert all(p.grad is None for p in model.parameters())

    @pytest.mark.parametrize("end", ["finish", "pause", "check"])
    @pytest.mark.parametrize("method", ["dpdt", "dpsgd", "gep"])
    def test_a_later_change_by_content_is_found_at_the_end(self, method, end):
        class Hides(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(6, 3)
                self.register_buffer("kept", torch.zeros(6))

            def forward(self, x):
                if now.late:
                    now.view[:] += 1.0  # which torch does not count
                return self.layer(x)

        model = Hides()
        now = unseen(late=False, view=model.kept.numpy())
        step, loader = prepare(
            model, examples(), method=method, noise=1.0, **SMALL, **options_of(method)
        )
        for batch in loader:
            step(batch)
            now.late = True
        with pytest.raises(InputError, match="buffer 'kept' changed during a training pass"):
            getattr(step, end)()
        assert math.isinf(step.privacy().epsilon)

    def test_attributes_are_set_back_between_chunks(self, monkeypatch):
        """A counter on the module: every chunk sees the start, so the model can be trained."""

        class Counts(nn.Sequential):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return super().forward(x * self.calls)

        monkeypatch.setattr(ways, "EXAMPLES", 64)
        monkeypatch.setattr(ways, "equal_places", lambda *_: 1)
        monkeypatch.setattr(ways, "unmoved", lambda *_: True)
        model = Counts(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        step, batches = poisson_step(model, n=400)
        for batch in batches:
            assert len(batch.sizes) > 64
            step(batch)
        assert [how.rows for how in hows(step)] == [64]
        assert model.calls == 0

    @pytest.mark.parametrize("options", [{**FIXED, "auxiliaries": 5}, {"method": "dpsgd"}])
    def test_what_auxiliaries_put_into_a_list_stops_the_step(self, options):
        """One by one, and from the second step on, when nothing is computed twice."""

        class Lists(Branching):
            def __init__(self):
                super().__init__(6, 3)
                self.kept = []

            def forward(self, x):
                if now.late:
                    self.kept.append(1)
                return super().forward(x)

        now, model = unseen(late=False), Lists()
        step, loader = prepare(model, examples(), noise=1.0, **SMALL, **options)
        batches = iter(loader)
        step(next(batches))
        now.late, before = True, model.weight.detach().clone()
        with pytest.raises(InputError, match="attribute 'kept'"):
            step(next(batches))
        assert torch.equal(model.weight, before)
        assert model.kept == []

    @pytest.mark.parametrize("options", [{**FIXED, "auxiliaries": 5}, {"method": "dpsgd"}])
    @pytest.mark.parametrize("how", ["list", "attribute", "buffer"])
    def test_what_the_loss_leaves_on_the_model_itself_stops_the_step(self, how, options):
        """From the second step on, when nothing is computed twice."""
        model, now = Branching(6, 3), unseen(late=False)
        model.list = []
        model.register_buffer("buffer", torch.zeros(3))

        def loss(given, batch):
            if now.late:
                match how:
                    case "list":
                        model.list.append(1.0)
                    case "attribute":
                        model.attribute = batch[0]
                    case "buffer":
                        model.buffer = batch[0].sum(0)[:3]
            return F.cross_entropy(given(batch[0]), batch[1])

        step, loader = prepare(model, examples(), loss=loss, noise=1.0, **SMALL, **options)
        batches = iter(loader)
        step(next(batches))
        now.late, before = True, model.weight.detach().clone()
        with pytest.raises(InputError, match=rf"(attribute|buffer) '{how}'"):
            step(next(batches))
        assert torch.equal(model.weight, before)

    def test_an_empty_first_batch_does_not_stand_for_the_first_step(self, monkeypatch):
        """A pass over nothing shows nothing: the next one is computed twice."""
        monkeypatch.setattr(executor, "AGAIN", 10**9)
        now = unseen(calls=0)

        def loss(model, batch):
            now.calls += 1
            return F.cross_entropy(model(batch[0] + float(now.calls)), batch[1])

        step, _ = poisson_step(Branching(6, 3), loss=loss)
        x, y = examples(20)
        for number in (0, 20):
            batch = Batch(
                step=0, epoch=0, data=(x[:number], y[:number]), sizes=(1,) * number,
                keys=tuple(range(number)), fixed=False,
            )  # fmt: skip
            if not number:
                step.engine.step(batch, step.plan.at(0))
        with pytest.raises(InputError, match="after the others were computed"):
            step.engine.step(batch, step.plan.at(0))

    def test_an_auxiliary_is_computed_again_in_later_steps_too(self, monkeypatch):
        """By a coin in one of so many; here in every one."""
        monkeypatch.setattr(executor, "AGAIN", 1)
        now = unseen(calls=0)

        def loss(model, batch):
            if now.calls > 1:  # the second step is under way
                now.calls += 1
            return F.cross_entropy(model(batch[0] + float(now.calls)), batch[1])

        step, loader = prepare(
            Branching(6, 3), examples(), loss=loss, noise=1.0, auxiliaries=5, **SMALL, **FIXED
        )
        batches = iter(loader)
        step(next(batches))
        now.calls = 2
        with pytest.raises(InputError, match="after the others were computed"):
            step(next(batches))
        assert math.isinf(step.privacy().epsilon)

    @pytest.mark.parametrize("copied", [True, False])
    @pytest.mark.parametrize("options", [{**FIXED, "auxiliaries": 5}, {"method": "dpsgd"}])
    def test_what_the_caller_changes_between_steps_has_no_effect(self, options, copied):
        results = []
        for factor in (1.0, 1000.0):
            torch.manual_seed(0)

            class Scales(Branching):
                factor = 1.0

                def forward(self, x):
                    return super().forward(self.factor * x)

            model = Scales(6, 3)
            model.factor = 1.0
            if not copied:
                model.lock = threading.Lock()  # which cannot be
            given = {"noise": 0.5, "noise_seed": 3, "clip": 1e3, **SMALL, **options}
            step, loader = prepare(model, examples(), **given)
            for batch in loader:
                model.factor = factor
                step(batch)
            results.append(model.weight.detach().clone())
        assert torch.equal(*results)

    def test_an_auxiliarys_examples_lie_by_themselves(self, monkeypatch):
        inner, seen = passes.looped, []

        def spy(model, loss, layout, data, out):
            seen.append((data[0].storage_offset(), data[0].untyped_storage().nbytes()))
            return inner(model, loss, layout, data, out)

        monkeypatch.setattr(passes, "looped", spy)
        step, loader = prepare(
            Branching(6, 3), examples(), noise=1.0, auxiliaries=5, **SMALL, **FIXED
        )
        step(next(iter(loader)))
        assert set(seen) == {(0, 2 * 6 * 4)}


class TestMethods:
    def test_the_directions_of_gep_do_not_depend_on_private_examples(self, monkeypatch):
        found, inner = {0: [], 1: []}, GepEngine._split

        def spy(self, gradients, basis):
            found[seed] += [b.clone() for b in basis]
            return inner(self, gradients, basis)

        monkeypatch.setattr(GepEngine, "_split", spy)
        for seed in found:
            options = {**options_of("gep"), "batch_size": 40}
            step, loader = prepare(deep(), examples(seed=seed), method="gep", noise=1.0, **options)
            step(next(iter(loader)))
        assert len(found[0]) > 0
        assert all(map(torch.equal, found[0], found[1]))

    def test_the_directions_of_gep_draw_from_nobodys_generator(self):
        """And leave nothing on the model."""

        class Draws(nn.Linear):
            def forward(self, x):
                self.last = random.random() + float(np.random.rand())
                return super().forward(x * (1.0 + self.last))

        torch.manual_seed(0)
        given = {"method": "gep", "noise": 1.0, **SMALL, **options_of("gep")}
        step, _ = prepare(Draws(6, 3), examples(), **given)
        vars(step.engine.model).pop("last", None)  # of one public example, to count the classes
        found = []
        for other in (1, 2):
            random.seed(other)
            np.random.seed(other)
            found.append(step.engine.basis())
            assert random.random() == random.Random(other).random()
        assert all(map(torch.equal, *found))
        assert not hasattr(step.engine.model, "last")

    def test_a_teacher_cannot_rewrite_what_others_are_asked(self):
        class Adds(nn.Linear):
            def forward(self, x):
                x += 100.0 * float(self.bias.detach().sum())
                return super().forward(x)

        public = examples(20, seed=5)[0]
        before = public.clone()
        step, loader = prepare(
            Adds(6, 3), examples(), method="pate", public=public, teachers=3, noise=1.0, **SMALL
        )
        for batch in loader:
            step(batch)
        assert torch.equal(public, before)
        assert torch.equal(step.engine.public, before)

    @pytest.mark.parametrize("gap", [-6.0, 0.0, 6.0])
    def test_the_noise_of_pates_threshold_is_the_one_accounted(self, gap):
        step, _ = prepare(
            nn.Linear(6, 3), examples(60), method="pate", public=examples(30, seed=5)[0],
            teachers=20, noise=0.1, threshold=0.5, threshold_noise=0.3, batch_size=20,
        )  # fmt: skip
        engine = step.engine
        engine.counts[:] = torch.tensor([10.0 + gap, 1.0, 0.0], dtype=torch.float64)
        setting, answered = step.plan.at(20), 0
        assert setting.noise[0] == pytest.approx(6.0)
        for _ in range(4000):
            engine.answers.clear()
            engine._ask(0, setting)
            answered += len(engine.answers)
        expected = 0.5 * math.erfc(-gap / (6.0 * math.sqrt(2)))
        assert answered / 4000 == pytest.approx(expected, abs=0.04)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_target_is_met_by_what_is_recorded(self, method):
        options = {**options_of(method), "epsilon": 2.0, **SMALL}
        step, loader = prepare(nn.Linear(6, 3), examples(), method=method, **options)
        for batch in loader:
            step(batch)
        assert 2.0 * (1 - 2e-3) < account(step.writer.ledger, step.delta).epsilon <= 2.0

    def test_a_delta_that_promises_nothing_is_not_planned_with(self):
        with pytest.raises(InputError, match=r"privacy.delta: must be below 1/n"):
            prepare(nn.Linear(6, 3), examples(), noise=1.0, delta=0.1, **SMALL)

    def test_the_header_says_what_accountants_ask_for(self):
        options = {
            "memory": "shared", "preconditioner": "adam", "auxiliary_weight_decay": 0.25,
            "weight_decay": 0.5, "release": "last", "averaging": 0.5, "sampling": "partition",
            "reshuffle": True, "lr": 0.1, "unit": "shard", "auxiliaries": 5,
        }  # fmt: skip
        step, _ = prepare(nn.Linear(6, 3), examples(), noise=1.0, **SMALL, **options)
        header = step.writer.ledger.header
        for name in ("lr",):
            options.pop(name)
        assert {name: getattr(header, name) for name in options} == options
        assert header.regularizer == "l2"
        assert header.examples == 40
        assert header.batches == 4

    @pytest.mark.parametrize("per_example", [True, False])
    def test_to_replace_an_example_of_a_partition_moves_the_mean_by_twice_the_clip(
        self, per_example
    ):
        run = accounted([(0.3, 1.0, 1)], K=10, memory="none", per_example=per_example)
        assert sensitivities(run.runs[0].setting, run.header) == pytest.approx((0.06,))

    def test_hardly_any_noise_under_replace_one(self):
        """Without a grid: to replace an example moves the sum by 2C."""
        options = {"memory": "none", "sampling": "poisson", "rate": 1.0, "per_example": True}
        run = accounted([(1.0, 0.01 / 4, 1)], relation="replace-one", **options)
        exact = accounted([(1.0, 0.01 / 4, 1)], memory="none")  # 2C/K of a partition
        assert account(run, 1e-5).epsilon >= account(exact, 1e-5).epsilon * (1 - 1e-9)

    @pytest.mark.parametrize(("share", "valid"), [(0.99, True), (1.01, False), (1.5, False)])
    def test_the_convex_bound_allows_a_step_of_two_over_beta(self, share, valid):
        run = make(lr=0.1, smoothness=share * 2.0 / (2.0 * 0.9 * 0.1))
        assert HiddenStateConvex().guarantee(run, 1e-5).valid == valid

    @pytest.mark.parametrize("mu", [1e-3, 0.1, 0.7, 1.0, 3.0, 20.0])
    @pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9, 1e-30])
    def test_epsilon_is_rounded_up(self, mu, delta):
        """At the number that is told δ is kept; the last bit is on the safe side."""
        assert log_delta(epsilon_of(mu, delta), mu) <= math.log(delta)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_an_input_that_is_not_finite_counts_as_zero(self, value):
        layer = BoundedLinear(4, 3, 1.0)
        x = torch.ones(3, 4)
        x[1, 2] = value
        assert torch.equal(layer(x)[1], layer(torch.zeros(1, 4))[0])
        assert torch.equal(layer(x)[::2], layer(torch.ones(2, 4)))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("scale", [0.5, 1.0, 1.001, 3.0, 1e20])
    def test_a_bounded_layer_sees_nothing_beyond_its_radius(self, dtype, scale):
        layer = BoundedLinear(9, 9, 2.0).to(dtype)
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
        x = torch.randn(50, 9, dtype=dtype)
        x = 2.0 * scale * x / x.norm(dim=1, keepdim=True)
        norms = layer(x).detach().double().norm(dim=1)
        assert float(norms.max()) <= 2.0
        assert float(norms.min()) > 1.99 * min(1.0, scale)


class TestStep:
    def begun(self, steps=0, model=None, **options):
        given = {"noise": 1.0, "epochs": 4, "batch_size": 20, **FIXED, **options}
        step, loader = prepare(model or nn.Linear(6, 3), examples(), **given)
        batches = iter(loader)
        for _ in range(steps):
            step(next(batches))
        return step, loader

    def test_exports_are_recorded_and_stay_with_a_state(self):
        step, _ = self.begun(1)
        step.export("a checkpoint")
        step.writer.void("something was found")
        assert step.writer.ledger.exports == ["a checkpoint"]
        other, _ = self.begun()
        other.load_state_dict(step.state_dict())
        assert other.writer.ledger.exports == ["a checkpoint"]
        assert other.writer.ledger.voids == ["something was found"]

    def test_accuracies_on_the_way_are_recorded(self):
        step, loader = self.begun(test=examples(seed=2))
        fit(step.engine.model, step, loader)
        assert step.writer.ledger.exports == ["the accuracy after each epoch"]

    def test_an_interrupted_loop_ends_its_ledger(self):
        step, loader = self.begun()

        def stop(*_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(step.engine.model, step, loader, on_step=stop)
        assert step.writer.ledger.exports == ["the model when the run was paused after 1 steps"]
        with pytest.raises(InputError, match="ended or is paused"):
            step(next(iter(loader)))

    def test_a_state_with_steps_that_the_ledger_lacks_is_refused(self):
        """It is the same run, but these steps were recorded elsewhere."""
        one, loader = self.begun(1)
        start = one.state_dict()
        two, _ = self.begun()
        two.load_state_dict(start)
        one(next(iter(loader)))
        with pytest.raises(InputError, match="another run"):
            two.load_state_dict(one.state_dict())

    def test_a_resumed_run_has_the_settings_of_its_ledger(self):
        step, _ = self.begun(2)
        state = step.state_dict()
        for recorded in state["ledger"]:
            recorded[0] = {**recorded[0], "noise": [2.0 * s for s in recorded[0]["noise"]]}
        other, _ = self.begun()
        for run in step.writer.ledger.runs:
            changed = replace(run.setting, noise=tuple(2.0 * s for s in run.setting.noise))
            other.writer.adopt([replace(run, setting=changed)])
        with pytest.raises(InputError, match="other settings than the run would have now"):
            other.resume(state, step.secrets())

    def test_steps_that_are_taken_again_after_a_resume_are_recorded(self):
        step, loader = self.begun(1)
        early, batches = step.state_dict(), iter(loader)
        for _ in range(3):
            step(next(batches))
        other, rest = self.begun()
        other.writer.adopt(step.writer.ledger.runs)
        other.resume(step.state_dict(), step.secrets())
        other.load_state_dict(early)  # from here on its noise is fresh
        batches = iter(rest)
        for _ in range(2):
            other(next(batches))
        ledger = other.writer.ledger
        assert (ledger.steps, ledger.reached, ledger.repeats) == (6, 4, True)

    def test_a_state_of_a_model_of_other_shapes_is_refused(self):
        class Shaped(nn.Module):
            def __init__(self, *shape):
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(*shape))

            def forward(self, x):
                return F.pad(x.sum(1, keepdim=True) * self.weight.sum(), (0, 2))

        one, _ = self.begun(model=Shaped(2, 6))
        two, _ = self.begun(model=Shaped(3, 4))
        with pytest.raises(InputError, match="belongs to a run with other model"):
            two.load_state_dict(one.state_dict())

    def test_a_state_of_other_users_is_refused(self):
        given = {"unit": "user", "auxiliaries": 5, "batch_size": 3}
        one, _ = self.begun(users=[i % 7 for i in range(40)], **given)
        two, _ = self.begun(users=[i // 6 for i in range(40)], **given)
        with pytest.raises(InputError, match="belongs to a run with other users"):
            two.load_state_dict(one.state_dict())

    def test_all_examples_count_for_the_identity_of_a_run(self):
        x, y = examples(700)
        changed = x.clone()
        changed[-1, -1] += 1e-3
        given = {"noise": 1.0, "batch_size": 350, **FIXED}
        one, two = (prepare(nn.Linear(6, 3), (data, y), **given)[0] for data in (x, changed))
        with pytest.raises(InputError, match="other training data"):
            two.load_state_dict(one.state_dict())

    @pytest.mark.parametrize("how", ["weights", "parameters"])
    def test_a_model_whose_training_was_paused_is_known_again(self, how):
        """By its weights in another module, and by its parameters whatever they hold."""
        model = nn.Linear(6, 3)
        step, _ = self.begun(2, model=model)
        step.pause()
        assert step.writer.ledger.voids == []
        if how == "weights":
            other = nn.Linear(6, 3)
            other.load_state_dict(model.state_dict())
            model = other
        else:
            with torch.no_grad():
                model.weight.mul_(0.5)
        again, _ = self.begun(model=model)
        assert "trained on these data before" in again.writer.ledger.voids[0]

    def test_a_step_computes_on_what_was_never_handed_out(self):
        """Whoever holds a batch can write to it while the step is under way."""
        now = unseen(held=[])

        def loss(model, batch):
            for x in now.held:
                x.mul_(0.5)
            return F.cross_entropy(model(batch[0]), batch[1])

        results = []
        for writes in (False, True):
            torch.manual_seed(0)
            given = {"loss": loss, "auxiliaries": 5, "noise_seed": 1}
            step, loader = self.begun(model=Branching(6, 3), **given)
            batch = next(iter(loader))
            now.held = [batch.data[0]] if writes else []
            step(batch)
            results.append(step.engine.layout.gather())
        assert torch.equal(*results)

    @pytest.mark.parametrize("ending", ["finish", "pause"])
    def test_a_batch_that_was_handed_out_before_the_end_is_not_taken_after_it(self, ending):
        step, loader = self.begun(1)
        batch = next(iter(loader))
        getattr(step, ending)()
        before = step.engine.layout.gather()
        with pytest.raises(InputError, match="ended or is paused"):
            step(batch)
        assert torch.equal(step.engine.layout.gather(), before)

    def test_a_batch_that_only_looks_like_the_loaders_is_refused(self):
        step, loader = self.begun()
        batch = next(iter(loader))
        x, y = batch.data
        for other in (replace(batch), replace(batch, data=(x.flip(0), y.flip(0)))):
            with pytest.raises(InputError, match="each batch of the loader"):
                step(other)
        step(batch)

    def test_a_batch_whose_step_failed_is_not_taken_again(self):
        def loss(model, batch):
            if fails:
                raise RuntimeError("not now")
            return F.cross_entropy(model(batch[0]), batch[1])

        fails = []
        step, loader = self.begun(loss=loss)
        fails.append(True)
        batch = next(iter(loader))
        with pytest.raises(RuntimeError, match="not now"):
            step(batch)
        fails.clear()
        with pytest.raises(InputError, match="must be used once"):
            step(batch)


class TestRun:
    def test_a_run_depends_on_its_code_and_on_the_start_of_its_model(self, tmp_path, monkeypatch):
        chosen = config.load("digits")
        source = tmp_path / "dpdt" / "training" / "depends.py"
        source.parent.mkdir(parents=True)
        source.write_text("a = 1\n")
        monkeypatch.setattr(depends, "__file__", str(source))
        depends_on = partial(depends.depends_on, device=torch.device("cpu"))
        found = [depends_on(chosen, "start", [torch.zeros(3, 1)])]
        source.write_text("a = 2\n")
        found.append(depends_on(chosen, "start", [torch.zeros(3, 1)]))
        found.append(depends_on(chosen, "another", [torch.zeros(3, 1)]))
        found.append(depends_on(chosen, "another", [torch.ones(3, 1)]))
        other = config.load("digits", ("train.seed=1",))
        found.append(depends_on(other, "another", [torch.ones(3, 1)]))
        different = [[name for name in a if a[name] != b[name]] for a, b in pairwise(found)]
        assert different == [
            ["version of dpdt"], ["start of the model"], ["training data or public inputs"],
            ["configuration"],
        ]  # fmt: skip
        others = {**found[0], depends.RANKS: ""}  # these never repeat noise, on any machine
        depends.refuse_changes(tmp_path, {**others, depends.MACHINE: ""}, found[0])
        for name in found[0].keys() - {depends.RANKS}:
            with pytest.raises(InputError, match=f"the {name} changed"):
                depends.refuse_changes(tmp_path, {**found[0], name: ""}, found[0])
            if name != depends.MACHINE:
                with pytest.raises(InputError, match=f"the {name} changed"):
                    depends.refuse_changes(tmp_path, {**others, name: ""}, found[0])

    def test_before_a_checkpoint_the_model_is_checked_and_the_ledger_is_on_the_disk(
        self, tmp_path, monkeypatch
    ):
        done = []

        def spy(owner, name):
            inner = getattr(owner, name)
            monkeypatch.setattr(
                owner, name, lambda self, *given: done.append(name) or inner(self, *given)
            )

        spy(Step, "check")
        spy(LedgerWriter, "sync")
        spy(Run, "save_checkpoint")
        overrides = ("train.epochs=2", "train.batch_size=700", "train.checkpoint=2")
        chosen = config.load("digits", overrides)
        running.run(chosen, tmp_path / "run", show_progress=False)
        places = [i for i, name in enumerate(done) if name == "save_checkpoint"]
        assert len(places) == 3
        for place in places:
            assert done[place - 2 : place] == ["check", "sync"]

    def test_what_others_may_read_of_a_run(self, tmp_path):
        folder = Run.create(tmp_path / "run", config.load("digits"))
        record = {"epoch": 1, "step": 4, "epsilon": 2.0, "accuracy": 0.5, "loss": 1.0}
        folder.metrics({**record, "nonfinite": 3, "seconds": 0.1})
        public = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
        assert public == {"epoch": 1, "step": 4, "epsilon": 2.0}
        assert (tmp_path / "run" / "private").stat().st_mode & 0o777 == 0o700

    def test_a_comparison_touches_no_run_of_another(self, tmp_path):
        chosen = config.load("digits", ("train.epochs=1",))
        running.run(chosen, tmp_path / "cell", show_progress=False)
        with pytest.raises(InputError, match="is a finished run that no comparison made"):
            grid._refuse_others(Run(tmp_path / "cell"), chosen)
        Run(tmp_path / "cell").write_result({})
        grid._refuse_others(Run(tmp_path / "cell"), chosen)
        other = config.load("digits", ("train.epochs=2",))
        with pytest.raises(InputError, match="was run with other settings"):
            grid._refuse_others(Run(tmp_path / "cell"), other)
