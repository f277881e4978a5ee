import pytest

from dpdt.algorithm.schedule import PAPER_CLIP, PAPER_PENALTY, Constant
from dpdt.errors import InputError
from dpdt.methods.schedules import schedule_of


def test_the_papers_own_by_key():
    assert schedule_of("clip_schedule", "paper") is PAPER_CLIP
    assert schedule_of("penalty_schedule", "paper") is PAPER_PENALTY
    assert schedule_of("noise_schedule", "constant") == Constant()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "noise_schedule",
            "paper",
            "method.noise_schedule: must be 'constant' or a table with a kind, found 'paper'",
        ),
        (
            "clip_schedule",
            "rising",
            "method.clip_schedule: must be 'constant' or 'paper' or a table with a kind, found "
            "'rising'",
        ),
        (
            "clip_schedule",
            7,
            "method.clip_schedule: must be a name or a table with a kind, found 7",
        ),
        (
            "penalty_schedule",
            {"kind": "cosine"},
            "method.penalty_schedule.kind: must be one of constant, steps, exponential, two-phase, "
            "found 'cosine'",
        ),
        (
            "penalty_schedule",
            {"kind": "steps", "epochs": [5], "factors": [1]},
            "method.penalty_schedule.factors: 1 boundaries in epochs need 2 factors, found 1",
        ),
        (
            "noise_schedule",
            {"kind": "two-phase", "low": 0.1},
            "method.noise_schedule: a 'two-phase' schedule does not fit: missing 1 required "
            "keyword-only argument: 'ramp'",
        ),
    ],
)
def test_a_complaint_names_the_key(key, value, message):
    with pytest.raises(InputError) as error:
        schedule_of(key, value)
    assert str(error.value) == message
