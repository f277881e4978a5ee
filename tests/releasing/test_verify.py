"""Whatever is changed in a release is noticed, and named."""

import hashlib
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpdt
from dpdt.errors import InputError
from dpdt.ledger import Ledger, text_of
from dpdt.releasing import canonical
from dpdt.releasing import certificate as certificates
from dpdt.releasing.card import card
from dpdt.releasing.loading import opened
from dpdt.releasing.verify import difference, verify
from dpdt.weights import hash_of_file

from .conftest import trained, write_keys

EXAMPLES = int(os.environ.get("DPDT_EXAMPLES", "100"))
FILES = ("certificate.json", "config.json", "README.md", "model.safetensors")


def body_of(folder):
    return json.loads((folder / "certificate.json").read_text())


def remade(folder, body):
    """Write a certificate as whoever can change files would: card and hashes made anew."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "README.md").write_text(card(body, config))
    for name in body["files"]:
        raw = (folder / name).read_bytes()
        body["files"][name] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    body["digest"] = certificates.digest(body)
    (folder / "certificate.json").write_bytes(canonical.dump(body))


def problems(folder, **given):
    return verify(folder, **given).problems


def test_a_release_is_right(unsigned, signed, keys):
    found = verify(unsigned)
    assert (found.ok, found.problems, found.signer, found.pinned) == (True, [], None, False)
    assert found.guarantee["epsilon"] == trained().privacy.epsilon
    assert {path.name for path in unsigned.iterdir()} == set(FILES)
    assert verify(signed).signer.startswith("SHA256:")
    assert verify(signed, key=keys[1]).pinned


@pytest.mark.parametrize(
    ("kind", "name", "begin"),
    [*(("plain", name, b"") for name in FILES), ("signed", FILES[0], b'"signature"')],
)
def test_every_byte_counts(made, kind, name, begin, tmp_path):
    """Each byte of each file from where it begins, one at a time, with one bit changed."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for each in FILES:
        (folder / each).write_bytes((made / kind / each).read_bytes())
    assert verify(folder).ok
    raw, generator = (folder / name).read_bytes(), random.Random(0)
    with open(folder / name, "r+b", buffering=0) as file:
        for place in range(raw.index(begin), len(raw)):
            byte = raw[place]
            file.seek(place)
            file.write(bytes([byte ^ (1 << generator.randrange(8))]))
            found = verify(folder)
            assert not found.ok, place
            assert found.problems[0].startswith(f"{name}: "), place
            file.seek(place)
            file.write(bytes([byte]))
    assert verify(folder).ok


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("how", ["cut", "longer", "missing", "link", "pipe"])
def test_a_file_that_is_not_as_it_was_is_named(unsigned, tmp_path, name, how):
    path = unsigned / name
    raw = path.read_bytes()
    path.unlink()
    if how in ("cut", "longer"):
        path.write_bytes(raw[:-1] if how == "cut" else raw + b"\n")
    elif how == "link":
        (tmp_path / "same").write_bytes(raw)
        path.symlink_to(tmp_path / "same")
    elif how == "pipe":
        os.mkfifo(path)
    assert any(found.startswith(f"{name}: ") for found in problems(unsigned))


@pytest.mark.parametrize("how", ["link", "pipe", "folder", "huge"])
def test_a_certificate_that_is_no_plain_file_is_not_read(unsigned, tmp_path, how):
    path = unsigned / "certificate.json"
    path.rename(tmp_path / "elsewhere")
    if how == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        with open(path, "wb") as file:
            file.truncate(canonical.LIMIT + 1)
    assert problems(unsigned)[0].startswith("certificate.json: cannot be used")


@pytest.mark.parametrize("name", ["more.txt", ".hidden", "transformers/evil.py", "a\x1b[31m"])
def test_what_the_certificate_does_not_list_is_a_problem(unsigned, name):
    (unsigned / name).parent.mkdir(exist_ok=True)
    (unsigned / name).write_text("")
    (found,) = problems(unsigned)
    assert found.endswith("is not part of the release")
    assert found.isprintable()


