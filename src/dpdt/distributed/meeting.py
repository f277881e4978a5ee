"""How ranks meet and part: torch.distributed's groups, and its errors as one sentence."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from dpdt.errors import InputError

VARIABLE, USUAL = "DPDT_TIMEOUT", 600.0  # seconds for one exchange: who does not come is given up
SHORTEST, MOST = 1.0, 1e6


def timeout() -> timedelta:
    """How long ranks wait for each other in one exchange, as the environment says."""
    given = os.environ.get(VARIABLE, "").strip()
    try:
        seconds = float(given) if given else USUAL
    except ValueError:
        seconds = 0.0
    if not SHORTEST <= seconds <= MOST:
        raise InputError(
            f"{VARIABLE}: must be seconds, from {SHORTEST:g} to {MOST:,.0f}, found {given!r:.50}"
        )
    return timedelta(seconds=seconds)


def begin() -> None:
    """Meet the other ranks as torchrun's environment says.

    torchrun may start ranks again beside a store that still holds the addresses of the last ones.
    So each attempt has names of its own there.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    patience = timeout()
    meet = rendezvous("env://", timeout=patience)
    store, rank, size = in_time(lambda: next(meet), 2 * patience)
    dist.init_process_group(
        backend,
        store=dist.distributed_c10d.PrefixStore(f"dpdt/{attempt}/{size}", store),
        rank=rank,
        world_size=size,
        timeout=patience,
    )


def in_time(function: Callable[[], Any], limit: timedelta) -> Any:
    """What a function returns, or a RuntimeError if it takes too long.

    torch waits for a store without an end, if something answers the call but is silent then: a
    program that is no store, or a rank that hangs. The thread that waits is left behind.
    """
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    if failed:
        raise failed[0]
    if not found:
        raise RuntimeError(f"no answer within {limit.total_seconds():.0f} seconds")
    return found[0]


def connected(meet: Callable[[], Any]) -> Any:
    """What `meet` returns; one sentence if the ranks do not find each other."""
    try:
        return meet()
    except (RuntimeError, ValueError) as error:
        why = first_line(str(error))
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    raise InputError(
        f"the ranks could not meet at {where} ({why}); is the port in use, or a rank missing?"
    )


def close(group: Any) -> None:
    """Close a group's connections, which ends what others wait for."""
    with quiet():
        dist.destroy_process_group(group)


@contextmanager
def quiet() -> Iterator[None]:
    """What fails on the way out is of no interest any more."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError):
        return


def first_line(text: str) -> str:
    """The beginning of an error's text."""
    return text.strip().splitlines()[0][:120] if text.strip() else "no reason given"
