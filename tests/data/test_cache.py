"""What is read from the cache is what was written under the same key, or nothing."""

import os
import pickle
import stat
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from dpdt.data import cache

KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPDT_CACHE", str(tmp_path))
    return tmp_path / "features"


def some(shift=0.0):
    return {"features": torch.arange(600.0).view(300, 2) + shift, "labels": torch.arange(300)}


def same(a, b):
    return a is not None and a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_what_was_written_is_read_by_its_key_alone(home):
    assert cache.read(KEY) is None
    cache.write(KEY, some())
    cache.write(OTHER, some(1.0))
    assert same(cache.read(KEY), some())
    assert same(cache.read(OTHER), some(1.0))
    files, size = cache.size()
    assert files == 2
    assert size > 2 * 300 * (8 + 8)


def test_nobody_else_may_look(home):
    cache.write(KEY, some())
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    (path,) = home.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def swap(path):
    """A whole file, of another key."""
    cache.write(OTHER, some(1.0))
    path.with_name(OTHER + cache.KEPT).replace(path)


def forge(path):
    """Another's numbers under this key, with the hash of what was there before."""
    content = cache._content(KEY, some())
    save_file(some(1.0), path, metadata={"key": KEY, "content": content})


def rename(path):
    """The numbers of another key, called by this one."""
    content = cache._content(OTHER, some(1.0))
    save_file(some(1.0), path, metadata={"key": KEY, "content": content})


def exchange(path):
    """The same numbers under other names."""
    given = some()
    given["labels"], given["features"] = given["features"], given["labels"]
    save_file(given, path, metadata={"key": KEY, "content": cache._content(KEY, some())})


def link(path):
    elsewhere = path.parent.parent / "elsewhere"
    path.replace(elsewhere)
    path.symlink_to(elsewhere)


DAMAGES = {
    "a flipped bit": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: path.write_bytes(b""),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(some())),
    "a file of torch": lambda path: torch.save(some(), path),
    "nothing said": lambda path: save_file(some(), path),
    "a file of another key": swap,
    "other numbers": forge,
    "numbers of another key": rename,
    "names exchanged": exchange,
    "a link": link,
    "others may write to it": lambda path: path.chmod(0o620),
    "others may write to the folder": lambda path: path.parent.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_cannot_be_trusted_is_not_used(home, damage):
    cache.write(KEY, some())
    path = home / (KEY + cache.KEPT)
    damage(path)
    with pytest.warns(UserWarning, match="computed again"):
        assert cache.read(KEY) is None


def test_a_file_of_another_user_is_not_used(home, monkeypatch):
    cache.write(KEY, some())
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.warns(UserWarning, match="another user"):
        assert cache.read(KEY) is None
    with pytest.warns(UserWarning, match="not kept for the next time"):
        cache.write(OTHER, some())


def test_what_is_damaged_is_replaced(home):
    cache.write(KEY, some())
    flip(home / (KEY + cache.KEPT))
    cache.write(KEY, some())
    assert same(cache.read(KEY), some())


def full(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("problem", ["full", "half", "none left", "no folder"])
def test_what_cannot_be_written_is_one_warning(home, problem, monkeypatch):
    if problem == "full":
        monkeypatch.setattr("safetensors.torch.save_file", full)
    elif problem == "half":  # written before the disk was full
        monkeypatch.setattr(os, "replace", full)
    elif problem == "none left":
        monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    else:
        home.write_text("")
    with pytest.warns(UserWarning, match="not kept for the next time") as told:
        cache.write(KEY, some())
    assert len(told) == 1
    if problem != "no folder":
        assert list(home.iterdir()) == []  # nothing half-written is left
        assert cache.read(KEY) is None


def test_what_an_ended_process_left_goes_and_what_another_writes_stays(home):
    cache.write(OTHER, some())
    left, writing = home / "left.part", home / "writing.part"
    for path in (left, writing):
        path.write_bytes(b"some")
    os.utime(left, (time.time() - 2 * cache.ABANDONED,) * 2)
    cache.write(KEY, some())
    assert sorted(p.suffix for p in home.iterdir()) == [".part", cache.KEPT, cache.KEPT]
    assert writing.exists()


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("DPDT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.folder() == tmp_path / "home" / ".cache" / "dpdt" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its standard says to ignore
    assert cache.folder() == tmp_path / "home" / ".cache" / "dpdt" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "dpdt" / "features"
    monkeypatch.setenv("DPDT_CACHE", "~nobody-of-this-name/kept")
    assert cache.folder() is None


def test_a_folder_that_may_not_be_read_is_no_failure(home, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    cache.write(KEY, some())
    monkeypatch.setattr(os, "lstat", refused)
    with pytest.warns(UserWarning, match="computed again"):
        assert cache.read(KEY) is None
    with pytest.warns(UserWarning, match="not kept for the next time"):
        cache.write(KEY, some())
    monkeypatch.setattr(cache.Path, "iterdir", refused)
    assert cache.size() == (0, 0)


def test_it_can_be_switched_off(monkeypatch):
    cache.write(KEY, some())
    monkeypatch.setenv("DPDT_CACHE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write(OTHER, some())
        assert cache.read(KEY) is None
    assert cache.size() == (0, 0)


def test_what_takes_much_room_is_said(home, monkeypatch, capsys):
    cache.write(KEY, some())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(cache, "NOTABLE", 1000)
    cache.write(KEY, some())
    assert f"0.0 GB in {home}" in capsys.readouterr().err
