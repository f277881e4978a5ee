"""Tokenizers of releases: the same tokens as in training, and one sentence for what is hostile."""

import hashlib
import json
import os
import random
import shutil
from io import BytesIO

import pytest

from dpdt.errors import InputError
from dpdt.models import pretrained
from dpdt.releasing.loading import opened
from dpdt.releasing.predict import predict
from dpdt.releasing.tokens import SETTINGS, WORDS, Tokenizer
from tests.models.test_pretrained import TEXTS
from tests.releasing.folders import MAKE, released, texts

SPECIAL = "transformers/special_tokens_map.json"
NUMBER = int(os.environ.get("DPDT_EXAMPLES", "128"))


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def language(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    MAKE[request.param](folder / "base")
    texts(folder / "run", folder / "base", "head")
    return released(folder / "run", folder / "release")


@pytest.fixture
def release(language, tmp_path):
    return shutil.copytree(language, tmp_path / "release")


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*TEXTS, "a very very very very very good the film was very bad"]))
    return path


def predicted(folder, lines):
    out = BytesIO()
    predict(opened(folder), lines, out)
    return out.getvalue()


def edit(folder, name, **changes):
    found = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(found | changes))


def test_tokens_are_those_of_training(language):
    """Of other lengths too, and of texts that are too long."""
    some = [*TEXTS, "", "unknown", "good " * 30]
    by = pretrained.tokenizer(opened(language).model.settings)
    for length in (3, 5, 12):
        wanted = pretrained.tokens(by, some, length)
        found = Tokenizer(language, length, 300)(some)
        assert found.keys() == wanted.keys()
        longest = int(wanted["attention_mask"].sum(1).max())  # which is as far as is padded
        for name, tensor in wanted.items():
            assert found[name].tolist() == tensor[:, :longest].tolist()


@pytest.mark.parametrize(
    "key", ["vocab", "vocab_file", "tokenizer_file", "merges", "merges_file", "name_or_path"]
)
def test_no_file_elsewhere_is_read(release, lines, tmp_path, key):
    """`"vocab": "/any/path"` in tokenizer_config.json made `predict` read that file."""
    before = predicted(release, lines)
    edit(release, SETTINGS, **{key: str(tmp_path / "elsewhere")})
    shutil.copy(release / WORDS, tmp_path / "elsewhere")
    assert predicted(release, lines) == before
    (release / WORDS).unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json: is missing"):
        predicted(release, lines)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", WORDS, SETTINGS])
def test_no_link_is_followed(release, lines, tmp_path, name):
    predicted(release, lines)
    shutil.move(release / name, tmp_path / "elsewhere")
    (release / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{name}: is a link"):
        predicted(release, lines)


def test_no_folder_that_is_a_link_is_followed(release, lines, tmp_path):
    shutil.move(release / "transformers", tmp_path / "elsewhere")
    (release / "transformers").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="transformers: is a link"):
        predicted(release, lines)


def test_a_tokenizer_without_a_vocabulary_is_refused(release, lines):
    """It made one token of every text, and wrong answers with status 0."""
    model = json.loads((release / WORDS).read_text())["model"]
    edit(release, WORDS, model=model | {"vocab": {}, "merges": []})
    with pytest.raises(InputError, match=r"tokenizer\.json: "):
        predicted(release, lines)
    (release / WORDS).unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json: is missing"):
        predicted(release, lines)


def test_what_is_read_must_be_listed(release, lines):
    """A certificate that leaves the tokenizer out says nothing of how texts are read."""
    names = [p.relative_to(release).as_posix() for p in release.rglob("*") if p.is_file()]
    files = {
        name: {
            "sha256": hashlib.sha256((release / name).read_bytes()).hexdigest(),
            "size": (release / name).stat().st_size,
        }
        for name in names
    }
    (release / "certificate.json").write_text(json.dumps({"files": files}))
    predicted(release, lines)
    kept = (release / WORDS).read_bytes()
    (release / WORDS).write_bytes(kept + b" ")
    with pytest.raises(InputError, match=r"tokenizer\.json: is not the file"):
        predicted(release, lines)
    (release / WORDS).unlink()
    del files[WORDS]
    (release / "certificate.json").write_text(json.dumps({"files": files}))
    with pytest.raises(InputError, match=r"does not list transformers/tokenizer\.json"):
        predicted(release, lines)


