"""What is told beforehand is what is done: `dpdt account X` is the ledger of the run of X."""

import pytest
import torch
import transformers

from dpdt import account, config, data, models
from dpdt.errors import InputError
from dpdt.methods import METHODS
from dpdt.methods.plan import decide
from dpdt.methods.problem import Problem
from dpdt.models.loss import default_loss as LOSS
from dpdt.training.run import Assembled, run

KINDS = ("none", "mislabelled", "noise", "gradient")
SHORT = ("train.epochs=2",)
# Algorithm 1 in all its memories, each with settings that it allows; numbers, so that even the
# learning rate can be told without a model.
MEMORIES = {
    "auxiliary": ("sampling=partition", "auxiliaries=20", "lr=0.1", "averaging=0.0"),
    "shared": ("sampling=partition", "lr=0.1", "averaging=0.0", "granularity=layer"),
    "none": ("sampling=partition", "lr=0.1", "averaging=0.0", "clip=3.0"),
}


def canaries(kind):
    return () if kind == "none" else ("audit.canaries=40", f"audit.canary={kind}")


def both(chosen, examples=None):
    """The plan from the configuration alone, and the one that the run has."""
    told = config.plan_of(chosen)
    step, _ = Assembled.of(chosen, examples, None).prepare(chosen, False)
    return told, step.plan


def assert_same(told, done):
    assert told.problem == done.problem
    assert told.header == done.header
    privacy = told.training.privacy
    first, second = (
        account(p.ledger(), privacy.delta, allow_large_delta=privacy.allow_large_delta)
        for p in (told, done)
    )
    assert first.proven == second.proven
    for one, other in zip(first.guarantees, second.guarantees, strict=True):
        assert (one.epsilon, one.mu, one.valid) == (other.epsilon, other.mu, other.valid)
    if told.training.method.lr == "auto":  # which is measured on the model, when it is there
        told = told.at_rate(done.at(0).lr)
    assert told.ledger().runs == done.ledger().runs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_canary(method, kind):
    sets = ("privacy.epsilon=3.0", *SHORT, *canaries(kind))
    chosen = config.load("digits", sets, method)
    if kind == "gradient" and method in ("pate", "plain"):
        for attempt in (config.plan_of, both):
            with pytest.raises(InputError, match=r"audit\.canary"):
                attempt(chosen)
        return
    assert_same(*both(chosen))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("radius", [(), ("model.radius=1",)])
@pytest.mark.parametrize("memory", MEMORIES)
def test_every_memory_and_canary(memory, radius, kind):
    """With a radius the convex bound may hold; the run used to prove 8 where 2.753 was told."""
    method = tuple(f"method.{text}" for text in (*MEMORIES[memory], f"memory={memory}"))
    sets = (*SHORT, *radius, *method, *canaries(kind), "privacy.release=last")
    assert_same(*both(config.load("digits", sets)))


@pytest.fixture
def minilm(tmp_path, monkeypatch):
    """A small encoder where some presets look for theirs."""
    monkeypatch.setenv("DPDT_DATA", str(tmp_path))
    small = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=128,
    )  # fmt: skip
    transformers.BertModel(small).save_pretrained(tmp_path / "minilm")


@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", config.presets())
def test_every_preset(preset, method):
    """On examples of the shape that its data have, which need not be here."""
    sets = ("model.layers=1", "model.pretrained=false") if preset == "sst2" else ()
    if config.load(preset).method.name != method:
        sets += ("privacy.epsilon=3.0", "privacy.delta=1e-6", "data.public=200", "train.epochs=2")
    chosen = config.load(preset, sets, method)
    facts = data.facts(chosen.data.name, chosen.data.limit)
    learner = models.learner(
        models.build(chosen.model, facts, 0), chosen.model, chosen.train.augment
    )
    y = torch.zeros(facts.examples, dtype=torch.long)
    done = decide(chosen.training, Problem.of(learner, (y, y), y[: chosen.data.public], LOSS))
    assert_same(config.plan_of(chosen), done)


@pytest.mark.parametrize(
    "name", ["linear", "mlp", "cnn", "resnet18", "scatter", "patches", "vit-small"]
)
@pytest.mark.parametrize("augment", [False, True])
def test_a_problem_is_equal_from_a_configuration_and_from_a_model(name, augment):
    sets = ("data.name=cifar10", f"model.name={name}", f"train.augment={str(augment).lower()}")
    chosen = config.load("digits", (*sets, "data.public=5", "model.width=0.125"))
    facts = data.facts("cifar10")
    model = models.build(chosen.model, facts, 0)
    learner = models.learner(model, chosen.model, augment)
    x = torch.zeros(1, *facts.shape).expand(facts.examples, *facts.shape)
    y = torch.zeros(facts.examples, dtype=torch.long)
    found = Problem.of(learner, (x, y), torch.zeros(5, *facts.shape), LOSS)
    assert found == config.problem_of(chosen)


def test_a_head_without_a_bias_is_not_whitened_by_either():
    """GPT-2's head has none; to say otherwise was accounted, and could not be trained."""
    sets = (
        "model.name=gpt2", "model.layers=1", "model.pretrained=false", "model.trained=head",
        "data.limit=100", "data.public=50",
    )  # fmt: skip
    chosen = config.load("sst2-head", sets)
    facts = data.facts("sst2", 100)
    learner = models.learner(models.build(chosen.model, facts, 0), chosen.model, False)
    x, y = torch.zeros(100, learner.in_features), torch.zeros(100, dtype=torch.long)
    found = Problem.of(learner, (x, y), x[:50], LOSS)
    assert found == config.problem_of(chosen)
    assert not found.linear


def test_a_run_of_something_else_than_was_accounted_is_refused(tmp_path, monkeypatch):
    chosen = config.load("digits", SHORT)
    monkeypatch.setattr(models, "build", lambda *_: torch.nn.Linear(64, 10, bias=False))
    with pytest.raises(InputError, match="not the one that the guarantee"):
        run(chosen, tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()
