"""Ways in which a printed ε was false once, each as it was found."""

import copy
import json
import math
import random
import threading
from collections import deque

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import dpdt
from dpdt import config
from dpdt.accounting import account
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.rules import Foreign, no_foreign_rules, own_rule
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.models.networks import bounded_linear
from dpdt.partition import PartitionOfUsers
from dpdt.training import run as running
from dpdt.training.grid import _set_aside
from dpdt.training.run import run
from dpdt.users import Users
from tests.numbers import prepare, train, unseen

SMALL = {"epochs": 2, "batch_size": 10}


def examples(n=40, inputs=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator)
    return x, torch.randint(0, classes, (n,), generator=generator)


def sum_of(model, data, present, **options):
    """K times the mean that a first step releases before noise, with some examples absent."""
    torch.manual_seed(0)
    found, absent = [], ~np.asarray(present)
    with pytest.MonkeyPatch.context() as patch:

        def spy(total, *, divisor, **_):
            found.append(total.clone())
            return torch.zeros_like(total)

        patch.setattr("dpdt.algorithm.publish.perturbed", spy)
        step, loader = prepare(
            model, data, absent=absent if absent.any() else None, noise_seed=3, noise=1.0, **options
        )
        step(next(iter(loader)))
    return found[0]


def moved(make, data, target, **options):
    """How far the sum moves when one example leaves, in units of the clip."""
    sums = []
    for there in (True, False):
        present = np.ones(len(data[1]), dtype=bool)
        present[target] = there
        torch.manual_seed(1)
        sums.append(sum_of(make(), data, present, **options))
    return float((sums[0] - sums[1]).norm()) / options["clip"]


RULE = {"sampling": "poisson", "lr": 0.1, "penalty": 5.0, "granularity": "model"}
POISSON = [{**RULE, "memory": "shared"}, {"method": "dpsgd"}]


def after(steps):
    """A Ctrl-C after so many steps."""

    class Now(running.Interrupt):
        count = 0

        @property
        def asked(self):
            self.count += 1
            return self.count > steps

        @asked.setter
        def asked(self, value):
            pass

    return Now


class Test1Dropout:
    @pytest.mark.parametrize("options", POISSON)
    @pytest.mark.parametrize("layer", [nn.Dropout, nn.AlphaDropout])
    def test_a_mask_does_not_depend_on_the_place_in_the_batch(self, options, layer):
        def make():
            return nn.Sequential(nn.Linear(6, 30), layer(0.5), nn.Linear(30, 3))

        # all are drawn, so that the first one's absence shifts all others
        far = moved(make, examples(), 0, clip=1e-3, batch_size=40, **options)
        assert 0.9 < far <= 1.0

    def test_a_record_changes_the_votes_of_its_own_teacher_alone(self):
        def counts(there):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 3))
            absent = np.zeros(60, dtype=bool)
            absent[first] = not there
            step, loader = prepare(
                model, examples(60), method="pate", public=examples(30, seed=5)[0], teachers=6,
                teacher_epochs=3, noise=1.0, absent=absent, batch_size=20,
            )  # fmt: skip
            for batch in loader:
                if batch.step < 6:
                    step(batch)
            return step.engine.counts

        generator = np.random.default_rng((0, 3))  # the shards' own: one of the first shard
        first = int(np.flatnonzero(generator.integers(6, size=60) == 0)[0])
        change = counts(True) - counts(False)
        assert float(change.norm(dim=1).max()) <= math.sqrt(2)
        assert float(change.abs().max()) <= 1.0


class Test2Noise:
    @pytest.mark.parametrize("method", ["dpdt", "dpsgd", "gep", "pate"])
    def test_every_draw_comes_from_the_operating_system(self, method, monkeypatch):
        """Two runs of one training seed differ in noise and coins, and only the system decides."""

        def result():
            torch.manual_seed(0)
            model = nn.Linear(6, 3)
            options = {"public": examples(30, seed=5)[0]} if method in ("gep", "pate") else {}
            if method == "dpdt":
                options |= {"sampling": "poisson", "lr": 0.1}
            if method == "gep":
                options["directions"] = 3
            if method == "pate":
                options |= {"teachers": 4, "teacher_epochs": 1, "threshold": 0.0}
            step, loader = prepare(model, examples(), method=method, noise=1.0, **SMALL, **options)
            sizes = []
            for batch in loader:
                sizes.append(len(batch.sizes))
                step(batch)
            return torch.cat([p.detach().flatten() for p in model.parameters()]), sizes

        first, second = result(), result()
        assert not torch.equal(first[0], second[0])
        if method != "pate":  # which has no coins
            assert first[1] != second[1]
        keys = iter([11, 12, 11, 12])
        monkeypatch.setattr("dpdt.noise.secrets.randbits", lambda bits: next(keys))
        first, second = result(), result()
        assert torch.equal(first[0], second[0])
        assert first[1] == second[1]

    @pytest.mark.parametrize("method", ["dpdt", "dpsgd", "gep", "pate"])
    def test_a_seeded_run_is_never_called_private(self, method):
        options = {"public": examples(30, seed=5)[0]} if method in ("gep", "pate") else {}
        if method == "gep":
            options["directions"] = 3
        if method == "pate":
            options |= {"teachers": 4, "teacher_epochs": 1}
        model = nn.Linear(6, 3)
        result = train(
            model, examples(), method=method, noise=1.0, noise_seed=1, **SMALL, **options
        )
        assert math.isinf(result.privacy.epsilon)
        assert "seed" in result.privacy.guarantees[0].failed.why


class Test3Sums:
    @pytest.mark.parametrize("options", POISSON)
    def test_a_long_sum_does_not_move_by_more_than_what_left(self, options):
        """Casacuberta et al.: in single precision, small terms vanish beside a large sum."""
        n = 3000
        x, y = torch.full((n, 1), 1.0), torch.zeros(n, dtype=torch.int64)
        x[::3] = 3e-4

        def make():
            layer = nn.Linear(1, 2, bias=False)
            nn.init.constant_(layer.weight, 0.0)
            return layer

        assert moved(make, (x, y), 1, clip=1.0, batch_size=n, **options) <= 1.0 + 1e-9

    @pytest.mark.parametrize("options", POISSON)
    @pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), lambda: nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))])  # fmt: skip
    def test_autocast_of_the_caller_changes_nothing(self, options, make):
        data, present = examples(300), np.ones(300, dtype=bool)
        given = {"clip": 0.1, "batch_size": 300, **options}
        torch.manual_seed(1)
        plain = sum_of(make(), data, present, **given)
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = sum_of(make(), data, present, **given)
        assert torch.equal(plain, cast)


