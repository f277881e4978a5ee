import json
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpdt.errors import InputError
from dpdt.ledger import Block, Header, Ledger, LedgerWriter, Setting
from dpdt.ledger.lines import chain


def header(**options):
    blocks = (Block(name="a", kind="linear", size=3), Block(name="b", kind="norm", size=2))
    defaults = {
        "method": "dpdt",
        "examples": 100,
        "auxiliaries": 4,
        "batches": 5,
        "memory": "shared",
        "sampling": "partition",
        "unit": "example",
        "relation": "replace-one",
        "blocks": blocks,
    }
    return Header(**{**defaults, **options})


def setting(clip=1.0, noise=0.5, penalty=2.0):
    return Setting(
        clip=(clip, 2 * clip),
        noise=(noise, noise),
        penalty=penalty,
        lr=0.1,
        global_lr=0.99,
        step_size=0.99 / penalty,
        contraction=1.0,
    )


def opened(path):
    writer = LedgerWriter(header())
    writer.open(path)
    return writer


def write(path, settings, close=True):
    writer = opened(path)
    for s in settings:
        writer.step(s)
    if close:
        writer.close()
    return writer.ledger


def rewrite(path, kind, change):
    """Change the records of one kind, and make the chain whole again."""
    previous, lines = "", []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        del record["hash"]
        if record["kind"] == kind:
            change(record)
        previous = chain(previous, record)
        lines.append(json.dumps({**record, "hash": previous}))
    path.write_text("\n".join(lines) + "\n")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1e6)), max_size=30))
def test_round_trip(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    written = write(path, [setting(c, n) for c, n in values])
    read = Ledger.read(path)
    assert read == written
    assert read.closed
    assert read.steps == len(values)


def test_penalties_of_each_auxiliary_come_back_as_they_were(tmp_path):
    path = tmp_path / "ledger.jsonl"
    given = replace(setting(), penalties=(0.1, 0.2, 0.3, 0.7))
    assert write(path, [given, setting()]) == Ledger.read(path)
    assert [run.setting.penalties for run in Ledger.read(path).runs] == [given.penalties, ()]


def test_a_setting_without_penalties_is_that_of_one_for_all(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()])
    rewrite(path, "setting", lambda record: record.pop("penalties"))
    assert Ledger.read(path).runs[0].setting == setting()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_penalty_that_is_not_positive_is_refused(tmp_path, value):
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()])
    rewrite(path, "setting", lambda record: record.update(penalties=[1.0, 1.0, 1.0, value]))
    with pytest.raises(InputError, match="penalties must be"):
        Ledger.read(path)


def test_equal_steps_are_run_length_coded():
    writer = LedgerWriter(header())
    for value in (1.0, 1.0, 2.0, 2.0, 2.0, 1.0):
        writer.step(setting(value))
    assert [run.steps for run in writer.ledger.runs] == [2, 3, 1]
    assert writer.ledger.epochs == 6 / 5


def test_the_record_is_on_disk_before_the_step_is_taken(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writer = opened(path)
    writer.step(setting())
    assert Ledger.read(path).steps == 1  # read while the writer is still open


def test_a_ledger_cut_short_is_readable(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()] * 7, close=False)
    ledger = Ledger.read(path)
    assert (ledger.steps, ledger.closed) == (7, False)
    path.write_bytes(path.read_bytes()[:-10])  # the last line is torn: that step never ran
    assert Ledger.read(path).steps == 6