def test_a_folder_or_a_link_to_one_is_a_problem(unsigned, tmp_path):
    (unsigned / "more").mkdir()
    (unsigned / "transformers").symlink_to(tmp_path)
    assert sorted(problems(unsigned)) == [
        "more: is not part of a release",
        "transformers: is not part of a release",
    ]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "transformers/../../x", "code.py"])
def test_a_certificate_cannot_list_what_no_release_has(unsigned, name):
    body = body_of(unsigned)
    body["files"][name] = {"sha256": "0" * 64, "size": 0}
    body["digest"] = certificates.digest(body)
    (unsigned / "certificate.json").write_bytes(canonical.dump(body))
    assert f"certificate.json: lists {name!r}, which no release has" in problems(unsigned)


def test_what_is_no_release_is_bad_input(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match=r"not a release \(it has no certificate.json\)"):
            verify(folder)


def smaller(body, ledger):
    """A certificate with half the ε, everywhere it stands."""
    half = body["guarantee"]["epsilon"] / 2
    for g in (body["guarantee"], body["privacy"]["proven"], *body["privacy"]["guarantees"]):
        if g["accountant"] == body["guarantee"]["accountant"]:
            g["epsilon"] = half
    body["protects"][1] = body["protects"][1].replace("is more than", "is more or less than")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (smaller, "privacy.guarantees"),
        (lambda b, _: b["guarantee"].update(epsilon=0.1), "guarantee.epsilon is '0.1' but must"),
        (lambda b, _: b["guarantee"].update(observer="last iterate"), "guarantee.observer"),
        (lambda b, _: b["guarantee"]["conditions"].pop(), "guarantee.conditions"),
        (lambda b, _: b["does_not_protect"].pop(), "does_not_protect"),
        (lambda b, _: b["privacy"].update(delta=1e-4), "guarantee.delta|privacy"),
        (lambda b, _: b["privacy"].update(delta=0.1), "must be below 1/n"),
        (lambda b, _: b["ledger"].update(steps=1), "what it says of its ledger"),
        (lambda b, _: b["ledger"].update(closing="0" * 32), "what it says of its ledger"),
        (lambda b, _: b["ledger"]["lines"].pop(), "does not match its hash"),
        (lambda b, _: b.update(weights="0" * 64), "is not the model that the run"),
    ],
)
def test_a_claim_that_does_not_follow_from_its_ledger_is_noticed(unsigned, change, told):
    """All hashes are right: whoever changed it has made them anew."""
    body = body_of(unsigned)
    change(body, None)
    remade(unsigned, body)
    (found,) = problems(unsigned)
    assert any(part in found for part in told.split("|")), found


def put(body, text):
    """Put another ledger into a certificate, with all that is said of it."""
    ledger = Ledger.parse(text, Path("ledger"))
    body["ledger"] = certificates.written(text, ledger)
    return ledger


def test_a_ledger_without_its_end_is_noticed(unsigned):
    body = body_of(unsigned)
    put(body, "\n".join(body["ledger"]["lines"][:-1]) + "\n")
    remade(unsigned, body)
    assert "has no end" in problems(unsigned)[0]


def with_more_noise(body):
    """Everything as if the noise had been ten times as large: only the run was another."""
    ledger = Ledger.parse("\n".join(body["ledger"]["lines"]) + "\n", Path("ledger"))
    ledger.runs = [
        replace(r, setting=replace(r.setting, noise=tuple(10 * s for s in r.setting.noise)))
        for r in ledger.runs
    ]
    body.update(certificates.derived(put(body, text_of(ledger)), body["privacy"]["delta"]))


