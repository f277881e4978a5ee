"""The command as a new user would run it, in a process of its own."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from dpdt.ledger import Ledger


def dpdt(*arguments, cwd=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "dpdt", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


QUICK = ["--set", "train.epochs=2", "--set", "privacy.epsilon=3"]


def test_train_then_account(tmp_path):
    done = dpdt("train", "digits", *QUICK, "--out", "first", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) >= {"run", "accuracy", "epochs", "steps", "seconds", "privacy"}
    assert (result["run"], result["epochs"], result["steps"]) == ("first", 2.0, 2)
    run = tmp_path / "first"
    assert {p.name for p in run.iterdir()} == {
        "config.toml", "ledger.jsonl", "metrics.jsonl", "private",
    }  # fmt: skip
    assert stat.S_IMODE((run / "private").stat().st_mode) == 0o700
    # losses and counts depend on the training data, accuracies on iterates that stay hidden
    public = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert set(public[0]) == {"epoch", "step", "epsilon"}
    private = [json.loads(x) for x in (run / "private" / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "nonfinite", "accuracy"} <= set(private[0])

    accounted = json.loads(dpdt("account", "first", "--json", cwd=tmp_path).stdout)
    assert accounted == result["privacy"]
    assert set(accounted) >= {"delta", "unit", "relation", "steps", "epochs", "guarantees"}
    assert accounted["proven"]["accountant"] == "composition"
    assert 2.99 < accounted["proven"]["epsilon"] <= 3.0
    for guarantee in accounted["guarantees"]:
        assert set(guarantee) >= {"accountant", "epsilon", "mu", "valid", "conditions"}
        assert all(set(c) == {"text", "holds", "why"} for c in guarantee["conditions"])


def test_what_a_run_writes_about_epsilon_ends_at_what_it_guarantees(tmp_path):
    """Under Poisson sampling ε is looked at on a coarse, larger grid until the run ends."""
    done = dpdt("train", "--method", "dpdt", "--set", "privacy.epsilon=3.0", "--set",
                "train.epochs=20", "--json", "--out", "run", cwd=tmp_path)  # fmt: skip
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    spent = [json.loads(line)["epsilon"] for line in lines]
    assert [epsilon is not None for epsilon in spent] == [False, True] * 10
    assert spent[-1] == json.loads(done.stdout)["privacy"]["proven"]["epsilon"] <= 3.0


def test_no_seed_and_no_noise_in_what_a_run_writes(tmp_path):
    dpdt("train", *QUICK, "--out", "run", cwd=tmp_path)
    text = "".join(p.read_text() for p in (tmp_path / "run").glob("*.*"))
    assert "noise_seed" not in text
    assert "generator" not in text


def test_train_prints_accuracy_and_the_table_and_is_quiet_without_a_terminal(tmp_path):
    done = dpdt("train", *QUICK, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "accuracy 0." in done.stdout
    assert "ε ≤ 3" in done.stdout
    assert "proven" in done.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_run_is_never_overwritten(tmp_path):
    (tmp_path / "first").mkdir()
    done = dpdt("train", *QUICK, "--out", "first", cwd=tmp_path)
    assert done.returncode == 2
    assert "first: already exists" in done.stderr
    assert list((tmp_path / "first").iterdir()) == []


def test_an_interrupt_leaves_a_usable_run(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "dpdt", "train", "--set", "train.epochs=100000", "--out", "cut"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "cut" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() and time.monotonic() < deadline:
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "(interrupted; dpdt train --resume cut continues)" in out
    ledger = Ledger.read(tmp_path / "cut" / "ledger.jsonl")
    assert not ledger.closed
    assert 0 < ledger.steps < 100000
    assert (tmp_path / "cut" / "private" / "model.safetensors").exists()
    accounted = json.loads(dpdt("account", "cut", "--json", cwd=tmp_path).stdout)
    assert accounted["steps"] == ledger.steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--set", "method.clip=-3"], "method.clip: must be a positive number"),
        (["train", "nosuch"], "nosuch: neither a preset"),
        (["train", "--set", "data.name=x"], "data.name: must be one of"),
        (["train", "--set", "model.name=x"], "model.name: must be one of"),
        (["train", "--set", "train.batch_size=9999"], "train.batch_size: must be at most"),
        (["account", "--delta", "7"], "privacy.delta: must be a number between 0 and 1"),
        (["account", "--nosuch"], "No such option"),
        (["nosuch"], "No such command"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2_before_anything_is_written(
    arguments, message, tmp_path
):
    done = dpdt(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_ledger_is_refused(tmp_path):
    dpdt("train", *QUICK, "--out", "run", cwd=tmp_path)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"noise": [', '"noise": [1', 1))
    done = dpdt("account", "run", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert "does not match its hash" in done.stderr
    assert done.stdout == ""


def test_account_and_help_do_not_import_torch():
    code = (
        "import sys; sys.argv = ['dpdt', *{arguments!r}]\n"
        "from dpdt.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "assert 'torch' not in sys.modules"
    )
    for arguments in (["--help"], ["account", "cifar10", "--json"], ["account", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code.format(arguments=arguments)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", [[], ["train"], ["account"], ["calibrate"], ["allocate"], ["reproduce"]]
)
def test_help_has_an_example(command):
    done = dpdt(*command, "--help")
    assert done.returncode == 0
    assert "Example: dpdt" in done.stdout


def test_published_numbers_of_composition():
    base = ["--set", "method.clip_schedule=constant"]
    for arguments, mu, epsilon in [
        (["cifar10", *base], 17.8375, 234.266),
        (["cifar10", *base, "--set", "method.memory=shared"], 3.98858, 24.2878),
        (["cifar10"], 151.791, None),
        (["cifar100", *base], None, 522.215),
    ]:
        printed = json.loads(dpdt("account", *arguments, "--json").stdout)
        found = next(g for g in printed["guarantees"] if g["accountant"] == "composition")
        assert mu is None or found["mu"] == pytest.approx(mu, rel=5e-6)
        assert epsilon is None or found["epsilon"] == pytest.approx(epsilon, rel=5e-6)


def test_what_calibrate_prints_keeps_a_run_by_the_rule_what_it_is(tmp_path):
    file = tmp_path / "f.toml"
    file.write_text("[train]\nepochs = 5\nbatch_size = 200\n")  # neither noise nor target
    told = dpdt("calibrate", str(file), "--epsilon", "3", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "ε ≤ 3 by composition" in told.stdout
    pasted = "[method]\n" + told.stdout.split("\n", 1)[1] + file.read_text()
    file.write_text(pasted)
    privacy = json.loads(dpdt("account", str(file), "--json", cwd=tmp_path).stdout)
    assert privacy["relation"] == "add-remove"
    assert 2.99 < privacy["proven"]["epsilon"] <= 3.0


def test_calibrate():
    done = dpdt("calibrate", "cifar10", "--epsilon", "3", "--json")
    printed = json.loads(done.stdout)
    assert set(printed) == {"epsilon", "accountant", "noise_scale", "noise"}
    assert 2.99 < printed["epsilon"] <= 3.0
    assert printed["accountant"] == "composition"
    assert set(printed["noise"]) == {"conv", "norm", "linear"}
    # what it prints, put into the configuration, gives that ε
    noise = "{ " + ", ".join(f"{k} = {v!r}" for k, v in printed["noise"].items()) + " }"
    again = json.loads(
        dpdt("account", "cifar10", "--set", f"method.noise={noise}", "--json").stdout
    )
    assert again["proven"]["epsilon"] == pytest.approx(printed["epsilon"])
    assert "with the noise times" in dpdt("calibrate", "cifar10", "--epsilon", "3").stdout


def test_allocate():
    printed = json.loads(dpdt("allocate", "cifar10", "--json").stdout)
    rows = printed["allocations"]
    assert len(rows) == 2 * (1 + 3 * 6)
    assert {r["mode"] for r in rows} == {"noise", "joint"}
    text = dpdt("allocate", "cifar10", "--mode", "noise", "--kind", "conv", "--boost", "1.5").stdout
    assert "33:33:34" in text
    assert "43:29:28" in text


def test_figures(tmp_path):
    done = dpdt("account", "cifar10", "--figure", "epsilon.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = dpdt("reproduce", "privacy-over-epochs", "--out", "paper.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "epsilon.png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in (tmp_path / "paper.svg").read_bytes()[:1000]
    done = dpdt("account", "--figure", "nowhere/epsilon.png", cwd=tmp_path)
    assert done.returncode == 2
    assert "--figure nowhere/epsilon.png: cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "cifar10"], "--epsilon: must be a positive number, found None"),
        (["calibrate", "cifar10", "--epsilon", "-1"], "--epsilon: must be a positive number"),
        (["calibrate", "cifar10", "--epsilon", "3", "--kind", "x"], "--kind x: this model has"),
        (["calibrate", "cifar10", "--epsilon", "3", "--kind", "linear"], "alone spend more"),
        (["calibrate", "cifar10", "--epsilon", "3", "--accountant", "paper"], "is not valid"),
        (["allocate", "digits", "--kind", "conv"], "--kind conv: this model has linear"),
        (["reproduce", "everything"], "is not"),
    ],
)
def test_bad_input_to_the_accounting_commands(arguments, message):
    done = dpdt(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
