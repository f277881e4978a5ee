"""The property that composition rests on: one record moves the released mean by no more than the
accountant is told.

For drawn methods, samplings, memories, models and data, the mean before noise is computed on a data
set and on a neighbour, from the same θ. It may move, in every block, by at most what the accountant
computes from the setting that the ledger records. There is no tolerance: what rounding may add is
in that number. Models draw random numbers, keep state, mix examples, compute in other dtypes;
records are tiny, huge, or not finite, and may be images with several views. A model that is refused
releases nothing.

DPDT_CASES sets the number of cases; 50,000 take about an hour on two cores.
"""

import array
import contextlib
import itertools
import os
import random
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from dpdt.accounting import account
from dpdt.accounting.composition import sensitivities
from dpdt.errors import InputError
from dpdt.models.networks import bounded_linear
from tests.numbers import prepare

CASES = int(os.environ.get("DPDT_CASES", "900"))
INPUTS, CLASSES = 7, 3


class Noisy(nn.Linear):
    """Draws from torch's generator in a way that cannot be mapped over examples by a key."""

    def forward(self, x):
        return super().forward(x + 0.5 * torch.randn_like(x))


class Foreign(nn.Linear):
    """Draws from numpy's and Python's generators."""

    def forward(self, x):
        return super().forward(x * (1 + float(np.random.rand()) + random.random()))


class Leaves(nn.Linear):
    """Leaves something on itself, and uses what the last call has left."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.last = None

    def forward(self, x):
        before, self.last = self.last, x.detach().mean()
        return super().forward(x if before is None else x + before)


class Running(nn.Linear):
    """A running mean in an attribute."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.mean = torch.zeros(sizes[0])

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return super().forward(x - self.mean)


class Remembers(nn.Linear):
    """A list that grows."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach())
        return super().forward(x + len(self.seen))


class Writes(nn.Linear):
    """Writes past torch's version counter, into its own weights and a buffer."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("kept", torch.zeros(sizes[0]))

    def forward(self, x):
        with contextlib.suppress(RuntimeError):
            self.kept.data += x.detach().mean(0)
        return super().forward(x + self.kept)


class Centred(nn.Linear):
    """Mixes the examples that it is given."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


class Folded(nn.Module):
    """Treats positions as if they were examples."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(1), nn.Linear(1, CLASSES)

    def forward(self, x):
        return self.layer(self.norm(x.reshape(-1, 1))).reshape(len(x), -1, CLASSES).sum(1)


class Draws(nn.Linear):
    """Has a generator of its own, as for noise or stochastic depth."""

    def __init__(self, *sizes, rng):
        super().__init__(*sizes)
        self.rng = rng

    def forward(self, x):
        draw = self.rng.random() if hasattr(self.rng, "random") else self.rng.rand()
        return super().forward(x * (1.0 + 10.0 * float(draw)))


