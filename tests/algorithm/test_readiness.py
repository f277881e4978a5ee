import pytest
import torch
from torch import nn

from dpdt import InputError, make_private_ready
from dpdt.algorithm import ways

from .problems import batch_of, classification, cross_entropy, engine_for, flat, take_step


def test_batchnorm_is_refused_with_the_reason_and_the_remedy():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(InputError, match=r"'1' \(BatchNorm1d\) normalises each example with") as e:
        engine_for(model)
    assert "make_private_ready" in str(e.value)


def test_make_private_ready_replaces_batchnorm_and_keeps_its_affine_part():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.BatchNorm2d(8)), nn.Flatten())
    nn.init.uniform_(model[1][0].weight)
    weight = model[1][0].weight.detach().clone()
    ready = make_private_ready(model)
    norm = ready[1][0]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels) == (1, 8)
    assert torch.equal(norm.weight, weight)
    x = torch.randn(4, 3, 5, 5)
    torch.testing.assert_close(ready(x)[:1], ready(x[:1]))  # an example by itself is the same
    assert isinstance(make_private_ready(nn.BatchNorm1d(3)), nn.GroupNorm)


def test_instance_norm_with_running_statistics():
    model = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True))
    with pytest.raises(InputError, match="running statistics"):
        engine_for(nn.Sequential(model, nn.Linear(2, 2)))
    make_private_ready(model)
    engine_for(nn.Sequential(model, nn.Linear(2, 2)))


def test_spectral_norm_is_refused():
    from torch.nn.utils.parametrizations import spectral_norm

    with pytest.raises(InputError, match="in every forward pass"):
        engine_for(nn.Sequential(spectral_norm(nn.Linear(6, 3))))


class Counter(nn.Module):
    """A layer nobody knows, that keeps statistics of what it sees."""

    def __init__(self, replace):
        super().__init__()
        self.linear, self.replace = nn.Linear(6, 3), replace
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.replace:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        else:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.linear(x - self.mean)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("replace", [True, False])
def test_a_buffer_that_changes_is_refused_before_anything_is_published(
    replace, together, monkeypatch
):
    model = Counter(replace)
    before = flat(model)
    engine = engine_for(model, cross_entropy, noise=1.0)
    if not together:
        monkeypatch.setattr(ways, "together", lambda *_: None)
    with pytest.raises(InputError, match="buffer 'mean' changed"):
        take_step(engine, batch_of(classification(8), (2, 2, 2, 2)))
    assert torch.equal(before, flat(model))
