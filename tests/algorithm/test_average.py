"""Averages of published iterates: what is released, and what that shows."""

import torch
from torch import nn

from tests.numbers import prepare

X = torch.randn(90, 7, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (90,), generator=torch.Generator().manual_seed(1))


def test_the_average_is_of_published_iterates_and_is_what_is_released():
    model = nn.Linear(7, 4)
    step, loader = prepare(
        model, (X, Y), noise=0.1, batch_size=30, epochs=3, averaging=0.8, memory="none"
    )
    seen = []
    for batch in loader:
        step(batch)
        seen.append(model.weight.detach().clone())
    step.finish()
    weights = [0.2 * 0.8 ** (len(seen) - 1 - i) for i in range(len(seen))]
    expected = sum(w * t for w, t in zip(weights, seen, strict=True)) / sum(weights)
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_an_average_shows_more_than_the_last_iterate():
    step, _ = prepare(
        nn.Linear(7, 4), (X, Y), noise=0.1, batch_size=30, averaging=0.8, weight_decay=0.1,
        release="last",
    )  # fmt: skip
    by_name = {g.accountant: g for g in step.privacy().guarantees}
    for name in ("hidden-state-contraction", "hidden-state-convex"):
        assert not by_name[name].valid
        assert any("average" in c.why for c in by_name[name].conditions if not c.holds)
    assert by_name["composition"].valid
