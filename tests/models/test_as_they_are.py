"""Models of transformers and peft, and Hugging Face datasets, as they are."""

import math

import pytest
import torch
from torch import nn

import dpdt
from dpdt import InputError

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
N = 24
QUICK = {
    "method": "dpsgd", "sampling": "partition", "epochs": 1, "batch_size": 8, "noise": 1.0,
    "lr": 0.1,
}  # fmt: skip
GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(1, 30, (N, 8), generator=GENERATOR)
MASK = (torch.arange(8) < torch.randint(3, 9, (N, 1), generator=GENERATOR)).long()
Y = torch.randint(0, 2, (N,), generator=GENERATOR)
TEXTS = {"input_ids": IDS, "attention_mask": MASK}


def bert(labels=2, kind=None):
    torch.manual_seed(0)
    small = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16, num_labels=labels,
    )  # fmt: skip
    return (kind or transformers.BertForSequenceClassification)(small)


def gpt2():
    torch.manual_seed(0)
    small = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=30, n_positions=16, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(small)


def last(model, data, **options):
    return dpdt.train(model, data, test=data, **{**QUICK, **options}).history[-1]


def tokens():
    """Texts as a causal model learns them: the labels are the tokens, padding is left out."""
    return {**TEXTS, "labels": IDS.masked_fill(MASK == 0, -100)}


def test_a_classifier_of_texts():
    model = bert()
    record = last(model, {**TEXTS, "labels": Y})
    with torch.no_grad():
        right = model(**TEXTS).logits.argmax(1) == Y
    assert record["accuracy"] == pytest.approx(float(right.float().mean()))


def test_a_number_for_each_text():
    model, y = bert(labels=1), torch.rand(N, generator=GENERATOR).double()
    record = last(model, {**TEXTS, "labels": y})
    with torch.no_grad():
        off = model(**TEXTS).logits.squeeze(1) - y
    assert record["mse"] == pytest.approx(float(off.square().mean()), rel=1e-5)


def test_several_labels_for_each_text():
    data = {**TEXTS, "labels": torch.randint(0, 2, (N, 3), generator=GENERATOR).float()}
    assert last(bert(labels=3), data)["test_loss"] > 0  # what they are for is not certain
    assert 0 <= last(bert(labels=3), data, task="multi-label")["label_accuracy"] <= 1


@pytest.mark.parametrize("adapted", [False, True])
def test_the_next_token_with_or_without_adapters(adapted):
    model = gpt2()
    if adapted:
        chosen = peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
        model = peft.get_peft_model(model, chosen)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    assert bool(frozen) == adapted
    record = last(model, tokens())
    with torch.no_grad():
        expected = math.exp(model(**tokens()).loss)  # a mean over all tokens, as here
    assert record["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)


def test_a_label_for_each_token_is_not_taken_for_the_next_one():
    model = bert(labels=3, kind=transformers.BertForTokenClassification)
    y = torch.randint(0, 3, (N, 8), generator=GENERATOR).masked_fill(MASK == 0, -100)
    record = last(model, {**TEXTS, "labels": y})
    with torch.no_grad():
        right = (model(**TEXTS).logits.argmax(-1) == y)[y != -100]
    assert record["accuracy"] == pytest.approx(float(right.float().mean()))


def test_the_defaults_train_a_model_of_transformers():
    result = dpdt.train(bert(), {**TEXTS, "labels": Y}, epochs=1, batch_size=12, noise=2.0)
    assert result.history[-1]["loss"] < math.inf


def test_padding_says_nothing_and_attention_goes_along():
    """What stands behind the mask does not move the model."""
    results = []
    for padding in (0, 7):
        model = bert()
        ids = torch.where(MASK > 0, IDS, padding)
        last(model, {"input_ids": ids, "attention_mask": MASK, "labels": Y}, noise=0.0)
        results.append(torch.cat([p.detach().flatten() for n, p in model.named_parameters()
                                  if "word_embeddings" not in n]))  # fmt: skip
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


datasets = pytest.importorskip("datasets")


def table(**columns):
    return datasets.Dataset.from_dict({**{k: v.tolist() for k, v in TEXTS.items()}, **columns})


def test_a_dataset_of_the_hub_trains_as_its_tensors_do():
    def trained(data):
        model = bert()
        dpdt.train(model, data, **{**QUICK, "noise": 0.0})
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    expected = trained({**TEXTS, "labels": Y})
    for data in (table(label=Y.tolist()), table(labels=Y.tolist())):
        assert torch.equal(trained(data), expected)
    for form in ("torch", "numpy"):
        data = table(labels=Y.tolist(), text=["a"] * N)
        data.set_format(form, columns=["input_ids", "attention_mask", "labels"])
        assert torch.equal(trained(data), expected)


def test_what_is_no_tokens_is_refused():
    for data, match in (
        (table(label=Y.tolist(), text=["a"] * N), r"^data: column 'text' holds texts"),
        (datasets.DatasetDict(train=table()), r"^data: must be one split"),
        (table(), r"^data: has no targets"),
    ):
        with pytest.raises(InputError, match=match):
            dpdt.prepare(bert(), data, **QUICK)


def test_padding_to_the_longest_of_a_batch_is_refused():
    """A collator sees one text at a time, so it cannot pad to others."""
    rows = [{"input_ids": list(range(1, 3 + i % 4)), "labels": i % 2} for i in range(N)]
    longest = transformers.DataCollatorWithPadding(_Tokenizer())
    data = torch.utils.data.DataLoader(rows, batch_size=4, collate_fn=longest)
    with (
        pytest.warns(UserWarning, match="of the DataLoader"),
        pytest.raises(InputError, match=r"padding='max_length'"),
    ):
        dpdt.prepare(bert(), data, **QUICK)


class _Tokenizer:
    """As much of a tokenizer as a collator asks for."""

    deprecation_warnings: dict = {}  # noqa: RUF012

    def pad(self, rows, padding=True, **_):
        longest = max(len(r["input_ids"]) for r in rows)
        ids = [r["input_ids"] + [0] * (longest - len(r["input_ids"])) for r in rows]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor([r["labels"] for r in rows])}


def test_a_model_of_ones_own_that_takes_a_mapping_needs_a_loss():
    class Named(nn.Linear):
        def forward(self, numbers, labels=None):
            return super().forward(numbers)

    data = {"numbers": torch.randn(20, 3), "labels": torch.arange(20) % 2}
    given = {"epochs": 1, "batch_size": 10, "noise": 1.0}
    with pytest.raises(InputError, match=r"^loss: a model that is given a mapping must give its l"):
        dpdt.train(Named(3, 2), data, **given)
    result = dpdt.train(Named(3, 2), data, loss=nn.CrossEntropyLoss(), test=data, **given)
    assert 0.0 <= result.history[-1]["accuracy"] <= 1.0
    public = {"numbers": torch.randn(30, 3)}
    for method, more in (("gep", {"directions": 2, "lr": 0.1}), ("pate", {"teachers": 3})):
        dpdt.train(
            Named(3, 2), data, loss=nn.CrossEntropyLoss(), method=method, public=public, **given,
            **more,
        )  # fmt: skip
