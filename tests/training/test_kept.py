"""A run's folder from Python: save, load, go on, release."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import dpdt
from dpdt.audit.target import Target
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.releasing.budget import budget
from dpdt.report.facts import facts
from dpdt.runs import Run
from tests.numbers import NUMBERS
from tests.training.pressed import after_step

torch.manual_seed(0)
DATA = torch.randn(40, 5), torch.arange(40) % 2
SMALL = {**NUMBERS, "auxiliaries": 4, "noise": 1.0, "epochs": 3, "batch_size": 10}


class Own(nn.Module):
    """A model of one's own class."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(x)


def train(out, **options):
    return dpdt.train(Own(), DATA, out=out, **{**SMALL, **options})


def interrupted(out, step, **options):
    """A run that Ctrl-C ends in the step of that number."""

    with after_step(step), pytest.raises(dpdt.Interrupted) as caught:
        train(out, **options)
    return caught.value.result


def test_a_run_is_kept_and_its_folder_is_that_of_a_run(tmp_path):
    result = train(tmp_path / "run", test=DATA)
    run = Run.open(tmp_path / "run")
    assert run.ledger() == result.ledger
    assert len(run.private_metrics()) == 3
    assert not run.has_checkpoint
    loaded = dpdt.load(tmp_path / "run", Own())
    assert torch.equal(loaded.head.weight, result.model.head.weight)
    assert not loaded.training
    assert facts(tmp_path / "run").privacy.epsilon == result.privacy.epsilon


