"""Every way of training on another device than the CPU: no tensors meet, and numbers are equal."""

import pytest
import torch
from torch import nn

from dpdt.algorithm.places import same_bits
from tests.numbers import prepare
from tests.pretend import PLACE, pretended

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
    "users": (network, {"unit": "user", "users": [i % 12 for i in range(40)], "auxiliaries": 5}),
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
    "augmented": (convolving, {"augment": True, "auxiliaries": 5}),
}  # fmt: skip


def trained(make, device, *, moved=False, **options):
    """What a run of a few steps leaves, and what it said of itself."""
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
    return weights, said


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("float64", [True, False], ids=["float64", "float32 alone"])
def test_a_run_elsewhere_is_the_run_on_the_cpu(case, float64, monkeypatch):
    make, options = CASES[case]
    here = trained(make, "cpu", **options)
    monkeypatch.setattr("dpdt.algorithm.layout.has_float64", lambda device: float64)
    with pretended(float64=float64):
        there = trained(make, PLACE, **options)
    if float64:
        assert all(map(same_bits, here[0], there[0]))
        assert here[1] == there[1]
    else:  # linear heads are computed in another way there
        pairs = zip(here[0], there[0], strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
