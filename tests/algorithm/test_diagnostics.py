"""What a diagnosed run says of itself in words."""

import pytest

from dpdt.algorithm.diagnostics import conditions, summary
from dpdt.errors import InputError
from dpdt.ledger import Setting


def record(**values):
    return {
        "share_cut": 0.0,
        "share_step_bound": 0.0,
        "noise_to_signal": 0.5,
        "lr_condition": True,
        "lr_limit": 0.2,
        "global_lr_condition": True,
    } | values


def setting(**values):
    return Setting(
        **{
            "clip": (1.0, 1.0),
            "noise": (1.0, 1.0),
            "penalty": 1.0,
            "lr": 0.1,
            "global_lr": 0.9,
            "step_size": 0.9,
            "contraction": 1.0,
        }
        | values
    )


def test_the_summary_is_the_mean_of_the_last_tenth():
    records = [record(share_cut=1.0, noise_to_signal=99.0)] * 18
    records += [record(share_cut=0.25, share_step_bound=0.5, noise_to_signal=0.5), record()]
    found = summary(records)
    assert (found.clipped, found.step_bound, found.noise_to_signal) == (0.125, 0.25, 0.5)
    assert (found.steps, found.of) == (2, 20)
    assert summary(records[:1]).steps == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"share_cut": 0.98, "noise_to_signal": 12.0},
         "clipped 98%, step bound reached in 0%, noise/signal 12 (means over the last 1 of 3 steps)"
         ". What the noise costs in the end, the same run with method.noise = 0 tells."),
        ({"noise_to_signal": None}, "noise/signal ∞"),
        ({"share_step_bound": 0.5, "share_cut": 1.0}, "clipped 100%, step bound reached in 50%"),
    ],
)  # fmt: skip
def test_a_summary_in_words(values, words):
    assert words in summary([record(**values)] * 3).words()


def test_steps_without_a_signal_do_not_enter_its_mean():
    last = [record(noise_to_signal=None), record(noise_to_signal=2.0)]
    assert summary([record()] * 18 + last).noise_to_signal == 2.0


def test_a_run_that_was_not_diagnosed():
    with pytest.raises(InputError, match="the run has no diagnostics"):
        summary([])


GROWING = (setting(), setting(penalty=1.1, clip=(0.5, 1.0)), setting(penalty=1.21, clip=(0.5, 0.5)))


def test_conditions_that_hold():
    found = conditions([record()] * 3, GROWING, "auxiliary")
    assert found == "No condition of the paper's limit theorem that can be checked fails."


@pytest.mark.parametrize(
    ("records", "settings", "memory", "words"),
    [
        ([record(), record(lr_condition=False, lr_limit=0.04)], GROWING, "auxiliary",
         "η < 2τ/(L + 5ρ + 2) (fails in 50% of the steps: η is 0.1, the limit comes down to 0.04)"),
        ([record(global_lr_condition=False)], [setting(global_lr=1.5), GROWING[2]], "auxiliary",
         "η_θ < 1 (it is 1.5)"),
        ([record()], [setting()], "auxiliary",
         "ρ grows geometrically (it does not, so the noise is not summable)"),
        ([record()], [GROWING[1], GROWING[0], GROWING[2]], "auxiliary", "ρ grows"),
        ([record()],
         [setting(penalties=(1.0, 2.0)), setting(penalties=(2.0, 2.0))], "auxiliary", "ρ grows"),
        ([record()], [GROWING[0], setting(penalty=2.0, clip=(1.0, 1.5))], "auxiliary",
         "the clip never grows"),
        ([record()], GROWING, "shared",
         "every auxiliary keeps its own multiplier (memory is 'shared')"),
    ],
)  # fmt: skip
def test_conditions_that_fail(records, settings, memory, words):
    found = conditions(records, settings, memory)
    assert found.startswith("Conditions of the paper's limit theorem that fail: ")
    assert words in found
    others = ("η <", "η_θ", "ρ grows", "the clip", "every auxiliary")
    assert sum(other in found for other in others) == found.count(";") + 1
    if words.startswith(("η <", "the clip", "every")):
        assert ";" not in found
