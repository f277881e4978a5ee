"""What callbacks are shown, what they may do, and what a run that they stop has spent."""

import signal
import warnings

import pytest
import torch
from torch import nn

import dpdt
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from tests.numbers import NUMBERS
from tests.training.pressed import after_step, ctrl_c

torch.manual_seed(0)
X = torch.randn(40, 5)
DATA = X, (X[:, 0] > 0).long()
OTHER = -X, (X[:, 0] < 0).long()
SMALL = {**NUMBERS, "auxiliaries": 4, "noise": 1.0, "epochs": 5, "batch_size": 20, "test": OTHER}


def train(**options):
    return dpdt.train(nn.Linear(5, 2), DATA, **{**SMALL, **options})


class Listener(dpdt.Callback):
    def __init__(self, private=False, stop=99):
        self.private, self.stop, self.heard, self.begun, self.ended = private, stop, [], [], []

    def on_start(self, facts):
        self.begun.append(facts.numbers())

    def on_epoch(self, record):
        self.heard.append(record)
        return record["epoch"] == self.stop

    def on_end(self, privacy):
        self.ended.append(privacy)


def test_public_numbers_by_default_and_private_ones_if_asked():
    public, private = Listener(), Listener(private=True)
    result = train(callbacks=[public, private])
    assert [set(r) for r in public.heard] == [{"epoch", "step", "epsilon"}] * 5
    assert {"loss", "accuracy", "nonfinite", "seconds", "epsilon"} < set(private.heard[0])
    epsilons = [r["epsilon"] for r in public.heard]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == result.privacy.epsilon == public.ended[0].epsilon
    assert public.begun == [
        {
            "method": "dpdt", "examples": 40, "parameters": 12, "epochs": 5, "steps": 10,
            "batch_size": 20, "delta": 1e-5, "unit": "example", "sampling": "partition",
        }
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"^loss: is not among the public numbers of an epoch"):
        public.heard[0]["loss"]
    assert result.ledger.exports[0] == "what callbacks saw on the way"


@pytest.mark.parametrize("how", ["on_epoch", "callbacks"])
def test_a_run_that_is_stopped_costs_what_was_planned(how):
    listener = Listener(stop=2)
    given = {"on_epoch": listener.on_epoch} if how == "on_epoch" else {"callbacks": [listener]}
    result = train(**given)
    assert (result.taken, result.privacy.steps, result.privacy.closed) == (4, 10, True)
    whole = train(callbacks=[Listener()])
    assert result.ledger.runs == whole.ledger.runs
    assert result.privacy.epsilon == whole.privacy.epsilon > train(epochs=2).privacy.epsilon
    assert "the model after 4 of 10 steps, when the run was ended" in result.ledger.exports
    assert "trained by dpdt in 4 steps (2 epochs); 10 are counted" in str(result)
    assert len(result.history) == 2
    assert not result.model.training


def test_the_last_record_is_about_the_model_that_is_left():
    given = {"averaging": 0.9, "epochs": 3, "lr": 0.5, "test": DATA}
    result = train(**given)
    assert result.history[-1]["accuracy"] == result.judge(result.model, DATA)
    stopped = train(**given, on_epoch=lambda r: r["epoch"] == 2)
    assert stopped.taken == 4
    assert stopped.history[-1]["accuracy"] == stopped.judge(stopped.model, DATA)


def test_who_sees_private_numbers_cannot_stop():
    with pytest.warns(UserWarning, match="cannot stop the run, since when it stops would tell"):
        result = train(callbacks=[Listener(private=True, stop=2)])
    assert result.taken == 10


class Turncoat(Listener):
    def on_epoch(self, record):
        super().on_epoch(record)
        self.private = False
        return True


def test_what_a_callback_sees_is_settled_when_the_run_begins():
    turncoat, curious = Turncoat(private=True), Listener()
    curious.on_start = lambda facts: None
    with pytest.warns(UserWarning, match="a callback that sees private numbers cannot stop"):
        result = train(callbacks=[turncoat])
    assert result.taken == 10

    class Helper(dpdt.Callback):
        def on_epoch(self, record):
            curious.private = True

    train(callbacks=[Helper(), curious])
    assert all(set(record) == {"epoch", "step", "epsilon"} for record in curious.heard)


