"""What a page asked for last is what is computed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PAGES = 100  # open pages whose newest request is remembered


class Turns:
    """One computation at a time. Of what a page has asked for, only the newest is computed."""

    def __init__(self) -> None:
        self._computing, self._counting = threading.Lock(), threading.Lock()
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()

    @contextmanager
    def turn(self, page: Any, kind: str, number: int) -> Iterator[bool]:
        """Wait, then say whether the page has asked for nothing newer. It numbers what it asks."""
        key = (str(page)[:40], kind)
        with self._counting:
            self._newest[key] = max(self._newest.pop(key, 0), number)
            while len(self._newest) > PAGES:
                self._newest.popitem(last=False)
        with self._computing:
            yield self._newest.get(key, number) <= number
