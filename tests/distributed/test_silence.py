"""Ranks that do not find each other, or of which one falls silent: one sentence, and no waiting."""

import contextlib
import io
import os
import signal
import socket
from datetime import timedelta

import pytest
from torch.distributed.distributed_c10d import _set_pg_timeout

from dpdt.distributed import meeting
from dpdt.distributed.world import World
from dpdt.errors import InputError
from tests.distributed.cases import deep, examples
from tests.distributed.group import PATIENCE, Group, free_port
from tests.distributed.test_failures import SMALL, me
from tests.numbers import prepare

SHORT = timedelta(seconds=1)


@pytest.fixture
def environment(monkeypatch):
    """torchrun's environment for one rank of two."""

    def told(rank, port):
        given = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in given.items():
            monkeypatch.setenv(name, str(value))

    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("DPDT_TIMEOUT", "1")
    return told


def refused(port):
    with pytest.raises(InputError) as caught:
        World.join()
    text = str(caught.value)
    assert text.startswith(f"the ranks could not meet at 127.0.0.1:{port} (")
    assert text.endswith("); is the port in use, or a rank missing?")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_that_something_else_listens_on(environment, rank):
    """Rank 0 cannot listen there. Rank 1 finds someone who is no store, and says nothing."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment(rank, port)
        text = refused(port)
        assert rank or "failed to listen" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_comes(environment, rank):
    port = free_port()
    environment(rank, port)
    refused(port)


def test_how_long_ranks_wait_is_set_by_the_environment(monkeypatch):
    """A frozen rank ended the others after 633 s, which nothing had said and nobody could set."""
    monkeypatch.delenv("DPDT_TIMEOUT", raising=False)
    assert meeting.timeout() == timedelta(minutes=10)
    monkeypatch.setenv("DPDT_TIMEOUT", "90.5")
    assert meeting.timeout() == timedelta(seconds=90.5)
    for wrong in ("0", "-1", "nan", "inf", "soon"):
        monkeypatch.setenv("DPDT_TIMEOUT", wrong)
        with pytest.raises(InputError, match=f"DPDT_TIMEOUT: must be seconds, .* '{wrong}'"):
            meeting.timeout()


def joins():
    """What a rank that begins says on standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        world = World.join()
        World.join()
    return world.rank, said.getvalue()


def test_how_long_ranks_wait_is_said_once_at_the_start(monkeypatch):
    monkeypatch.setenv("DPDT_TIMEOUT", "77")
    pair = Group(2)
    try:
        found = dict(pair.each(joins))
    finally:
        pair.close()
    said = "2 ranks; one that does not answer for 77 s ends the run (DPDT_TIMEOUT sets it)\n"
    assert found == {0: said, 1: ""}


def falls_silent(rank, path):
    """A rank stops at step 2, as if its machine or the network were gone. Nobody closes anything.

    Only the exchange that it misses has a short time-out, so that slow machines do not matter.
    """
    step, loader = prepare(deep(), examples(), ledger=path, **SMALL)
    for batch in loader:
        if batch.step == 2:
            if me() == rank:
                os.kill(os.getpid(), signal.SIGSTOP)
            _set_pg_timeout(SHORT, step.world._group)
        step(batch)


@pytest.mark.parametrize("silent", [0, 1])  # rank 0 also has the store
def test_a_rank_that_falls_silent_is_named_after_a_time_out(silent, tmp_path):
    pair = Group(2)
    try:
        for pipe in pair.pipes:
            pipe.send((falls_silent, (silent, tmp_path / "ledger.jsonl")))
        pipe = pair.pipes[1 - silent]
        assert pipe.poll(PATIENCE), "the other rank hangs"
        kind, (name, text, _) = pipe.recv()
    finally:
        pair.processes[silent].kill()
        pair.close()
    assert (kind, name) == ("failed", "Lost")
    assert text.startswith(f"no word from rank {silent}: the process was killed, or its machine")
    assert "\n" not in text