class OwnTorch(nn.Linear):
    """Has a generator of torch's own."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.rng = torch.Generator().manual_seed(0)

    def forward(self, x):
        return super().forward(x + float(torch.rand((), generator=self.rng)))


class Hidden(nn.Module):
    """A submodule in a plain list, which no module knows of, and which keeps what it sees."""

    def __init__(self, inner):
        super().__init__()
        self.layer, self.parts = nn.Linear(INPUTS, CLASSES), [{"inner": inner}]

    def forward(self, x):
        inner = self.parts[0]["inner"]
        return self.layer(x + inner(x).detach().sum())


class Counts(nn.Linear):
    """Counts its calls in something that cannot be put back, or in bytes."""

    def __init__(self, *sizes, counter):
        super().__init__(*sizes)
        self.counter = counter

    def forward(self, x):
        if hasattr(self.counter, "__next__"):
            return super().forward(x + float(next(self.counter)))
        self.counter[0] += 1
        return super().forward(x + float(self.counter[0]))


def anchored(places):
    """A model that keeps the first example of its kind where a closure finds it."""

    class Anchored(nn.Linear):
        def forward(self, x):
            key = bool(float(x.detach().sum()) > 0)
            if key not in places:
                places[key] = x.detach().clone()
            return super().forward(x + places[key].sum())

    return Anchored(INPUTS, CLASSES)


def deep(*middle):
    return nn.Sequential(nn.Linear(INPUTS, 5), *middle, nn.Linear(5, CLASSES))


def conv():
    layers = nn.Unflatten(1, (1, INPUTS)), nn.Conv1d(1, 4, 3), nn.Dropout1d(0.3), nn.Tanh()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * (INPUTS - 2), CLASSES))


MODELS = {
    "linear": lambda: nn.Linear(INPUTS, CLASSES),
    "no bias": lambda: nn.Linear(INPUTS, CLASSES, bias=False),
    "double": lambda: nn.Linear(INPUTS, CLASSES).double(),
    "deep": lambda: deep(nn.Tanh()),
    "deep double": lambda: deep(nn.ReLU()).double(),
    "norm": lambda: deep(nn.LayerNorm(5), nn.ReLU()),
    "dropout": lambda: deep(nn.Dropout(0.5)),
    "dropout in place": lambda: deep(nn.Dropout(0.3, inplace=True)),
    "alpha dropout": lambda: deep(nn.SELU(), nn.AlphaDropout(0.3)),
    "conv": conv,
    "noisy": lambda: Noisy(INPUTS, CLASSES),
    "foreign": lambda: Foreign(INPUTS, CLASSES),
    "leaves": lambda: Leaves(INPUTS, CLASSES),
    "running": lambda: Running(INPUTS, CLASSES),
    "remembers": lambda: Remembers(INPUTS, CLASSES),
    "writes": lambda: Writes(INPUTS, CLASSES),
    "centred": lambda: Centred(INPUTS, CLASSES),
    "folded": Folded,
    "numpy generator": lambda: Draws(INPUTS, CLASSES, rng=np.random.default_rng(0)),
    "numpy state": lambda: Draws(INPUTS, CLASSES, rng=np.random.RandomState(0)),
    "python generator": lambda: Draws(INPUTS, CLASSES, rng=random.Random(0)),
    "torch generator": lambda: OwnTorch(INPUTS, CLASSES),
    "hidden running": lambda: Hidden(Running(INPUTS, CLASSES)),
    "hidden leaves": lambda: Hidden(Leaves(INPUTS, CLASSES)),
    "hidden draws": lambda: Hidden(Draws(INPUTS, CLASSES, rng=random.Random(0))),
    "hidden norm": lambda: Hidden(nn.BatchNorm1d(INPUTS, momentum=0.5)),
    "count": lambda: Counts(INPUTS, CLASSES, counter=itertools.count()),
    "cycle": lambda: Counts(INPUTS, CLASSES, counter=itertools.cycle(range(7))),
    "array": lambda: Counts(INPUTS, CLASSES, counter=array.array("d", [0.0])),
    "bytearray": lambda: Counts(INPUTS, CLASSES, counter=bytearray(1)),
    "closure": lambda: anchored({}),
}

METHODS = [
    {"method": "dpdt", "sampling": "poisson", "memory": "shared"},
    {"method": "dpdt", "sampling": "poisson", "memory": "none"},
    {"method": "dpdt", "sampling": "poisson", "memory": "none", "relation": "replace-one"},
    {"method": "dpdt", "sampling": "poisson", "memory": "shared", "auxiliaries": 3},
    {"method": "dpdt", "sampling": "poisson", "memory": "none", "auxiliaries": 4},
    {"method": "dpdt", "sampling": "partition", "memory": "shared"},
    {"method": "dpdt", "sampling": "partition", "memory": "none", "auxiliaries": 3},
    {"method": "dpdt", "sampling": "partition", "memory": "auxiliary", "auxiliaries": 3},
    {"method": "dpdt", "sampling": "partition", "memory": "auxiliary", "auxiliaries": 2,
     "preconditioner": "rmsprop"},
    {"method": "dpdt", "sampling": "poisson", "memory": "shared", "preconditioner": "adam"},
    {"method": "dpdt", "sampling": "cyclic-poisson", "memory": "shared", "noise_bands": 2},
    {"method": "dpsgd", "clipping": "flat"},
    {"method": "dpsgd", "sampling": "partition", "noise_bands": 2},
    {"method": "dpsgd", "sampling": "cyclic-poisson", "noise_bands": 3},
    {"method": "dpsgd", "clipping": "layer"},
    {"method": "dpsgd", "clipping": "automatic"},
    {"method": "gep", "directions": 4},
    {"method": "dpdt", "sampling": "poisson", "memory": "shared", "nominal": 45},
    {"method": "dpdt", "sampling": "poisson", "memory": "none", "auxiliaries": 3, "nominal": 20},
    {"method": "dpsgd", "nominal": 45},
    {"method": "gep", "directions": 4, "nominal": 45},
]  # fmt: skip

SCALES = st.sampled_from([1.0, 1.0, 1.0, 1e-20, 1e6, 1e12, 1e20, 1e30, 3e38, torch.inf, torch.nan])

cases = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "model": st.sampled_from(sorted(MODELS)),
        "granularity": st.sampled_from(["model", "layer", "tensor"]),
        "clip": st.sampled_from([1e-30, 1e-22, 1e-6, 0.1, 1.0, 1e6]),
        "examples": st.integers(6, 40),
        "share": st.sampled_from([0.2, 0.5, 1.0]),
        "scales": st.lists(SCALES, min_size=1, max_size=6),
        "own_loss": st.booleans(),
        "views": st.sampled_from([0, 0, 0, 1, 3]),  # 0: as they are
        "autocast": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)


class Drawing(torch.utils.data.Dataset):
    """Changes examples at random as they are read, from all generators that are set for them."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, i):
        x = self.data[0][i]
        x = torch.where(torch.rand(x.shape) < 0.5, x, -x).roll(np.random.randint(x.shape[-1]), -1)
        return x * (0.5 + random.random()), self.data[1][i]


