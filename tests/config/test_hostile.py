"""What fuzzing found in configurations: each was a traceback, or took all memory."""

import pytest

from dpdt import config
from dpdt.errors import InputError

PARTITION = (
    "method.sampling=partition", "method.preconditioner=identity", "method.lr=0.1",
    "method.penalty=1.0", "method.noise=0.5", "method.auxiliaries=4", "train.batch_size=100",
)  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.name=[]", "method.name: must be one of"),
        ("train.epochs=" + "9" * 400, "train.epochs: must be a whole number from 1 to 2\\^63 - 1"),
        ("train.epochs=" + "9" * 5000, "train.epochs: must be a whole number"),
        ("train.epochs=0x" + "f" * 5000, "train.epochs: must be a whole number"),
        ("train.epochs=" + "[" * 5000, "train.epochs: must be a whole number"),
        ("train.seed=" + "9" * 30, "train.seed: must be a whole number from 0 to"),
        ("train.workers=1000000000", "train.workers: must be a whole number from 0 to 1024"),
        ("model.layers=1000000000", "model.layers: must be a whole number from 1 to 1000"),
        ("model.width=1e300", "model.width: must be a positive number up to 1000"),
        ("model.radius=1e200", "model.radius: must be a positive number up to 1e\\+100"),
        ("audit.canaries=1000000000000", "audit.canaries: must be at most half of the 1437"),
        ("method.clip=1e200", "method.clip: must be from 1e-100 to 1e\\+100 with its schedule"),
        ("method.clip=5e-324", "method.clip: must be from 1e-100 to 1e\\+100 with its schedule"),
        ("method.noise=1e-200", "method.noise: must be from 1e-100 to 1e\\+100 with its schedule"),
        ("method.penalty=1e200", "method.penalty: the penalty comes to 1e\\+200"),
        ("method.penalty=1e-200", "method.penalty: the step size comes to"),
        (
            "method.clip_schedule={kind='steps', epochs=[1.5], factors=[1, 2]}",
            "method.clip_schedule.epochs: must be a list of whole numbers",
        ),
    ],
)
def test_values_that_nobody_would_write(override, message):
    with pytest.raises(InputError, match=message):
        config.plan_of(config.load("digits", (*PARTITION, override))).ledger()


def test_more_teachers_than_examples():
    with pytest.raises(InputError, match=r"method.teachers: must be at most the number of exam"):
        config.plan_of(config.load("digits", ("method.teachers=1000000000",), "pate"))


def test_files_that_nobody_would_write(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(InputError, match=r"some.toml: not valid TOML"):
        config.load(str(path))
    path.write_text("[train]\nepochs = 0x" + "f" * 5000)
    with pytest.raises(InputError, match=r"some.toml: has a whole number of more than 64 bits"):
        config.load(str(path))
    path.write_text("#" * 1_000_001)
    with pytest.raises(InputError, match=r"some.toml: is larger than 1,000,000 bytes"):
        config.load(str(path))
    path.write_text("[method]\nname = {}\n")
    with pytest.raises(InputError, match=r"method.name: must be one of"):
        config.load(str(path))


def test_a_text_of_an_override_may_look_like_a_file():
    with pytest.raises(InputError, match=r"train.seed: must be a whole number .*found '1\\n"):
        config.load("digits", ("train.seed=1\n[train]\nepochs=2",))
