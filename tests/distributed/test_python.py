"""Callbacks, optimizers of one's own and a run's folder, on several ranks."""

import numpy as np
import pytest
import torch

import dpdt
from dpdt.ledger import Ledger
from tests.distributed.cases import deep, examples

OPTIONS = {"method": "dpsgd", "epochs": 4, "batch_size": 10, "noise": 1.0}


class Heard(dpdt.Callback):
    def __init__(self):
        self.epochs = []

    def on_epoch(self, record):
        self.epochs.append(record["epoch"])
        return len(self.epochs) == 2


def stopped(folder):
    """A run that only rank 0 listens to, and stops, with an optimizer that all ranks make."""
    heard = Heard()
    result = dpdt.train(
        deep(),
        examples(),
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
        callbacks=[heard] if torch.distributed.get_rank() == 0 else [],
        out=folder,
        **OPTIONS,
    )
    flat = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    return heard.epochs, result.privacy.epochs, flat.numpy(), result.ledger.exports


def unlike(what, folder):
    """Ranks that make different optimizers, or of which one alone has a folder."""
    odd = torch.distributed.get_rank() == 1
    rate = 0.2 if odd and what == "optimizer" else 0.1
    out = None if odd and what == "out" else folder
    make = lambda p: torch.optim.SGD(p, lr=rate)  # noqa: E731
    dpdt.train(deep(), examples(), optimizer=make, out=out, **OPTIONS)


def test_rank_0_listens_and_all_stop(group, tmp_path):
    found = group.each(stopped, str(tmp_path / "run"))
    assert [epochs for epochs, *_ in found] == [[1, 2], *[[]] * (len(found) - 1)]
    for _, epochs, weights, exports in found:
        assert epochs == 4.0  # that were planned
        assert np.array_equal(weights, found[0][2])
        assert exports[0] == "what callbacks saw on the way"
        assert "when the run was ended" in exports[1]
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").closed
    loaded = dpdt.load(tmp_path / "run", deep())
    flat = torch.cat([p.detach().flatten() for p in loaded.parameters()])
    assert np.array_equal(flat.numpy(), found[0][2])


@pytest.mark.parametrize("what", ["optimizer", "out"])
def test_ranks_that_differ_are_refused(group, what, tmp_path):
    for kind, said in group.errors(unlike, what, str(tmp_path / "run")):
        assert kind == "InputError"
        assert said.startswith(f"{what}: is "), said
    assert not (tmp_path / "run").exists()
