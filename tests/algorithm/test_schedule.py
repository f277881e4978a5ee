from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdt.algorithm import schedule as schedules
from dpdt.algorithm.parse import parse
from dpdt.algorithm.recipe import Recipe
from dpdt.algorithm.schedule import PAPER_CLIP, ByStep, paper_penalty, stretches
from dpdt.errors import InputError


def factors(schedule, epochs, batches):
    """The factor of every epoch, or of every step, written out."""
    if isinstance(schedule, ByStep):
        return [schedule.factor(step // batches, step) for step in range(epochs * batches)]
    return [schedule.factor(epoch) for epoch in range(epochs)]


def test_the_papers_clipping_scale():
    expected = {0: 16, 49: 16, 50: 8, 70: 8, 71: 4, 80: 4, 81: 2, 100: 2, 101: 1, 199: 1}
    assert {e: PAPER_CLIP.factor(e) for e in expected} == expected


def test_the_papers_penalty_starts_at_a_tenth_grows_and_reaches_ten():
    rho = [0.1 * f for f in factors(paper_penalty(0.1, grows=True), 200, 20)]
    assert rho[4] == 0.1
    assert rho[5] == pytest.approx(0.1 / 0.9)
    # 19 times in [5, 60], 4 times in [61, 99], then doubled every 25 epochs from 100 on
    assert rho[99] == pytest.approx(0.1 / 0.9**23)
    assert rho[100] == pytest.approx(0.2 / 0.9**23)
    assert rho[174] == pytest.approx(0.8 / 0.9**23)
    assert rho[175] == rho[-1] == pytest.approx(10.0)
    assert rho == sorted(rho)


@pytest.mark.parametrize("base", [0.1, 10.0])
def test_the_papers_penalty_decays_to_a_value_of_its_own(base):
    """The floor was a factor: ρ = 10 ended at 1e-3, where the paper says 1e-5."""
    decay = paper_penalty(base, grows=False)
    assert decay.factor(4) == 1.0
    assert decay.factor(5) == pytest.approx(0.9)
    assert decay.factor(99) == pytest.approx(0.9**23)
    assert decay.factor(100) == pytest.approx(0.9**23 / 2)
    assert base * decay.factor(10_000) == pytest.approx(1e-5)


def test_a_schedule_by_step():
    table = {"kind": "steps", "epochs": [3, 5], "factors": [1.0, 2.0, 4.0]}
    assert factors(parse(table), 3, 2) == [1, 1, 1]
    assert factors(parse({**table, "unit": "epoch"}), 3, 2) == [1, 1, 1]
    assert factors(parse({**table, "unit": "step"}), 3, 2) == [1, 1, 1, 2, 2, 4]


@pytest.mark.parametrize(("unit", "length"), [("epoch", 20), ("step", 20 * 7)])
def test_the_papers_timetable_within_fewer_epochs(unit, length):
    over = 20 if unit == "epoch" else 140
    table = {"kind": "paper", "over": over, "unit": unit}
    found = factors(parse(table, named={"paper": PAPER_CLIP}), 20, 7)
    assert len(found) == length
    assert found == [PAPER_CLIP.factor(t * 200 // length) for t in range(length)]
    assert set(found) == {16, 8, 4, 2, 1}


def test_growth_of_the_method_section():
    schedule = parse({"kind": "exponential", "rate": 1 / 0.9, "every": 3})
    assert [schedule.factor(e) for e in (0, 2, 3, 5, 6)] == pytest.approx(
        [1, 1, 1 / 0.9, 1 / 0.9, 1 / 0.81]
    )


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
        ({"kind": "constant", "unit": "batch"}, "unit: must be 'epoch' or 'step', found 'batch'"),
    ],
)
def test_bad_schedules_are_named(value, message):
    with pytest.raises(InputError, match=f"^{message}"):
        parse(value)


def test_the_papers_own_where_there_is_one():
    named = {"paper": PAPER_CLIP}
    assert parse("paper", named=named) is PAPER_CLIP
    with pytest.raises(InputError, match=r"^must be 'constant' or 'paper' or a table"):
        parse("rising", named=named)
    with pytest.raises(InputError, match=r"^over: must be a whole number from 1, found 0$"):
        parse({"kind": "paper", "over": 0}, named=named)


tables = st.one_of(
    st.just({"kind": "constant"}),
    st.builds(
        lambda epochs, values: {
            "kind": "steps",
            "epochs": sorted(epochs),
            "factors": values[: len(epochs) + 1],
        },
        st.sets(st.integers(-3, 40), max_size=4),
        st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=5, max_size=5),
    ),
    st.builds(
        lambda phases, floor, ceiling: {
            "kind": "exponential", "phases": phases, "floor": floor, "ceiling": ceiling,
        },
        st.lists(
            st.fixed_dictionaries(
                {
                    "rate": st.sampled_from([1e-9, 0.5, 1.0, 1.5, 1e99, 1e300]),
                    "every": st.integers(1, 5),
                    "start": st.integers(-3, 20),
                },
                optional={"stop": st.integers(0, 30)},
            ),
            min_size=1,
            max_size=3,
        ),
        st.sampled_from([0.0, 0.3]),
        st.sampled_from([3.0, 1e308]),
    ),
    st.builds(
        lambda first, more: {"kind": "two-phase", "low": 0.25, "ramp": [first, first + more]},
        st.integers(0, 20),
        st.integers(1, 20),
    ),
    st.builds(lambda over: {"kind": "paper", "over": over}, st.integers(1, 300)),
)  # fmt: skip
written = st.tuples(tables, st.booleans()).map(lambda t: {**t[0], "unit": ["epoch", "step"][t[1]]})


@given(st.lists(written, min_size=3, max_size=3), st.integers(1, 40), st.integers(1, 5))
def test_a_run_from_change_to_change_is_the_run_written_out(found, epochs, batches):
    clip, noise, penalty = (parse(t, named={"paper": PAPER_CLIP}) for t in found)
    recipe = Recipe(
        auxiliaries=3,
        clip=(1.0,),
        noise=(1.0,),
        lr=0.1,
        penalty=(1e-300,),
        clip_schedule=clip,
        noise_schedule=noise,
        penalty_schedule=(parse({"kind": "constant"}),),
    )
    runs = recipe.runs(epochs, batches)
    assert sum(number for _, number in runs) == epochs * batches
    assert all(a != b for (a, _), (b, _) in pairwise(runs))
    every = [setting for setting, number in runs for _ in range(number)]
    assert every == [recipe.at(step // batches, step) for step in range(epochs * batches)]
    for step, number in stretches({"penalty_schedule": penalty}, epochs, batches):
        within = {penalty.factor(t // batches, t) for t in range(step, step + number)}
        assert len(within) == 1


@pytest.mark.parametrize(
    "table",
    [
        "constant",
        "paper",
        {"kind": "paper", "over": 10**9},
        {"kind": "exponential", "rate": 1.1, "every": 3},
        {"kind": "exponential", "rate": 0.9, "every": 1, "floor": 1e-6},
        {"kind": "two-phase", "low": 0.1, "ramp": [10, 5000]},
    ],
)
def test_a_thousand_million_epochs_are_a_few_stretches(table):
    schedule = parse(table, named={"paper": paper_penalty(0.1, grows=True)})
    found = list(stretches({"clip_schedule": schedule}, 10**9, 100))
    assert len(found) <= schedules.MOST
    assert sum(number for _, number in found) == 10**11


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "exponential", "rate": 1.0000001, "every": 1},
        {"kind": "two-phase", "low": 0.1, "ramp": [0, 10**9]},
    ],
)
def test_a_schedule_that_changes_for_ever_is_refused_by_its_key(table):
    with pytest.raises(InputError, match=r"method\.noise_schedule: changes more than 20,000 times"):
        list(
            stretches(
                {"clip_schedule": parse("constant"), "noise_schedule": parse(table)}, 10**9, 1
            )
        )


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"kind": "steps", "epochs": [1.5], "factors": [1, 2]}, "epochs"),
        ({"kind": "steps", "epochs": ["a"], "factors": [1, 2]}, "epochs"),
        ({"kind": "steps", "epochs": [1], "factors": [1, "b"]}, "factors"),
        ({"kind": "exponential", "rate": 1.1, "every": 0.5}, "every"),
        ({"kind": "exponential", "rate": "x", "every": 1}, "rate"),
        ({"kind": "exponential", "phases": [{"rate": 1.1, "every": 1, "start": 0.5}]}, "start"),
        ({"kind": "exponential", "phases": [3]}, "phases"),
        ({"kind": "exponential", "rate": 1.1, "every": 1, "floor": "a"}, "floor"),
        ({"kind": "exponential", "rate": 1.1, "every": 1, "ceiling": float("nan")}, "ceiling"),
        ({"kind": "two-phase", "low": 0.1, "ramp": [0.5, 3]}, "ramp"),
        ({"kind": "two-phase", "low": "x", "ramp": [1, 3]}, "low"),
        ({"kind": "two-phase", "low": 0.1, "ramp": 3}, "ramp"),
        ({"kind": "paper", "over": True}, "over"),
    ],
)
def test_what_is_no_number_is_refused_by_its_name(table, key):
    with pytest.raises(InputError, match=f"^{key}: "):
        parse(table, named={"paper": PAPER_CLIP})
