import pytest
import tomli_w

from dpdt import config
from dpdt.errors import InputError

FIXED = ("method.sampling=partition", "method.lr=0.1")


def refused(message, *overrides, source="digits"):
    with pytest.raises(InputError, match=message):
        config.load(source, overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.clipp=1", r"method.clipp: no such key; did you mean clip\?"),
        ("metod.clip=1", r"metod: no such section; did you mean method\?"),
        ("method.clip=-1", r"method.clip: must be a positive number, .*found -1"),
        ("method.clip=nan", r"method.clip: must be a positive number"),
        ("method.clip={ conv = 'x' }", r"method.clip: must be a positive number"),
        ("method.memory=forgetful", r"method.memory: must be one of auxiliary, shared, none"),
        ("method.auxiliaries=0", r"method.auxiliaries: must be a whole number from 1 or"),
        ("method.auxiliaries=2.5", r"method.auxiliaries"),
        ("method.lr=true", r"method.lr: must be a positive number or 'auto', found True"),
        ("train.epochs=0", r"train.epochs: must be a whole number from 1 to .*, found 0"),
        ("train.epochs='ten'", r"train.epochs: must be a whole number from 1 to .*, found 'ten'"),
        ("privacy.delta=1.5", r"privacy.delta: must be a number between 0 and 1, found 1.5"),
        ("privacy.delta=0", r"privacy.delta"),
        ("privacy.epsilon=0", r"privacy.epsilon: must be a positive number"),
        ("privacy.unit=person", r"privacy.unit: must be one of example, shard, user"),
        ("method.noise=-0.1", r"method.noise: must be a number from 0"),
        ("method.noise_schedule=rise", r"method.noise_schedule: must be 'constant' or 'paper' or"),
        ("epochs=3", r"set: must look like section.key=value, found 'epochs=3'"),
        ("method.clip", r"must look like section.key=value"),
        ("method.lr.x=1", r"lr is not a table"),
    ],
)
def test_bad_values_are_named_with_what_would_be_right(override, message):
    refused(message, override)


@pytest.mark.parametrize(
    ("message", "overrides"),
    [
        ("memory 'none' keeps no state", ["method.memory=none", "method.preconditioner=adam"]),
        (
            "poisson needs memory 'shared' or 'none'",
            ["method.memory=auxiliary", "method.sampling=poisson"],
        ),
        (
            "poisson sampling protects single examples",
            ["method.sampling=poisson", "privacy.unit=shard"],
        ),
        ("leave it false", ["method.sampling=poisson", "method.reshuffle=true"]),
        ("share an auxiliary", ["privacy.unit=user", *FIXED]),
        ("at most train.batch_size", ["method.auxiliaries=10", "train.batch_size=5", *FIXED]),
        (
            "give a single value",
            ["method.auxiliaries=2", "method.penalty=[1.0, 2.0]"],
        ),
        (
            "3 values for 2 auxiliaries",
            ["method.memory=none", "method.auxiliaries=2", "method.penalty=[1.0, 2.0, 3.0]"],
        ),
    ],
)
def test_impossible_combinations_are_refused_with_the_reason(message, overrides):
    refused(message, *overrides)


def test_noise_or_a_target_is_needed(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[train]\nepochs = 3\n")
    refused("method.noise: missing; give it, or a target privacy.epsilon", source=str(file))


def test_files_that_cannot_be_used(tmp_path):
    refused(r"digit: neither a preset \(.*\) nor a file; did you mean digits", source="digit")
    bad = tmp_path / "bad.toml"
    bad.write_text("[train\n")
    refused("bad.toml: not valid TOML", source=str(bad))
    bad.write_bytes(b"\xff\xfe")
    refused("is not text in UTF-8", source=str(bad))


@pytest.mark.parametrize("name", config.presets())
def test_presets_load_and_round_trip(name, tmp_path):
    loaded = config.load(name)
    file = tmp_path / "copy.toml"
    file.write_text(tomli_w.dumps(loaded.as_tables()))
    assert config.load(str(file)) == loaded


def test_overrides_are_toml_values():
    loaded = config.load(
        "digits", ("method.clip={ linear = 2.0 }", "model.name=mlp", "train.epochs=3")
    )
    assert loaded.method.clip == {"linear": 2.0}
    assert loaded.model.name == "mlp"
    assert loaded.train.epochs == 3


def test_an_override_without_a_value_takes_the_key_away():
    known = config.load("digits", ("privacy.epsilon=", "method.noise=0.1", "data.limit="))
    assert known.privacy.epsilon is None
    refused("train.epochs: must be a whole number from 1 to .*, found None", "train.epochs=")
    refused("privacy.epsilonn: no such key; did you mean epsilon", "privacy.epsilonn=")
    refused("method.noise: missing", "privacy.epsilon=")
    refused("privacy.dataset: must be a name", 'privacy.dataset=""')
    assert config.load("digits", ("privacy.epsilon=",), target=3.0).privacy.epsilon == 3.0


def test_keywords_of_the_python_interface_are_checked_alike():
    with pytest.raises(InputError, match=r"epoch: no such setting; did you mean epochs\?"):
        config.training(epoch=3)
    with pytest.raises(InputError, match=r"method.clip: must be a positive number"):
        config.training(clip="big", noise=1.0)
    assert config.training(clip=2, epochs=3, epsilon=1.0).method.clip == 2


def test_relations_follow_from_sampling():
    refused("with a fixed partition it is replace-one", *FIXED, "privacy.relation=zero-out")
    nominal = "privacy.examples=1500"
    refused("it needs privacy.examples", "privacy.relation=add-remove")
    refused("is for the relation 'add-remove'", nominal, "privacy.relation=zero-out")
    refused("is for the relation 'add-remove'", nominal, "privacy.relation=replace-one")
    refused("deals examples by their number", nominal, *FIXED)
    refused("deals examples by their number", nominal, "method.sampling=cyclic-poisson")
    refused("data.limit: rows are taken by how many", nominal, "data.limit=1000")
    refused("audit.canaries: are planted by how many", nominal, "audit.canaries=10")
    refused(
        "replace-one under poisson sampling needs",
        "method.sampling=poisson",
        "method.auxiliaries=10",
        "privacy.relation=replace-one",
    )
    config.load("digits", ("method.sampling=poisson", "privacy.relation=replace-one"))


def test_a_section_must_be_a_table(tmp_path):
    (tmp_path / "f.toml").write_text("method = 3")
    with pytest.raises(InputError, match=r"method: must be a table, \[method\], found 3"):
        config.load(str(tmp_path / "f.toml"))
