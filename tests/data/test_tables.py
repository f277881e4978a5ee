"""Tables in .csv and .parquet files: what is declared decides everything, what is found nothing."""

import csv

import pytest
import torch

from dpdt import config, data
from dpdt.data import sheets, tables
from dpdt.data.encoding import Encoding
from dpdt.errors import InputError

HEAD = ["id", "age", "sex", "income"]
COLUMNS = {"age": [0, 100], "sex": ["f", "m"], "income": ["low", "high"]}
PEOPLE = [[str(i), str(i % 90), "fm"[i % 2], ["low", "high"][i % 3 == 0]] for i in range(60)]


def written(path, rows, head=HEAD):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def table(**changes):
    settings = {"target": "income", "columns": COLUMNS, "held_out": 0.2, "test": None}
    return tables.Table.of(**{**settings, "missing": "refuse", **changes})


def read(path, **changes):
    return data.load(str(path), table=table(**changes))


def parquet(path, **columns):
    pa = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import parquet as files

    files.write_table(pa.table(columns), path)
    return path


def people(path, rows=PEOPLE):
    """The same table as Parquet."""
    ids, ages, sexes, incomes = zip(*rows, strict=True)
    return parquet(
        path, id=list(map(int, ids)), age=list(map(int, ages)), sex=sexes, income=incomes
    )


def test_ranges_scale_and_clamp_and_categories_are_one_hot(tmp_path):
    rows = [["1", age, sex, "high"] for age, sex in (("50", "f"), ("-3", "m"), ("1e300", " m "))]
    path = written(tmp_path / "t.csv", rows)
    examples = read(path, test=str(written(tmp_path / "u.csv", PEOPLE)))
    x, y = examples.train
    assert x.tolist() == [[0.5, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 1.0]]
    assert (x.dtype, y.tolist()) == (torch.float32, [1, 1, 1])
    assert len(examples.test[1]) == 60


def test_a_parquet_file_gives_the_examples_of_the_csv(tmp_path):
    one = read(written(tmp_path / "t.csv", PEOPLE))
    other = read(people(tmp_path / "t.parquet"))
    assert torch.equal(one.train[0], other.train[0])
    assert torch.equal(one.test[1], other.test[1])
    assert one.source == other.source


def test_values_of_the_data_decide_no_shape(tmp_path):
    """Facts of one record, and of sixty with every value, differ in the number of rows alone."""
    few, many = (
        data.facts(str(written(tmp_path / f"{len(rows)}.csv", rows)), table=table(held_out=0.0))
        for rows in (PEOPLE[:1], PEOPLE)
    )
    assert (few.shape, few.classes, few.examples) == ((3,), 2, 1)
    assert (many.shape, many.classes, many.examples) == ((3,), 2, 60)


def test_whether_a_row_is_held_out_depends_on_it_alone(tmp_path):
    """By place, one row more would move all rows behind it between the parts."""
    whole = read(written(tmp_path / "t.csv", PEOPLE))
    fewer = read(written(tmp_path / "u.csv", PEOPLE[1:]))
    assert len(whole.train[1]) + len(whole.test[1]) == 60
    assert 5 <= len(whole.test[1]) <= 20
    lost = [
        len(a[1]) - len(b[1]) for a, b in ((whole.train, fewer.train), (whole.test, fewer.test))
    ]
    assert sorted(lost) == [0, 1]
    ages = {tuple(x) for x in whole.train[0].tolist()}
    assert {tuple(x) for x in fewer.train[0].tolist()} <= ages
    # of equal rows one more is one more, and they are in both parts
    parts = [read(written(tmp_path / f"{n}.csv", [PEOPLE[0]] * n)) for n in (40, 41)]
    sizes = [(len(part.train[1]), len(part.test[1])) for part in parts]
    assert [sum(both) for both in sizes] == [40, 41]
    assert min(sizes[0]) > 0
    assert sorted(b - a for a, b in zip(*sizes, strict=True)) == [0, 1]
    # what is declared does not move a row either
    again = read(tmp_path / "t.csv", columns={**COLUMNS, "age": [0, 50], "id": [0, 9]})
    assert len(again.test[1]) == len(whole.test[1])


