"""What transformers and PEFT read from a release is the model."""

import json

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

import dpdt
from dpdt import data, models
from dpdt.models import pretrained
from dpdt.models.settings import ModelSettings
from dpdt.releasing.export import export
from tests.models.test_pretrained import TEXTS
from tests.releasing.folders import MAKE, bert, texts


def finished(tmp_path, kind, what):
    """A run's model, what it was trained from, and tokens to ask it about."""
    base = tmp_path / "base"
    MAKE[kind](base)
    texts(tmp_path / "run", base, what)
    model = dpdt.load(tmp_path / "run")
    return model, base, pretrained.encode(model.settings, TEXTS)


def close(found, wanted):
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["all", "head"])
def test_an_encoder_is_a_backbone_and_a_head(tmp_path, what):
    """The mean of all tokens, then the head, as docs/predict.md says."""
    model, _, tokens = finished(tmp_path, "bert", what)
    files = export(model, tmp_path / "out")
    assert {"config.json", "model.safetensors", "head.safetensors"} <= {p.name for p in files}
    backbone = transformers.AutoModel.from_pretrained(tmp_path / "out", add_pooling_layer=False)
    head = load_file(tmp_path / "out" / "head.safetensors")
    mask = tokens["attention_mask"][..., None]
    with torch.no_grad():
        mean = (backbone(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
        close(mean @ head["weight"].T + head["bias"], model(tokens))


@pytest.mark.parametrize("what", ["all", "head"])
def test_a_causal_model_is_a_sequence_classifier(tmp_path, what):
    model, _, tokens = finished(tmp_path, "gpt2", what)
    export(model, tmp_path / "out")
    read = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        close(read(**tokens).logits, model(tokens))
        backbone = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
        close(backbone(**tokens).last_hidden_state, model.backbone(**tokens).last_hidden_state)


def test_a_vision_transformer_is_an_image_classifier(tmp_path):
    facts = data.Facts(examples=1, shape=(3, 8, 8), classes=5)
    settings = ModelSettings(name="vit-small", patch=4, width=1 / 12, layers=2)
    model = models.build(settings, facts, 0).eval()
    export(model, tmp_path)
    read = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        close(read(pixel_values=x).logits, model(x))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_adapters_are_read_by_peft(tmp_path, kind):
    model, base, tokens = finished(tmp_path, kind, "lora")
    files = export(model, tmp_path / "out")
    assert not any(p.name in ("model.safetensors", "README.md") for p in files)
    start = transformers.AutoModel.from_pretrained(base)
    plain = start.eval()(**tokens).last_hidden_state.detach()
    read = peft.PeftModel.from_pretrained(start, tmp_path / "out").eval()
    with torch.no_grad():
        found = read(**tokens).last_hidden_state
        close(found, model.backbone(**tokens).last_hidden_state)
    assert not torch.allclose(found, plain, atol=1e-3)  # the adapters do something
    head = load_file(tmp_path / "out" / "head.safetensors")
    assert torch.equal(head["weight"], model.head.weight)
    said = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] is None


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_tokenizer_goes_along(tmp_path, kind):
    model, _, tokens = finished(tmp_path, kind, "lora")
    export(model, tmp_path / "out")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    found = read(TEXTS, padding="max_length", max_length=12, truncation=True, return_tensors="pt")
    assert torch.equal(found["input_ids"], tokens["input_ids"])
    assert torch.equal(found["attention_mask"], tokens["attention_mask"])


@pytest.mark.parametrize("what", ["all", "lora"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_same_model_gives_the_same_bytes_and_no_paths(tmp_path, kind, what):
    model, _, _ = finished(tmp_path, kind, what)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    both = [export(model, tmp_path / name) for name in ("one", "two")]
    assert [p.name for p in both[0]] == [p.name for p in both[1]]
    for one, two in zip(*both, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert str(tmp_path).encode() not in one.read_bytes()
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_other_models_have_nothing_to_export(tmp_path):
    assert export(torch.nn.Linear(2, 2), tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_a_class_with_other_answers_is_not_used(tmp_path, monkeypatch):
    """Then backbone and head are two files, as for encoders."""
    model, _, _ = finished(tmp_path, "gpt2", "all")
    monkeypatch.setattr(type(model), "forward", lambda self, x: self.head(self.features(x)) + 1)
    names = {path.name for path in export(model, tmp_path / "out")}
    assert {"model.safetensors", "head.safetensors"} <= names
    backbone = transformers.AutoModel.from_pretrained(tmp_path / "out")
    assert torch.equal(backbone.wte.weight, model.backbone.wte.weight)


def test_models_of_the_libraries_own_classes_are_saved_as_they_are(tmp_path):
    """As `dpdt.train` takes them."""
    bert(tmp_path / "base")
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(tmp_path / "base", num_labels=3).eval()
    tokens = {"input_ids": torch.arange(8).view(2, 4), "attention_mask": torch.ones(2, 4).long()}
    export(model, tmp_path / "whole")
    with torch.no_grad():
        close(
            kind.from_pretrained(tmp_path / "whole").eval()(**tokens).logits, model(**tokens).logits
        )
    base = kind.from_pretrained(tmp_path / "whole")
    chosen = peft.LoraConfig(task_type="SEQ_CLS", init_lora_weights=False)
    adapted = peft.get_peft_model(model, chosen, adapter_name="mine").eval()
    torch.nn.init.ones_(adapted.classifier.modules_to_save["mine"].weight)
    files = export(adapted, tmp_path / "adapters")
    assert [p.name for p in files] == ["adapter_config.json", "adapter_model.safetensors"]
    read = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    with torch.no_grad():
        close(read(**tokens).logits, adapted(**tokens).logits)
    for path in [*files, *(tmp_path / "whole").iterdir()]:
        assert str(tmp_path).encode() not in path.read_bytes()
