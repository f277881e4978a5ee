"""A test's outcome depends on the code alone: every test starts from the same random state."""

import os
import random
import signal

import hypothesis
import numpy as np
import pytest
import torch

hypothesis.settings.register_profile("project", derandomize=True, deadline=None)
hypothesis.settings.load_profile("project")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so starts a shell what it does not wait for
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """The longest first, so that no process waits for another at the end."""
    items.sort(key=lambda item: "test_sensitivity" not in item.nodeid)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """No test reads or writes the user's cache or key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPDT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("DPDT_KEY", str(tmp_path_factory.mktemp("key") / "key"))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_disks():
    """Files of tests need not outlive a power cut. `tests/kills.py` has processes of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda file: None)
        yield


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    """Seeds the global generators, and stands in for the operating system's entropy."""
    torch.manual_seed(0)
    np.random.seed(0)
    monkeypatch.setattr("dpdt.noise.secrets.randbits", random.Random(0).getrandbits)


@pytest.fixture
def threads_of_users(monkeypatch):
    """Processes that a test starts have as many threads as torch takes by itself.

    Threads that wait leave their core to other tests.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
