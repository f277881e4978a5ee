"""Inputs that nobody would write, from hypothesis: a clean error or a right result, always.

    DPDT_EXAMPLES=10000 python -m pytest tests/fuzz

Without the variable each test takes a few seconds.
"""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("DPDT_EXAMPLES", "200"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="DPDT_EXAMPLES" not in os.environ,
    database=None,
)


def one_sentence(error, *names):
    """Check that a refusal is something to read, and names what it is about."""
    said = str(error)
    assert len(said) > 10
    assert not names or any(name in said for name in names)