class Test4NotFinite:
    @pytest.mark.parametrize("options", POISSON)
    @pytest.mark.parametrize("value", [1e20, 3e38, math.inf, math.nan])
    def test_one_record_cannot_break_the_model(self, options, value):
        x, y = examples()
        x[3] = value
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        train(model, (x, y), noise=1.0, **SMALL, **options)
        assert all(torch.isfinite(p).all() for p in model.parameters())

    @pytest.mark.parametrize("options", POISSON)
    @pytest.mark.parametrize("clip", [1e-22, 1e-60])
    def test_a_tiny_clip_is_kept(self, options, clip):
        def make():
            return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))

        assert moved(make, examples(), 0, clip=clip, batch_size=40, **options) <= 1.0

    def test_a_clip_that_cannot_be_kept_is_refused(self):
        with pytest.raises(InputError, match=r"method.clip: must be from 1e-100"):
            train(nn.Linear(6, 3), examples(), method="dpsgd", clip=1e-200, noise=1.0, **SMALL)


CONVEX = {
    "memory": "none", "sampling": "partition", "granularity": "model", "auxiliaries": 5,
    "lr": 0.05, "penalty": 1.0, "global_lr": 1.0, "clip": 1.0, "noise": 0.1, "release": "last",
    "weight_decay": 0.01, "batch_size": 20, "epochs": 4,
}  # fmt: skip


def convex(privacy):
    return next(g for g in privacy.guarantees if g.accountant == "hidden-state-convex")


class Test5Convex:
    def test_it_is_valid_where_it_should_be(self):
        step, _ = prepare(bounded_linear(6, 3, 1.0), examples(), **CONVEX)
        assert convex(step.privacy()).valid

    def test_a_list_of_penalties_is_not_one_penalty(self):
        given = {**CONVEX, "penalty": [0.1, 0.1, 0.1, 0.1, 4.6]}
        step, _ = prepare(bounded_linear(6, 3, 1.0), examples(), **given)
        assert not convex(step.privacy()).valid
        assert "penalt" in convex(step.privacy()).failed.text + convex(step.privacy()).failed.why

    @pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
    def test_a_feature_that_is_not_finite_moves_the_mean_no_further(self, value):
        """It used to make its whole micro-batch contribute nothing."""
        x, y = examples()
        model = bounded_linear(6, 3, 1.0)
        bound = 2 * 1.0 * 0.05 * math.sqrt(2 * (1.0 + 1.0))  # 2ρη·√2·R
        broken = x.clone()
        sums = []
        for inputs in (x, broken):
            torch.manual_seed(0)
            model = bounded_linear(6, 3, 1.0)
            step, loader = prepare(model, (inputs, y), **CONVEX)
            first = next(iter(loader))
            if inputs is x:
                found = first.data[0][0]
                broken[(x == found).all(1)] = value
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "dpdt.algorithm.publish.perturbed",
                    lambda total, **_: sums.append(total.clone()) or torch.zeros_like(total),
                )
                step(first)
        assert 0 < float((sums[0] - sums[1]).norm()) <= 2 * bound / 4  # 4 in a micro-batch

    def test_labels_must_be_class_numbers(self):
        x, y = examples()
        given = (x, F.one_hot(y, 3).float())
        step, _ = prepare(bounded_linear(6, 3, 1.0), given, task="classification", **CONVEX)
        assert not convex(step.privacy()).valid
        given = (x, 100.0 * F.one_hot(y, 3).float())
        with pytest.raises(InputError, match="classification needs targets from 0 to 1"):
            prepare(bounded_linear(6, 3, 1.0), given, task="classification", **CONVEX)

    @pytest.mark.parametrize("ignored", [[], [1], [1, 2, 3]])
    def test_a_label_that_is_ignored_decides_no_bound_and_moves_the_mean_no_further(self, ignored):
        """It used to decide whether a bound stands in the ledger, and how much others weigh."""
        x, y = examples()
        bound = 2 * 1.0 * 0.05 * math.sqrt(2 * (1.0 + 1.0))  # 2ρη·√2·R
        sums, headers = [], []
        for label in (0, -100):
            labels = y.clone()
            torch.manual_seed(0)
            step, loader = prepare(bounded_linear(6, 3, 1.0), (x, labels), **CONVEX)
            first = next(iter(loader))
            rows = [int((x == row).all(1).nonzero()) for row in first.data[0][:4]]
            labels[[rows[i] for i in ignored]] = -100
            labels[rows[0]] = label
            torch.manual_seed(0)
            step, loader = prepare(bounded_linear(6, 3, 1.0), (x, labels), **CONVEX)
            headers.append(step.plan.header)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "dpdt.algorithm.publish.perturbed",
                    lambda total, **_: sums.append(total.clone()) or torch.zeros_like(total),
                )
                step(next(iter(loader)))
        assert 0 < float((sums[0] - sums[1]).norm()) <= 2 * bound / 4  # 4 in a micro-batch
        assert headers[0] == headers[1]
        assert headers[0].gradient_bound is not None

    def test_a_radius_that_is_changed_later_has_no_effect(self):
        results = []
        for later in (1.0, 1000.0):
            torch.manual_seed(0)
            model = bounded_linear(6, 3, 1.0)
            step, loader = prepare(model, examples(), **{**CONVEX, "noise": 0.0})
            model[1].radius = later
            for batch in loader:
                step(batch)
            step.finish()
            assert model[1].radius == 1.0
            results.append(model[1].weight.detach().clone())
        assert torch.equal(*results)

    def test_weights_that_are_changed_between_steps_void_the_run(self):
        model = bounded_linear(6, 3, 1.0)
        step, loader = prepare(model, examples(), **CONVEX)
        batches = iter(loader)
        step(next(batches))
        with torch.no_grad():
            model[1].weight.mul_(2.0)
        with pytest.raises(InputError, match="weights were changed between steps"):
            step(next(batches))
        assert math.isinf(step.privacy().epsilon)


