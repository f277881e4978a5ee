"""Every way of training on another device than the CPU: no tensors meet, and numbers are equal."""

import os

import pytest
import torch
from torch import nn

from dpdt import config
from dpdt.algorithm.layout import Layout, has_float64
from dpdt.algorithm.places import same_bits
from dpdt.algorithm.randomness import Globals, kept, seeded
from dpdt.errors import InputError
from dpdt.mechanism import full_precision
from dpdt.methods.canaries import Pulls
from dpdt.models.metrics import accuracy
from dpdt.runs import Run
from dpdt.training import depends, device
from dpdt.training.device import best, chosen
from dpdt.training.run import load, run
from tests.numbers import prepare, unseen
from tests.pretend import CPU, PLACE, pretended

CLASSES, INPUTS = 3, 6


def examples(n=40, shape=(INPUTS,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=generator)
    return x, torch.randint(0, CLASSES, (n,), generator=generator)


def network():
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def linear():
    return nn.Linear(INPUTS, CLASSES)


def dropping():
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Dropout(0.3), nn.Linear(8, CLASSES))


def looping():
    """Cannot be mapped: it looks at numbers."""

    class Looks(nn.Module):
        def forward(self, x):
            return x if float(x.sum()) > 0 else -x

    return nn.Sequential(Looks(), nn.Linear(INPUTS, CLASSES), nn.Dropout(0.3))


def convolving():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES)
    )


IMAGES = (1, 8, 8)
RULE = {"sampling": "poisson", "granularity": "model"}
CASES = {
    **{
        f"{memory} {sampling} {make.__name__} {preconditioner}": (
            make, {"memory": memory, "sampling": sampling, "auxiliaries": auxiliaries,
                   "preconditioner": preconditioner})
        for memory, sampling, auxiliaries in (
            ("auxiliary", "partition", 5), ("shared", "partition", 5), ("none", "partition", 5),
            ("shared", "poisson", "per-example"), ("none", "poisson", "per-example"),
            ("shared", "poisson", 4),
        )
        for make, preconditioner in ((network, "rmsprop"), (linear, "identity"),
                                     (dropping, "identity"), (looping, "adam"),
                                     (convolving, "identity"))
        if (memory, preconditioner) not in (("none", "rmsprop"), ("none", "adam"))
    },
    "head": (linear, {**RULE, "memory": "shared", "auxiliaries": "per-example"}),
    "averaging": (network, {"averaging": 0.9}),
    "rule": (network, {"lr": "auto", "penalty": "auto", "averaging": "auto", **RULE,
                       "memory": "shared", "auxiliaries": "per-example"}),
    "whitened": (linear, {"preconditioner": "public", **RULE, "memory": "shared",
                          "auxiliaries": "per-example", "public": True}),
    "users": (network, {"unit": "user", "users": [i % 12 for i in range(40)], "auxiliaries": 5,
                        "batch_size": 4}),
    "reshuffled l1": (network, {"reshuffle": True, "regularizer": "l1", "weight_decay": 0.01,
                                "auxiliary_weight_decay": 0.01, "auxiliaries": 5}),
    **{f"diagnosed {memory}": (network, {"diagnose": True, "memory": memory, "auxiliaries": 5})
       for memory in ("auxiliary", "shared", "none")},
    "diagnosed head": (linear, {"diagnose": True, **RULE, "memory": "shared",
                                "auxiliaries": "per-example"}),
    **{f"dpsgd {clipping} {make.__name__}": (make, {"method": "dpsgd", "clipping": clipping})
       for clipping in ("flat", "layer", "automatic") for make in (network, linear, looping)},
    "dpsgd adamw": (network, {"method": "dpsgd", "optimizer": "adamw", "lr": 0.01}),
    "gep": (network, {"method": "gep", "directions": 4, "groups": 2, "public": True}),
    "pate": (network, {"method": "pate", "teachers": 3, "teacher_epochs": 1, "public": True,
                       "threshold": 0.0, "threshold_noise": 2.0}),
    "plain": (network, {"method": "plain", "noise": None}),
    "canaries": (network, {**RULE, "memory": "shared", "auxiliaries": "per-example",
                           "pulls": Pulls(marks=torch.arange(40) % 7 - 3, number=3, seed=0)}),
    "augmented": (convolving, {"augment": True, "auxiliaries": 5}),
}  # fmt: skip


