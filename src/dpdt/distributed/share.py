"""Which part of something belongs to which rank. A rank is one of the processes of a run."""

from __future__ import annotations


def share(number: int, rank: int, size: int) -> range:
    """This rank's part of 0 … number − 1: contiguous, and as long as any other's but for one."""
    return range(number * rank // size, number * (rank + 1) // size)
