"""Work on all cores."""

import math

import pytest
import torch

from dpdt.training import pool


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_one_job_is_done_here_on_one_thread():
    began = []
    found = list(
        pool.each(
            lambda a, b: (a * b, torch.get_num_threads()),
            [(2, 3), (4, 5)],
            jobs=1,
            initializer=began.append,
            initargs=("once",),
        )
    )
    assert found == [(6, 1), (20, 1)]
    assert began == ["once"]
    assert torch.get_num_threads() == 2
    assert list(pool.each(began.append, [], initializer=began.append, initargs=("no",))) == []
    assert began == ["once"]


def test_two_processes_have_one_thread_each_and_pass_errors_on():
    items = [(2, 3), (3, 2), (2, 2)]
    assert sorted(pool.each(pow, items, jobs=2)) == [4, 8, 9]
    assert set(pool.each(torch.get_num_threads, [()] * 2, jobs=2)) == {1}
    with pytest.raises(ValueError, match=r"domain|nonnegative"):
        list(pool.each(math.sqrt, [(-1.0,), (4.0,)], jobs=2))
