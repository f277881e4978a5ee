import pytest

from dpdt import account, config
from dpdt.accounting import by_name, cost
from dpdt.accounting.calibrate import calibrate, scaled
from dpdt.accounting.composition import Composition
from dpdt.errors import InputError
from dpdt.methods import plan
from dpdt.report.privacy import first_epochs

from .test_composition import BASE, ledger, planned
from .test_conformance import make


def test_one_kinds_noise():
    run = planned("cifar10", BASE)
    factor = calibrate(run, 200.0, 1e-5, kinds=["conv"])
    result = scaled(run, factor, ["conv"])
    assert 200 * (1 - 1e-3) <= account(result, 1e-5).epsilon <= 200.0
    kinds = {
        b.kind: s for b, s in zip(run.header.blocks, result.runs[0].setting.noise, strict=True)
    }
    assert kinds["norm"] == run.runs[0].setting.noise[1]
    assert kinds["conv"] == pytest.approx(factor * run.runs[0].setting.noise[0])


def test_unreachable_targets_say_what_would_have_to_change():
    run = planned("cifar10", BASE)
    with pytest.raises(InputError, match="other kinds of block alone spend more"):
        calibrate(run, 3.0, 1e-5, kinds=["linear"])
    with pytest.raises(InputError, match="not valid for this run: auxiliaries reset"):
        calibrate(run, 3.0, 1e-5, accountant=by_name("paper"))
    with pytest.raises(InputError, match="no L2 weight decay"):
        calibrate(
            ledger([(1.0, 1.0, 5)]), 3.0, 1e-5, accountant=by_name("hidden-state-contraction")
        )


@pytest.mark.parametrize("name", ["hidden-state-convex", "hidden-state-contraction"])
def test_other_valid_accountants(name):
    run = make(decay=0.5)
    accountant = by_name(name)
    factor = calibrate(run, 2.0, 1e-5, accountant=accountant)
    spent = accountant.guarantee(scaled(run, factor), 1e-5).epsilon
    assert 2.0 * (1 - 1e-3) <= spent <= 2.0


def test_other_noise_keeps_steps_that_were_taken_again():
    run = ledger([(1.0, 1.0, 10)], memory="none")
    run.append(run.runs[0].setting, 3, start=4)
    assert [(r.start, r.steps) for r in scaled(run, 2.0).runs] == [(0, 10), (4, 3)]
    assert [(r.start, r.steps) for r in first_epochs(run, 1).runs] == [(0, 5)]
    factor = calibrate(run, 2.0, 1e-5)
    assert 2.0 * (1 - 1e-3) <= account(scaled(run, factor), 1e-5).epsilon <= 2.0


def test_an_epsilon_that_would_take_forever_is_refused():
    with pytest.raises(InputError, match=r"at most 1000 under poisson sampling, found 1e\+09"):
        planned("digits", "method.sampling=poisson", "privacy.epsilon=1e9")


@pytest.mark.parametrize("name", ["paper", "paper-per-block"])
@pytest.mark.parametrize("target", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("kinds", [None, ["conv", "norm"]])
def test_a_claim_is_met_from_below_if_it_is_asked_for(name, target, kinds):
    run, judge = planned("cifar10"), by_name(name)
    factor = calibrate(run, target, 1e-5, accountant=judge, kinds=kinds, claimed=True)
    spent = judge.guarantee(scaled(run, factor, kinds), 1e-5).epsilon
    assert target * (1 - 1e-3) <= spent <= target


@pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
def test_a_claim_never_becomes_the_headline(memory):
    settings = [f"method.memory={memory}", "method.preconditioner=identity", "privacy.release=last"]
    run = planned("cifar10", *settings)
    for name in ("paper", "paper-per-block"):
        judge = by_name(name)
        with pytest.raises(InputError, match=f"accountant '{name}' is not valid for this run"):
            calibrate(run, 0.5, 1e-5, accountant=judge)
        with pytest.raises(InputError, match=f"privacy.accountant: must be one of .*'{name}'"):
            config.load("cifar10", (f"privacy.accountant={name}", "privacy.epsilon=0.5"))
        quiet = scaled(run, calibrate(run, 0.5, 1e-5, accountant=judge, claimed=True))
        privacy = account(quiet, 1e-5)
        assert privacy.proven.accountant == "composition"
        assert privacy.epsilon > 10.0
        assert not next(g for g in privacy.guarantees if g.accountant == name).valid
        assert not str(privacy).splitlines()[0].endswith(name)


def test_there_is_no_claim_about_a_run_that_the_bound_is_not_about():
    run = planned("digits")
    with pytest.raises(InputError, match="for mini-batches of a partition"):
        calibrate(run, 1.0, 1e-5, accountant=by_name("paper"), claimed=True)
    assert calibrate(run, 8.0, 1e-5, claimed=True) == pytest.approx(1.0, rel=1e-3)


SAMPLED = ("train.batch_size=64", "train.epochs=5", "privacy.epsilon=1.0")


@pytest.mark.parametrize("lie", [0.5, 0.999, 1.001, 3.0, float("nan")])
def test_an_estimate_that_is_wrong_costs_time_and_no_privacy(lie, monkeypatch):
    run, honest = planned("digits", *SAMPLED), cost.Cost.about
    monkeypatch.setattr(cost.Cost, "about", lambda *a: lie * honest(*a))
    judge = Composition(coarse=True)  # which is faster
    factor = calibrate(run, 2.0, 1e-5, accountant=judge)
    assert 2.0 * (1 - 1e-4) <= judge.guarantee(scaled(run, factor), 1e-5).epsilon <= 2.0


@pytest.mark.parametrize("lie", [0.0, 100.0, float("inf"), float("nan")])
def test_a_guess_that_is_wrong_costs_time_alone(lie, monkeypatch):
    run, honest, judge = planned("digits", *SAMPLED), cost.Cost.guessed, Composition(coarse=True)
    told = {100.0: lambda *a: 100.0 * honest(*a)}.get(lie, lambda *_: lie)
    monkeypatch.setattr(cost.Cost, "guessed", told)
    factor = calibrate(run, 2.0, 1e-5, accountant=judge)
    assert 2.0 * (1 - 1e-4) <= judge.guarantee(scaled(run, factor), 1e-5).epsilon <= 2.0


def test_where_not_even_an_estimate_is_reached_the_target_is_named(monkeypatch):
    run = planned("digits", *SAMPLED)
    for told, words in ((0.0, "spends less than 2.0 with any"), (9.0, "no noise reaches 2.0 at")):
        monkeypatch.setattr(cost.Cost, "about", lambda *_, told=told: told)
        with pytest.raises(InputError, match=words):
            calibrate(run, 2.0, 1e-5)


@pytest.mark.parametrize(("target", "steps"), [(1.0, "5"), (8.0, "100")])
def test_calibration_looks_once_at_the_finest_grid(target, steps, monkeypatch):
    cost._epsilon.cache_clear()
    plan._factor.cache_clear()
    looks, compose = [], cost._composed
    monkeypatch.setattr(cost, "_composed", lambda *a: looks.append(a[3]) or compose(*a))
    settings = ("train.batch_size=64", f"train.epochs={steps}", f"privacy.epsilon={target}")
    privacy = account(planned("digits", *settings), 1e-5)
    assert target * (1 - 1e-4) <= privacy.epsilon <= target
    assert looks.count(cost.FINE) == 1
    assert looks.count(cost.COARSE) == 0
    assert len(looks) < 20
