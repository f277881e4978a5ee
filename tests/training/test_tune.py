"""dpdt tune: only the best run leaves, its ε is that of all, and no coin is tossed twice."""

import json
import math
import shutil
import stat
from dataclasses import replace

import pytest

from dpdt.accounting import account
from dpdt.config import load, plan_of
from dpdt.errors import InputError
from dpdt.ledger import Ledger, LedgerWriter
from dpdt.releasing.budget import budget
from dpdt.releasing.making import release
from dpdt.releasing.verify import verify
from dpdt.runs import Run
from dpdt.training import tune as tuning
from dpdt.training.candidates import candidates, planned
from dpdt.training.run import run

SHORT = ("data.limit=300", "train.batch_size=300", "train.epochs=3")


def settings(*tries, epsilon=3.0, overrides=SHORT, method="dpsgd"):
    return candidates("digits", overrides, method, tries or ("method.lr=0.5,2.0",), epsilon)


def tuned(path, found=None, *, runs=3.0, noise=None, approve=lambda ledger: None):
    return tuning.tune(
        found or settings(), path, runs=runs, noise=noise, announce=lambda text: None,
        approve=approve,
    )  # fmt: skip


class Killed(BaseException):
    """The process is gone."""


def killed_at(monkeypatch, step):
    """Let the writer of a ledger be killed before it records a step, the n-th of all."""
    taken, record = iter(range(step)), LedgerWriter.step

    def dies(self, *arguments):
        if next(taken, None) is None:
            raise Killed
        record(self, *arguments)

    monkeypatch.setattr(LedgerWriter, "step", dies)


def drawn(monkeypatch, choices, noise):
    """Let the coins say this."""
    kept = {"choices": choices, "noise": noise, "begun": -1, "done": 0, "best": None}
    monkeypatch.setattr(tuning, "_drawn", lambda *_: dict(kept))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "t"
    return tuned(path, runs=4.0), path


def test_the_target_is_met_by_the_tune_and_each_run_has_less(done):
    result, path = done
    assert 2.9 < result.privacy.epsilon <= 3.0
    assert result.privacy.proven.valid
    alone = replace(Run(path).ledger(), tuned=None)
    assert account(alone, 1e-5).epsilon < 2.2
    assert Run(path).config.privacy.epsilon < 2.2
    assert (path / "config.toml").read_text().startswith("# The run that a tune has chosen")


def test_nothing_is_left_but_the_chosen_run(done):
    result, path = done
    assert sorted(p.name for p in path.iterdir()) == [
        "config.toml", "ledger.jsonl", "metrics.jsonl", "private", "tune.json",
    ]  # fmt: skip
    left = sorted(p.name for p in (path / "private").iterdir())
    assert left == ["lock", "metrics.jsonl", "model.safetensors", "tail.json"]
    told = json.loads((path / "tune.json").read_text())
    assert told.keys() == {"setting", "right", "examples"}
    assert told["setting"] == list(result.setting)
    assert f"method.lr={Run(path).config.method.lr}" in result.setting
    epsilons = [json.loads(x)["epsilon"] for x in (path / "metrics.jsonl").read_text().splitlines()]
    assert epsilons[-1] == pytest.approx(result.privacy.epsilon, rel=1e-3)
    assert all(e is None or e > 2.0 for e in epsilons)  # never that of one run


def test_release_verify_and_budget_say_the_epsilon_of_the_tune(done, tmp_path):
    result, path = done
    released = release(path, to=tmp_path / "r")
    assert released.guarantee["epsilon"] == result.privacy.epsilon
    assert verify(tmp_path / "r").guarantee["epsilon"] == pytest.approx(result.privacy.epsilon)
    assert "the best of a random number of runs" in (tmp_path / "r" / "README.md").read_text()
    total = budget([path, tmp_path / "r"]).data[0]
    assert len(total.runs) == 1  # the release is the run again
    assert total.epsilon == pytest.approx(result.privacy.epsilon)


