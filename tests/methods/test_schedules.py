import pytest
import torch
from torch import nn

from dpdt import prepare
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


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "steps", "epochs": [2], "factors": [1.0, 0.0]},
        {"kind": "exponential", "rate": 1e-300, "every": 1},  # 1e-600 is 0
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_a_penalty_that_vanishes_is_refused_before_training(schedule, listed):
    data = torch.randn(80, 4), torch.randint(0, 2, (80,))
    options = {"auxiliaries": 2, "memory": "none", "lr": 0.1, "noise": 1.0, "batch_size": 20}
    given = ["constant", schedule] if listed else schedule
    prepare(nn.Linear(4, 2), data, epochs=2, penalty_schedule=given, **options)
    with pytest.raises(InputError, match=r"method.penalty_schedule: must stay .* in epoch 2"):
        prepare(nn.Linear(4, 2), data, epochs=3, penalty_schedule=given, **options)
