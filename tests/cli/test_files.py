"""The command with files of one's own: neutral defaults, dpdt init, what is said of bad ones."""

import csv
import json
import random
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

from dpdt import config
from dpdt.cli.main import COMMANDS, NEXT, cli
from dpdt.errors import InputError
from dpdt.methods.signal import TOO_MUCH, drowned, too_few

COLUMNS = {"age": [0, 100], "sex": ["f", "m"], "income": ["low", "high"]}
QUICK = ("method.name=dpsgd", "method.sampling=partition", "method.noise=0.5", "train.epochs=20",
         "train.batch_size=50")  # fmt: skip
TABLED = (*QUICK, "method.sampling=poisson")  # rows that a hash of them holds out


def asked(*arguments):
    """What a command says: its status, its output or the error's sentence."""
    found = CliRunner().invoke(cli, list(map(str, arguments)))
    if found.exception is None or isinstance(found.exception, SystemExit):
        return found.exit_code, found.output
    assert isinstance(found.exception, InputError), found.exception
    return 2, str(found.exception)


def sets(*changes):
    return [a for change in changes for a in ("--set", change)]


@pytest.fixture
def people(tmp_path):
    chance = random.Random(0)
    with open(tmp_path / "people.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "age", "sex", "income"])
        for i in range(400):
            age = chance.randint(0, 99)
            writer.writerow([i, age, "fm"[i % 2], "high" if age > 50 else "low"])
    return tmp_path / "people.csv"


def stored(path, n=300, **changes):
    x = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "classes": 2}
    np.savez(path, **{**arrays, **changes})
    return path


def test_a_table_is_trained_released_and_asked_by_its_own_columns(people, monkeypatch):
    """From `init` to predictions of a release, which must be those of the run."""
    folder = people.parent
    monkeypatch.chdir(folder)
    assert asked("init", "people.csv", "--target", "income")[0] == 0
    text = (folder / "people.toml").read_text()
    for name, value in {**COLUMNS, "id": None}.items():
        line = next(x for x in text.splitlines() if x.startswith(f"{name} = "))
        text = text.replace(line, f"{name} = {json.dumps(value)}" if value else "")
    (folder / "people.toml").write_text(text)
    status, told = asked("train", "people.toml", *sets(*TABLED), "--out", "run", "--json")
    assert status == 0, told
    assert json.loads(told.splitlines()[-1])["accuracy"] > 0.8
    status, told = asked("predict", "run", "people.csv")
    assert (status, told.split("\n")[1]) == (0, "row,class,probability low,probability high")
    assert asked("release", "run")[0] == 0
    assert asked("predict", "run/release", "people.csv")[1] == told.split("\n", 1)[1]
    # another order of columns, and other columns beside them, say the same
    with open("people.csv") as file, open("turned.csv", "w", newline="") as other:
        csv.writer(other).writerows([row[::-1] for row in csv.reader(file)])
    assert asked("predict", "run/release", "turned.csv")[1] == told.split("\n", 1)[1]
    (folder / "some.csv").write_text("age,sex\n30,\n")
    assert "some.csv: line 2, column sex: is missing, or none of" in asked(
        "predict", "run/release", "some.csv"
    )[1]  # fmt: skip
    assert "the model reads a table: a .csv or" in asked("predict", "run", "people.toml")[1]


def test_a_number_is_predicted_on_the_scale_of_its_column(people, monkeypatch):
    monkeypatch.chdir(people.parent)
    rows = [[i, i % 50, 1000 + 20 * (i % 50)] for i in range(500)]
    with open("rents.csv", "w", newline="") as file:
        csv.writer(file).writerows([["id", "size", "rent"], *rows])
    columns = "data.columns={size=[0,50],rent=[1000,2000]}"
    given = sets("data.target=rent", columns, *TABLED, "method.lr=0.3", "method.momentum=0")
    status, told = asked("train", "rents.csv", *given, "--out", "run", "--json")
    assert status == 0, told
    assert asked("release", "run")[0] == 0
    for folder in ("run", "run/release"):
        status, told = asked("predict", folder, "rents.csv", "--out", f"{folder}.csv")
        assert status == 0, told
        with open(f"{folder}.csv", newline="") as file:
            found = list(csv.reader(file))
        assert found[0] == ["row", "value"]
        wrong = [
            abs(float(value) - row[2]) for (_, value), row in zip(found[1:], rows, strict=True)
        ]
        assert sum(wrong) / len(wrong) < 150  # guessing the middle would be 250


def test_runs_on_one_table_are_added_up_however_it_is_read(people, monkeypatch):
    monkeypatch.chdir(people.parent)
    columns = "data.columns={age=[0,100],sex=['f','m'],income=['low','high']}"
    other = "data.columns={age=[0,50],income=['high','low']}"
    for name, chosen, share in (("a", columns, 0.2), ("b", other, 0.4)):
        given = sets("data.target=income", chosen, f"data.held_out={share}", *TABLED)
        assert asked("train", "people.csv", *given, "--out", f"runs/{name}")[0] == 0
    spent = json.loads(asked("budget", "runs", "--json")[1])
    assert [len(one["runs"]) for one in spent["data"]] == [2]


