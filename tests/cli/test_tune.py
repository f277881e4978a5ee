"""dpdt tune, as a user types it."""

import json

import click
import pytest
from click.testing import CliRunner

from dpdt.cli.main import cli
from dpdt.errors import InputError

TRY = ("--try", "method.lr=0.5,2")
SHORT = ("--set", "train.epochs=2", "--set", "data.limit=300", "--set", "train.batch_size=300")


def dpdt(*arguments):
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "2 to 1000 settings, found 1"),
        (("--try", "method.lr=1"), "2 to 1000 settings, found 1"),
        (("--try", "method.lr"), "must look like"),
        (("--try", "=1,2"), "must look like"),
        (("--try", "lr=1,2"), "must look like"),
        (("--try", "privacy.delta=1e-5,1e-6"), "must look like"),
        (("--try", "data.limit=100,200"), "must look like"),
        (("--try", "audit.canaries=0,10"), "must look like"),
        (("--try", "method.lr=1,,2"), "between commas"),
        (("--try", "method.lr="), "between commas"),
        (("--try", "model.hidden=[1,2"), "between commas"),
        (("--try", "model.hidden=1],[2"), "between commas"),
        (("--try", "model.name='mlp,linear"), "between commas"),
        (("--try", "method.lr=1,1.0"), "twice"),
        (("--try", "method.rate=1,2"), "rate"),
        (("--try", "method.lr=1,-2"), "lr"),
        (("--try", "train.seed=" + ",".join(map(str, range(1001)))), "1000 settings, found 1001"),
        ((*TRY, "--epsilon", "nan"), "must be a positive number"),
        ((*TRY, "--epsilon", "-1"), "must be a positive number"),
        ((*TRY, "--runs", "0"), "from 0.1 to 1000"),
        ((*TRY, "--runs", "nan"), "from 0.1 to 1000"),
        ((*TRY, "--runs", "1e-9"), "from 0.1 to 1000"),
        ((*TRY, "--runs", "1e9"), "from 0.1 to 1000"),
        ((*TRY, "--score-noise", "-1"), "from 0"),
        ((*TRY, "--score-noise", "0"), "--public-score says"),
        ((*TRY, "--score-noise", "1e30"), "from 0 to 1e+09"),
        (("--score-noise", "0", "--resume", "x"), "give nothing else"),
        ((*TRY, "--score-noise", "inf"), "from 0"),
        ((*TRY, "--score-noise", "1e-300"), "must be larger"),
        ((*TRY, "--score-noise", "5", "--public-score"), "private examples"),
        ((*TRY, "--limit", "-1"), "limit"),
        ((*TRY, "--paid", "."), "--limit"),
        ((*TRY, "--resume", "x"), "give nothing else"),
        (("--runs", "3", "--resume", "x"), "give nothing else"),
        (("--resume", "nowhere"), "not the folder of a run"),
        ((*TRY, "--set", "privacy.accountant=hidden-state-convex"), "accountant"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = () if "--resume" in arguments else ("digits", "--method", "dpsgd", *SHORT)
    found = dpdt("tune", *source, *arguments).exception
    assert isinstance(found, InputError | click.ClickException), found
    assert message in str(found)
    assert "\n" not in str(found)
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_values_with_commas_are_values():
    from dpdt.training.candidates import candidates

    found = candidates("digits", (), None, ["model.hidden=[64],[32,16]", "model.name=mlp"], 3.0)
    assert [tuple(one.config.model.hidden) for one in found] == [(64,), (32, 16)]


def test_what_a_new_user_sees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = dpdt(
        "tune", "digits", "--method", "dpsgd", *SHORT, *TRY, "--epsilon", "3", "--runs", "2"
    )
    assert done.exception is None, done.exception
    for text in ("chosen: method.lr=", "of noise, on 260 held-out examples", "how many is secret",
                 "ε ≤ 3 ", "the whole tune"):  # fmt: skip
        assert text in done.output
    (folder,) = (tmp_path / "runs").iterdir()
    again = dpdt("tune", "--resume", str(folder), "--json")
    told = json.loads(again.output)
    assert told["finished"]
    assert 2.9 < told["privacy"]["proven"]["epsilon"] <= 3.0
    assert told["score_noise"] > 0.02
    own = dpdt("account", str(folder / "config.toml")).exception
    assert "what the tune has cost" in str(own)
    shown = dpdt("release", str(folder), "--to", str(tmp_path / "rel"), "--public-test").exception
    assert "a tune has scored on" in str(shown)
    beyond = dpdt("tune", "digits", "--method", "dpsgd", *SHORT, *TRY, "--epsilon", "3",
                  "--limit", "4")  # fmt: skip
    assert "the data will have paid" in str(beyond.exception)
    assert "of which 1 run before it paid 3" in str(beyond.exception)
    assert len(list((tmp_path / "runs").iterdir())) == 1
