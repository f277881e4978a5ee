"""Models and layers that were trained on the same data before, and runs that go on with others."""

import copy

import pytest
import torch
from torch import nn

import dpdt
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.training import earlier
from tests.numbers import NUMBERS
from tests.training.pressed import after_step

torch.manual_seed(0)
DATA = torch.randn(40, 5), torch.arange(40) % 2
SMALL = {**NUMBERS, "auxiliaries": 4, "noise": 1.0, "epochs": 3, "batch_size": 10}
DPSGD = {"method": "dpsgd", "clip": 1.0, "noise": 1.0, "lr": 0.1, "epochs": 3, "batch_size": 10}
MEASURED = {"noise": 1.0, "epochs": 3, "batch_size": 10, "lr": "auto"}
METHODS = pytest.mark.parametrize("settings", [SMALL, DPSGD], ids=["dpdt", "dpsgd"])
BEFORE = "was trained on these data before"


def layers(seed=1, frozen=True):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    model[0].requires_grad_(not frozen)
    return model


def plainly(model):
    """Train without noise, and freeze the first layer."""
    dpdt.train(model, DATA, method="plain", epochs=2, batch_size=10, lr=0.5)
    model[0].requires_grad_(False)
    return model


def train(model, settings=SMALL, **options):
    return dpdt.train(model, DATA, **settings, **options)


def interrupted(model, out, settings=SMALL):
    with after_step(5), pytest.raises(dpdt.Interrupted):
        train(model, settings, out=out)


def test_a_frozen_layer_below_a_new_head_has_seen_the_data():
    model = plainly(layers(frozen=False))
    model[2] = nn.Linear(6, 2)
    result = train(model)
    assert result.privacy.proven is None
    assert BEFORE in result.ledger.voids[0]


def test_a_copied_layer_has_seen_the_data_wherever_it_stands():
    model = plainly(layers(frozen=False))
    other = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Linear(4, 2))
    other[0].load_state_dict(model[0].state_dict())
    other[0].requires_grad_(False)
    assert BEFORE in train(other).ledger.voids[0]
    assert BEFORE in train(copy.deepcopy(model)).ledger.voids[0]


def test_statistics_of_the_data_in_a_buffer_have_seen_them():
    model = nn.Sequential(nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2))
    dpdt.train(model, DATA, method="plain", epochs=1, batch_size=10, lr=0.1)
    copied = copy.deepcopy(model)
    copied[1] = nn.Linear(5, 2)
    assert BEFORE in earlier.why_not(copied, _seen())


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_that_was_cast_has_seen_the_data(kind):
    """Trained without privacy, cast, and trained again: it got a proven ε."""
    model = plainly(layers(frozen=False)).requires_grad_(True).to(kind).to(torch.float64)
    copied = layers(seed=2, frozen=False).double()
    copied.load_state_dict(model.state_dict())
    given = dpdt.train(copied, (DATA[0].double(), DATA[1]), **SMALL)
    assert BEFORE in earlier.why_not(copied, _seen()) or given.ledger.voids
    assert BEFORE in given.ledger.voids[0]
    assert given.privacy.proven is None


def test_what_no_run_has_changed_may_be_in_many_models():
    """A frozen backbone in run after run, and tensors that are equal by how they begin."""
    first = layers()
    first.norm = nn.LayerNorm(2)
    train(first)
    second = nn.Sequential(first[0], nn.ReLU(), nn.Linear(6, 2), nn.LayerNorm(2))
    nn.init.zeros_(second[2].bias)
    assert train(second).ledger.voids == []


def test_tensors_that_say_nothing_are_not_known_again():
    model = nn.Linear(5, 2)
    for content in (torch.zeros(9), torch.ones(3, 4), torch.randn(3), torch.arange(9)):
        model.register_buffer("kept", content)
        assert earlier.hash_of(content) not in earlier.hashes_of(model)
    model.register_buffer("kept", torch.randn(4))
    assert earlier.hash_of(model.kept) in earlier.hashes_of(model)
    model.register_buffer("kept", torch.eye(3).to_sparse())
    assert earlier.hashes_of(model)


@METHODS
def test_the_same_model_with_a_frozen_layer_goes_on(tmp_path, settings):
    model = layers()
    interrupted(model, tmp_path / "run", settings)
    whole = train(model, settings, out=tmp_path / "run", resume=True)
    assert whole.ledger.voids == []
    assert whole.privacy.closed


@METHODS
@pytest.mark.parametrize("other", ["frozen", "buffer"])
def test_other_frozen_weights_are_refused_and_the_ledger_stays(tmp_path, settings, other):
    def made(seed):
        model = layers(seed if other == "frozen" else 1)
        model.register_buffer("shift", torch.full((3,), float(seed)))
        return model

    interrupted(made(1), tmp_path / "run", settings)
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match="a run with other frozen weights or buffers"):
        train(made(2), settings, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before
    assert train(made(1), settings, out=tmp_path / "run", resume=True).ledger.voids == []


def test_a_state_holds_what_is_trained_alone():
    step, _ = dpdt.prepare(layers(), DATA, **DPSGD)
    assert set(step.state_dict()["engine"]["parameters"]) == {"2.weight", "2.bias"}


def test_a_checkpoint_does_not_take_the_place_of_a_frozen_layer(tmp_path):
    """It has the very weights that the run began with, and they came from these data meanwhile."""
    model = layers()
    interrupted(model, tmp_path / "run")
    other = layers(frozen=False)
    dpdt.train(other, DATA, method="plain", epochs=1, batch_size=10, lr=0.5)
    other.load_state_dict(model.state_dict())
    other[0].requires_grad_(False)
    result = train(other, out=tmp_path / "run", resume=True)
    assert BEFORE in result.ledger.voids[0]
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").voids == result.ledger.voids


def test_a_rate_is_not_measured_on_weights_that_saw_the_data(tmp_path, monkeypatch):
    """A run that stopped before its first step goes on with a model that was trained."""

    def stop(*_):
        raise RuntimeError("power")

    with monkeypatch.context() as patch:
        patch.setattr("dpdt.training.watching.Watch.hooks", stop)
        with pytest.raises(RuntimeError, match="power"):
            train(layers(), MEASURED, out=tmp_path / "run")
    model = layers()
    dpdt.train(model, DATA, method="plain", epochs=1, batch_size=10, lr=0.5)
    result = train(model, MEASURED, out=tmp_path / "run", resume=True)
    assert BEFORE in result.ledger.voids[0]


def test_a_rate_that_was_measured_holds_for_the_steps_that_are_taken_again(tmp_path):
    def crash(result, batch):
        raise RuntimeError("power")

    model = layers(frozen=False)
    with pytest.raises(RuntimeError, match="power"):
        train(model, MEASURED, out=tmp_path / "run", on_step=crash)
    with torch.no_grad():
        model[0].weight *= 10
    whole = train(model, MEASURED, out=tmp_path / "run", resume=True)
    assert len({run.setting.lr for run in whole.ledger.runs}) == 1
    assert BEFORE not in str(whole.ledger.voids)


def _seen():
    return dpdt.prepare(nn.Linear(5, 2), DATA, **SMALL)[0].seen
