"""Seals: the holder of the key sees which runs used the same data. Nobody else sees anything."""

import os
import stat
import subprocess
import sys
from collections import Counter

import pytest

from dpdt import seal
from dpdt.errors import InputError

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where the key of this test is kept."""
    found = tmp_path / "config" / "key"
    monkeypatch.setenv("DPDT_KEY", str(found))
    return found


def test_the_key_opens_what_it_sealed():
    one, two = seal.sealed(KEY, "a"), seal.sealed(KEY, "a")
    assert seal.opened(KEY, one) == seal.opened(KEY, two) == {seal.identity(KEY, "a")}
    assert seal.opened(KEY, seal.sealed(KEY, "b")) != seal.opened(KEY, one)


def test_another_key_opens_nothing():
    assert seal.opened(OTHER, seal.sealed(KEY, "a")) is None
    assert seal.identity(KEY, "a") != seal.identity(OTHER, "a")


def test_a_seal_with_any_bit_changed_opens_nothing():
    bits = int(seal.sealed(KEY, "a"), 16)
    for place in range(512):
        assert seal.opened(KEY, f"{bits ^ (1 << place):0128x}") is None


@pytest.mark.parametrize("text", ["", "00", "g" * 128, "0" * 129, "0" * 128])
def test_what_is_no_seal_opens_nothing(text):
    assert seal.opened(KEY, text) is None


def test_seals_of_equal_and_of_other_data_look_alike():
    """Without the key: no part repeats, and no bit of a seal leans to one side."""
    same = [seal.sealed(KEY, "a") for _ in range(2000)]
    for start in (0, 32, 64, 96):
        parts = Counter(one[start : start + 32] for one in same)
        assert max(parts.values()) == 1
    ones = [sum(int(s, 16) >> place & 1 for s in same) for place in range(512)]
    assert 1000 - 6 * 22.4 < min(ones) <= max(ones) < 1000 + 6 * 22.4  # six standard deviations
    pairs = [int(x, 16) ^ int(y, 16) for x, y in zip(same[::2], same[1::2], strict=True)]
    shared = [512 - x.bit_count() for x in pairs]
    assert 256 - 6 * 11.4 < min(shared) <= max(shared) < 256 + 6 * 11.4


def test_seals_differ_only_if_both_open():
    a, b, foreign = seal.sealed(KEY, "a"), seal.sealed(KEY, "b"), seal.sealed(OTHER, "b")
    assert seal.differ(KEY, a, b)
    assert not seal.differ(KEY, a, seal.sealed(KEY, "a"))
    assert not seal.differ(KEY, a, foreign)
    assert not seal.differ(KEY, a, "")


def test_a_key_is_made_once_for_its_owner_alone(path):
    key = seal.own_key()
    assert len(key) == 32
    assert seal.own_key() == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["key"]


def test_processes_that_begin_at_once_have_one_key(path):
    code = "import sys; from dpdt import seal; sys.stdin.read(); print(seal.own_key().hex())"
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for process in started:
        process.stdin.close()
    keys = {process.stdout.read().strip() for process in started}
    assert {process.wait() for process in started} == {0}
    assert keys == {seal.own_key().hex()}
    assert [p.name for p in path.parent.iterdir()] == ["key"]


def test_the_loser_of_a_race_takes_the_winners_key(path):
    seal._make(path)
    first = path.read_bytes()
    seal._make(path)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["key"]


@pytest.mark.parametrize("text", [b"", b"abc\n", b"0" * 63, b"0" * 65, b"g" * 64, b"\xff" * 64])
def test_a_damaged_key_is_one_sentence(path, text):
    path.parent.mkdir()
    path.write_bytes(text)
    with pytest.raises(InputError, match="not a key for budgets, which is 64 hexadecimal digits"):
        seal.own_key()
    assert path.read_bytes() == text


def test_a_key_that_others_can_read_is_warned_of(path):
    key = seal.own_key()
    path.chmod(0o644)
    with pytest.warns(UserWarning, match="others can read the key"):
        assert seal.own_key() == key


def test_a_key_that_cannot_be_kept_serves_this_process(monkeypatch):
    monkeypatch.setenv("DPDT_KEY", "/proc/nowhere/key")
    with pytest.warns(UserWarning, match="cannot be kept .* count this run to all data"):
        one = seal.own_key()
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert seal.own_key() == one
    assert seal.opened(one, seal.sealed(one, "a")) == {seal.identity(one, "a")}


def test_where_the_key_is(tmp_path, monkeypatch):
    monkeypatch.delenv("DPDT_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert seal.key_path() == tmp_path / "dpdt" / "key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert seal.key_path() == tmp_path / ".config" / "dpdt" / "key"


def test_no_test_has_the_users_own_key():
    assert str(seal.key_path()).startswith(os.path.realpath(os.environ["DPDT_CACHE"] + "/.."))