def test_what_one_has_seen_another_cannot_stop_for(tmp_path):
    """The habit: a list of losses that on_step fills, and on_epoch looks at."""
    losses = []
    given = {"on_step": lambda result, batch: losses.append(result.loss)}
    with pytest.warns(UserWarning, match="^on_epoch: where on_step or another callback sees"):
        result = train(**given, on_epoch=lambda record: losses[-1] > 0.0)
    assert result.taken == 10
    with pytest.warns(UserWarning, match=r"^Listener\.on_epoch: where on_step or another"):
        train(callbacks=[Listener(private=True), Listener(stop=2)])
    with pytest.raises(RuntimeError):
        train(**given, on_epoch=raising(RuntimeError("stop")), ledger=tmp_path / "ledger")
    (void,) = Ledger.read(tmp_path / "ledger").voids
    assert "out of a callback that sees private numbers" in void
    scores = iter([1.0, 2.0])
    stopping = dpdt.EarlyStopping(public=OTHER, patience=1, measure=lambda *_: next(scores))
    assert train(callbacks=[Listener(private=True), stopping]).taken == 4


def test_training_data_are_public_nowhere():
    """Slices of the same tensors, and the loss that callbacks may ask for."""
    few = X[3:9], DATA[1][3:9]
    with pytest.raises(InputError, match=r"^EarlyStopping\.public: these are the training"):
        train(callbacks=[dpdt.EarlyStopping(public=few)])
    for public in (X[:5], X[::3], X.clone(), X.numpy()[:5]):
        with pytest.raises(InputError, match=r"^public: these are the training data, or some of"):
            train(public=public)
    train(public=OTHER[0])

    class Asks(dpdt.Callback):
        def on_start(self, facts):
            assert facts.loss(OTHER) > 0.0
            facts.loss(few)

    with pytest.raises(InputError, match=r"^facts\.loss: these are the training data, or some of"):
        train(callbacks=[Asks()])


def at_step(number, call):
    return lambda result, batch: call() if batch.step + 1 == number else None


def raising(error):
    def on_epoch(record):
        if record["epoch"] == 2:
            raise error

    return on_epoch


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
def test_who_sees_private_numbers_voids_the_run_by_an_exception(tmp_path, error):
    listener = Listener(private=True)
    listener.on_epoch = raising(error)
    with pytest.raises(type(error)):
        train(callbacks=[listener], ledger=tmp_path / "one")
    assert "out of a callback that sees private numbers" in Ledger.read(tmp_path / "one").voids[0]

    def on_step(result, batch):
        raise error

    with pytest.raises(type(error)):
        train(on_step=on_step, ledger=tmp_path / "two")
    assert f"ended by {type(error).__name__} out of" in Ledger.read(tmp_path / "two").voids[0]
    with pytest.raises(type(error)):  # which knows nothing private
        train(on_epoch=raising(error), ledger=tmp_path / "three")
    ledger = Ledger.read(tmp_path / "three")
    assert (ledger.voids, ledger.closed) == ([], False)


@pytest.mark.parametrize("kept", [False, True])
def test_who_sees_private_numbers_cannot_stop_by_a_signal(tmp_path, capfd, kept):
    listener = Listener(private=True)
    listener.on_epoch = lambda record: [ctrl_c() for _ in range(record["epoch"] == 2)]
    out = {"out": tmp_path / "run"} if kept else {}
    try:
        result = train(callbacks=[listener], on_step=at_step(5, ctrl_c), **out)
    except KeyboardInterrupt:  # which would end pytest
        pytest.fail("the run was stopped")
    assert (result.taken, result.ledger.voids) == (10, [])
    assert capfd.readouterr().err.count("it goes on, please ask again") == 2


def test_callbacks_are_a_list():
    with pytest.raises(dpdt.InputError, match=r"^callbacks: must be a list, as in .* found Listen"):
        train(callbacks=Listener())


