"""Bugs that made the ε of others false, each with the same input (docs/elsewhere.md)."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, WeightedRandomSampler

from dpdt import config
from dpdt.accounting import account
from dpdt.accounting.composition import sensitivities
from dpdt.errors import InputError
from dpdt.noise import Randomness
from tests.numbers import prepare, train
from tests.test_holes import POISSON, SMALL, examples, moved, sum_of

DOCS = Path(__file__).parents[1] / "docs"
ABOUT_PAGES = {"test_the_page_names_every_test_and_no_other", "test_every_pitfall_is_rated"}
DPSGD = {"method": "dpsgd", "clip": 1.0, "noise": 1.0}


def published(monkeypatch):
    """What a run publishes at every step: the divisor, and the noisy mean with its setting."""
    from dpdt.algorithm import publish

    seen, inner = [], publish.perturbed

    def spy(total, *, divisor, **more):
        mean = inner(total, divisor=divisor, **more)
        seen.append((divisor, mean.clone()))
        return mean

    monkeypatch.setattr(publish, "perturbed", spy)
    return seen


@pytest.mark.parametrize("options", POISSON)
@pytest.mark.parametrize("nominal", [None, 40])
def test_the_divisor_does_not_follow_the_examples(options, nominal, monkeypatch):
    """Opacus divides by ⌊rate · n⌋, which one example more can change (#571, #819)."""
    seen = published(monkeypatch)
    for there in (40, 39):
        if nominal:  # the number is private, and another one is declared
            given = {"examples": nominal, "absent": None}
            data = tuple(part[:there] for part in examples())
        else:  # the number is public, and a place is blank
            given, data = {"absent": np.arange(40) >= there}, examples()
        given = {"noise": 1.0, **SMALL, **options, **given}
        step, loader = prepare(nn.Linear(6, 3), data, **given)
        for batch in loader:
            step(batch)
    assert len(seen) == 2 * step.plan.steps
    assert len({divisor for divisor, _ in seen}) == 1


@pytest.mark.parametrize("batches", [True, False])
def test_a_sampler_of_ones_own_is_refused(batches):
    """With a weighted sampler Opacus accounted by the sampler's length (#813)."""
    data = TensorDataset(*examples())
    sampler = WeightedRandomSampler(torch.arange(40) + 1.0, num_samples=10)
    drawn = {"batch_size": 5, "sampler": sampler}
    if batches:
        drawn = {"batch_sampler": BatchSampler(sampler, 5, drop_last=False)}
    with pytest.raises(InputError, match="data: the DataLoader draws examples its own way"):
        prepare(nn.Linear(6, 3), DataLoader(data, **drawn), **SMALL, **DPSGD)


def test_a_clip_is_public_and_the_one_that_is_accounted():
    """A clip that follows the norms of gradients asks the data a second question at each step."""
    for clip in ("adaptive", "auto", lambda step: 1.0):
        with pytest.raises(InputError, match=r"^method\.clip: "):
            prepare(nn.Linear(6, 3), examples(), **{**SMALL, **DPSGD, "clip": clip})
    step, loader = prepare(nn.Linear(6, 3), examples(), **SMALL, **DPSGD)
    for batch in loader:
        step(batch)
    assert {run.setting.clip for run in step.writer.ledger.runs} == {(1.0,)}
    with pytest.raises(AttributeError):
        step.writer.ledger.runs[0].setting.clip = (9.0,)


def test_batches_are_accounted_as_they_are_drawn():
    """Shuffled batches of equal size were accounted as if they were Poisson samples (#80)."""
    shuffled = DataLoader(TensorDataset(*examples()), batch_size=10, shuffle=True)
    with pytest.warns(UserWarning, match="so dpdt decides it"):
        step, loader = prepare(nn.Linear(6, 3), shuffled, **SMALL, **DPSGD)
    assert step.plan.header.sampling == "poisson"
    assert len({len(batch.sizes) for batch in loader}) > 1  # and Poisson samples are what is drawn
    step, _ = prepare(nn.Linear(6, 3), examples(), **SMALL, **DPSGD)
    with pytest.raises(InputError):
        step(tuple(part[:10] for part in examples()))
    partition = {**SMALL, **DPSGD, "sampling": "partition"}
    fixed, _ = prepare(nn.Linear(6, 3), examples(), **partition)
    assert fixed.plan.header.sampling == "partition"
    poisson, partitioned = (account(s.plan.ledger(), 1e-3).epsilon for s in (step, fixed))
    assert partitioned > 2 * poisson


@pytest.mark.parametrize("options", POISSON)
def test_an_empty_batch_is_a_step_with_noise(options):
    """Poisson samples that were empty ended the loop, or were passed over (#161, #522)."""
    model = nn.Linear(6, 3)
    few = {"noise": 1.0, "batch_size": 1, "epochs": 2, **options}
    step, loader = prepare(model, examples(), **few)
    empty = 0
    for batch in loader:
        before = model.weight.detach().clone()
        step(batch)
        if not batch.sizes:
            empty += 1
            assert not torch.equal(model.weight, before)
    assert empty
    assert step.writer.ledger.steps == step.plan.steps == 80


class Tied(nn.Module):
    """An embedding whose weights are also those of the last layer."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.tanh(self.words(x)).sum(1))


@pytest.mark.parametrize("options", POISSON)
def test_tied_weights_are_summed_and_then_clipped_once(options):
    """Gradients of a weight that has two places were stacked, as if of more examples (#413)."""
    generator = torch.Generator().manual_seed(0)
    data = (torch.randint(0, 5, (40, 3), generator=generator), torch.arange(40) % 5)
    given = {**options, "batch_size": 40}
    assert moved(Tied, data, 3, clip=1e-3, **given) <= 1.0
    if options.get("method") != "dpsgd":
        return
    torch.manual_seed(1)
    model = Tied()
    found = sum_of(model, data, np.ones(40, dtype=bool), clip=1e3, **given)
    torch.manual_seed(1)
    model = Tied()
    F.cross_entropy(model(data[0]), data[1], reduction="sum").backward()
    assert torch.allclose(found, model.words.weight.grad.flatten().double(), atol=1e-4)


@pytest.mark.parametrize("least", [0, -100])
def test_a_range_that_is_declared_decides_no_sensitivity(least, tmp_path):
    """A range from 0 to 100 gave the sensitivity 0 (diffprivlib #104): one end was taken twice."""
    rows = [f"{value},{'ab'[i % 2]}" for i, value in enumerate([1e9, -1e9, 5, 50] * 25)]
    (tmp_path / "t.csv").write_text("\n".join(["size,kind", *rows, ""]))
    columns = f"data.columns={{size=[{least},100],kind=['a','b']}}"
    given = (f"data.name={tmp_path / 't.csv'}", "data.target=kind", columns,
             "privacy.epsilon=3", "train.batch_size=10", "method.name=dpsgd")  # fmt: skip
    chosen = config.load(str(tmp_path / "t.csv"), given)
    plan = config.plan_of(chosen)
    clip = plan.ledger().runs[0].setting.clip[0]
    per_record = sensitivities(plan.ledger().runs[0].setting, plan.header)[0]
    divisor = plan.header.auxiliaries
    assert clip / divisor <= per_record <= clip / divisor * (1 + 1e-5)
    inputs = chosen.data.load().train[0]
    assert 0.0 <= float(inputs.min()) <= float(inputs.max()) <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_53_bits_and_what_is_published_lies_on_a_public_grid(dtype, monkeypatch):
    """Noise of 32 bits has holes between its values, which tell what it was added to (#616)."""
    drawn = Randomness().gaussian(10_000)
    assert drawn.dtype == np.float64
    assert (drawn.astype(np.float32) == drawn).mean() < 0.01
    seen = published(monkeypatch)
    x, y = examples()
    train(nn.Linear(6, 3).to(dtype), (x.to(dtype), y), **SMALL, **DPSGD)
    step, _ = prepare(nn.Linear(6, 3).to(dtype), (x.to(dtype), y), **SMALL, **DPSGD)
    (grid,) = step.plan.ledger().runs[0].setting.grid
    for _, mean in seen:
        assert torch.equal(mean, (mean / grid).round() * grid)
        assert float(mean.abs().max()) > 1e3 * grid


@pytest.mark.parametrize("loss", [None, F.cross_entropy, nn.CrossEntropyLoss(ignore_index=2)])
@pytest.mark.parametrize("options", POISSON)
def test_an_ignored_label_weighs_like_any_other(options, loss):
    """Means over what is not ignored tie examples together; means over all weigh them wrongly."""
    x, y = examples()
    ignored = 2 if isinstance(loss, nn.Module) else -100
    y[y == 2], y[4:9] = 1, ignored
    given = {"clip": 1e6, "batch_size": 40, "loss": loss, **options}
    sums = []
    for blank in ([], range(4, 9)):
        present = np.ones(40, dtype=bool)
        present[list(blank)] = False
        torch.manual_seed(1)
        sums.append(sum_of(nn.Linear(6, 3), (x, y), present, **given))
    assert torch.equal(*sums)  # they add nothing, and change nothing of the others


def test_the_page_names_every_test_and_no_other():
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "elsewhere.md").read_text()))
    assert named == {name for name in globals() if name.startswith("test_")} - ABOUT_PAGES


def test_every_pitfall_is_rated():
    lines = (DOCS / "pitfalls.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    ratings = [row[1] for row in rows if row[1] != "rating"]
    assert set(ratings) == {"Critical", "Theoretical", "Negligible", "none"}
    assert ratings.count("none") == 1  # which is about a reader, and no guarantee
    assert len(ratings) > 60
