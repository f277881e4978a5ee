"""Ledgers: any bytes, any change of a line, any record under a chain that was computed anew."""

import copy
import json
import math
import warnings
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dpdt.accounting import account
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.ledger.lines import FORMAT, chain

from . import fuzz, one_sentence

HEADER = {
    "kind": "header", "format": FORMAT, "method": "dpdt", "examples": 100, "auxiliaries": 4,
    "batches": 5, "memory": "none", "sampling": "partition", "unit": "example",
    "relation": "replace-one", "blocks": [{"name": "a", "kind": "linear", "size": 3}],
    "per_example": False, "rate": 1.0, "reshuffle": False, "preconditioner": "identity",
    "regularizer": "none", "weight_decay": 0.0, "auxiliary_weight_decay": 0.0,
    "gradient_bound": 1.0, "smoothness": 1.0, "averaging": 0.0, "one_penalty": True,
    "release": "last", "private": True,
}  # fmt: skip
SETTING = {
    "kind": "setting", "clip": [1.0], "noise": [2.0], "penalty": 1.0, "lr": 0.1, "global_lr": 0.9,
    "step_size": 0.9, "contraction": 1.0, "spacing": [2.0**-30], "rounding": [1e-8],
    "penalties": [],
}  # fmt: skip
RECORDS = [
    HEADER,
    {"kind": "data", "seal": "0" * 96},
    SETTING,
    *({"kind": "step", "step": n} for n in range(7)),
    {**SETTING, "noise": [1.0], "contraction": 0.9},
    *({"kind": "step", "step": n} for n in range(7, 12)),
    {"kind": "export", "what": "a model"},
    {"kind": "end", "steps": 12, "model": "0" * 64},
]
values = st.one_of(
    st.integers(-3, 20),
    st.sampled_from([0, 10**18, 10**30, 10**400, True, False, None, 1e-300, 5e-324, 1e300]),
    st.floats(),
    st.sampled_from(["poisson", "auxiliary", "shared", "all", "add-remove", "user", "gep", "x"]),
    st.lists(st.floats() | st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "size", "x"]), st.integers(0, 3), max_size=3),
)
keys = st.sampled_from([*HEADER, *SETTING, "step", "steps", "what", "why", "seal", "model", "hash"])


def written(records):
    text, previous = "", ""
    for record in records:
        previous = chain(previous, record)
        text += json.dumps({**record, "hash": previous}) + "\n"
    return text


def accounted(text):
    """The guarantees of a ledger, unless it is refused."""
    try:
        ledger = Ledger.parse(text, Path("fuzzed"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = account(ledger, 1e-3, allow_large_delta=True)
            str(found), json.dumps(found.as_json(), allow_nan=False)
    except InputError as error:
        one_sentence(error)
        return None
    for g in found.guarantees:
        assert g.epsilon >= 0.0  # nor is it nan
        assert g.mu is None or g.mu >= 0.0
    return found


@fuzz
@given(st.data())
def test_records_under_a_chain_of_their_own(data):
    records = copy.deepcopy(RECORDS)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(records) - 1))
        match data.draw(st.integers(0, 4)):
            case 0 | 1 | 2:
                record = records[place]
                key = data.draw(st.sampled_from(sorted(record)) | keys)
                record[key] = data.draw(values)
            case 3:
                records.insert(place, copy.deepcopy(data.draw(st.sampled_from(RECORDS))))
            case 4 if len(records) > 1:
                del records[place]
    accounted(written(records))


@fuzz
@given(st.data())
def test_bytes(data):
    raw = bytearray(written(RECORDS).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                raw[place] = data.draw(st.integers(0, 255))
            case 1:
                del raw[place : place + data.draw(st.integers(1, 300))]
            case 2:
                raw[place:place] = data.draw(st.binary(max_size=5))
        if not raw:
            break
    whole = accounted(written(RECORDS))
    found = accounted(raw.decode("utf-8", "surrogateescape"))
    assert found is None or found.steps <= whole.steps
    assert found is None or not found.closed or found == whole


@fuzz
@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda t: t.encode("utf-8", "replace")))
def test_any_bytes(raw):
    assert accounted(raw.decode("utf-8", "surrogateescape")) is None


headers = st.fixed_dictionaries(
    {
        "memory": st.sampled_from(["none", "shared", "auxiliary"]),
        "unit": st.sampled_from(["example", "shard", "user"]),
        "reshuffle": st.booleans(),
        "batches": st.integers(1, 9) | st.just(10**15),
        "auxiliaries": st.integers(1, 9),
        "release": st.sampled_from(["all", "last"]),
    }
)


@fuzz
@given(
    headers,
    st.lists(
        st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 9)),
        min_size=1,
        max_size=4,
    ),
    st.floats(1.0, 100.0),
)
def test_less_noise_and_more_steps_never_cost_less(changes, runs, factor):
    def spent(runs, scale):
        records, number = [{**HEADER, **changes}], 0
        for clip, noise, steps in runs:
            records.append({**SETTING, "clip": [clip], "noise": [noise * scale]})
            records += [{"kind": "step", "step": number + i} for i in range(steps)]
            number += steps
        return accounted(written([*records, {"kind": "end", "steps": number}])).guarantees[0]

    whole = spent(runs, 1.0)
    assert math.isfinite(whole.mu)
    assert spent(runs, factor).epsilon <= whole.epsilon * (1 + 1e-9)
    assert spent(runs[:-1], 1.0).epsilon <= whole.epsilon * (1 + 1e-9)