@pytest.mark.parametrize("answer", [None, False, 1, "yes"])
def test_only_true_stops(answer):
    assert train(on_epoch=lambda record: answer).privacy.steps == 10


def test_early_stopping_needs_public_examples():
    for given in ({"public": None}, {"public": OTHER, "patience": 0}):
        with pytest.raises(
            InputError, match=r"^EarlyStopping: needs public examples and a patience"
        ):
            dpdt.EarlyStopping(**given)
    with pytest.raises(InputError, match=r"^EarlyStopping\.public: these are the training data"):
        train(callbacks=[dpdt.EarlyStopping(public=(X.clone(), DATA[1].clone()))])
    with pytest.raises(InputError, match=r"^callbacks: must be dpdt.Callback objects, found fun"):
        train(callbacks=[lambda record: True])


def test_early_stopping_waits_as_long_as_it_is_told():
    scores, modes = [5.0, 4.0, 4.5, 4.0, 3.0], []

    def measure(model, public):
        modes.append(model.training)
        return scores[len(modes) - 1]

    stopping = dpdt.EarlyStopping(public=OTHER, patience=2, measure=measure)
    assert len(train(callbacks=[stopping]).history) == 4
    assert (stopping.best, modes) == (4.0, [False] * 4)
    usual = dpdt.EarlyStopping(public=tuple(t.numpy() for t in OTHER), patience=1)
    train(callbacks=[usual])
    assert 0.0 < usual.best < 10.0


class Tracker:
    def __init__(self):
        self.seen = []


class Mlflow(Tracker):
    def log_metrics(self, metrics, step=None):
        self.seen.append((metrics, step))


class Wandb(Tracker):
    def log(self, data, step=None):
        self.seen.append((data, step))


@pytest.mark.parametrize("kind", [Mlflow, Wandb])
def test_trackers_get_public_numbers_unless_asked_for_more(kind):
    public, private = kind(), kind()
    train(callbacks=[dpdt.Logger(public), dpdt.Logger(private, private=True)])
    assert [step for _, step in public.seen] == [2, 4, 6, 8, 10]
    assert [set(numbers) for numbers, _ in public.seen] == [{"epoch", "epsilon"}] * 5
    assert {"loss", "accuracy"} < set(private.seen[0][0])
    with pytest.raises(InputError, match=r"^Logger: needs an object with log_metrics"):
        dpdt.Logger(object())


def test_tensorboard_is_asked_for_by_name(monkeypatch, tmp_path):
    import sys
    import types

    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, step))

        def close(self):
            written.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    train(epochs=1, callbacks=[dpdt.TensorBoard("logs")])
    assert written == ["logs", ("epsilon", 2), "closed"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"^TensorBoard: the package tensorboard is not installed"):
        dpdt.TensorBoard("logs")


def test_ctrl_c_ends_the_run_with_its_result():
    listener = Listener()
    message = "the run ended after 3 steps, and costs ε ≤ .* as was planned"
    with after_step(3), pytest.raises(dpdt.Interrupted, match=message) as e:
        train(callbacks=[listener])
    result = e.value.result
    assert (result.taken, result.privacy.steps, result.privacy.closed) == (3, 10, True)
    assert len(result.history) == len(listener.heard) == len(listener.ended) == 1
    assert isinstance(e.value, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_left_to_a_program_that_has_its_own_way_with_it():
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        with after_step(3):
            result = train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (pressed, result.privacy.steps) == ([True], 10)


def test_nothing_is_shown_where_nobody_looks(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train()
    assert capfd.readouterr() == ("", "")


def test_progress_is_shown_on_a_terminal(monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    train()
    assert "epoch" in capfd.readouterr().err
    train(progress=False)
    assert capfd.readouterr().err == ""


def test_progress_is_shown_in_a_notebook(monkeypatch, capfd):
    """By tqdm, which writes text where there are no widgets."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train()
    line = capfd.readouterr().err
    assert "epoch 1/5:" in line
    assert "loss=" in line
    assert "accuracy=" in line
    assert "ε=" in line
    train(progress=False)
    assert capfd.readouterr().err == ""