def killed_in_the_second(path, monkeypatch):
    """A tune of two runs that is killed while it makes the second."""
    drawn(monkeypatch, [0, 1], [0, 0])
    with monkeypatch.context() as patch:
        killed_at(patch, 4)
        with pytest.raises(Killed):
            tuned(path)


def test_a_run_in_private_proves_nothing_and_budget_does_not_look_there(tmp_path, monkeypatch):
    drawn(monkeypatch, [0, 1], [5, 0])
    killed_at(monkeypatch, 4)  # in the second run
    with pytest.raises(Killed):
        tuned(tmp_path / "t")
    first = Run(tmp_path / "t" / "private" / "runs" / "0")
    assert first.ledger().closed
    assert account(first.ledger(), 1e-5).proven is None
    with pytest.raises(InputError, match="not the one that leaves"):
        release(first.path, to=tmp_path / "r")
    found = budget([tmp_path]).data
    assert [str(r.path) for r in found[0].runs] == [str(tmp_path / "t")]
    assert 2.9 < found[0].epsilon <= 3.0


def test_a_tune_that_was_killed_goes_on_with_the_same_coins(tmp_path, monkeypatch):
    drawn(monkeypatch, [1, 0, 1], [0, 300, 0])  # the second is chosen, whatever it learns
    with monkeypatch.context() as patch:
        killed_at(patch, 4)
        with pytest.raises(Killed):
            tuned(tmp_path / "t")
    private = tmp_path / "t" / "private"
    coins = json.loads((private / "coins.json").read_text())
    assert (coins["choices"], coins["begun"], coins["done"]) == ([1, 0, 1], 1, 1)
    assert stat.S_IMODE((private / "coins.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    monkeypatch.setattr(tuning, "_drawn", lambda *_: pytest.fail("coins were tossed again"))
    before = Ledger.read(private / "runs" / "1" / "ledger.jsonl")
    copy = shutil.copytree(tmp_path / "t", tmp_path / "copy")
    steps, record = [], LedgerWriter.step
    monkeypatch.setattr(
        LedgerWriter, "step", lambda self, *a: (steps.append(a), record(self, *a))[1]
    )
    result = tuning.resume(tmp_path / "t", approve=lambda ledger: None)
    assert len(steps) == 3 - before.steps + 3  # the rest of the second run, and the third
    assert result.setting == ("method.lr=0.5",)
    ledger = Run(tmp_path / "t").ledger()
    assert (ledger.closed, ledger.steps, ledger.tuned.chosen) == (True, 3, True)
    assert not (private / "coins.json").exists()
    again = tuning.resume(tmp_path / "t", approve=lambda ledger: None)
    assert again == result
    # a copy that goes on ends as the same run: its noise was on the disk
    tuning.resume(copy, approve=lambda ledger: None)
    assert Run(copy).ledger().model == ledger.model
    assert len(budget([tmp_path]).data[0].runs) == 1


def killed_before_the_first(path, monkeypatch):
    drawn(monkeypatch, [0], [0])
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "run", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            tuned(path)


def test_two_tunes_that_began_as_one_guarantee_nothing_together(tmp_path, monkeypatch):
    """Their scores have the same noise, and the difference of the scores has none."""
    killed_before_the_first(tmp_path / "one", monkeypatch)
    copy = shutil.copytree(tmp_path / "one", tmp_path / "two")
    for path in (tmp_path / "one", copy):
        tuning.resume(path, approve=lambda ledger: None)
    total = budget([tmp_path]).data[0]
    assert len(total.runs) == 2  # they drew other noise, and left other models
    assert math.isinf(total.epsilon)


def test_what_a_kill_leaves_of_a_run_that_was_not_begun_is_in_nobodys_way(tmp_path, monkeypatch):
    killed_before_the_first(tmp_path / "t", monkeypatch)
    (tmp_path / "t" / "private" / "runs" / "0" / "private").mkdir(parents=True)
    assert tuning.resume(tmp_path / "t", approve=lambda ledger: None).status == 0


def test_scores_are_not_computed_on_other_data_with_the_same_noise(tmp_path, monkeypatch):
    killed_in_the_second(tmp_path / "t", monkeypatch)
    load = tuning.AtHand.of

    def other(self, config):
        found = load(self, config)
        labels = found.test[1].clone()
        labels[0] = (labels[0] + 1) % 10
        return replace(found, test=(found.test[0], labels))

    monkeypatch.setattr(tuning.AtHand, "of", other)
    with pytest.raises(InputError, match="training data or public inputs changed"):
        tuning.resume(tmp_path / "t", approve=lambda ledger: None)


def test_no_run_says_that_it_is_made(tmp_path, monkeypatch, capfd):
    """How many there are is secret."""
    drawn(monkeypatch, [0, 1], [0, 0])
    auto = ("method.sampling=partition", "method.noise_bands=auto")
    tuned(tmp_path / "t", settings(overrides=(*SHORT, *auto)))
    assert "noise is" not in capfd.readouterr().err


def test_a_run_that_was_begun_cannot_be_made_again(tmp_path, monkeypatch):
    killed_in_the_second(tmp_path / "t", monkeypatch)
    private = tmp_path / "t" / "private"
    second = Run(private / "runs" / "1")
    with pytest.raises(InputError, match="is one run of a tune"):
        run(second.config, second.path, show_progress=False, resume=True)
    kept = shutil.copytree(private, tmp_path / "kept")
    shutil.rmtree(private / "runs" / "1")
    with pytest.raises(InputError, match="was begun and has lost"):
        tuning.resume(tmp_path / "t", approve=lambda ledger: None)
    shutil.copytree(kept / "runs" / "1", private / "runs" / "1")
    (private / "runs" / "1" / "private" / "checkpoint.pt").unlink()
    with pytest.raises(InputError, match="was begun and has lost"):
        tuning.resume(tmp_path / "t", approve=lambda ledger: None)
    (private / "runs" / "1" / "ledger.jsonl").unlink()  # as if nothing had been spent
    with pytest.raises(InputError, match="was begun and has lost"):
        tuning.resume(tmp_path / "t", approve=lambda ledger: None)
    (private / "coins.json").unlink()
    with pytest.raises(InputError, match="another tune"):
        tuning.resume(tmp_path / "t", approve=lambda ledger: None)


@pytest.mark.parametrize("number", [0, 1])
def test_a_tune_goes_on_with_a_run_that_stopped_before_its_first_checkpoint(
    tmp_path, monkeypatch, number
):
    """Of such a run the ledger has no step: nothing was drawn, and all of it can be made."""
    drawn(monkeypatch, [0, 1], [0, 0])
    begun, keep = [], Run.save_checkpoint

    def dies(self, state):
        if state["step"]["engine"]["steps"] == 0:
            begun.append(self)
            if len(begun) > number:
                raise Killed
        keep(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_checkpoint", dies)
        with pytest.raises(Killed):
            tuned(tmp_path / "t")
    stopped = Run(tmp_path / "t" / "private" / "runs" / str(number))
    assert stopped.ledger_path.is_file()
    assert not stopped.has_checkpoint
    writer = LedgerWriter(stopped.ledger().header)
    before = stopped.ledger_path.read_bytes()
    writer.reopen(stopped.ledger_path)
    writer.fork()
    writer.pause()
    with pytest.raises(InputError, match="was begun and has lost"):
        tuning.resume(tmp_path / "t", approve=lambda ledger: None)
    stopped.ledger_path.write_bytes(before)
    result = tuning.resume(tmp_path / "t", approve=lambda ledger: None)
    assert result.privacy.proven.valid
    assert Run(tmp_path / "t").ledger().steps == 3


def test_the_best_noisy_score_is_chosen_and_the_first_of_equals(tmp_path, monkeypatch):
    found = settings("method.lr=1.0,1.5,2.0")
    drawn(monkeypatch, [0, 1, 2, 0], [0, 1000, 0, -1000])
    result = tuned(tmp_path / "a", found)
    assert result.setting == ("method.lr=1.5",)
    assert result.score > 2.0  # the noise is part of what is told
    monkeypatch.setattr(tuning, "_held_out", lambda *_: 1e-9)  # all scores are 0
    drawn(monkeypatch, [2, 0, 1], [0, 0, 0])
    assert tuned(tmp_path / "b", found, noise=0.0).setting == ("method.lr=2.0",)


def test_coins_are_those_of_a_poisson_distribution_without_0():
    found = [tuning._drawn(3, 1.5, 2.0) for _ in range(3000)]
    numbers = [len(one["choices"]) for one in found]
    assert min(numbers) == 1
    mean = 1.5 / -math.expm1(-1.5)
    assert sum(numbers) / 3000 == pytest.approx(mean, abs=0.1)
    noise = [x for one in found for x in one["noise"]]
    assert all(isinstance(x, int) for x in noise)
    assert sum(x * x for x in noise) / len(noise) == pytest.approx(4.0 + 1 / 12, rel=0.12)
    chosen = [c for one in found for c in one["choices"]]
    assert all(abs(chosen.count(c) / len(chosen) - 1 / 3) < 0.03 for c in range(3))
    assert not any(tuning._drawn(3, 5.0, 0.0)["noise"])


def test_settings_that_cost_differently_together_meet_the_target():
    found = settings("train.batch_size=100,300")
    ready, tune, epsilon = planned(found, 5.0, 8.0)
    assert 2.8 < epsilon <= 3.0
    assert len(tune.candidates) == 2
    for one, plan in zip(ready, tune.candidates, strict=True):
        assert plan_of(one.config).header == plan.header
        assert 0.5 < one.config.privacy.epsilon < 3.0
    public = planned(found[1:], 5.0, 0.0)[0][0].config.privacy.epsilon
    assert public >= ready[1].config.privacy.epsilon  # scores cost nothing then


def test_a_limit_is_asked_before_anything_is_written(tmp_path):
    def no(ledger):
        assert ledger.tuned.candidates
        assert ledger.data
        raise InputError("too much")

    with pytest.raises(InputError, match="too much"):
        tuned(tmp_path / "t", approve=no)
    assert not (tmp_path / "t").exists()


def test_what_cannot_be_tuned_is_refused(tmp_path):
    with pytest.raises(InputError, match="plain training has no noise"):
        planned(settings(method="plain"), 3.0, 0.0)
    with pytest.raises(InputError, match="fixed seed"):
        planned(settings(overrides=(*SHORT, "privacy.noise_seed=1")), 3.0, 0.0)
    with pytest.raises(InputError, match="must be larger"):
        planned(settings(), 3.0, 0.3)
    with pytest.raises(InputError, match="canaries"):
        settings(overrides=(*SHORT, "audit.canaries=5"))
    (tmp_path / "t").mkdir()
    with pytest.raises(InputError, match="already exists"):
        tuned(tmp_path / "t")
    run(
        load("digits", (*SHORT, "privacy.epsilon=3.0"), "dpsgd"),
        tmp_path / "r",
        show_progress=False,
    )
    with pytest.raises(InputError, match="not of a tune"):
        tuning.resume(tmp_path / "r", approve=lambda ledger: None)


def test_training_does_not_go_on_where_a_tune_was(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "run", lambda *_, **__: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        tuned(tmp_path / "t")
    chosen = load("digits", (*SHORT, "privacy.epsilon=3.0"), "dpsgd")
    with pytest.raises(InputError, match="dpdt tune --resume"):
        run(chosen, tmp_path / "t", show_progress=False, resume=True)
    with pytest.raises(InputError, match="dpdt tune --resume"):
        release(tmp_path / "t")
    assert "the tune has not ended" in str(account(Run(tmp_path / "t").ledger(), 1e-5))