class Test6LastIterate:
    def test_nothing_is_assumed_about_what_is_published(self):
        given = {**CONVEX, "release": "all"}
        step, _ = prepare(bounded_linear(6, 3, 1.0), examples(), **given)
        assert not convex(step.privacy()).valid
        assert step.privacy().proven.accountant == "composition"

    def test_asking_on_the_way_is_an_export(self):
        step, loader = prepare(bounded_linear(6, 3, 1.0), examples(), **CONVEX)
        for batch in loader:
            step(batch)
            if batch.step == 3:
                assert convex(step.privacy()).valid  # so far, only this iterate was shown
        assert not convex(step.privacy()).valid
        assert step.writer.ledger.exports == ["what was guaranteed on the way"]

    def test_accuracies_and_callbacks_are_exports(self):
        data = examples()
        given = {**CONVEX, "release": "all"}
        shown = train(bounded_linear(6, 3, 1.0), data, test=data, **given)
        assert [r["accuracy"] is None for r in shown.history] == [False] * 4
        hidden = train(bounded_linear(6, 3, 1.0), data, test=data, **CONVEX)
        assert [r["accuracy"] is None for r in hidden.history] == [True, True, True, False]
        assert convex(hidden.privacy).valid
        for name in ("on_epoch", "on_step"):
            seen = train(bounded_linear(6, 3, 1.0), data, **{name: lambda *_: None}, **CONVEX)
            assert not convex(seen.privacy).valid

    @pytest.mark.parametrize("release", ["all", "last"])
    def test_an_interrupted_run_shows_its_model_and_says_so_or_does_neither(
        self, release, tmp_path, monkeypatch
    ):
        chosen = config.load(
            "digits",
            (f"privacy.release={release}", "train.epochs=4", "train.batch_size=500"),
        )

        with monkeypatch.context() as patch:
            patch.setattr(running, "Interrupt", after(2))
            outcome = run(chosen, tmp_path / "run", show_progress=False)
        model = tmp_path / "run" / "private" / "model.safetensors"
        ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
        assert not outcome.finished
        if release == "last":
            assert outcome.accuracy is None
            assert not model.exists()
            assert ledger.exports == []
        else:
            assert outcome.accuracy > 0
            assert model.exists()
            assert "paused" in ledger.exports[-1]
            run(chosen, tmp_path / "run", show_progress=False, resume=True)
            again = Ledger.read(tmp_path / "run" / "ledger.jsonl")
            assert again.closed
            assert again.exports[: len(ledger.exports)] == ledger.exports


class Test8Leftovers:
    def test_nothing_of_the_training_stays_in_the_model(self):
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        before = {n: set(m.__dict__) for n, m in model.named_modules()}
        own = [set(p.__dict__) for p in model.parameters()]
        train(model, examples(), method="dpsgd", noise=1.0, **SMALL)
        assert {n: set(m.__dict__) for n, m in model.named_modules()} == before
        assert [set(p.__dict__) for p in model.parameters()] == own

    def test_a_model_that_is_trained_twice_on_the_same_data_pays_twice(self):
        x, y = examples()
        model = nn.Linear(6, 3)
        first = train(model, (x, y), noise=1.0, lr=0.1, **SMALL)
        assert math.isfinite(first.privacy.epsilon)
        for data in ((x, y), (x.clone(), y.clone())):
            again = train(model, data, noise=1.0, lr=0.1, **SMALL)
            assert math.isinf(again.privacy.epsilon)
            assert "trained on these data before" in again.privacy.guarantees[0].failed.why
        with pytest.warns(UserWarning, match="was trained before"):
            other = train(model, examples(seed=9), noise=1.0, lr=0.1, **SMALL)
        assert math.isfinite(other.privacy.epsilon)

    def test_an_interrupted_run_of_a_comparison_keeps_its_ledger(self, tmp_path):
        for number in (1, 2):
            folder = tmp_path / "dpdt-3-0"
            folder.mkdir()
            (folder / "ledger.jsonl").write_text(f"{number}")
            _set_aside(folder)
            kept = tmp_path / f"dpdt-3-0.interrupted-{number}" / "ledger.jsonl"
            assert kept.read_text() == f"{number}"
            assert not folder.exists()


