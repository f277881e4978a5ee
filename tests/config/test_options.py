"""Keyword arguments are typed: the list that editors complete from is the dataclasses' own."""

from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from dpdt import config
from dpdt.config import Options
from dpdt.errors import InputError
from dpdt.methods import METHODS
from dpdt.methods.settings import PrivacySettings, TrainSettings
from dpdt.training.arguments import Arguments, Given


def homes() -> dict[str, list[type]]:
    found: dict[str, list[type]] = {}
    for kind in (*METHODS.values(), TrainSettings, PrivacySettings):
        for field in fields(kind):
            if field.name != "name":
                found.setdefault(field.name, []).append(kind)
    return found


def test_every_setting_is_there_and_no_other():
    assert set(Options.__annotations__) == {"method", *homes()}
    assert set(get_type_hints(Arguments)) == {*Options.__annotations__, *Given.__annotations__}


def literals(hint) -> list:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for part in get_args(hint) for value in literals(part)]


def test_every_choice_that_is_offered_is_accepted():
    hints = get_type_hints(Options)
    assert set(literals(hints.pop("method"))) == set(METHODS)
    for name, kinds in homes().items():
        for value in literals(hints[name]):
            found = [next(f for f in fields(kind) if f.name == name) for kind in kinds]
            assert any(field.metadata["check"](value) for field in found), (name, value)


def test_every_choice_that_is_accepted_is_offered():
    hints = get_type_hints(Options)
    for name, kinds in homes().items():
        for kind in kinds:
            text = next(f for f in fields(kind) if f.name == name).metadata["text"]
            if text.startswith("one of "):
                accepted = set(text.removeprefix("one of ").split(", "))
                assert accepted <= set(literals(hints[name])), (name, accepted)


def test_a_method_refuses_what_is_another_s():
    with pytest.raises(InputError, match="teachers: no such setting"):
        config.training(method="dpsgd", teachers=3, noise=1.0)
    assert config.training(method="pate", teachers=3, noise=1.0).method.teachers == 3