def test_a_forgery_that_is_consistent_is_noticed_by_the_signature_alone(unsigned, signed, keys):
    body = body_of(unsigned)
    before = body["guarantee"]["epsilon"]
    with_more_noise(body)
    assert body["guarantee"]["epsilon"] < before / 5
    remade(unsigned, body)
    assert verify(unsigned).ok  # as the docs say: anyone can make a certificate
    assert problems(unsigned, key=keys[1]) == [
        "certificate.json: is not signed, and a key was given"
    ]
    body = body_of(signed)
    with_more_noise(body)
    remade(signed, body)
    assert problems(signed) == ["certificate.json: its signature is not right"]
    body["signature"] = None
    remade(signed, body)
    assert verify(signed).ok
    assert not verify(signed, key=keys[1]).ok


def test_the_signature_is_over_everything(signed):
    body = body_of(signed)
    for name in certificates.KEYS.keys() - certificates.SEALS:
        changed = {**body, name: "another"}
        assert certificates.digest(changed) != body["digest"], name
        assert certificates.signed_part(changed) != certificates.signed_part(body), name


def test_a_signature_by_another_key_is_not_the_pinned_one(signed, keys, tmp_path):
    _, other = write_keys(tmp_path, "other")
    (found,) = problems(signed, key=other)
    assert verify(signed).signer in found
    assert "not by the key that was given" in found


@pytest.mark.parametrize("part", ["public_key", "signature"])
def test_a_signature_is_written_in_one_way(signed, part):
    body = body_of(signed)
    body["signature"][part] = body["signature"][part].upper()
    (signed / "certificate.json").write_bytes(canonical.dump(body))
    assert problems(signed) == ["certificate.json: its signature is not right"]


def test_the_model_is_the_one_that_the_run_left(unsigned):
    """Another iterate under the same ledger, all hashes made anew."""
    raw = bytearray((unsigned / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (unsigned / "model.safetensors").write_bytes(raw)
    body = body_of(unsigned)
    body["weights"] = hash_of_file(unsigned / "model.safetensors")
    remade(unsigned, body)
    assert problems(unsigned) == [
        "model.safetensors: is not the model that the run of this ledger left"
    ]


def test_a_card_cannot_promise_more_than_its_certificate(unsigned):
    body, path = body_of(unsigned), unsigned / "README.md"
    raw = path.read_text().replace("proven", "proven forever").encode()
    path.write_bytes(raw)
    body["files"]["README.md"] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    body["digest"] = certificates.digest(body)
    (unsigned / "certificate.json").write_bytes(canonical.dump(body))
    assert problems(unsigned) == ["README.md: does not say what certificate.json says"]


@pytest.mark.parametrize("change", [{"dpdt": "0.9.0"}, {"dpdt": "1.0"}, {"format": 2}])
def test_what_a_newer_version_made_is_refused(unsigned, change):
    body = {**body_of(unsigned), "more": 1, **change}
    (unsigned / "certificate.json").write_text(json.dumps(body))
    (found,) = problems(unsigned)
    made = change.get("dpdt", dpdt.__version__)
    assert f"made by dpdt {made}, this is {dpdt.__version__}: use that version" in found


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"nonsense", b"\xff", b"[" * 100_000, b'{"dpdt": "0.1.0"}',
        b'{"dpdt": "0.1.0", "format": NaN}', b'{"format": 1}',
    ],
)  # fmt: skip
def test_what_is_no_certificate_is_told_so(unsigned, text):
    (unsigned / "certificate.json").write_bytes(text)
    (found,) = problems(unsigned)
    assert found.startswith("certificate.json: ")


def test_a_key_that_stands_twice_is_noticed(unsigned):
    path = unsigned / "certificate.json"
    path.write_text(path.read_text().replace("{\n", '{\n  "accuracy": null,\n', 1))
    assert "not written as certificates are" in problems(unsigned)[0]


def values():
    numbers = st.floats() | st.integers(-(10**20), 10**20)
    leaves = st.none() | st.booleans() | numbers | st.text(max_size=5)
    return st.recursive(leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(
        st.text(max_size=3), v, max_size=3), max_leaves=6)  # fmt: skip


