"""What a user reads of an error, in Python and on the command line."""

import pickle

import pytest

from dpdt.cli import main
from dpdt.errors import ArgumentError, InputError


def test_an_argument_is_named():
    error = ArgumentError("trials", "must be at least 100, found 5")
    assert isinstance(error, InputError)
    assert error.argument == "trials"
    assert str(error) == "trials: must be at least 100, found 5"


def test_a_worker_process_can_hand_it_on():
    again = pickle.loads(pickle.dumps(ArgumentError("trials", "too few")))
    assert (again.argument, again.problem, str(again)) == ("trials", "too few", "trials: too few")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ArgumentError("large_trials", "too few"), "dpdt: --large-trials: too few\n"),
        (InputError("method.clip: too large"), "dpdt: method.clip: too large\n"),
    ],
)
def test_the_command_line_names_the_option(error, told, monkeypatch, capsys):
    def fail(**_):
        raise error

    monkeypatch.setattr(main, "cli", fail)
    monkeypatch.setattr(main.warnings, "showwarning", main.warnings.showwarning)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == told
