"""Ranks of a test: processes on this machine that meet on loopback.

Starting torch takes seconds. So one group of processes serves many cases: each is a function of
this package by name, which every rank calls with its own world.
"""

import os
import socket
import sys
import traceback
import warnings
from datetime import timedelta
from multiprocessing import get_context

PATIENCE = 300.0  # seconds that a case may take; then the test fails and does not hang


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _serve(rank, size, port, pipe):
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - of a process of its own
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    while (case := pipe.recv()) is not None:
        function, arguments = case
        try:
            torch.manual_seed(0)
            pipe.send(("done", function(*arguments)))
        except Exception as error:
            pipe.send(("failed", (type(error).__name__, str(error), traceback.format_exc())))


class Group:
    """A number of ranks, started once. `each` calls a function on all of them."""

    def __init__(self, size):
        context = get_context("spawn")
        port = free_port()
        pipes = [context.Pipe() for _ in range(size)]
        self.pipes = [mine for mine, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, size, port, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()

    def each(self, function, *arguments):
        """What every rank found, in order; the error of the first that failed is raised."""
        found = self.outcomes(function, *arguments)
        for kind, value in found:
            assert kind == "done", value[-1]
        return [value for _, value in found]

    def errors(self, function, *arguments):
        """The errors of all ranks, as (class, message)."""
        found = self.outcomes(function, *arguments)
        assert all(kind == "failed" for kind, _ in found), found
        return [value[:2] for _, value in found]

    def outcomes(self, function, *arguments):
        for pipe in self.pipes:
            pipe.send((function, arguments))
        found = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(PATIENCE), f"rank {rank} hangs"
            try:
                found.append(pipe.recv())
            except EOFError:
                found.append(("gone", None))
        return found

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            try:
                pipe.send(None)
            except OSError:
                continue
            finally:
                process.join(10)
                process.kill()
