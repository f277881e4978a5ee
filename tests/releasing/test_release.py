"""What may be released, what a release holds, and what is left behind."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives import serialization as formats
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

import dpdt
from dpdt import config
from dpdt.cli import main
from dpdt.errors import InputError
from dpdt.ledger import Ledger, LedgerWriter, text_of
from dpdt.models.metrics import accuracy
from dpdt.releasing import making
from dpdt.releasing.card import card, plain
from dpdt.releasing.description import describe
from dpdt.releasing.making import release
from dpdt.releasing.verify import verify
from dpdt.runs import Run
from dpdt.training import run as running
from dpdt.weights import hash_of_file, hash_of_model
from tests.training.interrupted import cut

from .conftest import QUICK, run_in, trained


def body_of(folder):
    return json.loads((folder / "certificate.json").read_text())


def nothing_written(folder):
    return not [p for p in folder.iterdir() if "release" in p.name or p.name.endswith(".part")]


def test_a_run_is_released(run):
    done = release(run.path)
    assert done.path == run.path / "release"
    assert verify(done.path).ok
    body, proven = body_of(done.path), run.ledger()
    assert body["guarantee"]["epsilon"] == body["privacy"]["proven"]["epsilon"]
    assert "\n".join(body["ledger"]["lines"]) + "\n" == run.ledger_path.read_text()
    assert body["weights"] == proven.model == done.weights
    assert (done.path / "model.safetensors").read_bytes() == run.model_path.read_bytes()
    assert "measured" not in body["privacy"]
    assert (body["accuracy"], body["audit"]["verdict"]) == (None, "not audited")
    assert not list(run.path.glob("*.part")) + list(run.path.glob(".*"))


def test_nothing_private_is_in_a_release(run):
    """No path of this machine, no loss, no accuracy that nobody declared public."""
    text = "".join(p.read_text("latin-1") for p in release(run.path).path.iterdir())
    assert str(run.path.parent) not in text
    seen = [repr(r[name]) for r in run.private_metrics() for name in ("loss", "accuracy")]
    long = [number for number in seen if len(number) > 8]  # a short one may stand for anything
    assert len(long) >= 2
    assert not any(number in text for number in long)
    assert "Accuracy" not in (run.path / "release" / "README.md").read_text()


def test_accuracy_is_told_if_the_held_out_data_are_public(run):
    release(run.path, public_test=True)
    found = body_of(run.path / "release")["accuracy"]
    assert found == {"value": run.private_metrics()[-1]["accuracy"], "examples": 260}
    card_ = (run.path / "release" / "README.md").read_text()
    assert "on 260 held-out examples that were declared public" in card_
    result = trained()
    x, y = torch.randn(9, 2), torch.randint(0, 2, (9,))
    release(result, to=run.path / "own", public_test=(x, y))
    expected = {"value": accuracy(result.model, (x, y)), "examples": 9}
    assert body_of(run.path / "own")["accuracy"] == expected


def test_a_run_that_was_interrupted_is_refused(tmp_path, monkeypatch):
    chosen = config.load("digits", ("train.epochs=8", *QUICK[1:]))
    cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
    before = Ledger.read(tmp_path / "cut" / "ledger.jsonl")
    assert (before.closed, before.model) == (False, None)
    assert '"kind": "end"' not in (tmp_path / "cut" / "ledger.jsonl").read_text()
    with pytest.raises(InputError, match=r"was interrupted and has no end.*--resume"):
        release(tmp_path / "cut")
    assert nothing_written(tmp_path / "cut")
    running.run(chosen, tmp_path / "cut", show_progress=False, resume=True)
    assert verify(release(tmp_path / "cut").path).ok


@pytest.mark.parametrize(
    ("options", "why"),
    [({"noise_seed": 1}, "a fixed seed was used"), ({"noise": 0.0}, "the bound is infinite")],
)
def test_a_run_without_a_proven_epsilon_is_refused(tmp_path, options, why):
    with pytest.raises(InputError, match=f"nothing is proven, so there is nothing.*{why}"):
        release(trained(**options), to=tmp_path / "release")
    assert not list(tmp_path.iterdir())


def test_a_void_run_is_refused(tmp_path):
    result = trained()
    result._ledger.voids.append("something was found")
    with pytest.raises(InputError, match=r"nothing is proven.*something was found"):
        release(result, to=tmp_path / "release")
    assert not list(tmp_path.iterdir())


AUDIT = {
    "attacks": [{"attack": "loss", "auc": 0.777}],
    "confidence": 0.95,
    "one_run": {"epsilon": 0.123},
    "measured_epsilon": 0.123,
    "refuted": [],
}


def test_an_audit_is_told_by_its_verdict_alone(run):
    run.write_audit(AUDIT)
    folder = release(run.path).path
    assert body_of(folder)["audit"] == {
        "verdict": "survived", "attacks": ["loss", "canaries"], "confidence": 0.95, "bounds": True,
    }  # fmt: skip
    for path in folder.iterdir():
        assert "0.777" not in path.read_text("latin-1")
        assert "0.123" not in path.read_text("latin-1")


@pytest.mark.parametrize("change", [{"measured_epsilon": 1e9}, {"refuted": ["composition"]}])
def test_a_run_whose_epsilon_was_refuted_is_refused(run, change):
    run.write_audit({**AUDIT, **change})
    with pytest.raises(InputError, match="an audit has refuted the proven ε"):
        release(run.path)
    assert nothing_written(run.path)


def test_another_iterate_of_a_run_is_refused(run):
    raw = bytearray(run.model_path.read_bytes())
    raw[-1] ^= 1
    run.model_path.write_bytes(raw)
    with pytest.raises(InputError, match="not those that the run left"):
        release(run.path)
    assert nothing_written(run.path)


def test_a_model_that_was_changed_after_training_is_refused(tmp_path):
    result = trained()
    with torch.no_grad():
        result.model.weight.add_(1e-3)
    with pytest.raises(InputError, match="not those that the run left"):
        release(result, to=tmp_path / "release")
    assert not list(tmp_path.iterdir())


def test_a_run_is_released_once_and_copied_freely(run, tmp_path):
    first = release(run.path)
    again = release(run.path, to=tmp_path / "again")
    for path in first.path.iterdir():
        assert path.read_bytes() == (again.path / path.name).read_bytes()
    with pytest.raises(InputError, match="already exists"):
        release(run.path)
    run.write_released({**run.released(), "weights": "0" * 64})
    with pytest.raises(InputError, match="has released another model before"):
        release(run.path, to=tmp_path / "third")
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("moment", ["verify", "card"])
def test_what_fails_leaves_nothing_that_looks_complete(run, monkeypatch, moment):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, moment, fail)
    with pytest.raises(InputError, match="No space left"):
        release(run.path)
    assert nothing_written(run.path)
    assert run.released() is None


def test_what_cannot_be_verified_gets_no_name(run, monkeypatch):
    monkeypatch.setattr(making, "card", lambda *given: card(*given) + "more")
    with pytest.raises(InputError, match=r"was not written, since README.md"):
        release(run.path)
    assert nothing_written(run.path)


def test_a_release_does_not_go_into_private(run):
    with pytest.raises(InputError, match="lies in the private folder"):
        release(run.path, to=run.path / "private" / "release")


def test_forgetting_deletes_what_is_hidden_and_nothing_else(run, tmp_path):
    (run.private_path / "shadows").mkdir()
    (run.private_path / "shadows" / "0.npz").write_bytes(b"scores")
    (run.private_path / "checkpoint.pt").write_bytes(b"noise")
    (run.private_path / "later.bin").write_bytes(b"?")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (run.private_path / "link").symlink_to(outside)
    done = release(run.path)
    assert set(done.left) == {
        "checkpoint.pt", "later.bin", "link", "metrics.jsonl", "model.safetensors", "shadows",
    }  # fmt: skip
    assert "noise" in done.left["checkpoint.pt"]
    assert all(f"- {name}: " in str(done) for name in done.left)
    done = release(run.path, to=tmp_path / "second", forget=True)
    assert (done.left, done.forgotten) == ({}, True)
    assert sorted(path.name for path in run.private_path.iterdir()) == ["lock", "tail.json"]
    assert (outside / "file").read_text() == "kept"
    kept = {"config.toml", "ledger.jsonl", "metrics.jsonl", "private", "release", "release.json"}
    assert {path.name for path in run.path.iterdir()} == kept
    assert verify(run.path / "release").ok
    with pytest.raises(InputError, match="has no model any more"):
        release(run.path, to=tmp_path / "third")


class Killed(BaseException):
    """The process is gone."""


def killed(*_, **__):
    raise Killed


def test_a_release_that_was_killed_before_the_run_knew_of_it_is_finished(run, monkeypatch):
    said = {"description": "digits", "forget": True}
    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_released", killed)
        with pytest.raises(Killed):
            release(run.path, **said)
    before = (run.path / "release" / "certificate.json").read_bytes()
    assert run.released() is None
    for other in ({"description": "letters"}, {"description": "digits", "license": "mit"}):
        with pytest.raises(InputError, match="already exists"):
            release(run.path, **other, forget=True)
    done = release(run.path, **said)
    assert run.released()["digest"] == done.digest
    assert (done.left, done.forgotten) == ({}, True)
    assert (run.path / "release" / "certificate.json").read_bytes() == before


def test_another_release_in_the_place_of_the_runs_own_is_not_taken_for_it(run, tmp_path):
    release(run.path, to=tmp_path / "one")
    shutil.copytree(tmp_path / "one", run.path / "release")
    (run.path / "release.json").unlink()
    (run.path / "release" / "README.md").write_text("changed")
    with pytest.raises(InputError, match="already exists"):
        release(run.path, forget=True)
    shutil.rmtree(run.path / "release")
    other = release(trained(), to=tmp_path / "other").path
    shutil.copytree(other, run.path / "release")
    with pytest.raises(InputError, match="already exists"):
        release(run.path, forget=True)
    assert run.model_path.is_file()
    assert run.released() is None


def test_forgetting_that_was_killed_is_finished_by_the_same_command(run, monkeypatch):
    run.write_findings({})
    (run.private_path / "zzz.bin").write_bytes(b"?")
    unlink, names = Path.unlink, []

    def dies(self, *given, **more):
        unlink(self, *given, **more)
        if self.parent == run.private_path:
            names.append(self.name)
            if len(names) == 2:
                raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dies)
        with pytest.raises(Killed):
            release(run.path, forget=True)
    assert run.model_path.is_file()
    assert release(run.path, forget=True).left == {}
    assert not run.model_path.exists()


def test_the_model_is_forgotten_last(run, monkeypatch):
    (run.private_path / "zzz.bin").write_bytes(b"?")
    unlink, names = Path.unlink, []

    def listed(self, *given, **more):
        if self.parent == run.private_path:
            names.append(self.name)
        unlink(self, *given, **more)

    monkeypatch.setattr(Path, "unlink", listed)
    by_name = lambda self: iter(sorted(map(self.joinpath, os.listdir(self))))  # noqa: E731
    monkeypatch.setattr(Path, "iterdir", by_name)
    release(run.path, forget=True)
    assert names[-1] == "model.safetensors"
    assert "zzz.bin" in names


def test_a_run_that_is_being_written_is_not_released(run, tmp_path):
    with run.locked(), pytest.raises(InputError, match="another process is writing"):
        release(run.path, to=tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_a_limit_counts_all_runs_beside_it(run, tmp_path):
    """A copy of the run is the same run; the same data under another seal are paid for twice."""
    epsilon = release(run.path, to=tmp_path / "one").guarantee["epsilon"]
    release(run.path, to=tmp_path / "two", limit=epsilon + 1e-9)
    with pytest.raises(InputError, match=r"limit: with this release the data will have paid ε"):
        release(run.path, to=tmp_path / "three", limit=epsilon * 0.9)
    assert not (tmp_path / "three").exists()
    release(trained(), to=tmp_path / "four", limit=100.0, paid=[tmp_path / "one"])
    with pytest.raises(InputError, match="paid: counts for a limit"):
        release(run.path, to=tmp_path / "three", paid=[tmp_path])


def test_nothing_is_forgotten_if_nothing_was_released(run, monkeypatch):
    monkeypatch.setattr(making, "card", lambda *given: card(*given) + "more")
    with pytest.raises(InputError):
        release(run.path, forget=True)
    assert run.model_path.is_file()


def test_from_python(tmp_path):
    done = dpdt.release(trained(), to=tmp_path / "one")
    assert dpdt.verify(done.path).ok
    with pytest.raises(InputError, match="to: must name a folder"):
        dpdt.release(trained())


def test_text_of_the_user_breaks_neither_yaml_nor_markdown(tmp_path):
    """A description may hold anything that can be printed; the metadata hold none of it."""
    nasty = "---\nlicense: mit\n<script>x</script> [a](b) `c` | # *d* _e_ ![i](j) \\"
    release(trained(), to=tmp_path / "one", description=nasty, license="apache-2.0")
    text = (tmp_path / "one" / "README.md").read_text()
    head, rest = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    assert 'license: "apache-2.0"' in head.splitlines()
    assert "license: mit" not in head
    said = next(line for line in rest.splitlines() if "license: mit" in line)
    assert said.startswith("In the words of")
    for mark in "<>[]`|#*_!":
        assert not re.search(rf"(?<!\\){re.escape(mark)}", said.partition("model: ")[2])
    assert plain("a_b") == r"a\_b"
    for bad in ({"license": "mit\ntags: x"}, {"description": "\x1b[31m"}, {"description": "  "}):
        with pytest.raises(InputError, match="must be"):
            release(trained(), to=tmp_path / "two", **bad)
    assert not (tmp_path / "two").exists()


def key_file(path, key, kind=formats.PrivateFormat.PKCS8, passphrase=None):
    lock = formats.BestAvailableEncryption(passphrase) if passphrase else formats.NoEncryption()
    path.write_bytes(key.private_bytes(formats.Encoding.PEM, kind, lock))
    return path


@pytest.mark.parametrize("kind", ["PKCS8", "OpenSSH"])
def test_a_key_with_a_passphrase_signs(tmp_path, monkeypatch, kind):
    key = Ed25519PrivateKey.generate()
    how = getattr(formats.PrivateFormat, kind)
    path = key_file(tmp_path / "key", key, how, b"open")
    public = key.public_key().public_bytes(
        formats.Encoding.PEM, formats.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "key.pub").write_bytes(public)
    with pytest.raises(InputError, match="has a passphrase; set DPDT_KEY_PASSPHRASE"):
        release(trained(), to=tmp_path / "one", sign=path)
    with pytest.raises(InputError, match="no private key could be read"):
        release(trained(), to=tmp_path / "one", sign=path, ask=lambda: "wrong")
    monkeypatch.setenv("DPDT_KEY_PASSPHRASE", "open")
    release(trained(), to=tmp_path / "one", sign=path)
    assert verify(tmp_path / "one", key=tmp_path / "key.pub").pinned


def test_a_key_of_another_kind_is_refused_in_one_sentence(tmp_path, keys):
    other = key_file(tmp_path / "other", generate_private_key(SECP256R1()))
    with pytest.raises(InputError, match="must be an Ed25519 key, found ECPrivateKey"):
        release(trained(), to=tmp_path / "one", sign=other)
    (tmp_path / "nonsense").write_text("nonsense")
    for path in (tmp_path / "nonsense", keys[1], tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=r"key"):
            release(trained(), to=tmp_path / "one", sign=path)
    assert not (tmp_path / "one").exists()


def test_the_fingerprint_is_the_one_that_ssh_prints(made, keys):
    try:
        done = subprocess.run(
            ["ssh-keygen", "-lf", str(keys[1])], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("needs ssh-keygen")
    assert verify(made / "signed").signer == done.stdout.split()[1]


def test_a_ledger_in_memory_has_the_file_that_it_would_have_had(tmp_path):
    result = trained(ledger=tmp_path / "ledger.jsonl")
    assert text_of(result.ledger) == (tmp_path / "ledger.jsonl").read_text()
    result.ledger.exports.append("something")
    result.ledger.voids.append("why")
    assert Ledger.parse(text_of(result.ledger), tmp_path) == result.ledger


def test_the_end_of_a_ledger_names_the_model(tmp_path):
    result = trained(ledger=tmp_path / "ledger.jsonl")
    assert Ledger.read(tmp_path / "ledger.jsonl").model == hash_of_model(result.model)
    writer = LedgerWriter(result.ledger.header)
    writer.open(tmp_path / "other.jsonl")
    writer.close("not a hash")
    with pytest.raises(InputError, match="model is not a hash"):
        Ledger.read(tmp_path / "other.jsonl")


@pytest.mark.parametrize("part", ["scatter", "whitened", "averaged"])
def test_the_whole_model_is_bound_as_it_is_saved(tmp_path, part):
    """A frozen part in front, weights that are folded back, an average of iterates."""
    options = {
        "scatter": ("model.name=scatter", "data.name=digits-images", "data.limit=100",
                    "train.batch_size=100", "method.preconditioner=identity"),
        "whitened": ("method.preconditioner=public", "data.public=50"),
        "averaged": ("method.averaging=0.5",),
    }[part]  # fmt: skip
    run = run_in(tmp_path / "run", *options)
    assert hash_of_file(run.model_path) == run.ledger().model


def test_no_folder_of_the_user_is_named(tmp_path):
    """Nor that of a model, nor of its tokenizer, nor of the data."""
    import numpy as np

    x, y = np.zeros((20, 2), "uint8"), np.zeros(20, "int64")
    path = tmp_path / "secret-folder" / "data.npz"
    path.parent.mkdir()
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    chosen = config.load("digits", (f"data.name={path}", f"model.tokenizer={tmp_path}"))
    found = describe(nn.Linear(2, 2), chosen)
    assert "secret-folder" not in json.dumps(found)
    assert str(tmp_path) not in json.dumps(found)


def test_the_commands(run, tmp_path, keys, capsys, monkeypatch):
    monkeypatch.setattr(main.warnings, "showwarning", main.warnings.showwarning)

    def dpdt(*given):
        monkeypatch.setattr(sys, "argv", ["dpdt", *map(str, given)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return subprocess.CompletedProcess(given, ended.value.code, *capsys.readouterr())

    done = dpdt("release", run.path, "--sign", keys[0], "--json", "--to", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(tmp_path / "out")
    done = dpdt("verify", tmp_path / "out", "--key", keys[1])
    assert (done.returncode, done.stdout.splitlines()[0][:3]) == (0, "ok:")
    (tmp_path / "out" / "README.md").write_text("better")
    done = dpdt("verify", tmp_path / "out")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("- README.md: was changed")
    done = dpdt("release", run.path, "--to", tmp_path / "out")
    assert done.returncode == 2
    assert "already exists" in done.stderr


def test_all_files_have_one_mode(tmp_path):
    """safetensors makes its files for their owner alone, and others did not."""
    before = os.umask(0o027)
    try:
        release(trained(), to=tmp_path / "released")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "released").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o640}
    assert len(files) == 4
