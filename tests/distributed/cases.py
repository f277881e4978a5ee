"""What ranks are asked to do in tests. Everything here runs in every rank, or in one process."""

import logging

import numpy as np
import torch
from torch import nn

from tests.numbers import prepare

SMALL = {"epochs": 2, "batch_size": 12, "noise": 0.5, "noise_seed": 7}
USERS = [i % 11 for i in range(40)]
FIXED = {"sampling": "partition"}
POISSON = {"sampling": "poisson"}

# every memory, sampling, unit and method
CASES = {
    "auxiliary": FIXED | {"memory": "auxiliary", "auxiliaries": 5},
    "auxiliary rmsprop": FIXED
    | {"memory": "auxiliary", "auxiliaries": 4, "preconditioner": "rmsprop", "reshuffle": True},
    "auxiliary penalties": FIXED
    | {"memory": "auxiliary", "auxiliaries": 3, "penalty": (1.0, 2.0, 0.5)},
    "auxiliary per example": FIXED | {"memory": "auxiliary"},
    "auxiliary users": FIXED
    | {"memory": "auxiliary", "auxiliaries": 4, "unit": "user", "users": USERS,
       "batch_size": 4},
    "shared partition": FIXED | {"memory": "shared", "auxiliaries": 5},
    "shared adam": FIXED | {"memory": "shared", "auxiliaries": 5, "preconditioner": "adam"},
    "shared per example": POISSON | {"memory": "shared", "averaging": 0.5},
    "shared poisson": POISSON | {"memory": "shared", "auxiliaries": 4},
    "none partition": FIXED | {"memory": "none"},
    "none penalties": POISSON | {"memory": "none", "auxiliaries": 3, "penalty": (1.0, 2.0, 0.5)},
    "none poisson": POISSON | {"memory": "none"},
    "correlated": {"memory": "shared", "sampling": "cyclic-poisson", "noise_bands": 2},
    "rule": {"lr": "auto", "penalty": "auto", "sampling": "poisson", "granularity": "model"},
    "whitened": {"lr": "auto", "penalty": "auto", "sampling": "poisson", "granularity": "model",
                 "preconditioner": "public", "public": True},
    "dpsgd": {"method": "dpsgd"},
    "dpsgd layer": {"method": "dpsgd", "clipping": "layer", "optimizer": "adamw"},
    "dpsgd automatic": {"method": "dpsgd", "clipping": "automatic"},
    "gep": {"method": "gep", "directions": 4, "public": True},
    "pate": {"method": "pate", "teachers": 5, "teacher_epochs": 2, "public": True, "answers": 9,
             "noise": 0.1},
    "plain": {"method": "plain"},
}  # fmt: skip


def examples(n=40, inputs=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator)
    return x, torch.randint(0, classes, (n,), generator=generator)


def deep(dropout=0.0):
    torch.manual_seed(3)
    layers = nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 3)
    return nn.Sequential(*layers)


def conv():
    torch.manual_seed(3)
    layers = nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Dropout2d(0.2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, 3))


def linear():
    torch.manual_seed(3)
    return nn.Linear(6, 3)


def options_of(name):
    options = SMALL | CASES[name]
    if name == "plain":
        del options["noise"]
    if options.get("public") is True:
        options["public"] = examples(30, seed=5)[0]
    return options


def model_of(name, kind):
    return linear() if name == "whitened" else {"deep": deep, "conv": conv}[kind]()


def trained(name, kind="deep"):
    """Weights after a whole run, its losses, ledger and numbers of examples read."""
    model = model_of(name, kind)
    step, loader = prepare(model, examples(), **options_of(name))
    losses = [step(batch).loss for batch in loader]
    step.finish()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    ledger = step.writer.ledger
    return {
        "weights": flat.numpy(),
        "losses": np.array(losses),
        "ledger": (ledger.runs, ledger.header, ledger.exports, ledger.voids, ledger.closed),
        "rank": step.world.rank,
    }


def held_and_read(name):
    """How much a rank remembers, and which examples it reads."""

    seen = logging.getLogger("what is read")  # which is not put back after each example
    seen.numbers = set()

    class Spy(torch.utils.data.Dataset):
        def __init__(self):
            self.data = examples()

        def __len__(self):
            return len(self.data[1])

        def __getitem__(self, i):
            seen.numbers.add(i)
            return self.data[0][i], self.data[1][i]

    step, loader = prepare(deep(), Spy(), **options_of(name))
    seen.numbers.clear()  # of what looks at the shape of an example, and at a sample
    batches = [step(batch) and batch for batch in loader]
    kept = {n: list(t.shape) for n, t in step.engine.memory.state().items()}
    numbers = [tuple(batch.numbers.tolist()) for batch in batches]
    step.finish()
    return {"kept": kept, "read": seen.numbers, "numbers": numbers}


class Constant(nn.Module):
    """Parameters whose loss has gradient 0: only noise moves them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(20_000))

    def forward(self, x):
        return self.weight.sum() * 0.0 + x.sum() * 0.0


def mean_loss(model, batch):
    return model(batch[0])


def noise_of(options):
    """What noise alone moves θ by in two steps, with the operating system's entropy."""
    model = Constant()
    step, loader = prepare(
        model, examples(), loss=mean_loss, epochs=1, batch_size=20, noise=0.5, **options
    )
    moved = []
    for batch in loader:
        before = model.weight.detach().clone()
        step(batch)
        moved.append((model.weight.detach() - before).numpy())
    setting = step.plan.at(0)
    return {
        "moved": moved, "sigma": setting.noise[0] * setting.step_size,
        "secrets": repr(step.secrets()["noise"]["s"]["seed"]),
    }  # fmt: skip


def contributions(name, data, kind="deep"):
    """The mean before noise of the first two steps, and what the accountant allows."""
    from dpdt.accounting.composition import sensitivities

    found = []

    def spy(total, *, divisor, spacing, **_):
        s = torch.as_tensor(spacing, dtype=torch.float64)
        mean = total / divisor
        found.append(torch.where(s > 0, (mean / s).round() * s, mean).numpy())
        return torch.zeros_like(total)

    step, loader = prepare(model_of(name, kind), data, **options_of(name))
    import dpdt.algorithm.publish
    import dpdt.methods.gep.engine

    modules = dpdt.algorithm.publish, dpdt.methods.gep.engine
    before = [module.perturbed for module in modules]
    try:
        for module in modules:
            module.perturbed = spy
        for batch in loader:
            if batch.step == 2:
                break
            step(batch)
    finally:
        for module, one in zip(modules, before, strict=True):
            module.perturbed = one
    sizes = getattr(step.engine.layout.columns, "sizes", None)
    return {
        "means": found, "sizes": sizes,
        "limits": [list(sensitivities(step.plan.at(n), step.plan.header)) for n in (0, 1)],
    }  # fmt: skip
