"""What editors, mypy, notebooks and people see of `dpdt.train`, `dpdt.prepare` and results."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dpdt
from dpdt.config import Options
from dpdt.training.arguments import Given
from tests.numbers import NUMBERS

ROOT = Path(__file__).parents[2]
DATA = torch.randn(40, 5), torch.arange(40) % 2
SMALL = {**NUMBERS, "auxiliaries": 4, "noise": 1.0, "epochs": 2, "batch_size": 20}

SCRIPT = """
import dpdt
from torch import nn

reveal_type(dpdt.train(nn.Linear(2, 2), None, epochs=3, epsilon=3.0))
reveal_type(dpdt.prepare(nn.Linear(2, 2), None, epochs=3)[0].result().privacy)
dpdt.train(nn.Linear(2, 2), None, epoch=3)
dpdt.train(nn.Linear(2, 2), None, epsilon="three")
dpdt.train(nn.Linear(2, 2), None, memory="both")
dpdt.train(nn.Linear(2, 2), None, on_epoch=lambda record: record["epoch"] == 2)
"""
LIBRARIES = ("torch", "numpy", "scipy", "sklearn", "rich", "safetensors", "PIL", "transformers")


def test_mypy_knows_every_keyword(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    skipped = ",".join(f"mypy-{name}.*" for name in LIBRARIES)  # which would take half a minute
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\n[{skipped}]\nfollow_imports = skip\n[mypy-dpdt.*]\nfollow_imports = silent\n"
        "ignore_missing_imports = true\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "--config-file",
         "mypy.ini", "--ignore-missing-imports", "script.py"],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True,
    )  # fmt: skip
    said = [line.partition("script.py:")[2] for line in done.stdout.splitlines()[:-1]]
    said = [line for line in said if "defined in" not in line]
    assert said[0] == '5: note: Revealed type is "dpdt.training.fitted.Fitted"'
    assert said[1] == '6: note: Revealed type is "dpdt.accounting.guarantee.Privacy"'
    assert said[2].startswith('7: error: Unexpected keyword argument "epoch" for "train"; did you')
    assert said[3].startswith('8: error: Argument "epsilon" to "train" has incompatible type "str"')
    assert said[4].startswith('9: error: Argument "memory" to "train" has incompatible type')
    assert len(said) == 5, done.stdout


@pytest.mark.parametrize("call", [dpdt.train, dpdt.prepare])
def test_a_wrong_name_or_value_is_one_sentence(call):
    with pytest.raises(dpdt.InputError, match=r"^epoch: no such setting; did you mean epochs\?$"):
        call(nn.Linear(5, 2), DATA, epoch=3)
    with pytest.raises(dpdt.InputError, match=r"^privacy\.epsilon: must be a positive number, fo"):
        call(nn.Linear(5, 2), DATA, epsilon="three")


@pytest.mark.parametrize(("given", "near"), [
    ({"task": "clasification"}, "classification"), ({"metric": "acuracy"}, "accuracy"),
    ({"method": "dpsdg"}, "dpsgd"), ({"memory": "sharde"}, "shared"),
    ({"clip": {"lineer": 1.0}}, "linear"), ({"clip_schedule": "constnat"}, "constant"),
    ({"clip_schedule": {"kind": "stps"}}, "steps"), ({"batchsize": 3}, "batch_size"),
])  # fmt: skip
def test_the_nearest_name_is_suggested(given, near):
    with pytest.raises(dpdt.InputError, match=rf"; did you mean {near}\?$"):
        dpdt.train(nn.Linear(5, 2), DATA, **{"epochs": 1, "batch_size": 20, "noise": 1.0, **given})


@pytest.mark.parametrize("call", [dpdt.train, dpdt.prepare])
def test_the_signature_is_the_table_of_settings(call):
    found = inspect.signature(call).parameters
    names = {*Options.__annotations__, *Given.__annotations__}
    assert names <= set(found)
    assert all(found[name].kind is inspect.Parameter.KEYWORD_ONLY for name in names)
    assert (found["epochs"].default, found["epochs"].annotation) == (20, "int")
    assert found["clip"].default is ...  # methods differ
    words = inspect.getdoc(call)
    for name in Options.__annotations__:
        assert f"\n        {name}: " in words


def test_the_words_of_train_name_nothing_that_is_not_there():
    source = ast.parse((ROOT / "src/dpdt/training/loop.py").read_text("utf-8"))
    (function,) = [n for n in source.body if isinstance(n, ast.FunctionDef) and n.name == "train"]
    said = ast.get_docstring(function).partition("Args:\n")[2].partition("\n\n")[0]
    lines = [s for s in said.splitlines() if s.startswith("    ") and not s.startswith("     ")]
    names = {n for s in lines for n in s.partition(":")[0].strip().split(", ")} - {"**options"}
    assert names <= set(inspect.signature(dpdt.train).parameters)
    assert {"epochs", "batch_size", "epsilon", "delta", "clip", "lr", "auxiliaries", "memory",
            "sampling", "unit", "callbacks", "optimizer", "scheduler"} <= names  # fmt: skip


def test_every_public_name_is_known_to_editors():
    source = ast.parse((ROOT / "src/dpdt/__init__.py").read_text("utf-8"))
    (block,) = [n for n in source.body if isinstance(n, ast.If)]
    names = {alias.name for line in block.body for alias in line.names}
    assert names == set(dpdt.__all__)
    for name in names:
        assert getattr(dpdt, name) is not None


def test_results_are_shown_in_a_few_lines():
    result = dpdt.train(nn.Linear(5, 2), DATA, test=DATA, **SMALL)
    assert repr(result) == (
        "Linear with 12 parameters, trained by dpdt in 4 steps (2 epochs)\n" + str(result.privacy)
    )
    assert repr(result.privacy) == str(result.privacy) == result.privacy.table()
    assert len(repr(result)) < 600
    shown = result._repr_html_()
    assert shown.count("<tr>") == str(result.privacy).count("\n") + 1
    assert '<td style="text-align:left">proven</td>' in shown


def test_html_is_escaped():
    from dpdt.accounting.notebook import as_html

    assert as_html("no ε is proven: <b>") == (
        '<table><tr><td style="text-align:left"></td><td style="text-align:left"></td>'
        '<td style="text-align:left">no ε is proven: &lt;b&gt;</td></tr></table>'
    )