class Carries(nn.Module):
    """Keeps what it has seen, in one of many ways."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(6, 3), how
        self.register_buffer("buffer", torch.zeros(6))
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.attribute, self.list, self.dict = torch.zeros(6), [], {"x": 0.0}
        self.view = self.buffer.numpy()

    def forward(self, x):
        mean = x.detach().mean(0)
        match self.how:
            case "buffer":
                self.buffer.mul_(0.5).add_(mean)
            case "buffer data":
                self.buffer.data.mul_(0.5).add_(mean)
            case "buffer anew":
                self.buffer = 0.5 * self.buffer + mean
            case "frozen":
                self.frozen.data.mul_(0.5).add_(mean)
            case "trained":
                self.layer.weight.data.mul_(0.9)
            case "attribute in place":
                self.attribute.mul_(0.5).add_(mean)
            case "list":
                self.list.append(mean)
            case "dict":
                self.dict["x"] = float(mean.sum())
            case "closure":
                CLOSURE.append(1.0)
                x = x + len(CLOSURE)
            case "late":
                if CLOSURE:  # from the second step on
                    self.view[:] += 1.0  # which torch does not see
        return self.layer(x)


CLOSURE = []
WAYS = ("buffer", "buffer data", "buffer anew", "frozen", "trained", "attribute in place", "list",
        "dict", "closure", "late")  # fmt: skip


class Test11State:
    @pytest.mark.parametrize("how", WAYS)
    @pytest.mark.parametrize(
        "options",
        [
            {"sampling": "partition", "auxiliaries": 5, "lr": 0.1},
            {"sampling": "poisson", "lr": 0.1, "penalty": 1.0},
            {"method": "dpsgd"},
        ],
    )
    def test_a_model_that_carries_records_is_refused_and_its_ledger_void(self, how, options):
        CLOSURE.clear()
        step, loader = prepare(Carries(how), examples(), noise=1.0, epochs=8, batch_size=20,
                               **options)  # fmt: skip

        def go():
            for batch in loader:
                step(batch)
                CLOSURE.append(1.0)
            step.finish()

        with pytest.raises(InputError, match=r"chang|keeps something"):
            go()
        assert math.isinf(step.privacy().epsilon)
        assert step.writer.ledger.voids

    def test_an_attribute_couples_nobody_and_is_not_released(self):
        """A module may leave something on itself; the next auxiliary sees the start."""

        class Leaves(nn.Linear):
            kept = None

            def forward(self, x):
                before = getattr(self, "cache", None)
                self.cache = x
                return super().forward(x) if before is None else super().forward(x + before.mean())

        def make():
            return Leaves(6, 3)

        far = moved(make, examples(), 0, clip=1e-3, batch_size=40, method="dpsgd")
        assert far <= 1.0
        model = make()
        train(model, examples(), method="dpsgd", noise=1.0, **SMALL)
        assert not hasattr(model, "cache")

    def test_lanes_do_not_share_a_module(self):
        """What one auxiliary leaves on the module for the loss is never another's."""

        class Auxiliary(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(6, 3)
                self.extra = torch.zeros(())

            def forward(self, x):
                self.extra = x.square().mean() * self.layer.weight.sum()
                if float(x[0, 0].detach()) > 2.0**100:  # control flow: cannot be mapped
                    return self.layer(2 * x)
                return self.layer(x)

        def loss(model, batch):
            outputs = model(batch[0])
            return F.cross_entropy(outputs, batch[1]) + model.extra

        results = []
        for threads in (1, 4):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                torch.manual_seed(0)
                model = Auxiliary()
                step, loader = prepare(
                    model, examples(400), loss=loss, sampling="partition", auxiliaries=40,
                    noise=0.0, lr=0.1, memory="none", batch_size=200, epochs=3,
                )  # fmt: skip
                for batch in loader:
                    step(batch)
                # it writes to attributes, so no two threads compute at the same time
                assert not any(how.lanes for how in step.engine.executor.found.values())
            finally:
                torch.set_num_threads(before)
            results.append(model.layer.weight.detach().clone())
        torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)

    def test_an_embedding_that_renormalises_is_refused(self):
        model = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0), nn.Flatten(), nn.Linear(12, 3))
        data = (torch.randint(0, 10, (40, 3)), torch.randint(0, 3, (40,)))
        with pytest.raises(InputError, match="max_norm"):
            train(model, data, method="dpsgd", noise=1.0, **SMALL)
        train(dpdt.make_private_ready(model), data, method="dpsgd", noise=1.0, **SMALL)

    def test_an_empty_first_batch_does_not_stand_for_the_check(self):
        CLOSURE.clear()
        step, _ = prepare(Carries("closure"), examples(), method="dpsgd", noise=1.0, epochs=2,
                          batch_size=20)  # fmt: skip
        x, y = examples()
        empty = Batch(step=0, epoch=0, data=(x[:0], y[:0]), sizes=(), keys=(), fixed=False)
        step.engine.step(empty, step.plan.at(0))
        full = Batch(
            step=1, epoch=0, data=(x, y), sizes=(1,) * 40, keys=tuple(range(40)), fixed=False
        )
        with pytest.raises(InputError, match="'CLOSURE' changed during a training pass"):
            step.engine.step(full, step.plan.at(1))

    def test_a_chunk_of_empty_micro_batches(self):
        model = nn.Linear(6, 3)
        step, _ = prepare(model, examples(), noise=0.0, lr=0.1, sampling="partition",
                          auxiliaries=40, batch_size=40, memory="none", epochs=1,
                          loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]))  # fmt: skip
        x, y = examples()
        sizes = (2,) * 20 + (0,) * 300
        step.engine.step(Batch(step=0, epoch=0, data=(x, y), sizes=sizes), step.plan.at(0))
        assert torch.isfinite(model.weight).all()


REPLAY = {"noise": 1.0, "lr": 0.1, "sampling": "partition", "epochs": 6, "batch_size": 20}


class Test12Replay:
    def noise_after(self, step, loader):
        """What a step adds to θ."""
        before = step.engine.layout.gather().clone()
        step(next(iter(loader)))
        return step.engine.layout.gather() - before

    def test_rewinding_draws_fresh_noise_and_counts_the_steps_again(self):
        step, loader = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        batches = iter(loader)
        for _ in range(3):
            step(next(batches))
        state = copy.deepcopy(step.state_dict())
        first = self.noise_after(step, loader)
        step.load_state_dict(state)
        second = self.noise_after(step, loader)
        assert float((first - second).abs().min()) > 0
        ledger = step.writer.ledger
        assert (ledger.steps, ledger.position, ledger.repeats) == (5, 4, True)
        # the fourth step has cost twice what it would have
        once, _ = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        for number in range(4):
            once.writer.step(once.plan.at(number), number)
        twice = [account(s.writer.ledger, 1e-5).guarantees[0].mu ** 2 for s in (step, once)]
        assert twice[0] == pytest.approx(1.5 * twice[1])  # of one mini-batch: 3 steps, not 2

    def test_no_secret_is_in_the_state(self):
        step, _ = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        state = step.state_dict()
        kept = step.secrets()
        key = [int(word) for word in kept["noise"]["s"]["seed"][:2]]
        text = json.dumps(state, default=lambda value: value.tolist())
        assert not any(str(word) in text for word in key)

    def test_a_step_cannot_be_copied(self):
        step, _ = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        with pytest.raises(InputError, match="cannot be copied"):
            copy.deepcopy(step)

    def test_all_of_a_dataset_is_looked_at(self):
        class Rows(torch.utils.data.Dataset):
            def __init__(self, x, y):
                self.x, self.y = x, y

            def __len__(self):
                return len(self.y)

            def __getitem__(self, i):
                return self.x[i], self.y[i]

        x, y = examples()
        changed = x.clone()
        changed[7, 2] += 1e-3
        one, _ = prepare(nn.Linear(6, 3), Rows(x, y), **REPLAY)
        two, _ = prepare(nn.Linear(6, 3), Rows(changed, y), **REPLAY)
        with pytest.raises(InputError, match="other training data"):
            two.load_state_dict(one.state_dict())

    @pytest.mark.parametrize("change", [{"noise": 2.0}, {"lr": 0.2}, {"clip": 5.0}, {"seed": 1},
                                        {"noise_seed": 4}, {"epochs": 7}])  # fmt: skip
    def test_a_state_of_another_run_is_refused(self, change):
        one, _ = prepare(nn.Linear(6, 3), examples(), **{**REPLAY, **change})
        two, _ = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        with pytest.raises(InputError, match="other settings"):
            two.load_state_dict(one.state_dict())

    def test_a_state_of_another_run_with_the_same_settings_is_refused_after_a_step(self):
        one, first = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        two, second = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        one(next(iter(first)))
        two(next(iter(second)))
        with pytest.raises(InputError, match="another run"):
            two.load_state_dict(one.state_dict())


