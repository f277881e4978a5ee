"""Features from patches: by their definition, of one image at a time, from public images alone."""

import pytest
import torch

import dpdt
from dpdt import data, models
from dpdt.config import load as configured
from dpdt.data import cache
from dpdt.errors import InputError
from dpdt.models.patches import ALIKE, Patches, normalised
from dpdt.models.settings import ModelSettings as Model
from dpdt.training import run as running


def images(number, *shape, seed=0):
    return torch.rand(number, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def patches(shape=(3, 12, 10), *, size=7, patch=4, grid=2, threshold=0.5, mirror=True, seed=0):
    return Patches(
        shape, size=size, patch=patch, grid=grid, threshold=threshold, mirror=mirror, seed=seed
    )


def by_definition(module, image):
    """Place after place, in float64."""

    def of(view):
        side, places = module.patch, [s - module.patch + 1 for s in view.shape[1:]]
        found = torch.zeros(*places, len(module.atoms), dtype=torch.float64)
        for a in range(places[0]):
            for b in range(places[1]):
                piece = view[:, a : a + side, b : b + side].flatten()
                piece = (piece - piece.mean()) / (piece.var(correction=0) + 10 / 127.5**2).sqrt()
                white = module.turn.double() @ (piece - module.mean.double())
                found[a, b] = module.atoms.double() @ white
        cells = []
        for keep in (found - module.threshold, -found - module.threshold):
            pooled = torch.nn.functional.adaptive_avg_pool2d(
                keep.clamp_min(0).permute(2, 0, 1), module.grid
            )
            cells.append(pooled.flatten(1).t())
        return torch.stack(cells)

    views = [image.double(), image.double().flip(-1)] if module.mirror else [image.double()]
    return torch.stack([of(view) for view in views]).mean(0).sqrt().flatten()


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 12, 10), {}),
        ((1, 8, 8), {"mirror": False, "grid": 1}),
        ((2, 9, 11), {"patch": 3, "grid": 3, "threshold": 1.0}),
    ],
)
def test_features_are_what_they_are_said_to_be(shape, options, learnt):
    module = patches(shape, **options)
    if learnt:
        module.learn_(images(5, *shape))
    x = images(3, *shape, seed=1)
    found = module(x)
    assert found.dtype == torch.float16
    expected = torch.stack([by_definition(module, image) for image in x])
    torch.testing.assert_close(found.double(), expected, atol=2e-3, rtol=2e-3)
    assert found.count_nonzero() > 10


def test_an_image_and_its_mirror_image_have_the_same_features():
    module, x = patches((1, 12, 12)), images(4, 1, 12, 12)
    torch.testing.assert_close(module(x), module(x.flip(-1)), atol=2e-3, rtol=2e-3)
    module = patches((1, 12, 12), mirror=False)
    assert not torch.allclose(module(x), module(x.flip(-1)), atol=2e-3, rtol=2e-3)


def test_an_image_is_computed_by_itself():
    module = patches((3, 32, 32), size=50, patch=6, grid=3)
    x = images(5, 3, 32, 32)
    together = module(x)
    for number, image in enumerate(x):
        assert torch.equal(module(image[None])[0], together[number])


def test_atoms_have_norm_one_and_are_not_alike():
    module = patches((3, 16, 16), size=40)
    module.learn_(images(20, 3, 16, 16))
    alike = (module.atoms @ module.atoms.t()).abs()
    torch.testing.assert_close(alike.diagonal(), torch.ones(40))
    assert float(alike.fill_diagonal_(0).max()) <= ALIKE + 1e-6


def test_whitening_evens_out_directions():
    """A direction of variance v is left with v/(v + 0.1)."""
    smooth = torch.nn.functional.avg_pool2d(images(300, 1, 20, 20), 5, 1)
    module = patches((1, 16, 16), size=5)
    module.learn_(smooth)
    every = torch.nn.functional.unfold(smooth, module.patch)
    pieces = normalised(every.permute(1, 0, 2).flatten(1))
    before, after = torch.cov(pieces), torch.cov(module.turn @ pieces)
    values, directions = torch.linalg.eigh(before)
    found = (directions.t() @ after @ directions).diagonal()
    torch.testing.assert_close(found, values / (values + 0.1), atol=0.05, rtol=0.1)
    assert float(values.max() / values.clamp_min(1e-3).min()) > 30


def test_a_seed_gives_the_same_atoms_and_another_gives_others():
    public = images(5, 3, 12, 10)
    found = []
    for seed in (0, 0, 1):
        module = patches(seed=seed)
        start = module.atoms.clone()
        module.learn_(public)
        found.append((start, module.atoms.clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[2][0])
    assert not torch.equal(found[0][1], found[2][1])


SMALL = ("model.name=patches", "model.dictionary=6", "model.patch=3", "data.name=digits-images")


def test_a_run_learns_atoms_from_public_inputs_alone(monkeypatch):
    """Others of the training part, and of the held-out part, make no difference."""
    config = configured("digits", (*SMALL, "data.public=30"), None)
    whole = data.load("digits-images")
    learnt = []
    for other in (False, True):
        loaded = whole
        if other:
            x, y = whole.test
            test = torch.cat([x[:30], 1 - x[30:]]), y
            loaded = data.Examples(train=(1 - whole.train[0], whole.train[1]), test=test)
        monkeypatch.setattr("dpdt.data.load", lambda *_, loaded=loaded: loaded)
        learnt.append(running.load(config).fixed)
    assert set(learnt[0]) == {"features.atoms", "features.mean", "features.turn"}
    for name, tensor in learnt[0].items():
        assert torch.equal(tensor, learnt[1][name])


def test_the_model_that_is_released_has_its_atoms(tmp_path):
    """It answers from images as the head does from features."""
    options = (*SMALL, "data.public=30", "train.epochs=2")
    config = configured("digits", options, None)
    outcome = running.run(config, tmp_path / "run", show_progress=False)
    dpdt.release(outcome.run)
    model = dpdt.load(outcome.run / "release")
    x, y = data.load("digits-images").test
    right = (model(x[30:]).argmax(1) == y[30:]).float().mean()
    assert outcome.accuracy == pytest.approx(float(right), abs=2 / len(y))


def test_features_are_kept_in_half_and_used_in_single_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("DPDT_CACHE", str(tmp_path))
    config = configured("digits", SMALL, None)
    first, second = running.load(config), running.load(config)
    assert first.train[0].dtype == torch.float32
    assert torch.equal(first.train[0], second.train[0])
    number = first.train[0].numel() + first.test[0].numel()
    assert 2 * number <= cache.size()[1] < 3 * number


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch": 9}, "model.patch: must be at most the side of the images, 8, found 9"),
        ({"patch": 6, "grid": 4}, "model.grid: must be at most .* 3, found 4"),
    ],
)
def test_what_does_not_fit_the_images_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        models.build(Model(name="patches", **settings), data.facts("digits-images"), 0)
