"""Whatever goes wrong on one rank ends all of them, with one sentence, and nobody waits."""

import logging
import os
import signal

import pytest
import torch
from torch import nn

from dpdt import config
from dpdt.ledger import Ledger
from dpdt.training.run import run
from tests.distributed.cases import deep, examples
from tests.distributed.group import Group
from tests.numbers import prepare, train

SMALL = {"epochs": 2, "batch_size": 12, "noise": 0.5, "memory": "none"}


def me():
    return torch.distributed.get_rank()


def other_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def unlike(what):
    """Rank 1 is started differently from the others."""
    odd = me() == 1
    model, (x, y), options = deep(), examples(), dict(SMALL)
    match what:
        case "train.batch_size":
            options["batch_size"] = 13 if odd else 12
        case "method.clip":
            options["clip"] = 0.5 if odd else 1.0
        case "number of examples":
            x, y = (x[:-1], y[:-1]) if odd else (x, y)
        case "training data":
            x = x.roll(1, 0) if odd else x
        case "form of an example":
            x = x.double() if odd else x
            model = model.double()
        case "users":
            options |= {
                "unit": "user",
                "auxiliaries": 3,
                "batch_size": 2,
                "users": [(i + odd * (i == 7)) % 4 for i in range(40)],
            }
        case "model" if odd:
            with torch.no_grad():
                model[0].weight[0, 0] += 1e-6
        case "public inputs":
            options["public"] = torch.ones(5, 6) * (1 + odd)
        case "loss" if odd:
            options["loss"] = other_loss
        case "version of dpdt" | "processor or number of threads" if odd:
            from dpdt.training import ranks

            found = ranks.surroundings
            ranks.surroundings = lambda: {**found(), what: "another"}
            try:
                return prepare(model, (x, y), **options)
            finally:
                ranks.surroundings = found
    return prepare(model, (x, y), **options)


@pytest.mark.parametrize(
    "what",
    ["train.batch_size", "method.clip", "number of examples", "training data", "users", "model",
     "public inputs", "loss", "version of dpdt", "processor or number of threads"],
)  # fmt: skip
def test_ranks_that_were_started_differently_are_refused_before_the_first_step(group, what):
    for kind, text in group.errors(unlike, what):
        assert kind == "InputError"
        assert text.startswith(f"{what}: is "), text
        assert "rank 1" in text
        assert text.endswith("start every rank of a run alike")


def too_many(options):
    prepare(deep(), examples(), **SMALL | options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auxiliaries": 1}, "method.auxiliaries: 1 auxiliaries cannot be shared by {} ranks"),
        ({"diagnose": True}, "diagnose: is for runs in one process, found {} ranks"),
        ({"local": True}, "local: needs privacy.unit = 'user', found 'example'"),
    ],
)
def test_what_several_ranks_cannot_do(group, options, text):
    for kind, found in group.errors(too_many, options):
        assert kind == "InputError"
        assert found.startswith(text.format(len(group.pipes)))


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = deep()
    model[0].requires_grad_(False)
    fully_shard(model[0], mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    prepare(model, examples(), **SMALL)


def test_a_model_that_is_sharded_over_ranks_is_refused(group):
    for kind, text in group.errors(sharded):
        assert kind == "InputError"
        assert text.startswith("parameter '0.weight' is sharded over ranks (fully_shard)")


class Broken(torch.utils.data.Dataset):
    """One rank cannot read its data any more."""

    seen = logging.getLogger("reads")  # which is not put back after each example

    def __init__(self):
        self.data, self.seen.reads = examples(), 0

    def __len__(self):
        return len(self.data[1])

    def __getitem__(self, i):
        self.seen.reads += 1
        if me() == 1 and self.seen.reads > 50:
            raise OSError("the disk is gone")
        return self.data[0][i], self.data[1][i]


def reading_fails():
    train(deep(), Broken(), **SMALL)


def callback_fails():
    def on_step(result, batch):
        if me() == 1 and batch.step == 2:
            raise ZeroDivisionError("in a callback")

    train(deep(), examples(), on_step=on_step, **SMALL)


def weights_change(path):
    step, loader = prepare(deep(), examples(), ledger=path, **SMALL)
    try:
        for batch in loader:
            step(batch)
            if me() == 1 and batch.step == 2:
                with torch.no_grad():
                    next(step.engine.model.parameters()).add_(1e-3)
        step.finish()
    finally:
        voids = list(step.writer.ledger.voids)
        assert voids, "not void"


@pytest.mark.parametrize("fails", [reading_fails, callback_fails])
def test_a_rank_that_fails_ends_the_others_with_its_own_words(group, fails):
    found = group.errors(fails)
    own = found.pop(1)
    assert own[0] in ("OSError", "ZeroDivisionError")
    for kind, text in found:
        assert kind == "Lost"
        assert text == f"rank 1 failed: {own[0]}: {own[1]}"


def test_what_voids_one_rank_voids_the_ledger_that_rank_0_writes(group, tmp_path):
    path = tmp_path / "ledger.jsonl"
    found = group.errors(weights_change, path)
    assert {kind for kind, _ in found} == {"Tainted"}
    assert found[0][1].startswith("rank 1 failed: the weights were changed between steps")
    (why,) = Ledger.read(path).voids
    assert why == found[0][1]


def exported(path):
    step, loader = prepare(deep(), examples(), ledger=path, **SMALL)
    for batch in loader:
        step(batch)
        if me() == 1:
            step.export("something that rank 1 has shown")
    step.finish()
    return step.writer.ledger.exports


def test_what_left_any_rank_is_in_the_ledger(group, tmp_path):
    path = tmp_path / "ledger.jsonl"
    for exports in group.each(exported, path):
        assert exports == ["something that rank 1 has shown"]
    assert Ledger.read(path).exports == ["something that rank 1 has shown"]


def folder(overrides, path):
    return run(config.load("digits", overrides), path, show_progress=False).privacy.epsilon


def test_nothing_is_written_if_a_run_is_refused(group, tmp_path):
    for kind, text in group.errors(folder, ("audit.canaries=20",), tmp_path / "run"):
        assert kind == "InputError"
        assert text.startswith("audit.canaries: are for runs in one process")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    first, *others = group.errors(folder, (), tmp_path / "run")
    assert "already exists" in first[1]
    for kind, text in others:
        assert kind == "Lost"
        assert text == f"rank 0 failed: {first[1]}"
    assert not list((tmp_path / "run").iterdir())


def killed(path):
    step, loader = prepare(deep(), examples(), ledger=path, **SMALL)
    for batch in loader:
        if me() == 1 and batch.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        step(batch)


def test_a_rank_that_is_killed_is_named_and_the_ledger_is_not_short(tmp_path):
    """Step 2 was announced, and may have been seen: it counts."""
    pair = Group(2)
    try:
        (kind, value), gone = pair.outcomes(killed, tmp_path / "ledger.jsonl")
    finally:
        pair.close()
    assert gone == ("gone", None)
    assert kind == "failed"
    assert value[1].startswith("no word from rank 1: the process was killed, or its machine")
    found = Ledger.read(tmp_path / "ledger.jsonl")
    assert (found.steps, found.closed) == (3, False)
