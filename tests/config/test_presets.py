"""Every preset: it loads, it is accounted, and its model takes a real step."""

import pytest
import torch

from dpdt import config, data, models
from dpdt.accounting import account
from dpdt.algorithm.batch import tree_map
from dpdt.config import plan_of
from dpdt.training.loop import prepare

PAPER = ("cifar10", "cifar100", "imagenet100", "sst2")
# those whose model is read from a folder need it
HERE = [n for n in config.presets() if n not in ("sst2-small", "sst2-head")]


def test_the_papers_experiments_and_their_small_twins_are_there():
    for name in PAPER:
        assert {name, f"{name}-small"} <= set(config.presets())


@pytest.mark.parametrize("name", HERE)
def test_a_preset_is_accounted_before_it_is_run(name):
    chosen = config.load(name)
    asked = chosen.privacy
    privacy = account(
        plan_of(chosen).ledger(), asked.delta, allow_large_delta=asked.allow_large_delta
    )
    assert privacy.proven.accountant != "paper"
    if name.removesuffix("-small") in PAPER:
        assert (chosen.method.memory, chosen.method.auxiliaries) == (
            "auxiliary", 16 if "sst2" in name else 40,
        )  # fmt: skip


@pytest.mark.parametrize("name", HERE)
def test_a_preset_takes_a_real_step(name):
    """The whole model, few auxiliaries and examples; GPT-2 Medium with random weights, 2 layers."""
    sets = ["train.batch_size=4", "data.limit=8"]
    text = data.facts(config.load(name).data.name).text
    if config.load(name).method.memory == "auxiliary":
        sets.append("method.auxiliaries=2")
    if text:
        sets += ["model.pretrained=false", "model.layers=2"]
    chosen = config.load(name, tuple(sets))
    facts = data.facts(chosen.data.name, 8)
    model = models.build(chosen.model, facts, 0)
    x = torch.randn(8, *facts.shape)
    if text:
        x = {
            "input_ids": torch.randint(0, 50_257, (8, 9)),
            "attention_mask": torch.ones(8, 9, dtype=torch.long),
        }
    y = torch.arange(8) % facts.classes
    if models.has_features(chosen.model, chosen.train.augment):
        x, model = model.features(x), model.head
    public = tree_map(lambda t: t.flip(0)[:7], x) if chosen.data.public else None
    step, loader = prepare(model, (x, y), public=public, using=chosen)
    before = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
    result = step(next(iter(loader)))
    after = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)
    assert result.nonfinite == 0
    assert step.privacy().proven is not None


def test_plain_training_has_its_own_values_in_every_small_twin():
    for name in PAPER:
        chosen = config.load(f"{name}-small", method="plain")
        assert chosen.method.name == "plain"
        assert chosen.train.batch_size < config.load(f"{name}-small").train.batch_size