def places(record, path=()):
    """Every place in a record."""
    yield path
    items = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))
        else:
            yield (*path, key)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_other_certificate_ends_in_a_clean_answer(made, tmp_path_factory, data):
    """Hashes are made anew, so that whatever was put in is looked at."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name in FILES[1:]:
        os.link(made / "plain" / name, folder / name)
    body = body_of(made / "plain")
    ledger = [json.loads(line) for line in body["ledger"]["lines"]]
    target = ledger if data.draw(st.booleans()) else body
    path = data.draw(st.sampled_from([p for p in places(target) if p]))
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(values())
    try:
        body["ledger"]["lines"] = rechained(ledger)
        body["ledger"]["sha256"] = hashlib.sha256(
            ("\n".join(body["ledger"]["lines"]) + "\n").encode()
        ).hexdigest()
        body["digest"] = certificates.digest(body)
    except (TypeError, ValueError, KeyError, AttributeError):
        pass  # what was put in cannot be hashed
    text = json.dumps(body, sort_keys=True, indent=2, ensure_ascii=False) + "\n"
    (folder / "certificate.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    found = verify(folder)
    json.dumps(found.as_json())
    assert str(found)
    assert not found.ok or body_of(folder) == body_of(made / "plain") or free(path)


def free(path):
    """Whether a place holds what only whoever releases can know, and no file follows from it."""
    return path[0] in ("code", "dependencies", "created")


def rechained(records):
    from dpdt.ledger.lines import chain

    previous, lines = "", []
    for record in records:
        rest = {k: v for k, v in record.items() if k != "hash"}
        previous = chain(previous, rest)
        lines.append(json.dumps({**rest, "hash": previous}))
    return lines


@pytest.mark.parametrize(
    ("said", "found", "same"),
    [
        (1.0, 1.0 + 1e-12, True), (1.0, 1.0 + 1e-6, False), (1, 1.0, True), (True, 1, False),
        (None, 0, False), ("1", 1, False), ([1], [1, 2], False), ({"a": 1}, {"a": 1, "b": 2}, 0),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, True), (float("nan"), 1.0, False),
    ],
)  # fmt: skip
def test_records_are_compared_field_by_field(said, found, same):
    assert (difference(said, found, "x") is None) == same


def test_neither_torch_nor_code_of_the_folder_is_needed(unsigned, signed, keys):
    (signed / "torch.py").write_text("raise SystemExit('ran code of the folder')")
    program = (
        "import sys; sys.modules['torch'] = sys.modules['safetensors'] = None\n"
        "from dpdt.cli.main import main; main()"
    )

    def run(*given, cwd=None):
        return subprocess.run(
            [sys.executable, "-c", program, "verify", *map(str, given)],
            capture_output=True, text=True, cwd=cwd,
        )  # fmt: skip

    done = run(unsigned, "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True), done.stderr
    done = run(signed, "--key", keys[1], "--json", cwd=signed)
    found = json.loads(done.stdout)
    assert (done.returncode, found["problems"]) == (1, ["torch.py: is not part of the release"])
    assert run(unsigned.parent).returncode == 2


def test_a_file_of_holes_is_not_hashed(unsigned, monkeypatch):
    """A sparse file of 200 GB cost nothing to make, and was hashed to its last zero."""
    os.truncate(unsigned / "model.safetensors", 200 << 30)
    body = body_of(unsigned)
    body["files"]["model.safetensors"]["size"] = 200 << 30
    body["digest"] = certificates.digest(body)
    (unsigned / "certificate.json").write_bytes(canonical.dump(body))
    inner = hashlib.file_digest

    def hashed(file, name):
        assert "safetensors" not in file.name
        return inner(file, name)

    monkeypatch.setattr(hashlib, "file_digest", hashed)
    with pytest.raises(InputError, match=r"has 214,748,364,800 bytes, of which .* holes"):
        opened(unsigned)
    (problem,) = problems(unsigned)
    assert "it is made of holes" in problem
