"""Schedules as the section [method] writes them."""

from __future__ import annotations

from typing import Any

from dpdt.algorithm import schedule
from dpdt.algorithm.schedule import Schedule


def schedule_of(key: str, value: Any) -> Schedule:
    """The schedule of a key; "paper" is the paper's own, where it has one."""
    return schedule.parse(value, key=key)
