"""The command as a new user would run it, in a process of its own."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from decimal import ROUND_CEILING

import pytest

from dpdt import config
from dpdt.accounting import account, by_name
from dpdt.accounting.guarantee import shown
from dpdt.algorithm.diagnostics import Diagnostics, summary
from dpdt.config import plan_of
from dpdt.ledger import Block, Ledger, LedgerWriter
from dpdt.methods.values import by_kind
from dpdt.runs import Run


def dpdt(*arguments, cwd=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "dpdt", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
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


def test_diagnostics_are_private(tmp_path):
    done = dpdt("train", "digits", *QUICK, "--diagnose", "--out", "first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "first"
    assert {p.name for p in run.iterdir()} == {
        "config.toml", "ledger.jsonl", "metrics.jsonl", "private",
    }  # fmt: skip
    records = Run(run).diagnostics()
    assert [r["step"] for r in records] == [1, 2]
    assert set(records[0]) == {"epoch", "step"} | Diagnostics.__dataclass_fields__.keys()
    assert (run / "private" / "diagnostics.png").stat().st_size > 10_000
    # what depends on the data is marked, and does not go where results go
    words = summary(records).words()
    assert f"private, not to be published: {words}\nConditions of the paper's" in done.stderr
    assert "every auxiliary keeps its own multiplier (memory is 'shared')" in done.stderr
    assert "noise/signal" not in done.stdout


def test_diagnosing_is_quiet_with_json_and_says_where_there_is_nothing(tmp_path):
    done = dpdt("train", *QUICK, "--diagnose", "--json", "--out", "first", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "first" / "private" / "diagnostics.png").exists()
    other = dpdt("train", *QUICK, "--diagnose", "--method", "dpsgd", "--out", "b", cwd=tmp_path)
    assert other.returncode == 0
    assert "--diagnose: dpsgd has no diagnostics" in other.stderr


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
    assert "accountants do not apply; dpdt account runs/digits-" in done.stdout
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
    out, _ = process.communicate()
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
        (["account", "--delta", "0.5"], "privacy.delta: must be below 1/n = 0.0007"),
        (["account", "--nosuch"], "No such option"),
        (["nosuch"], "no such command"),
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


def test_account_budget_and_help_do_not_import_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['dpdt', *{arguments!r}]\n"
        "from dpdt.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "assert 'torch' not in sys.modules"
    )
    for arguments in (
        ["--help"],
        ["account", "cifar10", "--json"],
        ["account", "--help"],
        ["budget", str(tmp_path), "--json"],
    ):
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


def test_a_large_delta_by_name(tmp_path):
    asked = dpdt("account", "--delta", "0.01", "--allow-large-delta", "--json", cwd=tmp_path)
    assert json.loads(asked.stdout)["delta"] == 0.01
    assert "warning: privacy.delta: 0.01 is large for 1437 examples" in asked.stderr
    assert asked.stderr.count("warning") == 1
    large = ["account", "--set", "privacy.delta=0.01"]
    assert dpdt(*large, "--set", "privacy.allow_large_delta=true", cwd=tmp_path).returncode == 0
    assert dpdt(*large, "--allow-large-delta", cwd=tmp_path).returncode == 0
    # the paper's δ for 126,689 examples, which the preset asks for
    assert dpdt("account", "imagenet100", cwd=tmp_path).returncode == 0
    done = dpdt("account", "imagenet100", "--set", "privacy.allow_large_delta=false", cwd=tmp_path)
    assert done.returncode == 2
    assert "must be below 1/n = 7.9e-06 for n = 126689 examples, found 1e-05" in done.stderr


def test_account_takes_delta_and_the_missing_end_from_the_run_itself(tmp_path):
    text = "[privacy]\ndelta = 0.01\nallow_large_delta = true\n[method]\nlr = 0.1\nnoise = 0.1\n"
    (tmp_path / "config.toml").write_text(text)
    plan = plan_of(config.load(str(tmp_path / "config.toml"))).ledger()
    writer = LedgerWriter(plan.header)
    writer.open(tmp_path / "ledger.jsonl")
    writer.step(plan.runs[0].setting)
    found = json.loads(dpdt("account", str(tmp_path), "--json").stdout)
    assert (found["delta"], found["closed"]) == (0.01, False)
    assert "not closed" in dpdt("account", str(tmp_path)).stdout
    writer.close()
    assert "not closed" not in dpdt("account", str(tmp_path)).stdout
    (tmp_path / "config.toml").write_text(text.replace("true", "false"))
    assert "must be below 1/n" in dpdt("account", str(tmp_path)).stderr
    assert dpdt("account", str(tmp_path), "--allow-large-delta").returncode == 0


def test_account_says_what_it_leaves_out_and_why_if_asked():
    told = dpdt("account", "digits").stdout
    assert told.splitlines()[0].startswith("ε ≤ 8         proven    composition")
    hint = "4 accountants do not apply; dpdt account digits --all shows why"
    assert told.splitlines()[-1] == hint
    assert "hidden-state" not in told
    assert "paper" not in told
    told = dpdt("account", "digits", "--all").stdout
    assert "no bound  hidden-state-contraction · " in told
    assert "not apply" not in told


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
    assert privacy["relation"] == "zero-out"
    assert 2.99 < privacy["proven"]["epsilon"] <= 3.0


def test_calibrate():
    done = dpdt("calibrate", "cifar10", "--epsilon", "3", "--json")
    printed = json.loads(done.stdout)
    assert set(printed) == {
        "epsilon", "accountant", "noise_scale", "noise", "claimed", "proven_epsilon",
    }  # fmt: skip
    assert 2.99 < printed["epsilon"] == printed["proven_epsilon"] <= 3.0
    assert not printed["claimed"]
    assert printed["accountant"] == "composition"
    assert set(printed["noise"]) == {"conv", "norm", "linear"}
    # what it prints, put into the configuration, gives that ε
    noise = "{ " + ", ".join(f"{k} = {v!r}" for k, v in printed["noise"].items()) + " }"
    again = json.loads(
        dpdt("account", "cifar10", "--set", f"method.noise={noise}", "--json").stdout
    )
    assert again["proven"]["epsilon"] == pytest.approx(printed["epsilon"])
    told = dpdt("calibrate", "cifar10", "--epsilon", "3").stdout
    assert told.startswith("ε ≤ 3 by composition, with the noise times")


@pytest.mark.parametrize("name", ["paper", "paper-per-block"])
def test_calibrate_to_a_claim_says_so_and_what_is_proven(name, tmp_path):
    arguments = ["calibrate", "cifar10", "--epsilon", "0.5", "--accountant", name]
    printed = json.loads(dpdt(*arguments, "--json").stdout)
    assert (printed["claimed"], printed["accountant"]) == (True, name)
    assert 0.499 < printed["epsilon"] <= 0.5
    noise = "{ " + ", ".join(f"{k} = {v!r}" for k, v in printed["noise"].items()) + " }"
    chosen = config.load("cifar10", (f"method.noise={noise}",))
    privacy = account(plan_of(chosen).ledger(), 1e-5)
    assert privacy.proven.accountant == "composition"
    assert privacy.epsilon == printed["proven_epsilon"] > 1000
    claim = next(g for g in privacy.guarantees if g.accountant == name)
    assert (claim.epsilon, claim.valid) == (printed["epsilon"], False)

    first, line = dpdt(*arguments).stdout.splitlines()
    assert first.startswith(f"claimed, not proven: ε ≤ 0.5 by {name}; proven: ε ≤ ")
    assert f"{shown(privacy.epsilon, ROUND_CEILING)} by composition, with the noise" in first
    chosen = config.load("cifar10", (f"method.noise={line.removeprefix('noise = ')}",))
    assert 0.499 < by_name(name).guarantee(plan_of(chosen).ledger(), 1e-5).epsilon <= 0.5


def test_calibrate_with_a_fixed_seed_proves_nothing():
    arguments = ["calibrate", "cifar10", "--epsilon", "3", "--set", "privacy.noise_seed=1"]
    printed = json.loads(dpdt(*arguments, "--json").stdout)
    assert (printed["claimed"], printed["proven_epsilon"]) == (True, None)
    told = dpdt(*arguments).stdout
    assert told.startswith("claimed, not proven: ε ≤ 3 by composition; proven: no ε, since a fixed")


RESNET = """
[data]
name = "cifar10"
[model]
name = "resnet18"
[train]
epochs = 20
batch_size = 2500
[privacy]
delta = 1e-6
[method]
lr = 0.1
sampling = "partition"
granularity = "layer"
auxiliaries = 40
"""
MLP = """
[model]
name = "mlp"
[train]
epochs = 5
[method]
sampling = "partition"
granularity = "tensor"
lr = 0.1
"""
NOISE = "noise = { conv = 0.004, norm = 0.004, linear = 0.002 }"
CLIP = "clip = { conv = 0.004, norm = 0.002, linear = 0.001 }"
PASTED = {  # a file without noise and clip, and these
    "falling noise": (
        RESNET + 'noise_schedule = { kind = "exponential", rate = 0.9, every = 1 }',
        NOISE,
        CLIP,
    ),
    "growing noise and falling clip": (
        RESNET
        + 'noise_schedule = { kind = "steps", epochs = [5], factors = [0.5, 2] }\n'
        + 'clip_schedule = { kind = "steps", epochs = [2], factors = [3, 1] }',
        NOISE,
        CLIP,
    ),
    "blocks of one kind that differ": (
        MLP + 'noise_schedule = { kind = "exponential", rate = 0.9, every = 1 }',
        'noise = { linear = 0.01, "1.weight" = 0.03 }',
        'clip = { linear = 0.5, "3.bias" = 0.1 }',
    ),
}


def write(path, *lines):
    path.write_text("\n".join(lines))
    return str(path)


def planned_epsilon(source, *settings):
    chosen = config.load(source, settings)
    return by_name("composition").guarantee(plan_of(chosen).ledger(), chosen.privacy.delta).epsilon


@pytest.mark.parametrize("name", PASTED)
def test_what_calibrate_prints_gives_the_target_when_pasted(name, tmp_path):
    """It used to print the noise of the first epoch, and of the last block of each kind."""
    rest, noise, clip = PASTED[name]
    file = write(tmp_path / "f.toml", rest, noise, clip)
    told = dpdt("calibrate", file, "--epsilon", "3")
    assert told.returncode == 0, told.stderr
    again = write(tmp_path / "g.toml", rest, clip, *told.stdout.splitlines()[1:])
    assert 3.0 * (1 - 1e-3) <= planned_epsilon(again) <= 3.0

    printed = json.loads(dpdt("calibrate", file, "--epsilon", "3", "--json").stdout)
    values = ", ".join(f'"{k}" = {v!r}' for k, v in printed["noise"].items())
    assert planned_epsilon(file, f"method.noise={{ {values} }}") == printed["epsilon"] <= 3.0


def test_calibrate_names_the_blocks_of_a_kind_that_differ(tmp_path):
    """A common factor, so that what differed still does; blocks that agree go by their kind."""
    rest, noise, clip = PASTED["blocks of one kind that differ"]
    file = write(tmp_path / "f.toml", rest, noise, clip)
    found = json.loads(dpdt("calibrate", file, "--epsilon", "3", "--json").stdout)["noise"]
    assert list(found) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert found["1.weight"] == pytest.approx(3 * found["1.bias"])
    assert found["1.bias"] == found["3.weight"] == found["3.bias"]
    file = write(tmp_path / "f.toml", rest, "noise = 0.01", clip)
    found = json.loads(dpdt("calibrate", file, "--epsilon", "3", "--json").stdout)["noise"]
    assert list(found) == ["linear"]


def test_a_block_that_bears_the_name_of_another_kind():
    blocks = [
        Block(name="norm", kind="linear", size=1),
        Block(name="a", kind="norm", size=1),
        Block(name="b", kind="norm", size=1),
    ]
    assert by_kind(blocks, [1.0, 2.0, 2.0]) == {"norm": 1.0, "a": 2.0, "b": 2.0}
    assert by_kind(blocks, [1.0, 1.0, 1.0]) == {"linear": 1.0, "norm": 1.0}
    assert by_kind(blocks[1:], [2.0, 2.0]) == {"norm": 2.0}


def test_calibrate_says_that_a_target_would_scale_the_noise_again():
    told = dpdt("calibrate", "digits", "--epsilon", "3").stdout
    assert told.splitlines()[-1].startswith("# without privacy.epsilon = 8")
    told = dpdt("calibrate", "digits", "--epsilon", "3", "--set", "privacy.epsilon=3.0").stdout
    assert "#" not in told


def test_figures(tmp_path):
    done = dpdt("account", "cifar10", "--figure", "epsilon.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "epsilon.png").read_bytes()[:4] == b"\x89PNG"
    done = dpdt("account", "--figure", "nowhere/epsilon.png", cwd=tmp_path)
    assert done.returncode == 2
    assert "dpdt: nowhere/epsilon.png: cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "cifar10"], "--epsilon: must be a positive number, found None"),
        (["calibrate", "cifar10", "--epsilon", "-1"], "--epsilon: must be a positive number"),
        (["calibrate", "cifar10", "--epsilon", "3", "--kind", "x"], "--kind x: this model has"),
        (["calibrate", "cifar10", "--epsilon", "3", "--kind", "linear"], "alone spend more"),
        (
            ["calibrate", "cifar10", "--epsilon", "3", "--accountant", "hidden-state-contraction"],
            "is not valid",
        ),
        (
            ["calibrate", "digits", "--accountant", "paper"],
            "accountant 'paper' is not valid for this run: the bound is for mini-batches of a",
        ),
        (["calibrate", "--set", "privacy.delta=0.01"], "privacy.delta: must be below 1/n"),
        (["calibrate", "--set", "method.name=dpsgd", "--epsilon", "3"], "calibrate is for dpdt"),
        (["allocate", "--set", "privacy.delta=0.5"], "privacy.delta: must be below 1/n"),
        (["allocate", "digits", "--kind", "conv"], "method.granularity: the whole model is one"),
        (
            ["allocate", "cifar10", "--kind", "x"],
            "--kind: this model has conv, norm, linear, found",
        ),
        (
            ["allocate", "cifar10", "--equal", "--kind", "conv"],
            "--equal: is the baseline, in which",
        ),
        (["allocate", "cifar10", "--equal", "--boost", "2"], "--equal: is the baseline, in which"),
        (["allocate", "cifar10", "--out", "x", "--kind", "conv"], "--out: takes one allocation"),
        (["allocate", "cifar10", "--equal", "--out", "no/x"], "no/x: cannot be written"),
        (["allocate", "--accountant", "hidden-state-convex"], "gives no ε for this run"),
        (["allocate", "digits", "--set", "method.name=dpsgd"], "allocate is for dpdt, found"),
        (["reproduce", "everything"], "NAME: must be one of main-results, allocation, "),
    ],
)
def test_bad_input_to_the_accounting_commands(arguments, message):
    done = dpdt(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
