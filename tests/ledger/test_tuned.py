"""The record of a tune in a ledger's file: read as it was written, or refused."""

import copy
import json
import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dpdt.accounting import account
from dpdt.config import load, plan_of
from dpdt.errors import InputError
from dpdt.ledger import Ledger, Planned, Tuned, text_of
from dpdt.ledger.lines import chain
from dpdt.releasing.budget import budget
from tests.accounting.test_poisson import poisson

TIMES = int(os.environ.get("DPDT_EXAMPLES", "300"))


@pytest.fixture(scope="module")
def ledger():
    plan = plan_of(load("digits", ("train.epochs=3",), "dpsgd")).ledger()
    other = plan_of(load("digits", ("train.epochs=4", "method.lr=2.0"), "dpsgd")).ledger()
    plans = tuple(Planned(header=one.header, runs=tuple(one.runs)) for one in (plan, other))
    tuned = Tuned(runs=4.0, noise=9.5, candidates=plans, chosen=True)
    return replace(plan, tuned=tuned, data="0" * 128)


def parsed(records):
    text, previous = "", ""
    for record in records:
        previous = chain(previous, record)
        text += json.dumps({**record, "hash": previous}) + "\n"
    return Ledger.parse(text, Path("ledger"))


@pytest.fixture(scope="module")
def records(ledger):
    found = [json.loads(line) for line in text_of(ledger).splitlines()]
    return [{k: v for k, v in record.items() if k != "hash"} for record in found]


def test_it_is_read_as_it_was_written(ledger, records):
    assert Ledger.parse(text_of(ledger), Path("x")) == ledger
    assert [record["kind"] for record in records[:4]] == ["header", "data", "tuned", "setting"]
    assert parsed(records) == ledger


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.update(runs=0), "runs must be"),
        (lambda t: t.update(runs=True), "runs must be"),
        (lambda t: t.update(runs=float("nan")), "runs must be"),
        (lambda t: t.update(noise=-1.0), "noise must be"),
        (lambda t: t.update(chosen=1), "chosen must be"),
        (lambda t: t.update(candidates={}), "candidates a list"),
        (lambda t: t.update(candidates=[]), "none of the tune's candidates"),
        (lambda t: t.pop("noise"), "a tune has"),
        (lambda t: t.update(bands=2), "a tune has"),
        (lambda t: t["candidates"].pop(0) and t["candidates"].pop(0), "none of the tune's"),
        (
            lambda t: t["candidates"][1]["header"].update(relation="replace-one"),
            "differ in relation",
        ),
        (lambda t: t["candidates"][1]["header"].update(examples=7), "differ in examples"),
        (lambda t: t["candidates"][1]["header"].update(odd=7), "unknown key"),
        (lambda t: t["candidates"][1].update(runs=[]), "a candidate has"),
        (lambda t: t["candidates"][1]["runs"][0].update(steps=0), "whole number of steps"),
        (lambda t: t["candidates"][1]["runs"][0].update(steps=1.5), "whole number of steps"),
        (lambda t: t["candidates"][1]["runs"][0]["setting"].update(noise=[]), "noise has 0"),
    ],
)
def test_anything_else_is_refused(records, change, why):
    changed = copy.deepcopy(records)
    change(changed[2])
    with pytest.raises(InputError, match=why):
        parsed(changed)


def test_it_stands_once_and_before_the_first_step(records):
    for order in ([0, 1, 2, 2, 3, 4], [0, 1, 3, 4, 2], [2, 0, 1, 3, 4]):
        with pytest.raises(InputError, match="cannot stand here"):
            parsed([records[place] for place in order])


def test_any_change_is_read_or_refused(records):
    odd = [0, -1, 10**30, 1e300, None, True, "x", [], {}, [1.0], {"x": 1}, "poisson", 0.5]
    source = random.Random(1)

    def places(value):
        if isinstance(value, dict | list):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield value, key
                yield from places(value[key])

    for _ in range(TIMES):
        changed = copy.deepcopy(records)
        holder, key = source.choice(list(places(changed[2])))
        holder[key] = source.choice(odd)
        with suppress(InputError):
            account(parsed(changed), 1e-5)


def test_a_tune_that_would_take_for_ever_is_refused_before_it_does(tmp_path, monkeypatch):
    """1,000 candidates of three Poisson settings kept `verify`, `account` and `budget` busy."""
    several = (
        poisson([(1.0, 2.0 + 1e-3 * (3 * number + i), 100) for i in range(3)], per_example=True)
        for number in range(1000)
    )
    plans = tuple(Planned(header=one.header, runs=tuple(one.runs)) for one in several)
    tuned = Tuned(runs=5.0, noise=3.0, candidates=plans, chosen=True)
    long = Ledger(plans[0].header, list(plans[0].runs), tuned=tuned, closed=True)
    for name in ("dpdt.accounting.tuning.sampled", "dpdt.accounting.cost._composed"):
        monkeypatch.setattr(name, lambda *given: pytest.fail("it is computed"))
    said = "1001 settings of different cost, and ε of all of them would take about .* more than 30"
    with pytest.raises(InputError, match=said):
        account(long, 1e-5)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ledger.jsonl").write_text(text_of(long))
    with pytest.raises(InputError, match=f"run: the tune has {said}"):
        budget([tmp_path])
