"""bfloat16: gradients are rounded, bounds are not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dpdt.algorithm.precision import Lowered
from dpdt.errors import InputError
from dpdt.models.networks import bounded_linear
from tests.numbers import prepare
from tests.test_holes import POISSON, examples, moved

LOW = {"precision": "bfloat16"}
FIXED = [{"memory": memory, "auxiliaries": 5} for memory in ("auxiliary", "shared", "none")]
GEP = {"method": "gep", "public": examples(30, seed=5)[0], "directions": 3, "clip": 1.0}


class Spy(nn.Module):
    """Notes in which precision it is called, and whether autocast keeps weights."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        self.note = lambda *seen: None

    def forward(self, x):
        outputs = self.inner(x)
        self.note(outputs.dtype, torch.is_autocast_cache_enabled())
        return outputs


def finish(model, **options):
    """What a short run leaves, and how it was computed."""
    given = {} if options.get("method") == "plain" else {"noise": 1.0, "noise_seed": 3}
    step, loader = prepare(model, examples(), epochs=1, batch_size=10, **given, **options)
    for batch in loader:
        step(batch)
    step.finish()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), step


def made(kind=Spy):
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("options", [*FIXED, *POISSON, GEP], ids=str)
def test_the_model_is_called_in_bfloat16_and_nothing_is_cached(options):
    model, seen = made(), set()
    model.note = lambda *found: seen.add(found)
    low, _ = finish(model, **LOW, **options)
    # GEP's rule for public examples counts outputs, once, as the model is
    assert seen - {(torch.float32, True)} == {(torch.bfloat16, False)}
    full, _ = finish(made(), **options)
    assert 0.0 < float((low - full).norm()) < 0.1 * float(full.norm())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [FIXED[0], POISSON[1], {"method": "plain"}], ids=str)
def test_the_caller_s_autocast_changes_nothing(precision, options):
    alone, _ = finish(made(), precision=precision, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = finish(made(), precision=precision, **options)
    assert torch.equal(alone, inside)


@pytest.mark.parametrize("options", POISSON, ids=str)
def test_where_places_depend_on_others_each_is_computed_by_itself(options):
    """Trials of places would show nothing: their differences are rounded away, almost always."""
    _, step = finish(made(), **LOW, **options)
    assert [how.rows for how in step.engine.executor.found.values()] == [0]
    _, step = finish(made(), **LOW, **FIXED[1])
    assert all(how.rows for how in step.engine.executor.found.values())


@pytest.mark.parametrize("options", POISSON, ids=str)
def test_one_example_moves_the_sum_by_the_clip_at_most(options):
    far = moved(lambda: made(), examples(), 0, clip=1e-3, batch_size=40, **LOW, **options)
    assert 0.9 < far <= 1.0


@settings(max_examples=25)
@given(
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e30, 1e38]),
    clip=st.sampled_from([1e-6, 0.1, 1.0, 1e3]),
    case=st.sampled_from([*FIXED, {"method": "dpsgd"}, {"method": "dpsgd", "clipping": "layer"}]),
    seed=st.integers(0, 99),
)
def test_a_contribution_keeps_to_the_clip(scale, clip, case, seed):
    """One auxiliary, whatever its gradient: the sum is its contribution."""

    def loss(model, batch):
        x, y = batch
        return F.cross_entropy(model(scale * x), y) * scale

    if "method" in case:  # one example of twelve, all of which would be drawn
        case = {**case, "absent": np.arange(12) != 5}
    else:
        case = {**case, "auxiliaries": 1, "granularity": "model"}
    data, totals = examples(12, seed=seed), []
    with pytest.MonkeyPatch.context() as patch:

        def spy(total, **_):
            totals.append(total.clone())
            return torch.zeros_like(total)

        patch.setattr("dpdt.algorithm.publish.perturbed", spy)
        step, loader = prepare(
            made(), data, clip=clip, loss=loss, noise=1.0, epochs=2, batch_size=12, **LOW, **case
        )
        for batch in loader:
            step(batch)
    assert all(float(total.norm()) <= clip for total in totals)


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Spy])
def test_taps_hear_what_layers_compute_in_bfloat16(make):
    options = {"sampling": "partition", "memory": "none", "lr": 0.1, "clip": 0.5}
    low, step = finish(made(make), **LOW, **options)
    assert [how.taps is not None for how in step.engine.executor.found.values()] == [True]
    high, _ = finish(made(make), **options)
    assert not torch.equal(low, high)
    torch.testing.assert_close(low, high, rtol=0.0, atol=0.02)


def test_taps_are_not_set_where_bfloat16_hides_what_places_do():
    options = {**POISSON[0], "auxiliaries": "per-example"}
    _, step = finish(made(lambda: nn.Linear(6, 3)), **LOW, **options)
    assert [(how.taps, how.rows) for how in step.engine.executor.found.values()] == [(None, 0)]


def test_what_comes_out_of_a_lowered_loss_is_float32():
    model, (x, y) = nn.Linear(6, 3), examples()
    lowered = Lowered(lambda model, batch: model(batch[0]).mean(), torch.device("cpu"))
    value = lowered(model, (x, y))
    assert value.dtype == torch.float32
    (gradient,) = torch.autograd.grad(value, [model.weight])
    assert gradient.dtype == torch.float32


def test_bounds_by_construction_do_not_survive_rounding():
    for precision, known in (("float32", True), ("bfloat16", False)):
        step, _ = prepare(
            bounded_linear(6, 3, 1.0), examples(), noise=1.0, precision=precision, batch_size=20
        )
        assert (step.plan.header.gradient_bound is not None) == known
        assert (step.plan.header.smoothness is not None) == known


def test_what_bfloat16_cannot_do_is_refused():
    with pytest.raises(InputError, match=r"^train.precision: .* float32, found float64"):
        prepare(nn.Linear(6, 3).double(), examples(), noise=1.0, batch_size=20, **LOW)
    with pytest.raises(InputError, match=r"^train.precision: 'hidden-state-convex' rests"):
        prepare(
            bounded_linear(6, 3, 1.0), examples(), epsilon=8.0, accountant="hidden-state-convex",
            batch_size=20, **LOW,
        )  # fmt: skip
    with pytest.raises(InputError, match=r"^train.precision: diagnosing"):
        prepare(nn.Linear(6, 3), examples(), noise=1.0, batch_size=20, diagnose=True, **LOW)


def test_the_precision_belongs_to_the_run():
    first, _ = prepare(nn.Linear(6, 3), examples(), noise=1.0, batch_size=20)
    second, _ = prepare(nn.Linear(6, 3), examples(), noise=1.0, batch_size=20, **LOW)
    with pytest.raises(InputError, match="other settings"):
        second.load_state_dict(first.state_dict())
