"""Scattering features: what wavelets must do, whatever the data."""

import pytest
import torch

from dpdt import data, models
from dpdt.errors import InputError
from dpdt.models.scattering import Scattering, averaging, morlet
from dpdt.models.settings import ModelSettings as Model


def test_a_wavelet_has_mean_zero_and_sees_its_own_angle():
    for scale in (0, 1):
        real, imaginary = morlet(scale, 0)
        assert abs(float(real.sum())) < 1e-9
        assert abs(float(imaginary.sum())) < 1e-9
    columns = torch.arange(32.0)
    stripes = torch.cos(0.75 * torch.pi * columns).expand(1, 1, 32, 32)  # vary from left to right
    scattering = Scattering()
    response = scattering._modulus(stripes, scattering.fine, 1)[0, :, 8:24, 8:24].mean((1, 2))
    assert int(response.argmax()) == 0
    assert float(response[0]) > 3 * float(response[4])  # the angle across


def test_averaging_keeps_constants():
    matrix = averaging(28, 4, 3.2)
    assert matrix.shape == (7, 28)
    torch.testing.assert_close(matrix.sum(1), torch.ones(7))


@pytest.mark.parametrize(
    ("shape", "pool", "size"),
    [((1, 28, 28), 1, 3969), ((3, 32, 32), 1, 15_552), ((3, 32, 32), 2, 3888)],
)
def test_the_number_of_features(shape, pool, size):
    assert Scattering(pool)(torch.randn(2, *shape)).shape == (2, size)


def test_an_example_is_normalised_by_itself():
    """Nobody else in the batch matters."""
    x = torch.randn(4, 3, 32, 32)
    scattering = Scattering()
    together = scattering(x)
    torch.testing.assert_close(scattering(x[1:2]), together[1:2], rtol=1e-3, atol=1e-3)
    groups = together.view(4, 27, -1)
    torch.testing.assert_close(groups.mean(2), torch.zeros(4, 27), rtol=0, atol=1e-4)


def test_only_the_head_is_trained_on_features_computed_once():
    facts = data.Facts(examples=6, shape=(1, 8, 8), classes=2)
    chosen = Model(name="scatter", pool=2)
    model = models.build(chosen, facts, 0)
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6) % 2
    examples = data.Examples(train=(x, y), test=(x, y))
    ready = models.inputs(model, chosen, examples, augment=False)
    assert ready.train[0].shape == (6, 81)
    torch.testing.assert_close(model.head(ready.train[0]), model(x))
    assert [p.name for p in models.parameters(chosen, facts, False)] == ["weight", "bias"]
    assert models.inputs(model, chosen, examples, augment=True).train[0] is x
    with pytest.raises(InputError, match=r"model.pool: .* found 3"):
        models.build(Model(name="scatter", pool=3), facts, 0)
