"""Features from patches: by their definition, of one image at a time, from public images alone."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

import dpdt
from dpdt import data, models
from dpdt.config import load as configured
from dpdt.config import plan_of
from dpdt.data import cache
from dpdt.data.images import shaped
from dpdt.errors import InputError
from dpdt.methods import rate
from dpdt.models import describe
from dpdt.models.describe import SIZE
from dpdt.models.patches import ALIKE, Patches, made_up, normalised
from dpdt.models.settings import ModelSettings as Model
from dpdt.training import run as running


def images(number, *shape, seed=0):
    return torch.rand(number, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def patches(shape=(3, 12, 10), *, learnt=5, **given):
    """A module that has learnt from some images."""
    options = {"size": 7, "patch": 4, "grid": 2, "threshold": 0.5, "mirror": True, "seed": 0}
    options |= {"channels": 2 * given.get("size", 7), **given}
    module = Patches(shape, **options)
    module.learn_(images(learnt, *shape))
    return module


def likeness(module, image):
    """Place after place, in float64: [cells, 2 · atoms]."""

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
        return torch.cat(cells, dim=1)

    views = [image.double(), image.double().flip(-1)] if module.mirror else [image.double()]
    return torch.stack([of(view) for view in views]).mean(0).sqrt()


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 12, 10), {}),
        ((1, 8, 8), {"mirror": False, "grid": 1}),
        ((2, 9, 11), {"patch": 3, "grid": 3, "threshold": 1.0}),
    ],
)
def test_features_are_what_they_are_said_to_be(shape, options):
    public, x = images(20, *shape), images(3, *shape, seed=1)
    module = patches(shape, learnt=20, channels=3, **options)
    found = module(x)
    assert found.dtype == torch.float16
    cells = torch.stack([likeness(module, image) for image in public])
    centre = cells.mean(0)
    rows = (cells - centre).flatten(0, 1)
    values, directions = torch.linalg.eigh(rows.t() @ rows / len(rows))
    values, directions = values[-3:], directions[:, -3:]
    turn = directions * (values + 0.01 * values.mean()) ** -0.25
    turn *= SIZE / (rows @ turn).square().mean().sqrt()
    expected = torch.stack([(likeness(module, image) - centre) @ turn for image in x])
    # a direction may as well point the other way
    found = found.double().view_as(expected)
    signs = (found * expected).sum((0, 1)).sign()
    torch.testing.assert_close(found * signs, expected, atol=5e-3, rtol=5e-3)
    assert found.abs().mean() > 0.1


def test_public_features_are_centred_and_half_whitened():
    """A direction of variance v is left with v/√(v + λ), and channels do not go together."""
    shape = (1, 12, 12)
    module = patches(shape, size=10, channels=6, learnt=200)
    found = module(images(200, *shape)).double().view(200, 4, 6)
    assert float(found.mean(0).abs().max()) < 1e-2
    assert float(found.square().mean().sqrt()) == pytest.approx(SIZE, rel=1e-2)
    covariance = torch.cov(found.flatten(0, 1).t())
    deviations = covariance.diagonal().sqrt()
    assert float((covariance / deviations / deviations[:, None]).fill_diagonal_(0).max()) < 0.02
    cells = torch.stack([likeness(module, image) for image in images(200, *shape)])
    values = torch.linalg.eigvalsh(torch.cov((cells - cells.mean(0)).flatten(0, 1).t()))[-6:]
    expected = values / (values + 0.01 * values.mean()).sqrt()
    ratio = covariance.diagonal() / expected
    torch.testing.assert_close(ratio / ratio.mean(), torch.ones(6).double(), atol=0.05, rtol=0)


def test_images_that_are_all_alike_give_finite_features():
    module = patches((1, 8, 8))
    module.learn_(torch.zeros(3, 1, 8, 8))
    assert torch.isfinite(module(images(2, 1, 8, 8))).all()


def test_all_is_learnt_on_one_core(monkeypatch):
    """Sums over several cores round differently, and features would not be found again."""
    seen, before = [], torch.get_num_threads()
    for name in ("_learn_atoms_", "_learn_channels_"):
        monkeypatch.setattr(Patches, name, lambda self, x: seen.append(torch.get_num_threads()))
    try:
        torch.set_num_threads(2)
        patches()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


def test_an_image_and_its_mirror_image_have_the_same_features():
    module, x = patches((1, 12, 12)), images(4, 1, 12, 12)
    torch.testing.assert_close(module(x), module(x.flip(-1)), atol=2e-3, rtol=2e-3)
    module = patches((1, 12, 12), mirror=False)
    assert not torch.allclose(module(x), module(x.flip(-1)), atol=2e-3, rtol=2e-3)


def test_an_image_is_computed_by_itself():
    module = patches((3, 32, 32), size=50, patch=6, grid=3, channels=20)
    x = images(5, 3, 32, 32)
    together = module(x)
    for number, image in enumerate(x):
        assert torch.equal(module(image[None])[0], together[number])


def test_atoms_have_norm_one_and_are_not_alike():
    module = patches((3, 16, 16), size=40, learnt=20)
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
    found = [patches(seed=seed).atoms for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


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
    assert set(learnt[0]) == {
        f"features.{name}" for name in ("atoms", "mean", "turn", "channels", "offset")
    }
    for name, tensor in learnt[0].items():
        assert torch.equal(tensor, learnt[1][name])


def test_runs_of_all_seeds_have_the_same_features():
    """So that they are computed once."""
    configs = [configured("digits", (*SMALL, f"train.seed={seed}"), None) for seed in (0, 1)]
    first, second = [running.load(config) for config in configs]
    assert torch.equal(first.train[0], second.train[0])


def test_without_public_images_made_up_ones_stand_in(monkeypatch):
    """Whatever the data are."""
    config = configured("digits", (*SMALL, "data.public=0"), None)
    learnt = running.load(config).fixed
    expected = patches((1, 8, 8), size=6, patch=3, grid=3, threshold=1.0)
    expected.learn_(made_up((1, 8, 8)))
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, learnt[f"features.{name}"]), name


def test_without_public_images_clip_and_rate_follow_the_length_of_features():
    """They are made to be so long. A clip for inputs of norm 1 left only their direction."""
    config = configured("digits", (*SMALL, "data.public=0"), None)
    step, _ = running.Assembled.of(config, None, None).prepare(config, False)
    features = 3 * 3 * 2 * 6
    reach = math.sqrt(SIZE**2 * features + 1.0)
    setting = step.plan.at(0)
    assert setting.clip == pytest.approx((0.1 * reach / math.sqrt(2.0),))
    lr = rate.fitting(setting.noise[0], step.plan.steps, reach, linear=True)
    assert setting.lr == pytest.approx(lr, rel=1e-4)
    module = patches((1, 8, 8), size=6, patch=3, grid=3, threshold=1.0)
    module.learn_(made_up((1, 8, 8)))
    lengths = module(made_up((1, 8, 8))).float().norm(dim=1)
    assert float(lengths.square().mean().sqrt()) == pytest.approx(
        describe.length(features, describe.SIZE), 0.01
    )


@pytest.mark.parametrize(
    ("options", "clip"),
    [
        (("data.public=30",), 0.3),
        (("data.public=30", "method.preconditioner=identity"), 0.1),
        (("data.public=0", "train.augment=true"), 0.1),
        (("data.public=0", "model.name=linear"), 0.1),
        (("data.public=0", "method.clip=0.7"), 0.7),
    ],
)
def test_the_clip_stays_as_it_is_elsewhere(options, clip):
    assert plan_of(configured("digits", (*SMALL, *options), None)).at(0).clip == (clip,)


def pictures(folder, number, seed=0):
    """A folder with folders of colour images."""
    pixels = np.random.default_rng(seed).integers(0, 256, (number, 9, 12, 3), dtype=np.uint8)
    for n, image in enumerate(pixels):
        (folder / str(n % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / str(n % 2) / f"{n}.png")
    return folder


def test_a_folder_of_other_images_gives_the_atoms(tmp_path, monkeypatch):
    """In the shape of the data, whatever the data are; another image makes it another run."""
    monkeypatch.setenv("DPDT_DATA", str(tmp_path))
    home = pictures(tmp_path / "others", 6)
    options = (*SMALL, "data.public=30", "model.dictionary_from=others")
    config = configured("digits", options, None)
    first = running.Assembled.of(config, None, None)
    expected = patches((1, 8, 8), size=6, patch=3, grid=3, threshold=1.0)
    expected.learn_(shaped(home, (1, 8, 8), 100))
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, first.model.features.state_dict()[name]), name
    pictures(home, 1, seed=1)
    second = running.Assembled.of(config, None, None)
    assert second.start != first.start
    assert not torch.equal(second.examples.train[0], first.examples.train[0])


def test_images_of_a_folder_are_spread_over_it_and_have_the_shape_of_the_data(tmp_path):
    pictures(tmp_path, 6)
    every = shaped(tmp_path, (3, 5, 7), 100)
    assert every.shape == (6, 3, 5, 7)
    assert -1 <= float(every.min()) < -0.5
    assert 0.5 < float(every.max()) <= 1
    torch.testing.assert_close(shaped(tmp_path, (3, 5, 7), 3), every[::2])
    torch.testing.assert_close(shaped(tmp_path, (1, 5, 7), 9), every.mean(1, keepdim=True))


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    config = configured("digits", (*SMALL, f"model.dictionary_from={tmp_path / 'no'}"), None)
    with pytest.raises(InputError, match=r"model\.dictionary_from: must be a folder .*no'"):
        running.load(config)


def test_a_release_does_not_say_where_the_folder_was(tmp_path):
    home = pictures(tmp_path / "others", 6)
    options = (*SMALL, f"model.dictionary_from={home}", "train.epochs=1")
    outcome = running.run(configured("digits", options, None), tmp_path / "r", show_progress=False)
    dpdt.release(outcome.run)
    assert str(home) not in (outcome.run / "release" / "config.json").read_text()
    dpdt.load(outcome.run / "release")


def test_a_dictionary_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("dpdt.models.available", lambda: 10**9)
    with pytest.raises(InputError, match=r"lower .*dictionary"):
        models.build(Model(name="patches", dictionary=10_000), data.facts("cifar10"), 0)


def test_made_up_images_are_smooth_and_in_range():
    found = made_up((3, 16, 20))
    assert found.shape[1:] == (3, 16, 20)
    assert 0.4 < float(found.abs().max()) <= 1.0
    beside = torch.corrcoef(torch.stack([found[..., 1:].flatten(), found[..., :-1].flatten()]))
    colours = torch.corrcoef(found.transpose(0, 1).flatten(1))
    assert beside[0, 1] > 0.5
    assert float(colours.min()) > 0.5


@pytest.mark.parametrize("public", [0, 30])
def test_the_model_that_is_released_has_its_atoms(tmp_path, public):
    """It answers from images as the head does from features."""
    options = (*SMALL, f"data.public={public}", "train.epochs=2")
    config = configured("digits", options, None)
    outcome = running.run(config, tmp_path / "run", show_progress=False)
    dpdt.release(outcome.run)
    model = dpdt.load(outcome.run / "release")
    x, y = data.load("digits-images").test
    right = (model(x[public:]).argmax(1) == y[public:]).float().mean()
    assert outcome.accuracy == pytest.approx(float(right), abs=2 / len(y))


def test_features_are_kept_in_half_and_used_in_single_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("DPDT_CACHE", str(tmp_path))
    config = configured("digits", SMALL, None)
    first, second = running.load(config), running.load(config)
    assert first.train[0].dtype == torch.float32
    assert torch.equal(first.train[0], second.train[0])
    number = first.train[0].numel() + first.test[0].numel()
    assert 2 * number <= cache.size()[1] < 3 * number


def test_what_was_learnt_is_found_again_for_the_same_public_images_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DPDT_CACHE", str(tmp_path))
    learnt, learn = [], Patches.learn_
    monkeypatch.setattr(
        Patches, "learn_", lambda self, x: (learnt.append(len(x)), learn(self, x))[1]
    )
    found = {}
    for public in (30, 31, 30):
        found[len(found)] = running.load(
            configured("digits", (*SMALL, f"data.public={public}"), None)
        )
    assert learnt == [30, 31]
    for name, tensor in found[0].fixed.items():
        assert torch.equal(tensor, found[2].fixed[name])
    assert not torch.equal(found[0].fixed["features.atoms"], found[1].fixed["features.atoms"])
    running.load(configured("digits", (*SMALL, "data.public=30", "model.threshold=0.5"), None))
    assert learnt == [30, 31, 30]


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