def test_what_was_kept_in_memory_is_saved_the_same(tmp_path):
    result = train(None, test=DATA)
    result.save(tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.ledger() == result.ledger
    assert [r["loss"] for r in run.private_metrics()] == [r["loss"] for r in result.history]
    assert torch.equal(dpdt.load(tmp_path / "run", Own()).head.weight, result.model.head.weight)
    with pytest.raises(InputError, match="already exists; a run never overwrites another"):
        result.save(tmp_path / "run")


def test_other_weights_are_not_saved_beside_the_ledger(tmp_path):
    result = train(None)
    with torch.no_grad():
        result.model.head.weight += 1.0
    with pytest.raises(InputError, match="weights are not those that the run left, so its ledger"):
        result.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_stopped_is_kept_with_all_that_was_planned(tmp_path):
    result = train(tmp_path / "run", on_epoch=lambda record: record["epoch"] == 2)
    ledger = Run.open(tmp_path / "run").ledger()
    assert ledger == result.ledger
    assert (result.taken, ledger.steps, ledger.closed, ledger.repeats) == (8, 12, True, False)
    result.save(tmp_path / "saved")
    assert Run.open(tmp_path / "saved").ledger() == ledger
    released = dpdt.release(tmp_path / "run", model=Own())
    whole = train(None, on_epoch=lambda _: None)
    assert released.guarantee["epsilon"] == result.privacy.epsilon == whole.privacy.epsilon
    assert dpdt.verify(released.path).ok


def test_a_folder_is_released_with_a_model_of_its_class(tmp_path):
    result = train(tmp_path / "run")
    with pytest.raises(InputError, match="were given in Python, so it can be gone on with, loaded"):
        dpdt.release(tmp_path / "run")
    released = dpdt.release(tmp_path / "run", model=Own(), labels=["no", "yes"])
    assert released.guarantee["epsilon"] == result.privacy.epsilon
    assert dpdt.verify(released.path).ok
    again = dpdt.load(released.path, Own())
    assert torch.equal(again.head.weight, result.model.head.weight)


def test_ctrl_c_keeps_the_run_and_it_goes_on_at_no_cost(tmp_path):
    out = tmp_path / "run"
    ended = []
    listener = dpdt.Callback()
    listener.on_end = ended.append
    so_far = interrupted(out, 5, callbacks=[listener])
    assert ended == [so_far.privacy]
    assert (so_far.taken, so_far.privacy.steps, so_far.privacy.closed) == (5, 5, False)
    assert "so far" in str(so_far)
    assert "proven" not in str(so_far)
    assert len(so_far.history) == 1
    with pytest.raises(InputError, match="was interrupted and has no end"):
        dpdt.release(so_far, to=tmp_path / "release")
    with pytest.raises(InputError, match="the run was interrupted and has no end"):
        so_far.save(tmp_path / "other")
    with pytest.raises(InputError, match="already exists; a run never overwrites another"):
        train(out)
    whole = train(out, resume=True)
    assert (whole.privacy.steps, whole.privacy.closed) == (12, True)
    assert whole.privacy.epsilon == train(None, on_epoch=lambda _: None).privacy.epsilon
    assert [r["epoch"] for r in Run.open(out).private_metrics()] == [1, 2, 3]
    assert Ledger.read(out / "ledger.jsonl").forks  # with fresh noise
    with pytest.raises(InputError, match="has no checkpoint, since the run was finished"):
        train(out, resume=True)


def test_a_crash_is_gone_on_from_and_what_is_taken_again_is_counted_again(tmp_path):
    def crash():
        raise RuntimeError("power")

    with after_step(7, crash), pytest.raises(RuntimeError):
        train(tmp_path / "run", checkpoint=4)
    whole = train(tmp_path / "run", resume=True, checkpoint=4)
    assert whole.privacy.steps == 12 + 3
    assert whole.privacy.proven


def test_noise_is_never_repeated_by_a_run_that_goes_on(tmp_path):
    """Its model, loss or data may be other code by then."""

    def crash(result, batch):
        seen.append([p.detach().clone() for p in models[-1].parameters()])
        if batch.step == 1 and len(seen) == 2:
            raise RuntimeError("power")

    seen, models = [], []
    for resume in (False, True):
        torch.manual_seed(1)
        models.append(Own())
        with suppress(RuntimeError):
            dpdt.train(
                models[-1], DATA, out=tmp_path / "run", resume=resume, on_step=crash,
                **{**SMALL, "checkpoint": 100},
            )  # fmt: skip
    assert not torch.equal(seen[0][0], seen[2][0])  # the first step, from the same checkpoint


def test_the_same_model_goes_on_as_in_a_notebook_and_a_new_run_of_it_is_void(tmp_path):
    model = Own()
    with after_step(5), pytest.raises(dpdt.Interrupted):
        dpdt.train(model, DATA, out=tmp_path / "run", **SMALL)
    whole = dpdt.train(model, DATA, out=tmp_path / "run", resume=True, **SMALL)
    assert whole.privacy.proven.epsilon == whole.privacy.epsilon
    again = dpdt.train(model, DATA, out=tmp_path / "other", resume=True, **SMALL)
    assert again.privacy.proven is None
    assert "was trained on these data before" in str(again)


def test_a_void_in_the_folder_stays(tmp_path):
    model = Own()
    dpdt.train(model, DATA, **SMALL)
    with after_step(1), pytest.raises(dpdt.Interrupted):
        dpdt.train(model, DATA, out=tmp_path / "run", **SMALL)
    assert train(tmp_path / "run", resume=True).privacy.proven is None


def test_a_run_goes_on_only_with_the_same_settings_and_data(tmp_path):
    interrupted(tmp_path / "run", 5)
    with pytest.raises(InputError, match="belongs to a run with other settings"):
        train(tmp_path / "run", resume=True, batch_size=20)
    with pytest.raises(InputError, match=r"other (training )?data"):
        dpdt.train(Own(), (DATA[0] + 1, DATA[1]), out=tmp_path / "run", resume=True, **SMALL)


def test_resume_begins_where_there_is_nothing(tmp_path):
    assert train(tmp_path / "run", resume=True).privacy.steps == 12
    with pytest.raises(InputError, match="resume: needs the folder of the run"):
        train(None, resume=True)
    with pytest.raises(InputError, match="ledger: is in the folder that out names"):
        train(tmp_path / "other", ledger=tmp_path / "ledger.jsonl")
    assert not (tmp_path / "other").exists()


def test_an_optimizer_s_state_is_in_the_checkpoint(tmp_path):
    options = {
        "method": "dpsgd", "noise": 0.0, "epochs": 3, "batch_size": 10, "sampling": "partition",
        "optimizer": lambda p: torch.optim.AdamW(p, lr=0.1),
        "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    }  # fmt: skip

    def run(out, **more):
        torch.manual_seed(1)
        return dpdt.train(Own(), DATA, out=out, **options, **more)

    with after_step(6), pytest.raises(dpdt.Interrupted):
        run(tmp_path / "run")
    whole, straight = run(tmp_path / "run", resume=True), run(None)
    assert torch.equal(whole.model.head.weight, straight.model.head.weight)
    assert Run.open(tmp_path / "run").config.method.optimizer == "own"


def test_commands_that_need_model_and_data_say_where_they_are(tmp_path):
    train(tmp_path / "run")
    wanted = "were given in Python, so it can be gone on with, loaded and released there alone"
    for read in (Target.read, dpdt.load, dpdt.release):
        with pytest.raises(InputError, match=wanted):
            read(str(tmp_path / "run"))
    (paid,) = budget([tmp_path]).data
    assert paid.epsilon > 0
