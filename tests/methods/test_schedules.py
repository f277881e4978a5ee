import pytest
import torch
from torch import nn

from dpdt import prepare
from dpdt.algorithm.schedule import PAPER_CLIP, Constant, paper_penalty
from dpdt.errors import InputError
from dpdt.methods.schedules import grows, schedule_of


def test_the_papers_own_by_key():
    assert schedule_of("clip_schedule", "paper") is PAPER_CLIP
    assert schedule_of("noise_schedule", "paper") is PAPER_CLIP
    assert schedule_of("penalty_schedule", "paper", 0.1) == paper_penalty(0.1, grows=True)
    assert schedule_of("penalty_schedule", "paper-decay", 5) == paper_penalty(5, grows=False)
    assert schedule_of("noise_schedule", "constant") == Constant()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "noise_schedule",
            "paper-decay",
            "method.noise_schedule: must be 'constant' or 'paper' or a table with a kind, found "
            "'paper-decay'; did you mean paper?",
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
            "method.penalty_schedule.kind: must be one of constant, paper, paper-decay, steps, "
            "exponential, two-phase, found 'cosine'",
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


def test_whether_a_schedule_ever_grows():
    up = {"kind": "steps", "epochs": [5], "factors": [1.0, 2.0]}
    by_step = schedule_of("clip_schedule", {**up, "unit": "step"})
    assert grows(by_step, 2, 3)
    assert not grows(by_step, 1, 3)
    assert not grows(schedule_of("clip_schedule", up), 2, 3)
    assert not grows(PAPER_CLIP, 200, 20)


def test_a_step_is_planned_and_taken_with_its_own_penalty():
    """SST-2 has two epochs: by epoch ρ could change once."""
    data = torch.randn(80, 4), torch.randint(0, 2, (80,))
    table = {"kind": "exponential", "rate": 2.0, "every": 3, "unit": "step"}
    step, loader = prepare(
        nn.Linear(4, 2), data, epochs=2, batch_size=20, auxiliaries=2, memory="none", lr=0.1,
        noise=1.0, penalty=1.0, penalty_schedule=table, sampling="partition",
    )  # fmt: skip
    rho = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0]
    assert [step.plan.at(t).penalty for t in range(8)] == rho
    for _ in range(2):
        for batch in loader:
            step(batch)
    recorded = [s.setting.penalty for s in step.writer.ledger.runs for _ in range(s.steps)]
    assert recorded == rho


@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_langevins_noise_follows_the_root_of_the_penalty(unit):
    data = torch.randn(80, 4), torch.randint(0, 2, (80,))
    options = {"epochs": 4, "batch_size": 20, "auxiliaries": 2, "memory": "none", "lr": 0.1}
    table = {"kind": "exponential", "rate": 4.0, "every": 2, "unit": unit}
    options |= {"noise": 0.5, "penalty": 0.1, "penalty_schedule": table, "sampling": "partition"}
    step, _ = prepare(nn.Linear(4, 2), data, noise_schedule="langevin", **options)
    settings = [step.plan.at(t) for t in range(16)]
    assert settings[-1].penalty > 0.3
    for s in settings:
        assert s.noise[0] == pytest.approx(0.5 * (s.penalty / 0.1) ** 0.5)
    with pytest.raises(InputError, match=r"method.noise_schedule: 'langevin' follows the penalty"):
        prepare(
            nn.Linear(4, 2), data, **options | {"penalty": [0.1, 0.2], "noise_schedule": "langevin"}
        )


def test_each_auxiliarys_penalty_ends_at_the_same_value():
    data = torch.randn(80, 4), torch.randint(0, 2, (80,))
    step, _ = prepare(
        nn.Linear(4, 2), data, epochs=200, batch_size=40, auxiliaries=2, memory="auxiliary", lr=0.1,
        noise=1.0, penalty=[0.1, 0.5], penalty_schedule="paper", sampling="partition",
        averaging=0.0, granularity="layer", preconditioner="identity",
    )  # fmt: skip
    assert step.plan.at(0).penalties == (0.1, 0.5)
    assert step.plan.at(399).penalties == pytest.approx((10.0, 10.0))


ZERO = {"kind": "steps", "epochs": [2], "factors": [1.0, 0.0]}
TINY = {"kind": "exponential", "rate": 1e-300, "every": 1}  # 1e-600 is 0


@pytest.mark.parametrize(("schedule", "listed"), [(ZERO, False), (ZERO, True), (TINY, True)])
def test_a_penalty_that_vanishes_is_refused_before_training(schedule, listed):
    data = torch.randn(80, 4), torch.randint(0, 2, (80,))
    options = {"auxiliaries": 2, "memory": "none", "lr": 0.1, "noise": 1.0, "batch_size": 20}
    given = ["constant", schedule] if listed else schedule
    prepare(nn.Linear(4, 2), data, epochs=2, penalty_schedule=given, **options)
    with pytest.raises(InputError, match=r"method.penalty_schedule: must stay .* in epoch 2"):
        prepare(nn.Linear(4, 2), data, epochs=3, penalty_schedule=given, **options)