def test_a_file_of_ones_own_starts_from_no_preset(tmp_path):
    path = str(stored(tmp_path / "mine.npz"))
    named = (f"data.name={path}", "privacy.epsilon=3")
    for source in (config.default(named), path):
        chosen = config.load(source, named)
        neutral = config.Config(data=chosen.data, privacy=chosen.privacy)
        assert chosen == neutral
        assert chosen.data.public == 0
    assert config.default(("data.name=mnist",)) == "digits"
    assert config.default((), "cifar10") == "cifar10"
    with pytest.raises(InputError, match=r"give it, or a target privacy.epsilon"):
        config.load(path)  # ε is nobody's to choose but the user's
    for command in ("train", "account"):
        assert "privacy.epsilon" in asked(command, "--set", f"data.name={path}")[1]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "people.toml"], "data.target: fill in the name of the column"),
        (["account", "people.toml", "--set", "data.target=income"], "data.columns.id: fill in a r"),
        (["init", "people.csv"], "people.toml: already exists; --force"),
        (["init", "people.csv", "--out", "x.toml", "--target", "incme"], "did you mean income?"),
        (["init", "people.toml"], "must be a .csv, .parquet or .npz file"),
        (["init", "nosuch.csv"], "nosuch.csv: is missing"),
        (["init", "mine.npz", "--target", "y"], "has its labels in y_train"),
        (["init", "people.csv", "--out", "no/x.toml"], "no/x.toml: cannot be written"),
        (["train", "people.csv"], "data.target: fill in"),
    ],
)
def test_what_is_left_to_fill_in_is_named(people, monkeypatch, command, message):
    monkeypatch.chdir(people.parent)
    stored(people.parent / "mine.npz")
    assert asked("init", "people.csv")[0] == 0
    status, told = asked(*command)
    assert (status, message in told) == (2, True), told


def test_init_looks_at_no_value(people, monkeypatch):
    """Two files with one header give one text, and names cannot become other keys."""
    monkeypatch.chdir(people.parent)
    texts = []
    for row in ("1,30,f,high\n", "secret,secret,secret,secret\n" * 2, ""):
        people.write_text("id,age,sex,income\n" + row)
        assert asked("init", "people.csv", "--force")[0] == 0
        texts.append(people.with_suffix(".toml").read_text())
    assert len(set(texts)) == 1
    assert set(tomllib.loads(texts[0])["data"]["columns"]) == {"id", "age", "sex", "income"}
    names = ["a\n[privacy]\nepsilon = 99", "b.c", "d'\""]
    with open(people, "w", newline="") as file:
        csv.writer(file).writerow(names)
    assert asked("init", "people.csv", "--force")[0] == 0
    found = tomllib.loads(people.with_suffix(".toml").read_text())
    assert list(found["data"]["columns"]) == names
    assert found["privacy"]["epsilon"] == 3.0


def test_init_of_types_that_are_declared(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    nested = pa.array([{"x\n[privacy]": 1}])
    columns = {"age": [1], "member": [True], "nested": nested, "word": ["secret"]}
    parquet.write_table(pa.table(columns), "t.parquet")
    assert asked("init", "t.parquet", "--target", "word")[0] == 0
    text = (tmp_path / "t.toml").read_text()
    found = tomllib.loads(text)["data"]
    assert found["columns"] == {"age": "?", "member": ["false", "true"], "word": "?"}
    assert 'age = "?"  # int64' in text
    assert "# nested is struct<x?[privacy]: int64>, not used" in text
    assert "secret" not in text
    stored("mine.npz", n=7)
    assert asked("init", "mine.npz")[1] == "written to mine.toml; dpdt train mine.toml\n"
    assert "7 examples of shape (4,),\n# 2 classes" in (tmp_path / "mine.toml").read_text()
    config.load("mine.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": np.full((300, 4), np.nan)}, "x_test: row 0 .* is not finite"),
        ({"x_train": np.full((300, 4), 1e39)}, "x_train: row 0 .* not finite in single precision"),
        ({"y_train": np.full(300, 10**9)}, "has a label that is none of its 2 classes"),
        ({"classes": -1}, "classes must be a whole number from 1, found -1"),
        ({"classes": "two"}, "classes must be a whole number from 1"),
    ],
)
def test_numbers_that_cannot_be_trained_on(tmp_path, changes, message):
    path = stored(tmp_path / "mine.npz", **changes)
    with pytest.raises(InputError, match=message):
        config.load(str(path), ("privacy.epsilon=3",)).data.load()


