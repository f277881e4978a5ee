"""Work on all cores: one process and one thread a core, so that numbers do not depend on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any


def each(
    function: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    *,
    jobs: int | None = None,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[Any, ...] = (),
) -> Iterator[Any]:
    """Call a function with each tuple of arguments; yield the results as they come.

    If the caller stops early, or anything fails, what has not begun is not begun. What needs one
    process only is done in this one.
    """
    workers = min(len(items), jobs or os.cpu_count() or 1)
    if workers <= 1:
        yield from _here(function, items, initializer, initargs)
        return
    with ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(initializer, initargs),
    ) as pool:
        futures = [pool.submit(function, *arguments) for arguments in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _here(
    function: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    initializer: Callable[..., None] | None,
    initargs: tuple[Any, ...],
) -> Iterator[Any]:
    import torch

    threads = torch.get_num_threads()
    try:
        if items:
            _begin(initializer, initargs)
        for arguments in items:
            yield function(*arguments)
    finally:
        torch.set_num_threads(threads)


def _begin(initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    if initializer is not None:
        initializer(*initargs)
