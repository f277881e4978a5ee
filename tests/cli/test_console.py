"""Consoles that lack characters, that are full, closed or gone: one sentence, and nothing lost."""

import os
import subprocess
import sys

import pytest

from dpdt.cli import console

FULL = "/dev/full"
RUN = ("train", "digits", "--set", "train.epochs=1")
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="no /dev/full here")


def dpdt(*arguments, out=subprocess.PIPE, err=subprocess.PIPE, cwd=None, **variables):
    return subprocess.run(
        [sys.executable, "-m", "dpdt", *arguments],
        stdout=out,
        stderr=err,
        cwd=cwd,
        env=os.environ | variables,
    )


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "cp437", "ascii"])
def test_a_console_that_lacks_characters_gets_others(encoding):
    done = dpdt("account", "digits", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("utf-8" if encoding == "ascii" else encoding)
    said = {"ascii": "ε ≤ 8", "cp437": "ε ≤ 8"}  # click takes an ASCII console for UTF-8
    assert text.startswith(said.get(encoding, "e <= 8"))
    assert dpdt("account", "no\udcffne", PYTHONIOENCODING=encoding).returncode == 2


def test_every_character_has_a_spelling_in_ascii():
    assert all(spelled.isascii() for spelled in console.SPELLED.values())
    error = UnicodeEncodeError("ascii", "δ ≤ ★", 0, 1, "")
    assert console._spelled(error) == ("delta", 1)
    assert console._spelled(UnicodeEncodeError("ascii", "★", 0, 1, "")) == ("?", 1)


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_standard_output(unbuffered):
    with open(FULL, "wb") as full:
        done = dpdt("account", "digits", out=full, PYTHONUNBUFFERED=unbuffered)
        told = done.stderr.decode()
        assert done.returncode == 2
        assert told == "dpdt: standard output cannot be written (No space left on device)\n"
        done = dpdt("account", "nonesuch", err=full, PYTHONUNBUFFERED=unbuffered)
        assert (done.returncode, done.stdout) == (2, b"")


@needs_full
def test_a_run_is_not_lost_with_its_output(tmp_path):
    with open(FULL, "wb") as full:
        done = dpdt(*RUN, "--out", "run", out=full, cwd=tmp_path)
    told = done.stderr.decode()
    assert done.returncode == 2
    assert told.startswith("dpdt: run: has the whole run, but its result cannot be written (No spa")
    assert told.count("\n") == 1
    assert b"proven" in dpdt("account", "run", cwd=tmp_path).stdout


def closed(*arguments, streams, cwd=None):
    script = f'"$0" -m dpdt "$@" {streams}'
    return subprocess.run(
        ["sh", "-c", script, sys.executable, *arguments], capture_output=True, cwd=cwd
    )


def test_closed_streams(tmp_path):
    done = closed(*RUN, "--out", "run", streams=">&-", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"dpdt: standard output is closed, and the result would be lost")
    assert not (tmp_path / "run").exists()
    done = closed(*RUN, "--out", "run", streams="2>&-", cwd=tmp_path)
    assert done.returncode == 0
    assert "proven" in done.stdout.decode()
    assert closed("account", streams=">&- 2>&-").returncode == 2


def test_a_reader_that_has_seen_enough():
    read, write = os.pipe()
    os.close(read)
    done = dpdt("account", "digits", out=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_file_that_cannot_be_written_is_named(monkeypatch, capsys):
    from dpdt.cli import main

    def fails(error):
        def cli(**_):
            raise error

        monkeypatch.setattr(main, "cli", cli)
        with pytest.raises(SystemExit) as exit_:
            main.main()
        assert exit_.value.code == 2
        return capsys.readouterr().err

    assert fails(OSError(28, "No space left on device", "figure.png")) == (
        "dpdt: figure.png: No space left on device; not everything was written\n"
    )
    assert fails(MemoryError("Unable to allocate 7 TiB.")) == (
        "dpdt: there is not enough memory (Unable to allocate 7 TiB)\n"
    )