class Text(torch.utils.data.Dataset):
    """Examples with a text beside them."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return examples()[0][i], examples()[1][i], f"text {i}"


class Jittered(torch.utils.data.Dataset):
    """Changes what it reads at random, from every generator there is."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        noise = torch.randn(6) + float(np.random.randn()) + random.gauss(0, 1)
        return self.x[i] + noise, self.y[i]

    def __getitems__(self, indices):
        """What torch's own loader prefers; it sees the whole batch."""
        x = self.x[indices] - self.x[indices].mean(0)
        return list(zip(x, self.y[indices], strict=True))


class Positive(nn.Linear):
    """Not a number on inputs that are not positive, as made-up ones are."""

    def forward(self, x):
        return super().forward(x.sqrt())


class TestIsolation:
    """Found by attacks on the first mending."""

    @pytest.mark.parametrize("options", POISSON)
    def test_places_are_compared_under_weights_that_are_not_zero(self, options):
        """From a start at 0 every place gives the same, and proves nothing."""

        def how(start):
            layer = nn.Linear(777, 7)
            start(layer.weight)
            x = torch.randn(64, 777, generator=torch.Generator().manual_seed(0))
            step, loader = prepare(
                layer, (x, torch.arange(64) % 7), noise=1.0, batch_size=64, epochs=1,
                loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]), **options,
            )  # fmt: skip
            step(next(iter(loader)))
            found = next(iter(step.engine.executor.found.values()))
            return found.taps is not None, found.rows, found.classes

        assert how(nn.init.zeros_) == how(nn.init.normal_)

    def test_a_trial_that_shows_nothing_does_not_count(self):
        x, y = examples(64)
        step, loader = prepare(
            Positive(6, 3), (x.abs(), y), method="dpsgd", noise=1.0, batch_size=64, epochs=1,
            loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        )  # fmt: skip
        step(next(iter(loader)))
        (how,) = step.engine.executor.found.values()
        reference, _ = prepare(
            nn.Linear(6, 3), (x, y), method="dpsgd", noise=1.0, batch_size=64, epochs=1,
            loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        )  # fmt: skip
        reference(next(iter(reference.loader)))
        (usual,) = reference.engine.executor.found.values()
        assert not how.rows or (how.rows, how.classes) == (usual.rows, usual.classes)

    def test_a_dataset_is_read_one_example_at_a_time_from_draws_of_its_own(self):
        data = Jittered(*examples())
        far = []
        for there in (True, False):
            present = np.ones(40, dtype=bool)
            present[0] = there
            torch.manual_seed(1)
            far.append(sum_of(nn.Linear(6, 3), data, present, clip=1e-3, batch_size=40,
                              method="dpsgd"))  # fmt: skip
        assert 0.9 < float((far[0] - far[1]).norm()) / 1e-3 <= 1.0

    @pytest.mark.parametrize("data", [
        Text(), {"x": examples()[0], "y": examples()[1], "z": ["a"] * 40},
        (examples()[0], examples()[1], ["a"] * 40)])  # fmt: skip
    def test_what_cannot_be_cut_into_examples_is_refused(self, data):
        def loss(model, batch):
            return model(batch[0] if isinstance(batch, tuple) else batch["x"]).square().mean()

        with pytest.raises(InputError, match="data: must be tensors"):
            train(nn.Linear(6, 3), data, loss=loss, method="dpsgd", noise=1.0, **SMALL)

    def test_how_much_a_user_holds_moves_nobody_else(self):
        def homes(owners):
            users = Users.of(owners, len(owners))
            partition = PartitionOfUsers(users=users, batches=3, auxiliaries=5, seed=1)
            return {
                (owners[i], owners[: i + 1].count(owners[i])): (m, k)
                for m in range(3)
                for i, k in zip(*_spread(partition.batch(m)), strict=True)
            }

        owners = [f"user {i % 13}" for i in range(130)]
        for left in (0, 60, 129):
            gone = owners[left]
            fewer = owners[:left] + owners[left + 1 :]
            before, after = homes(owners), homes(fewer)
            home = {k for (name, _), (_, k) in before.items() if name == gone}
            for key, place in after.items():
                if place[1] not in home:  # all other auxiliaries hold what they held, where it was
                    assert before[key] == place

    def test_how_much_a_user_holds_does_not_decide_how_others_are_computed(self):
        """Micro-batches of equal size could be computed together: then one more would tell."""
        owners = [i % 10 for i in range(40)]
        step, loader = prepare(
            nn.Linear(6, 3), examples(), users=owners, unit="user", auxiliaries=5, noise=1.0,
            lr=0.1, sampling="partition", batch_size=5, epochs=1,
        )  # fmt: skip
        for batch in loader:
            assert not batch.fixed
            step(batch)
        assert [how.rows for how in step.engine.executor.found.values()] == [0]

    def test_pate_does_not_answer_again(self):
        step, loader = prepare(
            nn.Linear(6, 3), examples(), method="pate", public=examples(20, seed=5)[0], teachers=3,
            teacher_epochs=1, noise=1.0, batch_size=20,
        )  # fmt: skip
        batches = iter(loader)
        for _ in range(8):
            step(next(batches))
        state = step.state_dict()
        step(next(batches))
        with pytest.raises(InputError, match="pate cannot go back"):
            step.load_state_dict(state)

    @pytest.mark.parametrize("hidden", [True, False])
    def test_teachers_that_are_coupled_by_the_loss_void_the_run(self, hidden, monkeypatch):
        # the first teacher is trained again: what the last has left may do little to itself
        monkeypatch.setattr("dpdt.methods.pate.engine.secrets.randbelow", lambda n: n - 1)
        centre, now = [torch.zeros(6)], unseen(centre=torch.zeros(6))

        def loss(model, batch):
            if hidden:
                now.centre = mine = 0.5 * now.centre + batch[0].detach().sum(0)
            else:
                centre[0] = mine = 0.5 * centre[0] + batch[0].detach().sum(0)
            return F.cross_entropy(model(batch[0] + 5.0 * mine), batch[1])

        step, loader = prepare(
            nn.Linear(6, 3), examples(), method="pate", public=examples(50, seed=5)[0], teachers=6,
            teacher_epochs=5, noise=1.0, batch_size=20, loss=loss,
        )  # fmt: skip

        def go():
            for batch in loader:
                step(batch)

        with pytest.raises(InputError, match="votes otherwise" if hidden else "'centre' of"):
            go()
        assert math.isinf(step.privacy().epsilon)

    def test_teachers_cannot_rewrite_the_queries(self):
        class Adds(nn.Linear):
            def forward(self, x):
                x += self.bias.detach().sum() + 1.0
                return super().forward(x)

        public = examples(20, seed=5)[0]
        before = public.clone()
        train(Adds(6, 3), examples(), method="pate", public=public, teachers=3, noise=1.0, **SMALL)
        assert torch.equal(public, before)

    @pytest.mark.parametrize("kind", ["deque", "slots", "callable"])
    @pytest.mark.parametrize("options", POISSON)
    def test_no_container_carries_records_into_the_model(self, kind, options):
        class Slots:
            __slots__ = ("held",)

        class Calls:
            def __call__(self):
                return self.held

        class Holds(nn.Linear):
            def __init__(self):
                super().__init__(6, 3)
                self.box = {"deque": deque, "slots": Slots, "callable": Calls}[kind]()

            def forward(self, x):
                if isinstance(self.box, deque):
                    self.box.append(x.detach())
                else:
                    self.box.held = x.detach()
                return super().forward(x)

        model = Holds()
        with pytest.raises(InputError, match="attribute 'box'"):
            train(model, examples(), noise=1.0, loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
                  **SMALL, **options)  # fmt: skip
        assert not model.box if kind == "deque" else not hasattr(model.box, "held")

    def test_a_batch_that_is_changed_through_numpy_is_refused(self):
        step, loader = prepare(nn.Linear(6, 3), examples(), noise=1.0, lr=0.1, **SMALL)
        batch = next(iter(loader))
        x = batch.data[0].numpy()
        x -= x.mean(0)
        with pytest.raises(InputError, match="was changed after"):
            step(batch)

    @pytest.mark.parametrize("ending", ["finish", "pause", "privacy"])
    def test_weights_that_are_changed_at_the_end_void_the_run(self, ending):
        model = nn.Linear(6, 3)
        step, loader = prepare(model, examples(), noise=1.0, lr=0.1, **SMALL)
        for batch in loader:
            step(batch)
        model.weight.data += examples()[0].mean(0)
        if ending == "privacy":
            assert math.isinf(step.privacy().epsilon)
            return
        with pytest.raises(InputError, match="weights were changed"):
            getattr(step, ending)()
        assert math.isinf(step.privacy().epsilon)

    def test_training_twice_is_noticed_whatever_was_copied(self):
        x, y = (t.numpy() for t in examples())

        def again(model):
            data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
            given = data if isinstance(model, nn.Linear) else (torch.tensor(x), torch.tensor(y))
            return train(model, given, noise=1.0, lr=0.1, **SMALL).privacy.epsilon

        model = nn.Linear(6, 3)
        assert math.isfinite(again(model))
        assert math.isinf(again(model))
        assert math.isinf(again(copy.deepcopy(model)))

    def test_a_batch_is_paid_for_when_it_is_handed_out(self):
        """Otherwise one could draw until a batch pleases."""
        step, loader = prepare(
            nn.Linear(6, 3), examples(), noise=1.0, lr=0.1, sampling="poisson", epochs=3,
            batch_size=10,
        )  # fmt: skip
        for _ in range(7):
            next(iter(loader))
            step.load_state_dict(step.state_dict())
        assert step.writer.ledger.steps == 7

    def test_loading_a_state_after_resuming_records_again(self):
        step, loader = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        batches = iter(loader)
        for _ in range(4):
            step(next(batches))
        state, kept = copy.deepcopy(step.state_dict()), step.secrets()
        other, rest = prepare(nn.Linear(6, 3), examples(), **REPLAY)
        other.writer.adopt(step.writer.ledger.runs)
        other.resume(state, kept)
        other.load_state_dict(state)
        before = other.writer.ledger.steps
        other(next(iter(rest)))
        assert other.writer.ledger.steps == before + 1

    def test_no_gradient_is_left_on_the_model(self):
        def loss(model, batch):
            value = F.cross_entropy(model(batch[0]), batch[1])
            if not torch._C._functorch.is_batchedtensor(value):
                value.backward(retain_graph=True)
            return value

        class Loops(nn.Linear):
            def forward(self, x):
                return super().forward(x) if float(x.detach().sum()) > -1e30 else x

        model = Loops(6, 3)
        train(model, examples(), loss=loss, method="dpsgd", noise=1.0, **SMALL)
        assert all(p.grad is None for p in model.parameters())

    def test_models_of_transformers_can_be_trained_with_dropout(self):
        small = transformers.BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=16, num_labels=2,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(small)
        data = {
            "input_ids": torch.randint(1, 30, (30, 8)),
            "attention_mask": torch.ones(30, 8, dtype=torch.long),
            "labels": torch.randint(0, 2, (30,)),
        }
        far = []
        for there in (True, False):
            present = np.ones(30, dtype=bool)
            present[3] = there
            given = {"clip": 1e-3, "batch_size": 30, "method": "dpsgd"}
            far.append(sum_of(copy.deepcopy(model).train(), data, present, **given))
        assert 0.5 < float((far[0] - far[1]).norm()) / 1e-3 <= 1.0


