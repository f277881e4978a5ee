"""Groups of ranks are started once for all tests: to start torch takes seconds."""

import pytest

from tests.distributed.group import Group


@pytest.fixture(scope="session", params=[2, 3])
def group(request):
    made = Group(request.param)
    yield made
    made.close()
