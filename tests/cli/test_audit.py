"""dpdt audit as a user runs it."""

import json

import pytest
import torch
from click.testing import CliRunner

from dpdt.cli.main import cli
from dpdt.errors import InputError

SETS = ["--set", "train.epochs=5"]


def invoke(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def canary_run(tmp_path_factory):
    """A run whose guarantee is weak, so that canaries show: ε = 30."""
    path = tmp_path_factory.mktemp("runs") / "canaries"
    sets = [
        "--set", "audit.canaries=300", "--set", "audit.canary=gradient",
        "--set", "privacy.epsilon=30.0", "--set", "train.epochs=20",
    ]  # fmt: skip
    assert invoke("train", "digits", *sets, "--json", "--out", path).exit_code == 0
    return path


def test_a_run_with_canaries_is_measured(canary_run):
    result = invoke("audit", canary_run, "--repeats", 5, "--json")
    record = json.loads(result.stdout)
    assert {a["attack"] for a in record["attacks"]} >= {
        "correctness", "confidence", "loss", "entropy", "modified-entropy, per class",
    }  # fmt: skip
    for attack in record["attacks"]:
        assert set(attack) == {
            "attack", "auc", "auc_interval", "accuracy", "accuracy_interval", "tpr_at_1e-2_fpr",
        }  # fmt: skip
    assert record["confidence"] == 0.95
    assert record["measured_epsilon"] > 1.0
    assert record["refuted"] == []
    assert record["one_run"]["canary"] == "gradient"
    assert (canary_run / "private" / "audit.json").is_file()
    assert (canary_run / "private" / "audit.png").stat().st_size > 1000
    assert not list(canary_run.glob("audit*"))  # results depend on the data, so they are private

    # the table of every command then has it
    shown = invoke("account", canary_run).output
    assert "measured  one-run audit, 300 gradient canaries, 95% confidence" in shown
    privacy = json.loads(invoke("account", canary_run, "--json").stdout)
    assert privacy["measured"]["epsilon"] == record["measured_epsilon"]


def test_a_false_claim_is_refuted(canary_run, tmp_path):
    """The same run, had its ledger claimed a thousand times the noise."""
    import shutil

    from dpdt.ledger import Ledger, LedgerWriter

    copy = tmp_path / "liar"
    shutil.copytree(canary_run, copy)
    ledger = Ledger.read(copy / "ledger.jsonl")
    (copy / "ledger.jsonl").unlink()
    (copy / "private" / "tail.json").unlink()
    writer = LedgerWriter(ledger.header)
    writer.open(copy / "ledger.jsonl")
    from dataclasses import replace

    for run in ledger.runs:
        for _ in range(run.steps):
            writer.step(replace(run.setting, noise=tuple(1000 * s for s in run.setting.noise)))
    writer.close()
    result = invoke("audit", copy, "--repeats", 2)
    assert "REFUTED: composition" in result.output
    assert result.exit_code == 0
    strict = CliRunner().invoke(cli, ["audit", str(copy), "--repeats", "2", "--strict"],
                                standalone_mode=False)  # fmt: skip
    assert strict.return_value == 1


def test_a_run_without_canaries_has_no_bound(tmp_path):
    path = tmp_path / "run"
    assert invoke("train", "digits", *SETS, "--json", "--out", path).exit_code == 0
    result = invoke("audit", path, "--repeats", 2)
    assert "No bound on ε was measured" in result.output
    assert (
        json.loads(invoke("audit", path, "--repeats", 2, "--json").stdout)["measured_epsilon"]
        is None
    )
    assert "measured" not in invoke("account", path).output


def test_thresholds_of_a_shadow_model(tmp_path):
    """The shadow is trained by the first audit and found by the second, beside those of LiRA."""
    path = tmp_path / "run"
    assert invoke("train", "digits", *SETS, "--json", "--out", path).exit_code == 0
    own = json.loads(invoke("audit", path, "--repeats", 2, "--json").stdout)
    assert own["thresholds"] == "own"
    assert not (path / "private" / "shadows").exists()
    again = ["audit", path, "--repeats", 2, "--thresholds", "shadow"]
    record = json.loads(invoke(*again, "--json").stdout)
    assert record["thresholds"] == "shadow"
    assert json.loads((path / "private" / "audit.json").read_text())["thresholds"] == "shadow"
    assert [a["attack"] for a in record["attacks"]] == [a["attack"] for a in own["attacks"]]
    assert record["attacks"] != own["attacks"]
    (shadow,) = (path / "private" / "shadows").iterdir()
    assert shadow.name == "thresholds-0.npz"
    written = shadow.stat().st_mtime_ns
    assert "Metric attacks learnt thresholds on a shadow model" in invoke(*again).output
    assert json.loads(invoke(*again, "--json").stdout)["attacks"] == record["attacks"]
    assert shadow.stat().st_mtime_ns == written


def failed(*arguments):
    with pytest.raises(InputError) as caught:
        invoke(*arguments)
    return str(caught.value)


def test_what_cannot_be_audited(tmp_path):
    assert "not the folder of a run" in failed("audit", tmp_path)
    path = tmp_path / "few"
    sets = ["--set", "audit.canaries=6"]
    assert invoke("train", "digits", *SETS, *sets, "--json", "--out", path).exit_code == 0
    assert "at least 8 are needed" in failed("audit", path, "--repeats", 2)
    (path / "private" / "canaries.json").write_text("{")
    assert "canaries.json: cannot be read" in failed("audit", path, "--repeats", 2)
    (path / "private" / "model.safetensors").write_bytes(b"nothing")
    assert "the run's model cannot be read" in failed("audit", path)


def test_a_model_that_says_nothing_of_classes(tmp_path):
    from safetensors.torch import load_file, save_file

    path = tmp_path / "run"
    assert invoke("train", "digits", *SETS, "--json", "--out", path).exit_code == 0
    file = path / "private" / "model.safetensors"
    weights = {k: v * torch.nan for k, v in load_file(file).items()}
    save_file(weights, file)
    assert "cannot be read as probabilities" in failed("audit", path)


def test_held_out_examples_are_needed(tmp_path):
    path = tmp_path / "run"
    sets = ["--set", "data.public=350"]
    assert invoke("train", "digits", *SETS, *sets, "--json", "--out", path).exit_code == 0
    assert "at least 20 members and 20 examples" in failed("audit", path)


def test_worst_case(tmp_path):
    figure = tmp_path / "worst.png"
    result = invoke(
        "audit", "worst-case", "--epochs", 3, "--trials", 200, "--memory", "shared,none", "--json",
        "--figure", figure,
    )  # fmt: skip
    record = json.loads(result.stdout)
    assert record["confidence"] == 0.95
    assert [(c["memory"], c["epochs"]) for c in record["cases"]] == [
        (m, e) for m in ("shared", "none") for e in (1, 2, 3)
    ]
    for case in record["cases"]:
        assert {"measured_mu", "measured_epsilon"} <= set(case)
        names = [a["accountant"] for a in case["accountants"]]
        assert {"composition", "paper"} <= set(names)
        assert ("hidden-state-convex" in names) == (case["memory"] == "none")
        assert {a["verdict"] for a in case["accountants"]} <= {"consistent", "refuted"}
    assert figure.stat().st_size > 1000
    table = invoke("audit", "worst-case", "--epochs", 1, "--trials", 100, "--memory", "none")
    assert "memory none, K = 2, 1 epochs: measured" in table.output
    assert "--memory: must be one of" in failed("audit", "worst-case", "--memory", "some")