def test_exports_are_recorded(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writer = opened(path)
    writer.step(setting())
    writer.export("average of iterates")
    writer.close()
    assert Ledger.read(path).exports == ["average of iterates"]


def test_tampering_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()] * 4)
    lines = path.read_text().splitlines()
    original = lines.copy()

    def refused(changed, message):
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises(InputError, match=message):
            Ledger.read(path)

    # a larger noise
    record = json.loads(lines[1])
    record["noise"] = [5.0, 5.0]
    refused([lines[0], json.dumps(record), *lines[2:]], "line 2 .* does not match its hash")
    # a step left out
    refused([*original[:3], *original[4:]], "line 4 .* does not match its hash")
    # two lines swapped, a line doubled, rubbish, no header, nothing
    refused([*original[:2], original[3], original[2], *original[4:]], "does not match its hash")
    refused([*original[:3], original[2], *original[3:]], "does not match its hash")
    refused([original[0], "rubbish", *original[2:]], "line 2 of the ledger is damaged")
    refused(original[1:], "does not match its hash")
    path.write_text("")
    with pytest.raises(InputError, match="not a ledger"):
        Ledger.read(path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[1, 2]\n", b"{}\n"])
def test_other_files_are_not_ledgers(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a ledger|damaged"):
        Ledger.read(path)
    with pytest.raises(InputError, match=r"absent\.jsonl: is missing"):
        Ledger.read(tmp_path / "absent.jsonl")


def test_a_ledger_file_is_never_overwritten(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()])
    with pytest.raises(InputError, match=r"cannot be written .File exists"):
        opened(path)


def test_a_file_cannot_be_opened_halfway(tmp_path):
    writer = LedgerWriter(header())
    writer.step(setting())
    with pytest.raises(InputError, match="before the first step"):
        writer.open(tmp_path / "ledger.jsonl")
    assert not (tmp_path / "ledger.jsonl").exists()


def test_steps_that_are_taken_again_are_read_back(tmp_path):
    """As after loading an earlier state, and then a later one."""
    path = tmp_path / "ledger.jsonl"
    writer = opened(path)
    for number in (0, 1, 2, 3, 1, 4):
        writer.step(setting(), number)
    writer.close()
    found = Ledger.read(path)
    assert [(run.start, run.steps) for run in found.runs] == [(0, 4), (1, 1), (4, 1)]
    assert (found.steps, found.reached, found.repeats) == (6, 5, True)
    assert found == writer.ledger


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("header", {"method": "dp-ftrl"}),
        ("header", {"memory": "banana"}),
        ("header", {"sampling": "weird"}),
        ("header", {"relation": "swap-two"}),
        ("header", {"format": 4}),
        ("header", {"new": 1}),
        ("setting", {"new": 1}),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, kind, change):
    """With a chain that is right: nobody has damaged the file, this version cannot read it."""
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()] * 2)
    rewrite(path, kind, lambda record: record.update(change))
    with pytest.raises(InputError, match=r"line [12] of the ledger is damaged \(.*(know|unknown)"):
        Ledger.read(path)


@pytest.mark.parametrize("name", ["method", "memory", "sampling", "unit", "relation", "release"])
def test_no_header_has_a_word_that_is_not_known(name):
    with pytest.raises(InputError, match=f"{name} is 'banana', which this version does not know"):
        header(**{name: "banana"})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("header", {"auxiliaries": "4"}),
        ("header", {"auxiliaries": 10**400}),
        ("header", {"batches": 2.5}),
        ("header", {"auxiliary_weight_decay": []}),
        ("header", {"rate": float("nan")}),
        ("header", {"private": "yes"}),
        ("header", {"blocks": []}),
        ("header", {"blocks": [3]}),
        ("header", {"blocks": [{"name": "a", "kind": "linear", "size": "3"}]}),
        ("setting", {"clip": 1.0}),
        ("setting", {"noise": ["1.0"]}),
        ("setting", {"lr": True}),
    ],
)
def test_values_of_other_types_are_refused(tmp_path, kind, change):
    """Found by fuzzing: each reached an accountant, and ended in a traceback there."""
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()])
    rewrite(path, kind, lambda record: record.update(change))
    with pytest.raises(InputError, match=r"of the ledger is damaged \("):
        Ledger.read(path)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    write(path, [setting()])
    monkeypatch.setattr("dpdt.ledger.lines.LONGEST", 2000)
    with path.open("a") as file:
        file.write("x" * 5000)
    with pytest.raises(InputError, match="is too long for a ledger"):
        Ledger.read(path)


def test_a_long_ledger_of_many_settings_is_read_in_one_pass(tmp_path):
    """Every step looked through all runs before it."""
    path = tmp_path / "ledger.jsonl"
    write(path, [setting(1.0 + i) for i in range(3000)])
    assert Ledger.read(path).steps == 3000