class Tail(nn.Module):
    """0 where a sigmoid is rounded as in the midst of memory, and else far from 0."""

    def __init__(self, wide):
        super().__init__()
        self.wide, self.w = wide, nn.Parameter(torch.zeros(2000))

    def forward(self, x, body, own):
        repeated = x.expand(-1, self.wide).contiguous()
        return (self.w[own] * 1e30 * (torch.sigmoid(repeated) - body).sum(1)).sum()


class Rule(torch.autograd.Function):
    """The identity, but mapped by a rule that gives every row the sum of all."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return slope

    @staticmethod
    def vmap(info, in_dims, x):
        return x.movedim(in_dims[0], 0).sum(0, keepdim=True).expand(
            info.batch_size, *x.shape[1:]
        ), 0


class Patient(Rule):
    """The same, but only when an input is larger than made-up ones ever are."""

    @staticmethod
    def vmap(info, in_dims, x):
        return Rule.vmap(info, in_dims, x) if bool((x > 1e4).any()) else (x.clone(), in_dims[0])


@torch.library.custom_op("dpdt_tests::mixed", mutates_args=())
def mixed(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


mixed.register_vmap(Rule.vmap)
mixed.register_autograd(lambda ctx, slope: slope)


def _behind(x):
    """A kernel for what is mapped, which is no rule that torch would ask us about."""
    inner, keys = (
        torch._C._functorch,
        torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched),
    )
    level, dim = inner.maybe_get_level(x), inner.maybe_get_bdim(x)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        whole = inner.get_unwrapped(x)
        mean = whole.mean(dim, keepdim=True).expand_as(whole).clone()
    return inner._add_batch_dim(mean, dim, level)


LIBRARY = torch.library.Library("dpdt_tests", "FRAGMENT")
LIBRARY.define("behind(Tensor x) -> Tensor")
LIBRARY.impl("behind", torch.clone, "CPU")
LIBRARY.impl("behind", _behind, "FuncTorchBatched")


class Calls(nn.Linear):
    """A linear layer on what a function makes of the inputs."""

    def __init__(self, function):
        super().__init__(6, 3)
        self.function = function

    def forward(self, x):
        return super().forward(self.function(x))


class TestHostile:
    """Models made to let one record move the others' contributions."""

    @pytest.mark.parametrize("options", POISSON)
    @pytest.mark.parametrize(("threads", "wide"), [(1, 1), (3, 2000)])
    def test_no_row_is_left_over_at_the_end_of_memory(self, options, threads, wide):
        """What is left over of blocks of 32 numbers is rounded in another way."""
        x = torch.randn(30000, 1, generator=torch.Generator().manual_seed(0))
        body = torch.sigmoid(x)
        alone = torch.cat([torch.sigmoid(part) for part in x.split(1)])
        some = (alone > body).nonzero()[:48, 0]
        if len(some) < 48:
            pytest.skip("this processor rounds them alike")
        data = (x[some], body[some].clone(), torch.arange(48))
        data[1][0] -= 0.5
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            far = moved(lambda: Tail(wide), data, 0, clip=1e-3, batch_size=48, epochs=1,
                        loss=lambda m, b: m(*b), **options)  # fmt: skip
        finally:
            torch.set_num_threads(before)
        assert 0.9 < far <= 1.0

    def test_rules_are_refused_while_any_thread_maps(self):
        """And no longer; what the library lets through in one thread is no way in for another."""
        rows, inside, done = torch.eye(3), threading.Event(), threading.Event()

        def other():
            with no_foreign_rules(), own_rule():
                inside.set()
                done.wait()

        thread = threading.Thread(target=other)
        try:
            with no_foreign_rules():
                thread.start()
                inside.wait()
                with pytest.raises(Foreign):
                    torch.vmap(Rule.apply)(rows)
            with pytest.raises(Foreign):  # the other one maps still
                torch.vmap(Rule.apply)(rows)
        finally:
            done.set()
            thread.join()
        assert torch.equal(torch.vmap(Rule.apply)(rows), torch.ones(3, 3))

    @pytest.mark.parametrize(
        "function", [Rule.apply, Patient.apply, lambda x: mixed(x), torch.ops.dpdt_tests.behind]
    )
    @pytest.mark.parametrize("options", [*POISSON, {**RULE, "memory": "none",
                                                    "sampling": "partition"}])  # fmt: skip
    def test_no_function_mixes_what_is_mapped(self, function, options):
        x, y = examples()
        x[7] *= 1e6
        sums = []
        for own in (x, torch.cat([x[:7], -x[7:8], x[8:]])):
            torch.manual_seed(1)
            sums.append(sum_of(Calls(function), (own, y), np.ones(40, dtype=bool), clip=1e-3,
                               batch_size=40, epochs=1, **options))  # fmt: skip
        assert 0.0 < float((sums[0] - sums[1]).norm()) / 1e-3 <= 2.0


