"""Scattering features: what wavelets must do, whatever the data."""

import math

import pytest
import torch
from torch.nn import functional as F

from dpdt import config, data, models
from dpdt.data import Facts
from dpdt.errors import InputError
from dpdt.models.patches import made_up
from dpdt.models.scattering import SIDE, Scattering, averaging, morlet
from dpdt.models.settings import ModelSettings as Model


def test_a_wavelet_has_mean_zero_and_sees_its_own_angle():
    for scale in (0, 1):
        real, imaginary = morlet(scale, 0)
        assert abs(float(real.sum())) < 1e-9
        assert abs(float(imaginary.sum())) < 1e-9
    columns = torch.arange(32.0)
    stripes = torch.cos(0.75 * torch.pi * columns).expand(1, 1, 32, 32)  # vary from left to right
    scattering = Scattering()
    whole = F.pixel_shuffle(scattering._modulus(stripes, scattering.fine, 1), SIDE)
    response = whole[0, :, 8:24, 8:24].mean((1, 2))
    assert int(response.argmax()) == 0
    assert float(response[0]) > 3 * float(response[4])  # the angle across


def test_averaging_keeps_constants():
    matrix = averaging(28, 4, 3.2)
    assert matrix.shape == (7, 28)
    torch.testing.assert_close(matrix.sum(1), torch.ones(7, dtype=torch.float64))


def by_definition(x, pool):
    """Wavelet after wavelet, in float64."""

    def modulus(image, scale, stride):
        radius, answers = 3 * 2**scale, []
        padded = F.pad(image, (radius,) * 4, mode="reflect")
        for angle in range(8):
            parts = [F.conv2d(padded, p[None, None], stride=stride) for p in morlet(scale, angle)]
            answers.append(torch.sqrt(parts[0] ** 2 + parts[1] ** 2 + 1e-12))
        return answers

    def average(image, stride):
        rows, columns = (averaging(side, stride, 0.8 * stride) for side in image.shape[-2:])
        return F.avg_pool2d(rows @ image @ columns.t(), pool)

    colours = []
    for colour in x.double().unbind(1):
        image = colour[:, None]
        first, second = modulus(image, 0, 1), modulus(image, 1, 2)
        both = [after for channel in first for after in modulus(channel, 1, 2)]
        parts = [average(part, 4) for part in (image, *first)]
        colours += parts + [average(part, 2) for part in (*second, *both)]
    return F.group_norm(torch.cat(colours, 1), 27).flatten(1)


@pytest.mark.parametrize(
    ("shape", "pool"), [((3, 32, 32), 1), ((3, 32, 32), 2), ((1, 28, 28), 1), ((2, 8, 16), 2)]
)
def test_features_are_what_the_definition_says(shape, pool):
    x = torch.randn(2, *shape)
    found = Scattering(pool)(x).double()
    torch.testing.assert_close(found, by_definition(x, pool), rtol=1e-3, atol=2e-5)


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


@pytest.mark.parametrize(
    ("shape", "pool"), [((1, 28, 28), 1), ((3, 32, 32), 2), ((3, 32, 32), 1), ((1, 8, 8), 1)]
)
def test_features_are_about_as_long_as_is_said(shape, pool):
    """Of made-up images, so nothing private is looked at. Clip and rate follow it."""
    facts = Facts(examples=40, shape=shape, classes=10)
    features = models.build(Model(name="scatter", pool=pool), facts, 0).features
    lengths = features(made_up(shape)[:40]).norm(dim=1)
    said = models.length(Model(name="scatter", pool=pool), facts, False)
    assert said == pytest.approx(float(lengths.mean()), rel=0.15)
    assert models.length(Model(name="scatter", pool=pool), facts, True) is None


def test_without_public_images_the_clip_follows_the_length_of_features():
    over = ("data.name=digits-images", "model.name=scatter", "data.public=0")
    found = config.problem_of(config.load("digits", over, None))
    ready = config.plan_of(config.load("digits", over, None)).at(0)
    assert found.length == pytest.approx(0.65 * math.sqrt(81 * 4))
    assert ready.clip == pytest.approx((0.1 * math.hypot(found.length, 1.0) / math.sqrt(2.0),))