def test_a_file_is_recognised_however_it_is_read(tmp_path):
    path = written(tmp_path / "t.csv", [*PEOPLE, ["60", "", "f", "low"]])
    ways = [
        {"missing": "drop"},
        {"missing": "zero", "held_out": 0.5},
        {"missing": "drop", "columns": {"sex": ["f", "m"], "income": ["high", "low"]}},
        {"missing": "drop", "columns": {**COLUMNS, "age": [0, 10]}, "target": "sex"},
    ]
    assert len({read(path, **way).source for way in ways}) == 1
    other = written(tmp_path / "u.csv", [["x", *PEOPLE[0][1:]], *PEOPLE[1:]])
    assert read(other).source != read(written(tmp_path / "v.csv", PEOPLE)).source


def test_what_becomes_of_missing_values(tmp_path):
    rows = [["1", "", "f", "low"], ["2", "30", "x", "low"], ["3", "NaN", "m", "low"]]
    path = written(tmp_path / "t.csv", [*rows, *PEOPLE])
    with pytest.raises(InputError, match=r"t.csv: line 2, column age: is missing; data.missing"):
        read(path)
    whole = {"held_out": 0.0, "test": str(written(tmp_path / "u.csv", PEOPLE))}
    assert len(read(path, missing="drop", **whole).train[1]) == 60
    found = read(path, missing="zero", **whole).train[0][:3].tolist()
    assert found[0] == [0.0, 1.0, 0.0]
    assert found[1][1:] == [0.0, 0.0]
    path = written(tmp_path / "t.csv", [["1", "20", "f", ""], *PEOPLE])
    for missing in ("refuse", "zero"):
        with pytest.raises(
            InputError, match=r"line 2, column income: is missing, or none of the 2"
        ):
            read(path, missing=missing)
    assert len(read(path, missing="drop", **whole).train[1]) == 60


SECRET = "secret"  # stands for a private value, which no message may show


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 is empty; it must name the columns"),
        (b"3,30,f,secret\n", "line 1 must name the columns, and column 1 is a number"),
        (b"age,sex,age,income\n", "line 1 has two columns of one name, 3 is the second"),
        (b"Age,sex,income\n1,f,low\n", "has no column 'age'; did you mean Age?"),
        (b"secret,word\na,b\n", "has no column 'age'$"),
        (b"age;sex;secret\n1;f;low\n", "line 1 must separate the columns by commas, found ';'$"),
        (b"age\tsex\tsecret\n", "line 1 must separate the columns by commas, found ..t'$"),
        (b"age,sex,income\n30,secret\n", "line 2 has 2 columns, and line 1 has 3"),
        (b"age,sex,income\n30,f,low\n\n30,f,low\n", "line 3 is empty"),
        (b"age,sex,income\nsecret,f,low\n", "line 2, column age: is a text, and a number is decl"),
        (b"age,sex,income\n1_000,f,low\n", "line 2, column age: is a text"),
        (b"age,sex,income\n30,secret,low\n", "column sex: is missing, or none of the 2 categories"),
        (b"age,sex,income\n30,f,secret\n", "column income: is missing, or none of the 2 cat"),
        (b"age,sex,income\n30,f\0secret,low\n", "line 2 has a zero byte"),
        (b"age,sex,income\n30,f,low\n30,\xff\xfesecret,low\n", "line 3 is not text in UTF-8"),
        (b'age,sex,income\n30,"secret,low\n', r"line 2 is no CSV \(unexpected end of data\)"),
        (b'age,sex,income\n30,"f"secret,low\n', "line 2 is no CSV"),
        (b"age,sex,income\n30," + b"x" * 200_000 + b",low\n", "line 2 is no CSV .field larger"),
        (b"age,sex,income\n", "training examples|has no row"),
    ],
)
def test_bad_tables_are_refused_by_place_and_never_by_value(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        read(path)
    assert str(path) in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_line_of_any_length_is_not_read(tmp_path, monkeypatch):
    from dpdt.data import lines

    monkeypatch.setattr(lines, "LONGEST", 100)
    path = tmp_path / "t.csv"
    path.write_bytes(b"age,sex,income\n" + b"3" * 1000)
    with pytest.raises(InputError, match="line 2 has 100 characters or more"):
        read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": None}, r"data.target: fill in the name of the column"),
        ({"target": "?"}, r"data.target: fill in"),
        ({"target": "incomes"}, r"data.columns.incomes: missing; .* did you mean income\?"),
        ({"columns": {}}, r"data.columns: missing; declare each column"),
        ({"columns": {"income": ["a", "b"]}}, r"must have a column beside the target"),
        ({"columns": {**COLUMNS, "income": ["a"]}}, r"income: must have at least two categories"),
        ({"columns": {**COLUMNS, "age": "?"}}, r"data.columns.age: fill in a range .* remove the"),
        ({"columns": {**COLUMNS, "age": [0, 1, 2]}}, r"columns.age: must be a range .*\[0, 1, 2\]"),
        ({"columns": {**COLUMNS, "age": [0, True]}}, r"columns.age: must be a range"),
        ({"columns": {**COLUMNS, "age": [0, float("nan")]}}, r"columns.age: must be a range"),
        ({"columns": {**COLUMNS, "age": [5, 5]}}, r"columns.age: the range must go up"),
        ({"columns": {**COLUMNS, "age": [-1.5e308, 1.5e308]}}, r"age: the range must go up"),
        ({"columns": {**COLUMNS, "sex": ["f", "f"]}}, r"columns.sex: categories must differ"),
        ({"columns": {**COLUMNS, "sex": ["f", " m"]}}, r"columns.sex: categories must .* padded"),
        ({"columns": {**COLUMNS, "sex": []}}, r"columns.sex: must be a range"),
        ({"columns": {**COLUMNS, "sex": {"f": 1}}}, r"columns.sex: must be a range"),
    ],
)
def test_what_must_be_declared(changes, message):
    settings = {"name": "t.csv", "target": "income", "columns": COLUMNS, **changes}
    with pytest.raises(InputError, match=message):
        config.DataSettings(**settings)