def test_too_few_examples_are_said_to_be_too_few(tmp_path):
    """The sentence is about the plan alone, so it says nothing about the data."""
    few, many = stored(tmp_path / "few.npz", n=20), stored(tmp_path / "many.npz", n=2000)
    noisy = (*QUICK, "method.noise=20", "train.batch_size=20", "privacy.delta=1e-4")
    plans = [config.plan_of(config.load(str(path), noisy)) for path in (few, many)]
    assert drowned(plans[0]) > TOO_MUCH > drowned(plans[1])
    # by hand: σ√d√T against T·C, where σ = 20·C/20, d = 10 and T = 20 or 2000
    assert drowned(plans[0]) == pytest.approx((10 / 20) ** 0.5, rel=1e-3)
    assert drowned(plans[1]) == pytest.approx((10 / 2000) ** 0.5, rel=1e-3)
    assert too_few(plans[1]) is None
    assert too_few(config.plan_of(config.load("digits", (), "plain"))) is None
    # 650 numbers, of which 20 examples span 20 directions
    wide = stored(tmp_path / "wide.npz", n=20, classes=130)
    plan = config.plan_of(config.load(str(wide), noisy))
    assert drowned(plan) == pytest.approx((20 / 20) ** 0.5, rel=1e-3)
    with pytest.warns(UserWarning, match="20 examples are too few for this ε: .* is 71% of what"):
        assert asked("train", few, *sets(*noisy), "--out", tmp_path / "run")[0] == 0


def test_small_images_and_the_cnn():
    given = ("data.name=digits-images", "model.name=cnn")
    with pytest.raises(InputError, match=r"'cnn' reads images of at least 14 × 14 .* have 8 × 8"):
        config.plan_of(config.load("digits", given))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "trian: no such command; did you mean train?"),
        (["zzz"], "zzz: no such command; there are init, train,"),
        (["train", "digist"], "nor a file; did you mean digits?"),
        (["train", *sets("method.noise_multiplier=1")], "no such key; did you mean noise?"),
        (["train", *sets("train.learning_rate=1")], "no such key; did you mean method.lr?"),
        (["train", *sets("method.epochs=1")], "no such key; did you mean train.epochs?"),
        (["train", *sets("method.name=dpsg")], "found 'dpsg'; did you mean dpsgd?"),
        (["train", *sets("model.name=lineer")], "found 'lineer'; did you mean linear?"),
        (["train", *sets("data.name=digit")], "found 'digit'; did you mean digits?"),
        (["train", *sets("privacy.accountant=compositon")], "did you mean composition?"),
        (["train", *sets("method.memory=share")], "found 'share'; did you mean shared?"),
        (["compare", "--methods", "dpdt, dpsg"], "found 'dpsg'; did you mean dpsgd?"),
        (["reproduce", "main-result"], "found 'main-result'; did you mean main-results?"),
        (["audit", "worst-case", "--memory", "shard"], "found 'shard'; did you mean shared?"),
    ],
)
def test_the_nearest_name_is_suggested(arguments, message):
    status, told = asked(*arguments)
    assert (status, message in told) == (2, True), told


def test_a_preset_that_is_not_there_has_the_others_listed_once():
    told = asked("train", "zzz")[1]
    assert told.count("fashion-mnist") == 1


def test_the_command_alone_says_what_to_do_next():
    assert asked() == (0, NEXT + "\n")
    assert NEXT.count("\n  dpdt ") == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name):
    status, told = asked(name, "--help")
    assert status == 0
    assert f"dpdt {name}" in told.split("Example", 1)[1].replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dpdt tr", ["plain,train"]),
        ("dpdt train dig", ["plain,digits", "file,dig"]),
        ("dpdt account --set privacy.ep", ["plain,privacy.epsilon="]),
        ("dpdt train --method dps", ["plain,dpsgd"]),
    ],
)
def test_shells_complete_names(monkeypatch, words, found):
    monkeypatch.setenv("_DPDT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    told = CliRunner().invoke(cli, prog_name="dpdt", standalone_mode=False).output
    assert told.split() == found


def test_an_interrupt_while_the_command_is_imported_shows_no_traceback(tmp_path):
    program = (
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'dpdt.cli.console': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from dpdt.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "dpdt: interrupted\n")


def test_that_contributions_were_not_finite_is_said_on_a_terminal_alone(tmp_path, monkeypatch):
    """One record decides it, and what a log holds may be published."""
    x = np.full((300, 4), 3e38, dtype=np.float32)
    source = stored(tmp_path / "own.npz", x_train=x)
    quick = ("method.lr=0.1", "method.noise=2.0", "train.epochs=2", "train.batch_size=50")
    for on_terminal in (True, False):
        monkeypatch.setattr("dpdt.cli.console.on_terminal", lambda shown=on_terminal: shown)
        out = tmp_path / str(on_terminal)
        status, told = asked("train", source, *sets(*quick), "--out", out)
        assert status == 0, told
        assert ("some contributions were not finite" in told) == on_terminal
