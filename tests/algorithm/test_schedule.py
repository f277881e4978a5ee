import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdt.algorithm.schedule import PAPER_CLIP, PAPER_PENALTY, grows, parse
from dpdt.errors import InputError


def test_the_papers_clipping_scale():
    expected = {0: 16, 49: 16, 50: 8, 70: 8, 71: 4, 80: 4, 81: 2, 100: 2, 101: 1, 199: 1}
    assert {e: PAPER_CLIP.factor(e) for e in expected} == expected


def test_the_papers_penalty_decays_to_its_floor():
    base = 0.1
    assert base * PAPER_PENALTY.factor(4) == base
    assert base * PAPER_PENALTY.factor(5) == pytest.approx(0.09)
    assert base * PAPER_PENALTY.factor(8) == pytest.approx(0.081)
    # 19 decays in [5, 60], 4 in [61, 99], then halves every 25 epochs from 100 on
    assert base * PAPER_PENALTY.factor(99) == pytest.approx(0.1 * 0.9**23)
    assert base * PAPER_PENALTY.factor(100) == pytest.approx(0.1 * 0.9**23 / 2)
    assert base * PAPER_PENALTY.factor(10_000) == pytest.approx(1e-5)


def test_growth_of_the_method_section():
    schedule = parse({"kind": "exponential", "rate": 1 / 0.9, "every": 3})
    assert [schedule.factor(e) for e in (0, 2, 3, 5, 6)] == pytest.approx(
        [1, 1, 1 / 0.9, 1 / 0.9, 1 / 0.81]
    )
    assert grows(schedule, 10)


def test_two_phase_noise():
    schedule = parse({"kind": "two-phase", "low": 0.2, "ramp": [10, 20]})
    assert [schedule.factor(e) for e in (0, 10, 15, 20, 99)] == pytest.approx([0.2, 0.2, 0.6, 1, 1])


@given(st.floats(0.1, 10), st.integers(1, 10), st.integers(0, 5000))
def test_exponential_never_overflows(rate, every, epoch):
    table = {"kind": "exponential", "rate": rate, "every": every, "floor": 1e-6, "ceiling": 1e6}
    assert 1e-6 <= parse(table).factor(epoch) <= 1e6


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("rising", "must be 'constant' or a table"),
        ("paper", "must be 'constant' or a table"),  # there is none unless it is given
        (7, "must be a name or a table"),
        ({"kind": "cosine"}, "kind: must be one of .*, found 'cosine'"),
        (
            {"kind": "steps", "epochs": [5], "factors": [1]},
            "factors: 1 boundaries in epochs need 2",
        ),
        ({"kind": "steps", "epochs": [5, 5], "factors": [1, 2, 3]}, "epochs: must increase"),
        ({"kind": "two-phase", "low": 0.1, "ramp": [9, 3]}, r"ramp: must be \[first, last\]"),
        ({"kind": "two-phase", "lowest": 0.1}, "a 'two-phase' schedule does not fit"),
        ({"kind": "exponential", "rate": -1.0, "every": 1}, "rate: must be positive"),
    ],
)
def test_bad_schedules_are_named(value, message):
    with pytest.raises(InputError, match=f"^{message}"):
        parse(value)


def test_the_papers_own_where_there_is_one():
    assert parse("paper", paper=PAPER_CLIP) is PAPER_CLIP
    with pytest.raises(InputError, match=r"^must be 'constant' or 'paper' or a table"):
        parse("rising", paper=PAPER_CLIP)