def test_keys_of_tables_are_for_tables(tmp_path):
    with pytest.raises(InputError, match=r"data.target.* are for a .csv or .parquet .*'digits'"):
        config.load("digits", ("data.target=x",))
    path = written(tmp_path / "t.csv", PEOPLE)
    with pytest.raises(InputError, match=r"data.test: .* is the training file itself"):
        read(path, test=str(path))
    with pytest.raises(InputError, match=r"has no row that is held out; raise data.held_out"):
        read(path, held_out=0.0)


def test_types_of_a_parquet_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = parquet(
        tmp_path / "t.parquet",
        age=pa.array([1.5, None, 30.0] * 40),
        sex=pa.array(["f", "m", "f"] * 40).dictionary_encode(),
        member=pa.array([True, False, None] * 40),
        tags=pa.array([["secret"], [], None] * 40),
        income=pa.array(["low", "high", "low"] * 40, pa.large_string()),
    )
    columns = {**COLUMNS, "member": ["false", "true"]}
    x, _ = read(path, columns=columns, missing="zero").train
    found = sorted({tuple(round(v, 6) for v in row) for row in x.tolist()})
    assert found == [(0, 0, 1, 1, 0), (0.015, 1, 0, 0, 1), (0.3, 1, 0, 0, 0)]
    with pytest.raises(InputError, match=r"column tags is list<.*>, and must be numbers, texts or"):
        read(path, columns={**COLUMNS, "tags": ["a", "b"]})
    with pytest.raises(InputError, match=r"t.parquet: row 2, column age: is missing"):
        read(path)


def test_hostile_parquet_files(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    path = people(tmp_path / "t.parquet")
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-9], whole[:40] + bytes(80) + whole[120:], b"PAR1" * 99):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"t.parquet: "):
            read(path)
    # one long text, which is stored once and would be written out for every row
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 2000), pa.array(["x" * 500_000]))
    parquet(path, sex=long, age=[1] * 2000, income=["low"] * 2000)
    with pytest.raises(InputError, match=r"a text of more than 131072 bytes in column sex"):
        read(path)
    parquet(path, sex=["f\0secret"], age=[1], income=["low"])
    with pytest.raises(InputError, match=r"a zero byte in a text of column sex") as refused:
        read(path)
    assert SECRET not in str(refused.value)
    monkeypatch.setattr(sheets, "available", lambda: 100)
    with pytest.raises(InputError, match=r"t.parquet: says that it takes .* and 100 B are free|MB"):
        read(people(path))