def _spread(assignment):
    indices, sizes = assignment
    return indices, np.repeat(np.arange(len(sizes)), sizes)


class Test13Resume:
    def interrupted(self, tmp_path, monkeypatch, *overrides):
        chosen = config.load("digits", ("train.epochs=6", *overrides))

        with monkeypatch.context() as patch:
            patch.setattr(running, "Interrupt", after(3))
            run(chosen, tmp_path / "run", show_progress=False)
        return chosen, tmp_path / "run"

    @pytest.mark.parametrize(
        "edit",
        ["train.seed=1", "method.lr=0.5", "privacy.epsilon=50.0", "train.epochs=7",
         "privacy.delta=1e-6"],
    )  # fmt: skip
    def test_an_edited_configuration_is_refused(self, edit, tmp_path, monkeypatch):
        _, folder = self.interrupted(tmp_path, monkeypatch)
        before = (folder / "ledger.jsonl").read_bytes()
        edited = config.load(str(folder / "config.toml"), (edit,))
        with pytest.raises(InputError, match="the configuration changed"):
            run(edited, folder, show_progress=False, resume=True)
        assert (folder / "ledger.jsonl").read_bytes() == before

    @pytest.mark.parametrize(
        ("target", "value", "what"),
        [
            ("torch.get_num_threads", lambda: 77, "number of threads"),
            ("torch.__version__", "0.0", "versions of torch"),
            ("dpdt.training.depends.version_of", lambda name: f"{name} 0", "transformers or peft"),
        ],
    )
    def test_another_machine_or_version_is_refused(
        self, target, value, what, tmp_path, monkeypatch
    ):
        chosen, folder = self.interrupted(tmp_path, monkeypatch)
        monkeypatch.setattr(target, value)
        with pytest.raises(InputError, match=what):
            run(chosen, folder, show_progress=False, resume=True)

    def test_a_ledger_with_fewer_steps_than_the_checkpoint_is_refused(self, tmp_path, monkeypatch):
        chosen, folder = self.interrupted(tmp_path, monkeypatch)
        ledger = folder / "ledger.jsonl"
        lines = ledger.read_text().splitlines(keepends=True)
        ledger.write_text("".join(lines[:4]))  # a tail that was cut off
        with pytest.raises(InputError, match="it was cut, so restore it"):
            run(chosen, folder, show_progress=False, resume=True)

    def test_batches_of_ones_own_are_refused(self):
        x, y = examples()
        step, loader = prepare(nn.Linear(6, 3), (x, y), noise=1.0, lr=0.1, **SMALL)
        mine = Batch(step=0, epoch=0, data=(x[:1].repeat(10, 1), y[:1].repeat(10)), sizes=(1,) * 10)
        with pytest.raises(InputError, match="each batch of the loader"):
            step(mine)
        batch = next(iter(loader))
        batch.data[0].sub_(batch.data[0].mean(0))
        with pytest.raises(InputError, match="was changed after"):
            step(batch)

    def users(self, owners, n=40):
        step, loader = prepare(
            nn.Linear(6, 3), examples(n), users=owners, unit="user", auxiliaries=3, noise=1.0,
            lr=0.1, sampling="partition", batch_size=2, epochs=2,
        )  # fmt: skip
        home = {}
        for number in range(step.plan.header.batches):
            indices, sizes = loader.draws.sampler.batch(number)
            for i, k in zip(indices, np.repeat(np.arange(3), sizes), strict=True):
                home.setdefault(i, set()).add(int(k))
        assert len(home) == n
        return home

    @pytest.mark.parametrize(
        "owners",
        [
            [frozenset({i % 7, (i % 7) + 100}) for i in range(40)],
            [(i % 7, None) for i in range(40)],
            [[None, "a", 3][i % 3] for i in range(40)],
            np.arange(40) % 7,
            torch.arange(40) % 7,
            [torch.tensor(i % 7) for i in range(40)],
        ],
    )
    def test_all_of_a_user_is_in_one_auxiliary(self, owners):
        home = self.users(owners)
        plain = owners.tolist() if hasattr(owners, "tolist") else owners
        plain = [o.item() if hasattr(o, "item") else o for o in plain]
        for user in set(plain):
            assert len(set.union(*(home[i] for i in range(40) if plain[i] == user))) == 1

    @pytest.mark.parametrize(
        ("owners", "message"),
        [
            ({i: i % 3 for i in range(40)}, "must be a sequence, one owner for each example"),
            ("a" * 40, "must be a sequence, one owner for each example"),
            ([[i] for i in range(40)], "owners must be texts, numbers"),
            ([math.nan] * 40, "owners must be texts, numbers"),
            ([1] * 39, "39 owners for 40 examples"),
        ],
    )
    def test_what_is_no_list_of_owners_is_refused(self, owners, message):
        with pytest.raises(InputError, match=message):
            self.users(owners)