def test_a_backbone_that_fails_when_it_is_asked(release, lines):
    """`chunk_size_feed_forward: null` builds a model, and ended `predict` in a traceback."""
    found = json.loads((release / "config.json").read_text())
    if found["backbone"]["model_type"] != "bert":
        pytest.skip("has no such setting")
    found["backbone"]["chunk_size_feed_forward"] = None
    (release / "config.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"release: its model gives no answer \(TypeError: "):
        predicted(release, lines)


@pytest.mark.parametrize(
    ("section", "key", "value", "why"),
    [
        ("backbone", "MANY", 2**63, "must be at most 1000"),
        ("backbone", "MANY", 10**400, "must be at most 1000"),
        ("facts", "task", [], r"facts\.task: must be"),
        ("facts", "task", {"a": None}, r"facts\.task: must be"),
        (None, "labels", ["\ud800", "b"], "is no JSON .*surrogates not allowed"),
    ],
)
def test_values_beyond_all_bounds_in_a_description(release, lines, section, key, value, why):
    """A number of layers of more than 64 bits was built; the others ended in tracebacks."""
    found = json.loads((release / "config.json").read_text())
    inner = found if section is None else found[section]
    if key == "MANY":
        key = next(k for k in ("num_hidden_layers", "n_layer") if k in inner)
    inner[key] = value
    (release / "config.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=rf"config\.json: .*{why}"):
        predicted(release, lines)


def test_a_length_of_any_size_costs_nothing(release, lines):
    """Texts were padded to the length that a release says, up to 2⁶³ tokens."""
    lines.write_text("good\nbad\n")  # no text is cut
    before = predicted(release, lines)
    found = json.loads((release / "config.json").read_text())
    found["model"]["length"] = 2**31
    (release / "config.json").write_text(json.dumps(found))
    assert predicted(release, lines) == before


def strange(coins):
    """A value of a random type."""
    return coins.choice(
        [
            None, True, False, 0, -1, 1, 7, 2**31, 2**32, 2**63, 2**64, 10**400, 0.5, -1e308, "",
            "a", "[PAD]", "/etc/passwd", "\ud800", "x" * 10_000, [], [[]], [1, "a", None], {},
            {"a": None}, {"type": "Nothing"}, {"content": 5}, {"type": "Sequence"}, [None] * 100,
        ]
    )  # fmt: skip


def places(value, path=()):
    """The path of every value in JSON but the whole."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def hostile(text, coins):
    """JSON with strange values at some places, or a part of it, or other bytes."""
    kind = coins.random()
    if kind < 0.1:
        return text[: coins.randrange(len(text))]
    if kind < 0.15:
        return coins.choice(["", "[" * 200_000, "\x00", "\ufeff" + text, "NaN", "5", '"a"', "[]"])
    value = json.loads(text)
    for _ in range(coins.randint(1, 3)):
        *path, last = coins.choice(list(places(value)))
        inner = value
        for key in path:
            inner = inner[key]
        if coins.random() < 0.2 and isinstance(inner, dict) and len(value) > 1:
            del inner[last]
        else:
            inner[last] = strange(coins)
    return json.dumps(value)


def test_hostile_files_predict_or_end_in_one_sentence(language, lines, tmp_path):
    """65 of 128 such files ended in a traceback."""
    coins, known = random.Random(30), {}
    for name in (WORDS, SETTINGS):
        known[name] = (language / name).read_text()
    known[SPECIAL] = json.dumps({"pad_token": "[PAD]", "unk_token": {"content": "a"}})
    ended = []
    for number in range(NUMBER // 2):
        folder = shutil.copytree(language, tmp_path / str(number))
        for name in coins.sample(sorted(known), coins.choice([1, 1, 2, 3])):
            text = hostile(known[name], coins)
            (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            assert predicted(folder, lines).count(b"\n") == 8
        except InputError as error:
            ended.append(str(error))
    assert 0 < len(ended) < NUMBER // 2
    assert not [text for text in ended if "\n" in text or len(text) > 1000]