def trained(make, device, *, moved=False, **options):
    """What a run of a few steps leaves, what it said of itself, and how it was computed."""
    torch.manual_seed(0)
    model = make().to(device)
    data = examples(shape=IMAGES if make is convolving else (INPUTS,))
    if moved:
        data = tuple(t.to(device) for t in data)
    public = options.pop("public", None) and examples(20, seed=5)[0]
    given = {"public": public, "epochs": 2, "batch_size": 20, "noise": 0.5, "noise_seed": 1}
    given = {name: value for name, value in (given | options).items() if value is not None}
    step, loader = prepare(model, data, **given)
    results = [step(batch) for batch in loader]
    if step.plan.training.method.goes_back:
        step.load_state_dict(step.state_dict())
    step.finish()
    weights = [p.detach().cpu() for p in model.parameters()]
    said = [(r.loss, r.nonfinite, r.diagnostics) for r in results]
    executor = getattr(step.engine, "executor", None)
    ways = executor.found.values() if executor else ()
    return weights, said, [(how.rows, how.classes, how.keyed, how.taps is not None) for how in ways]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("float64", [True, False], ids=["float64", "float32 alone"])
def test_a_run_elsewhere_is_the_run_on_the_cpu(case, float64):
    make, options = CASES[case]
    here = trained(make, "cpu", **options)
    with pretended(float64=float64):
        there = trained(make, PLACE, **options)
    if float64:
        assert all(map(same_bits, here[0], there[0]))
        assert here[1:] == there[1:]  # nothing falls back to a slower way in silence
    else:  # linear heads are computed in another way there
        pairs = zip(here[0], there[0], strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


@pytest.mark.parametrize("case", ["shared poisson network rmsprop", "augmented", "plain"])
def test_data_may_be_there_already(case):
    make, options = CASES[case]
    here = trained(make, "cpu", **options)
    with pretended():
        there = trained(make, PLACE, moved=True, **options)
    assert all(map(same_bits, here[0], there[0]))


def test_the_pretended_device_notices_what_a_real_one_would():
    with pretended():
        x, y = torch.ones(3, device=PLACE), torch.ones(3)
        assert (x + 1.0).device == (x + torch.tensor(1.0)).device == PLACE
        assert x[torch.tensor([0, 1])].device == PLACE
        for wrong in (
            lambda: x + y,
            lambda: y[torch.tensor([0], device=PLACE)],
            lambda: torch.cat([x, y]),
            lambda: torch.equal(x, y),
            lambda: x.numpy(),
        ):
            with pytest.raises(RuntimeError):
                wrong()
        assert torch.equal(x.cpu(), y)
    with pretended(float64=False), pytest.raises(TypeError):
        x.double()


def test_flat_buffers_are_where_float64_is():
    assert has_float64(torch.device("cpu"))
    with pretended():
        assert has_float64(PLACE)
        model = network().to(PLACE)
        assert Layout(model).device == Layout(model).place == PLACE
    with pretended(float64=False):
        assert not has_float64(PLACE)
        layout = Layout(model)
        assert (layout.place, layout.device) == (PLACE, torch.device("cpu"))
        assert layout.gather().device == torch.device("cpu")


def test_a_model_is_judged_where_it_is():
    model, test = network(), examples()
    here = accuracy(model, test)
    with pretended():
        assert accuracy(model.to(PLACE), test) == here


class TestChoice:
    @pytest.fixture
    def absent(self, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)

    @pytest.mark.parametrize("name", ["cuda", "mps"])
    def test_an_absent_device_is_one_sentence_before_any_work(self, name, absent, monkeypatch):
        told = rf"^train.device: '{name}' is not there.*; use 'cpu' or 'auto'$"
        with pytest.raises(InputError, match=told):
            prepare(network(), None, noise=1.0, device=name)
        monkeypatch.setattr("dpdt.data.load", lambda *_: pytest.fail("data were read"))
        with pytest.raises(InputError, match=told):
            load(config.load("digits", (f"train.device={name}",)))

    def test_each_process_of_several_has_a_gpu_of_its_own(self, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        assert chosen("cuda", CPU) == best() == torch.device("cuda")
        monkeypatch.setenv("LOCAL_RANK", "3")
        assert chosen("cuda", CPU) == best() == torch.device("cuda:3")
        assert chosen("auto", CPU) == chosen("cpu", CPU) == CPU

    def test_a_guarantee_does_not_ask_for_the_device(self, absent, tmp_path):
        (tmp_path / "run.toml").write_text("[method]\nnoise = 1.0\n")
        first, second = (
            config.plan_of(config.load(str(tmp_path / "run.toml"), (f"train.device={name}",)))
            for name in ("cpu", "cuda")
        )
        assert first.header == second.header
        assert first.runs == second.runs

    def test_auto_is_where_the_model_is_or_the_best_there_is(self, absent, monkeypatch):
        assert device.chosen("auto", PLACE) == PLACE
        assert device.chosen("cpu", PLACE) == torch.device("cpu")
        assert device.best() == torch.device("cpu")
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        assert device.best() == device.chosen("cuda", PLACE) == torch.device("cuda")

    def test_a_model_is_moved_to_the_device_that_was_asked_for(self):
        with pretended():
            model = network().to(PLACE)
            step, loader = prepare(model, examples(), noise=1.0, batch_size=20, device="cpu")
            assert {p.device for p in model.parameters()} == {torch.device("cpu")}
            assert step.engine.layout.device == loader.device == torch.device("cpu")

    def test_states_go_on_elsewhere_and_with_other_readers(self):
        first, _ = prepare(network(), examples(), noise=1.0, batch_size=20)
        second, _ = prepare(
            network(), examples(), noise=1.0, batch_size=20, device="cpu", workers=2
        )
        second.load_state_dict(first.state_dict())

    def test_a_run_of_the_command_line_is_on_the_best_device(self, tmp_path, monkeypatch):
        places = []
        monkeypatch.setattr(device, "best", lambda: PLACE)
        monkeypatch.setattr(
            Run, "save_model", lambda self, m: places.append(next(m.parameters()).device)
        )
        chosen = config.load("digits", ("train.epochs=1",), "plain")  # nothing to account
        with pretended():
            there = run(chosen, tmp_path / "there", show_progress=False)
        monkeypatch.setattr(device, "best", lambda: torch.device("cpu"))
        here = run(chosen, tmp_path / "here", show_progress=False)
        assert places == [PLACE, torch.device("cpu")]
        assert there.accuracy == here.accuracy

    def test_a_run_is_not_resumed_on_another_device(self, tmp_path, monkeypatch):
        chosen = config.load("digits")
        found = [
            depends.depends_on(chosen, "start", [torch.zeros(3, 1)], torch.device(name))
            for name in ("cpu", "mps")
        ]
        with pytest.raises(InputError, match="the device changed"):
            depends.refuse_changes(tmp_path, *found)
        names = iter(["one GPU", "another GPU"])
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: next(names))
        assert device.facts(torch.device("cuda")) != device.facts(torch.device("cuda"))


class TestRepeatable:
    def test_steps_elsewhere_are_repeatable(self):
        now = unseen(seen=[])

        def loss(model, batch):
            now.seen.append(torch.are_deterministic_algorithms_enabled())
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        with pretended():
            model = network().to(PLACE)
            step, loader = prepare(model, examples(), loss=loss, noise=1.0, batch_size=20)
            now.seen.clear()  # the trial on made-up examples, which nothing repeats
            step(next(iter(loader)))
        assert set(now.seen) == {True}
        assert not torch.are_deterministic_algorithms_enabled()

    def test_the_caller_s_own_choice_is_set_back(self, monkeypatch):
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
        with device.repeatable(PLACE):
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
            assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark
        with device.repeatable(torch.device("cpu")):
            assert not torch.are_deterministic_algorithms_enabled()


class Gpu:
    """The generators of two GPUs."""

    def __init__(self):
        self.states = [torch.tensor([1, 2]), torch.tensor([3, 4])]

    def is_initialized(self):
        return True

    def get_rng_state_all(self):
        return [state.clone() for state in self.states]

    def set_rng_state_all(self, states):
        self.states = [state.clone() for state in states]

    def manual_seed_all(self, seed):
        self.states = [torch.tensor([seed, 0]) for _ in self.states]


@pytest.mark.parametrize("name", ["torch.cuda", "torch.xpu", "dpdt.algorithm.randomness._Mps"])
def test_what_a_model_draws_on_a_gpu_is_its_own_too(name, monkeypatch):
    """A GPU has generators of its own: dropout there draws from them."""
    gpu = Gpu()
    monkeypatch.setattr(name, gpu)
    before = Globals()
    with kept():
        seeded(1, 2, 3)
        first = gpu.get_rng_state_all()
        assert Globals() != before
        gpu.states[0] += 1  # someone has drawn
        seeded(1, 2, 3)
        assert all(map(torch.equal, gpu.states, first))
        seeded(1, 2, 4)
        assert not torch.equal(gpu.states[1], first[1])
    assert Globals() == before
    gpu.states[1] += 1
    assert Globals() != before


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_autocast_of_any_device_is_switched_off(kind, monkeypatch):
    before = torch.is_autocast_enabled(kind)
    torch.set_autocast_enabled(kind, True)
    try:
        with full_precision():
            assert not torch.is_autocast_enabled(kind)
        assert torch.is_autocast_enabled(kind)
    finally:
        torch.set_autocast_enabled(kind, before)


def test_a_checkpoint_is_read_without_its_device(tmp_path, monkeypatch):
    asked, inner = {}, torch.load
    (tmp_path / "private").mkdir()
    Run(tmp_path).save_checkpoint({"step": 1})
    monkeypatch.setattr("torch.load", lambda path, **o: asked.update(o) or inner(path, **o))
    assert Run(tmp_path).load_checkpoint() == {"step": 1}
    assert asked["map_location"] == "cpu"