def draw_data(case):
    """Examples, and the record that is another, or absent, in the neighbour."""
    generator = torch.Generator().manual_seed(case["seed"])
    n = case["examples"]
    scales = torch.tensor([case["scales"][i % len(case["scales"])] for i in range(n + 1)])
    x = torch.randn(n + 1, INPUTS, generator=generator) * scales.unsqueeze(1)
    y = torch.randint(0, CLASSES, (n + 1,), generator=generator)
    target = int(torch.randint(0, n, (1,), generator=generator))
    return (x[:n], y[:n]), target, (x[n], y[n])


@pytest.fixture(autouse=True)
def two_threads():
    """Rounding may depend on how an operation is split."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def own_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def on_lattice(total, divisor, spacing):
    """The mean as it is before noise is added."""
    s = torch.as_tensor(spacing, dtype=torch.float64)
    mean = total / divisor
    return torch.where(s > 0, (mean / s).round() * s, mean).numpy()


def prepared(case, data, absent=None, **others):
    torch.manual_seed(case["seed"])
    model = MODELS[case["model"]]()
    data = (data[0].to(next(model.parameters()).dtype), data[1])
    if case["views"]:  # images of one row, which are turned round
        model, data = nn.Sequential(nn.Flatten(), model), (data[0][:, None, None], data[1])
    size = max(4, int(case["share"] * case["examples"]))
    options = dict(case["method"])
    if (nominal := options.pop("nominal", None)) is not None:
        options["examples"] = nominal  # the same whether a record is there or not
    if options["method"] == "dpdt":
        options |= {"granularity": case["granularity"], "lr": 0.3, "penalty": 2.0}
    if case["views"]:
        options |= {"augment": True, "views": case["views"]}
    if case["own_loss"]:
        options["loss"] = own_loss
    public = torch.randn(8, *data[0].shape[1:]).to(data[0].dtype)
    options = {"epochs": 4, "batch_size": size, "noise": 1.0, "clip": case["clip"]} | options
    return prepare(
        model, Drawing(data) if case.get("drawing") else data, noise_seed=5,
        public=public if options["method"] == "gep" else None, absent=absent, **options | others,
    )  # fmt: skip


class Coupled:
    """Coins by which everybody has the same draws, whoever else is there."""

    def __init__(self, seed, examples, removed=None):
        self.generator = np.random.default_rng((seed, 77))
        self.examples, self.removed = examples, removed

    def of_those_there(self, draws):
        return draws if self.removed is None else np.delete(draws, self.removed)

    def coins(self, size, probability):
        return self.of_those_there(self.generator.random(self.examples) < probability)

    def choices(self, size, options):
        return self.of_those_there(self.generator.integers(options, size=self.examples))

    def secrets(self):
        return {}


def with_one_removed(case, data, target):
    """Two runs of which one has a record less, with the same coins for all others."""
    fewer = tuple(torch.cat([part[:target], part[target + 1 :]]) for part in data)
    pairs = [prepared(case, data), prepared(case, fewer)]
    for (_, loader), removed in zip(pairs, (None, target), strict=True):
        source = Coupled(case["seed"], len(data[0]), removed)
        loader.draws.sampler = replace(loader.draws.sampler, source=source)
        loader.draws.coins = source
    (step, loader), (twin, other) = pairs
    assert step.plan == twin.plan  # nothing that is public knows how many there are
    return step, loader, twin, other


def means(case, steps):
    """The means that steps release before noise; None where a step is refused."""
    found = []

    def spy(total, *, divisor, spacing, **_):
        found[-1].append(on_lattice(total, divisor, spacing))
        return torch.zeros_like(total)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpdt.algorithm.publish.perturbed", spy)
        patch.setattr("dpdt.methods.gep.engine.perturbed", spy)
        for step, batch in steps:
            found.append([])
            context = (
                torch.autocast("cpu", dtype=torch.bfloat16)
                if case["autocast"]
                else contextlib.nullcontext()
            )
            with context:
                step.engine.step(batch, step.plan.at(batch.step))
    return found


def blocks_of(step, mean):
    """The released vectors block by block, without padding."""
    if len(mean) == 2:  # gep
        return mean
    layout = getattr(step.engine, "layout", None)
    (flat,) = mean
    ends = np.cumsum([0, *layout.columns.sizes])
    return [flat[a:b] for a, b in pairwise(ends)]


@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(cases)
def test_one_record_moves_the_mean_by_no_more_than_is_accounted(case):
    (x, y), target, (other_x, other_y) = draw_data(case)
    changed = (x.clone(), y.clone())
    changed[0][target], changed[1][target] = other_x, other_y
    with warnings.catch_warnings(), contextlib.suppress(InputError):
        warnings.simplefilter("ignore")
        step, loader = prepared(case, (x, y))
        header = step.plan.header
        if header.relation == "add-remove":
            step, loader, twin, other = with_one_removed(case, (x, y), target)
        elif header.relation == "zero-out":
            absent = np.zeros(len(x), dtype=bool)
            absent[target] = True
            twin, other = prepared(case, (x, y), absent)
        else:
            twin, other = prepared(case, changed)
        for number, batches in enumerate(zip(loader, other, strict=True)):
            if number == 2:
                break
            twin.engine.load_state_dict(step.engine.state_dict())
            pairs = zip((step, twin), batches, strict=True)
            found = means(case, pairs)
            limits = sensitivities(step.plan.at(number), header)
            if header.sampling == "poisson" and header.relation == "replace-one":
                limits = [2 * limit for limit in limits]  # it says how far one is from none
            both = [blocks_of(step, mean) for mean in found]
            for a, b, limit in zip(*both, limits, strict=True):
                moved = a.astype(np.longdouble) - b.astype(np.longdouble)
                assert np.sqrt((moved**2).sum()) <= limit


USERS = [
    {"method": "dpdt", "memory": memory, "sampling": "partition", **options}
    for memory in ("auxiliary", "shared", "none")
    for options in ({}, {"reshuffle": True}, {"preconditioner": "rmsprop"},
                    {"preconditioner": "adam", "averaging": 0.5})
    if memory != "none" or "preconditioner" not in options
]  # fmt: skip

users_cases = st.fixed_dictionaries(
    {
        "method": st.sampled_from(USERS),
        "model": st.sampled_from(sorted(MODELS)),
        "granularity": st.sampled_from(["model", "layer", "tensor"]),
        "clip": st.sampled_from([1e-22, 1e-6, 0.1, 1.0, 1e6]),
        "holdings": st.lists(st.integers(0, 6), min_size=2, max_size=9).filter(any),
        "instead": st.sampled_from([0, 0, 1, 2, 5, 17]),  # of the last user's examples
        "auxiliaries": st.sampled_from([1, 2, 4, 9, 9]),
        "batch_size": st.integers(1, 9),
        "scales": st.lists(SCALES, min_size=1, max_size=6),
        "own_loss": st.booleans(),
        "views": st.sampled_from([0, 0, 1, 3]),
        "drawing": st.booleans(),
        "autocast": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)


def draw_users(case, number, another):
    """Examples of users, of whom the last holds so many, here and there among the others'.

    The other users' examples are the same, and in the same order, whatever the last one holds.
    """
    generator = torch.Generator().manual_seed(case["seed"])
    holdings = case["holdings"][:-1]
    rows = [user for user, held in enumerate(holdings) for _ in range(held)]
    rows = [rows[i] for i in torch.randperm(len(rows), generator=generator)]
    x = torch.randn(len(rows), INPUTS, generator=generator)
    y = torch.randint(0, CLASSES, (len(rows),), generator=generator)
    generator.manual_seed(case["seed"] + 1 + another)
    scales = torch.tensor([case["scales"][i % len(case["scales"])] for i in range(number)])
    own = torch.randn(number, INPUTS, generator=generator) * scales.reshape(-1, 1)
    labels = torch.randint(0, CLASSES, (number,), generator=generator)
    n = len(rows) + number
    last = torch.zeros(n, dtype=torch.bool)
    last[torch.randperm(n, generator=generator)[:number]] = True
    data = torch.empty(n, INPUTS), torch.empty(n, dtype=torch.int64)
    for made, others, mine in zip(data, (x, y), (own, labels), strict=True):
        made[~last], made[last] = others, mine
    users = {user: [] for user in range(len(holdings) + 1)}
    theirs = iter(rows)
    for i in range(n):
        users[len(holdings) if last[i] else next(theirs)].append(i)
    return data, users


@settings(max_examples=max(100, CASES // 3), suppress_health_check=list(HealthCheck))
@given(users_cases)
def test_one_user_moves_the_mean_by_no_more_than_is_accounted_however_much_it_holds(case):
    number = len(case["holdings"])
    options = {
        "unit": "user",
        "auxiliaries": min(case["auxiliaries"], number),
        "batch_size": min(case["batch_size"], number),
    }
    case = {**case, "examples": 1, "share": 1.0}
    with warnings.catch_warnings(), contextlib.suppress(InputError):
        warnings.simplefilter("ignore")
        pair = []
        for another, held in enumerate((case["holdings"][-1], case["instead"])):
            data, users = draw_users(case, held, another)
            if not len(data[0]):
                return
            pair.append(prepared(case, data, users=users, **options))
        (step, loader), (twin, other) = pair
        assert step.plan.header == twin.plan.header
        assert step.plan.runs == twin.plan.runs
        assert len(loader) == len(other)
        for at, batches in enumerate(zip(loader, other, strict=True)):
            if at == 4:
                break
            twin.engine.load_state_dict(step.engine.state_dict())
            found = means(case, zip((step, twin), batches, strict=True))
            limits = sensitivities(step.plan.at(at), step.plan.header)
            both = [blocks_of(step, mean) for mean in found]
            for a, b, limit in zip(*both, limits, strict=True):
                moved = a.astype(np.longdouble) - b.astype(np.longdouble)
                assert np.sqrt((moved**2).sum()) <= limit


@settings(max_examples=max(40, CASES // 40), suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["linear", "deep", "dropout", "alpha dropout", "noisy", "foreign", "running"]),
    st.integers(2, 6),
    st.integers(0, 1000),
    SCALES,
)
def test_one_record_moves_one_teachers_vote(model, teachers, seed, scale):
    """PATE: the counts of a query move by √2 at most, the largest of them by 1."""
    case = {"seed": seed, "examples": 12, "scales": [1.0, scale]}
    (x, y), target, _ = draw_data(case)
    counts = []
    for there in (True, False):
        torch.manual_seed(seed)
        absent = np.zeros(len(x), dtype=bool)
        absent[target] = not there
        step, loader = prepare(
            MODELS[model](), (x, y), method="pate", public=torch.randn(9, INPUTS), noise=1.0,
            teachers=teachers, teacher_epochs=2, absent=absent, batch_size=6,
        )  # fmt: skip
        for batch in loader:
            if batch.step == teachers:
                break
            step.engine.step(batch, step.plan.at(batch.step))
        counts.append(step.engine.counts)
    change = counts[0] - counts[1]
    assert float(change.norm(dim=1).max()) <= 2**0.5
    assert float((counts[0].max(1).values - counts[1].max(1).values).abs().max()) <= 1.0


@settings(max_examples=max(100, CASES // 10), suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 5), st.integers(1, 6), st.sampled_from([0.1, 1.0, 30.0]),
    st.lists(SCALES, min_size=1, max_size=6), st.integers(0, 10_000),
)  # fmt: skip
def test_where_the_convex_bound_is_valid_a_record_moves_the_mean_by_its_share(
    auxiliaries, size, radius, scales, seed
):
    """No clipping: one example of b in its micro-batch moves the mean by 2·(2ρη√2R)/(K·b)."""
    case = {"seed": seed, "examples": auxiliaries * size * 2, "scales": scales, "autocast": False}
    (x, y), target, (other_x, other_y) = draw_data(case)
    changed = (x.clone(), y.clone())
    changed[0][target], changed[1][target] = other_x, other_y
    most = float(np.sqrt(2 * (radius**2 + 1)))
    pairs = []
    for data in ((x, y), changed):
        torch.manual_seed(seed)
        step, loader = prepare(
            bounded_linear(INPUTS, CLASSES, radius), data, memory="none", sampling="partition",
            auxiliaries=auxiliaries, batch_size=auxiliaries * size, lr=0.01, penalty=3.0, noise=1.0,
            clip=0.07 * most, granularity="model", release="last", global_lr=0.001, epochs=2,
        )  # fmt: skip
        pairs.append([(step, batch) for batch in loader])
    valid = {g.accountant: g.valid for g in account(step.plan.ledger(), 1e-5).guarantees}
    assert valid["hidden-state-convex"]
    (rounding,) = step.plan.at(0).rounding
    limit = 2 * (2 * 3.0 * 0.01 * most) / (auxiliaries * size) + rounding
    for pair in list(zip(*pairs, strict=True))[:2]:  # both mini-batches, from the same θ
        found = [blocks_of(step, mean) for mean in means(case, pair)]
        ((a,), (b,)) = found
        assert np.sqrt(((a.astype(np.longdouble) - b) ** 2).sum()) <= limit
        pair[1][0].engine.load_state_dict(pair[0][0].engine.state_dict())