def test_an_encoding_keeps_the_order_of_its_columns():
    """JSON that is written with sorted keys would mix up what the model reads."""
    columns = (("b", (0.0, 1.0)), ("a", ("x", "y")))
    found = Encoding(columns=columns, missing="zero", answers=(0.0, 9.0))
    assert Encoding.of_json(found.as_json()) == found
    assert isinstance(found.as_json()["columns"], list)
    for wrong in ({}, {"columns": {"a": [0, 1]}, "missing": "zero"}, {"columns": [["a", [0, 1]]]},
                  {"columns": [["a"]], "missing": "zero"},
                  {"columns": [["a", [0, 1]], ["a", [0, 1]]], "missing": "zero"}):  # fmt: skip
        with pytest.raises(InputError, match="inputs: must have a list columns"):
            Encoding.of_json(wrong)
    with pytest.raises(InputError, match="inputs: answers must be a range"):
        Encoding.of_json({**found.as_json(), "answers": ["a", "b"]})


def test_a_target_with_a_range_is_a_number(tmp_path):
    path = written(tmp_path / "t.csv", [*PEOPLE, ["60", "150", "f", "low"]])
    columns = {"sex": ["f", "m"], "age": [0, 100]}
    changes = {"target": "age", "columns": columns, "held_out": 0.0}
    other = str(written(tmp_path / "u.csv", PEOPLE))
    facts = data.facts(str(path), table=table(**changes))
    assert (facts.task, facts.classes, facts.shape) == ("regression", 1, (2,))
    y = read(path, test=other, **changes).train[1]
    assert y.dtype == torch.float32
    assert y[-1] == 1.0
    assert y[:-1].tolist() == pytest.approx([i % 90 / 100 for i in range(60)])


REPLACED = [
    ("method.name=dpsgd", "method.sampling=partition"),
    ("method.sampling=partition",),
    ("privacy.relation=replace-one",),
]


@pytest.mark.parametrize("settings", REPLACED)
def test_where_one_row_is_replaced_no_row_may_move(tmp_path, settings):
    """A hash of its content would move a replaced row to the other part, and others with it."""
    path, other = (str(written(tmp_path / name, PEOPLE)) for name in ("t.csv", "u.csv"))
    columns = "data.columns={age=[0,100],sex=['f','m'],income=['low','high']}"
    base = ("data.target=income", columns, "method.noise=1", "train.batch_size=10")
    with pytest.raises(InputError, match=r"^data.test: missing; the guarantee is about one row"):
        config.load(path, (*base, *settings))
    base = (*base, f"data.test={other}")
    with pytest.raises(InputError, match=r"^data.missing: 'drop' does not go with this; the"):
        config.load(path, (*base, *settings, "data.missing=drop"))
    plan = config.plan_of(config.load(path, (*base, *settings)))
    assert (plan.header.relation, plan.header.examples) == ("replace-one", 60)
    # one row replaced is one example replaced, at its place
    swapped = written(tmp_path / "v.csv", [*PEOPLE[:7], ["x", "99", "m", "high"], *PEOPLE[8:]])
    one, two = (read(p, test=other).train for p in (path, swapped))
    changed = (one[0] != two[0]).any(1) | (one[1] != two[1])
    assert changed.nonzero().flatten().tolist() == [7]


def test_rows_may_move_where_one_is_added_or_nothing_is_promised(tmp_path):
    path = str(written(tmp_path / "t.csv", PEOPLE))
    columns = "data.columns={age=[0,100],income=['low','high']}"
    base = ("data.target=income", columns, "data.missing=drop")
    plan = config.plan_of(config.load(path, (*base, "method.noise=1", "train.batch_size=10")))
    assert plan.header.relation == "zero-out"
    assert config.load(path, base, "plain").method.name == "plain"


def test_a_target_from_0_to_1_is_said_to_be_a_number(tmp_path, recwarn):
    path = str(
        written(tmp_path / "t.csv", [[*row[:3], "01"[i % 2]] for i, row in enumerate(PEOPLE)])
    )
    base = ("data.target=income", "method.noise=1", "train.batch_size=10")

    def told(values):
        recwarn.clear()
        chosen = (*base, f"data.columns={{age=[0,1],income={values}}}")
        config.plan_of(config.load(path, chosen))
        return [str(w.message) for w in recwarn if "is a range" in str(w.message)]

    assert told([0, 1]) == [
        "data.columns.income: [0, 1] is a range, so a number is predicted (regression); for two "
        'classes give ["0", "1"]'
    ]
    assert told(["0", "1"]) == told([0, 2]) == []
