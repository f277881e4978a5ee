"""Transformers from local folders: small ones made here, in the library's own format."""

import json
import sys

import pytest
import torch
import transformers

from dpdt import data, models
from dpdt.algorithm.layout import parameters_of
from dpdt.config import training
from dpdt.data import Examples
from dpdt.errors import InputError
from dpdt.models import pretrained
from dpdt.models.frozen import features
from dpdt.models.metrics import accuracy
from dpdt.models.settings import ModelSettings as Model
from tests.numbers import prepare, train

WORDS = ["good", "bad", "film", "a", "the", "was", "very"]
TEXTS = ["a good film", "a bad film", "the film was very good", "bad bad", "the very good", "bad"]
LABELS = torch.tensor([1, 0, 1, 0, 1, 0])


def wordpiece(folder):
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    """A BERT of two layers, with its tokenizer, in the data folder."""
    monkeypatch.setenv("DPDT_DATA", str(tmp_path))
    torch.manual_seed(0)
    small = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    folder = tmp_path / "tiny"
    transformers.BertModel(small).save_pretrained(folder)
    wordpiece(folder)
    return folder


@pytest.fixture
def gpt2(tmp_path, monkeypatch):
    """GPT-2's architecture, small, with a byte-pair tokenizer in GPT-2's two files."""
    monkeypatch.setenv("DPDT_DATA", str(tmp_path))
    folder = tmp_path / "tiny-gpt2"
    small = transformers.GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    transformers.GPT2Model(small).save_pretrained(folder)
    letters = {chr(c): i for i, c in enumerate(range(33, 127))}
    letters |= {"Ġ": 94, "go": 95, "goo": 96, "<|endoftext|>": 97}
    (folder / "vocab.json").write_text(json.dumps(letters))
    (folder / "merges.txt").write_text("#version: 0.2\ng o\ngo o\n")
    return folder


FACTS = data.Facts(examples=6, shape=(), classes=2, text=True)


def learner(model, **options):
    built = models.build(model, FACTS, 0)
    examples = Examples(train=(TEXTS, LABELS), test=(TEXTS, LABELS))
    trainee = built.head if models.has_features(model, False) else built
    return built, trainee, models.inputs(built, model, examples, augment=False)


@pytest.mark.parametrize("trained", ["all", "lora", "head"])
def test_an_encoder_learns(encoder, trained):
    whole, trainee, examples = learner(Model(name="tiny", trained=trained, length=8, lora_rank=4))
    before = {n: p.detach().clone() for n, p in whole.named_parameters()}
    result = train(
        trainee, examples.train, test=examples.test, method="plain", optimizer="adamw", lr=0.02,
        batch_size=6, epochs=40,
    )  # fmt: skip
    assert result.history[-1]["accuracy"] == 1.0
    # the whole model has learnt, also where only its head was trained, on features
    tokens = pretrained.encode(Model(name="tiny", length=8), TEXTS)
    assert accuracy(whole, (tokens, LABELS)) == 1.0
    moved = {n for n, p in whole.named_parameters() if not torch.equal(p, before[n])}
    frozen = {n for n, p in whole.named_parameters() if not p.requires_grad}
    assert not moved & frozen
    assert moved


def test_gpt2_with_lora_from_its_own_files(gpt2):
    _, trainee, examples = learner(Model(name="tiny-gpt2", trained="lora", length=12))
    names = [p.name for p in parameters_of(trainee)]
    assert len(names) == 2 * 2 + 1
    assert "backbone.base_model.model.h.1.attn.c_attn.lora_B.default.weight" in names
    step, loader = prepare(
        trainee, examples.train, auxiliaries=2, memory="auxiliary", noise=0.1, batch_size=6,
        epochs=1, preconditioner="rmsprop",
    )  # fmt: skip
    for batch in loader:
        assert torch.isfinite(torch.tensor(step(batch).loss))


def test_texts_do_not_feel_their_padding(encoder, gpt2):
    """Right padding, the mask and the pooled token are consistent for both kinds of model."""
    for name in ("tiny", "tiny-gpt2"):
        model = models.build(Model(name=name), FACTS, 0).eval()
        long = pretrained.encode(Model(name=name, length=14), TEXTS)
        alone = pretrained.encode(Model(name=name, length=10), TEXTS[1:2])
        with torch.no_grad():
            torch.testing.assert_close(model(long)[1:2], model(alone))


def test_a_text_is_one_example_to_the_engine(encoder):
    """Per-example auxiliaries with texts of different lengths: no mixing, no refusal."""
    _, trainee, examples = learner(Model(name="tiny", trained="lora", length=8))
    step, loader = prepare(
        trainee, examples.train, memory="none", noise=0.0, clip=1e-3, batch_size=6, epochs=1
    )
    before = torch.cat([p.detach().flatten() for p in trainee.parameters() if p.requires_grad])
    step(next(iter(loader)))
    after = torch.cat([p.detach().flatten() for p in trainee.parameters() if p.requires_grad])
    blocks = len(step.plan.header.blocks)
    assert 0 < float((after - before).norm()) <= 0.99 * 1e-3 * blocks**0.5


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'dpdt\[text\]'"):
        models.build(Model(name="gpt2", pretrained=False), FACTS, 0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "tiny: holds no model"),
        (lambda f: (f / "model.safetensors").write_bytes(b"xx"), "tiny: cannot be loaded"),
    ],
)
def test_a_damaged_folder_is_named(encoder, damage, message):
    damage(encoder)
    with pytest.raises(InputError, match=message):
        models.build(Model(name="tiny"), FACTS, 0)


def test_settings_of_the_paper_reach_the_adapters(encoder):
    model = models.build(Model(name="tiny", trained="lora"), FACTS, 0)
    adapter = next(m for n, m in model.named_modules() if n.endswith("self.query"))
    assert adapter.scaling == {"default": 32 / 16}
    assert training(noise=1.0).method.name == "dpdt"


def test_features_of_a_text_do_not_depend_on_the_others(encoder):
    """To the bit: neither on how many there are, nor on how long they are, nor on their order."""
    chosen = Model(name="tiny", trained="head", length=16)
    model = models.build(chosen, FACTS, 0)
    many = [" ".join(WORDS[(i * j) % 7] for j in range(1 + i % 11)) for i in range(150)]

    def of(texts):
        tokens = pretrained.encode(chosen, texts)
        return features(model, (tokens, torch.zeros(len(texts), dtype=torch.long)))[0]

    whole = of(many)
    changed = of([*many[:40], "bad " * 12, *many[41:]])
    others = [i for i in range(150) if i != 40]
    assert torch.equal(whole[others], changed[others])
    assert not torch.equal(whole[40], changed[40])
    assert torch.equal(of(many[10:71]), whole[10:71])
    assert torch.equal(of(many[::-1]), whole.flip(0))
    # and they are the model's own, up to rounding
    alone = torch.cat([model.features(pretrained.encode(chosen, [t])) for t in many[:20]])
    torch.testing.assert_close(whole[:20], alone.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trained", ["lora", "all"])
def test_transformers_are_computed_together_by_taps(encoder, trained):
    """Though they cut texts to their length and look into masks, which vmap forbids."""
    settings = Model(name="tiny", trained=trained, lora_rank=2, length=12)
    tokens = pretrained.encode(settings, TEXTS)
    model = models.build(settings, FACTS, 0)
    step, loader = prepare(
        model, (tokens, LABELS), batch_size=6, epochs=1, noise=1.0, lr=0.1, sampling="partition"
    )
    step(next(iter(loader)))
    (how,) = step.engine.executor.found.values()
    assert how.taps is not None