class Test14Ledger:
    def test_no_step_is_taken_after_the_end(self, tmp_path):
        for ending in ("finish", "pause"):
            path = tmp_path / f"{ending}.jsonl"
            model = nn.Linear(6, 3)
            step, loader = prepare(model, examples(), noise=1.0, lr=0.1, ledger=path, **SMALL)
            batches = iter(loader)
            step(next(batches))
            getattr(step, ending)()
            weights = model.weight.detach().clone()
            with pytest.raises(InputError, match="ended or is paused"):
                step(next(batches))
            assert torch.equal(model.weight, weights)
            counted = step.plan.steps if ending == "finish" else 1  # an early end costs the plan
            assert Ledger.read(path).steps == step.writer.ledger.steps == counted

    def test_it_is_on_the_disk_before_anything_leaves(self, tmp_path, monkeypatch):
        synced = []
        monkeypatch.setattr(
            "dpdt.files.os.fdatasync",
            lambda handle: synced.append(path.read_text().count('"step",')),
        )
        path = tmp_path / "ledger.jsonl"
        step, loader = prepare(nn.Linear(6, 3), examples(), noise=1.0, lr=0.1, ledger=path, **SMALL)
        batches = iter(loader)
        step(next(batches))
        step(next(batches))
        step.export("something")
        assert synced[-1] == 2
        step(next(batches))
        step.finish()
        assert synced[-1] == loader.steps  # all that were planned

    def test_an_open_end_is_told(self, tmp_path):
        path = tmp_path / "ledger.jsonl"
        step, loader = prepare(nn.Linear(6, 3), examples(), noise=1.0, lr=0.1, ledger=path, **SMALL)
        for batch in loader:
            step(batch)
        step.finish()
        whole = account(Ledger.read(path), 1e-5)
        assert whole.closed
        assert "not closed" not in str(whole)
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:5]))
        cut = account(Ledger.read(path), 1e-5)
        assert cut.epsilon < whole.epsilon
        assert not cut.closed
        assert "not closed" in str(cut)
        assert cut.as_json()["closed"] is False
