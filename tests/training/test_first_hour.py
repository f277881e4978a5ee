"""A new user's first scripts: data, losses and models as people have them."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

import dpdt
from dpdt import InputError

N = 40
QUICK = {
    "method": "dpsgd", "sampling": "partition", "epochs": 2, "batch_size": 10, "noise": 1.0,
    "lr": 0.1,
}  # fmt: skip
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, 4))
Y = (X[:, 0] > 0).astype("int64")
REAL = X @ np.array([1.0, -1.0, 0.5, 0.0])


def model(outputs=2, inputs=4):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def weights(data, **options):
    own = options.pop("model", None) or model()
    dpdt.train(own, data, **{**QUICK, "noise": 0.0, **options})
    return torch.cat([p.detach().flatten() for p in own.parameters()])


def tensors():
    return torch.from_numpy(X).float(), torch.from_numpy(Y)


# numpy


@pytest.mark.parametrize("given", [
    lambda: (X, Y),
    lambda: (X.astype("float32"), Y.astype("int32")),
    lambda: (np.asfortranarray(X), Y.astype("uint8")),
    lambda: (X[::-1][::-1], Y.tolist()),
    lambda: (X.astype(">f8"), Y.astype(bool)),
    lambda: (torch.from_numpy(X), Y[:, None]),
    lambda: [X.tolist() and X, Y],
])  # fmt: skip
def test_arrays_train_as_their_tensors_do(given):
    assert torch.equal(weights(given()), weights(tensors()))


def test_a_model_in_float64_reads_everything_in_float64():
    found = weights((X.astype("float32"), Y), model=model().double())
    assert found.dtype == torch.float64


def test_whole_number_inputs_become_what_the_model_reads():
    counts = GENERATOR.integers(0, 9, size=(N, 4))
    assert torch.equal(weights((counts, Y)), weights((counts.astype("float32"), Y)))
    torch.manual_seed(0)
    tokens = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))
    weights((counts, Y), model=tokens)  # tokens stay whole numbers


def test_labels_without_a_sign_train_as_others_do():
    for kind in ("uint16", "uint32", "uint64"):
        assert torch.equal(weights((X, Y.astype(kind))), weights((X, Y)))


def test_a_masked_array_is_refused_whatever_it_hides():
    for hidden in (X > 1, False):
        masked = np.ma.masked_array(X, mask=hidden)
        refused(model(), (masked, Y), r"^data: a masked array would be trained on with the values")
        refused(model(), {"x": masked, "labels": Y}, r"^data\['x'\]: a masked array")


BUFFERS = nn.BatchNorm1d(2, affine=False, device="meta")


@pytest.mark.parametrize(("own", "match"), [
    (None, r"^model: must be a torch.nn.Module, found NoneType$"),
    (nn.Linear, r"^model: is the class Linear; give an object of it, Linear\(…\)$"),
    (nn.Flatten(), r"^model: has no parameters, so there is nothing to train$"),
    (nn.Linear(4, 2, device="meta"), r"^model: weight is on the device 'meta', where it has"),
    (nn.Sequential(model(), BUFFERS), r"^model: 1.running_mean is on the device 'meta'"),
])  # fmt: skip
def test_what_is_no_model_is_refused(own, match):
    with pytest.raises(InputError, match=match):
        dpdt.train(own, (X, Y), **QUICK)


def test_a_list_of_lists_is_refused_in_one_short_sentence():
    found = r"^data: tensors of different lengths, 4, 4, 4, 4, … \(41 in all\); make an array"
    refused(model(), (X.tolist(), Y.tolist()), found)


def test_an_array_of_objects_is_refused():
    with pytest.raises(InputError, match=r"^data: must be numbers, found an array of object"):
        dpdt.train(model(), (X.astype(object), Y), **QUICK)


# what does not go together is refused before anything is spent


def refused(own, data, match, **options):
    before = [p.detach().clone() for p in own.parameters()]
    with pytest.raises(InputError, match=match) as error:
        dpdt.prepare(own, data, **QUICK, **options)
    assert "\n" not in str(error.value)
    assert all(map(torch.equal, own.parameters(), before))


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


def test_what_does_not_fit_is_refused_with_one_sentence(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    refused(model(inputs=5), (X, Y), r"^model: fails on examples of the data's shape, \(4,\)",
            ledger=ledger)  # fmt: skip
    refused(Pair(4, 2), (X, Y), r"^model: must give one tensor .* found tuple")
    refused(model(1), (X, Y), r"^task: is in doubt with targets that are whole numbers")
    refused(model(1), (X, REAL), r"^task: is in doubt .*; say task='regression'")
    refused(model(2), (X, REAL), r"^data: regression needs as many numbers", task="regression")
    refused(model(3), (X, Y), r"^data: binary needs one logit", task="binary")
    refused(model(2), (X, Y + 1), r"^data: classification needs targets from 0 to 1.* one outside$")
    refused(model(1), (X, Y + 1), r"^data: binary needs targets from 0 to 1", task="binary")
    refused(model(2), (X, Y.astype("uint64") - 1 - Y.astype("uint64")), r"^data: .* one outside$")
    refused(model(2), X, r"^data: has no targets")
    refused(model(2), (X, Y, REAL), r"^data: has 3 parts, and the usual losses read two")
    refused(model(2), (X[:0], Y[:0]), r"^data: has no examples")
    refused(model(1), (X, Y), r"^task: the loss is for regression, found 'binary'",
            loss=nn.MSELoss(), task="binary")  # fmt: skip
    refused(model(1), (X, Y), r"^task: must be one of auto, class", task="sorting")
    refused(model(2), (X, Y), r"^metric: must be accuracy", metric="F1")
    refused(model(2), (X, Y), r"^metric: 'mse' is for regression, and the task is class",
            metric="mse")  # fmt: skip
    refused(model(2), (X, Y), r"^loss: is the class MSELoss; give MSELoss\(\)", loss=nn.MSELoss)
    refused(model(2), (X, Y), r"^loss: must be a loss of torch", loss="mse")
    refused(model(2), (X, Y), r"^loss: must be one number, the mean over examples, found shape",
            loss=lambda m, b: m(b[0]))  # fmt: skip
    refused(model(2), (X, Y), r"^loss: Own has parameters", loss=Own())
    assert not ledger.exists()


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(("test", "match"), [
    ((X[:, :3], Y), r"^test: fails on examples of its shape, \(3,\)"),
    ((X, REAL), r"^test: has targets in torch.float32, and the data have torch.int64"),
    ((X, Y + 5), r"^test: classification needs targets from 0 to 1"),
    (X, r"^test: must have the form of the data"),
    ((X, np.stack([Y, Y], 1)), r"^test: classification needs a score for each class"),
])  # fmt: skip
def test_held_out_examples_are_checked_before_the_first_step(test, match, tmp_path):
    with pytest.raises(InputError, match=match):
        dpdt.train(model(), (X, Y), test=test, ledger=tmp_path / "ledger.jsonl", **QUICK)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_nothing_held_out_measures_nothing():
    with pytest.warns(UserWarning, match="test: has no examples, so nothing is measured"):
        result = dpdt.train(model(), (X, Y), test=(X[:0], Y[:0]), **QUICK)
    assert result.history[-1]["accuracy"] is None


# tasks and their metrics


def last(own, data, **options):
    return dpdt.train(own, data, test=data, **{**QUICK, **options}).history[-1]


def outputs(own):
    with torch.no_grad():
        return own(torch.from_numpy(X).float())


def test_regression_is_judged_by_its_error():
    for loss, name in ((nn.MSELoss(), "mse"), (nn.HuberLoss(), "mae"), (F.mse_loss, "mse")):
        for y in (REAL, REAL[:, None], REAL.astype("float32")):
            own = model(1)
            record = last(own, (X, y), loss=loss)
            off = outputs(own).squeeze(1).double() - torch.from_numpy(y.reshape(-1)).float()
            expected = off.square().mean() if name == "mse" else off.abs().mean()
            assert record[name] == pytest.approx(float(expected), rel=1e-5)
            assert record["accuracy"] is None
    assert last(model(1), (X, REAL), task="regression")["mse"] > 0
    own = nn.Sequential(model(1), nn.Flatten(0))  # outputs of shape (n,)
    assert last(own, (X, REAL[:, None]), task="regression")["mse"] > 0


def test_a_rate_that_was_fitted_to_classes_is_warned_of():
    given = {"epochs": 1, "batch_size": 10, "noise": 1.0, "progress": False}
    with pytest.warns(UserWarning, match=r"^method.lr: 'auto' was fitted to classification"):
        dpdt.train(model(1), (X, REAL), task="regression", **given)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "method.lr")
        dpdt.train(model(1), (X, REAL), task="regression", lr=0.1, **given)
        dpdt.train(model(2), (X, Y), **given)


def test_a_loss_is_never_broadcast():
    """(n, 1) minus (n,) would be a table of all pairs, in which examples meet each other."""
    results = [weights((X, y), model=model(1), loss=nn.MSELoss()) for y in (REAL, REAL[:, None])]
    assert torch.equal(*results)


@pytest.mark.parametrize("y", [Y, Y[:, None], Y.astype(float), Y.astype(bool)])
def test_one_logit_is_judged_by_accuracy(y):
    for options in ({"task": "binary"}, {"loss": nn.BCEWithLogitsLoss()}):
        own = model(1)
        record = last(own, (X, y), lr=1.0, **options)
        right = (outputs(own).squeeze(1) > 0) == torch.from_numpy(Y > 0)
        assert record["accuracy"] == pytest.approx(float(right.float().mean()))
        assert 0.0 < record["loss"] < 5.0


def test_several_labels_are_judged_label_by_label():
    labels = (X[:, :3] > 0).astype("float32")
    for options in ({"task": "multi-label"}, {"loss": nn.BCEWithLogitsLoss()}):
        own = model(3)
        record = last(own, (X, labels), **options)
        right = (outputs(own) > 0) == torch.from_numpy(labels > 0)
        assert record["label_accuracy"] == pytest.approx(float(right.float().mean()))


def test_next_tokens_are_judged_by_perplexity():
    tokens = torch.from_numpy(GENERATOR.integers(0, 7, size=(N, 6)))
    y = tokens[:, 1:].clone()
    y[:, -1] = -100  # left out
    torch.manual_seed(0)
    own = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7))
    record = last(own, (tokens[:, :-1], y))
    with torch.no_grad():
        expected = F.cross_entropy(own(tokens[:, :-1]).movedim(2, 1), y)
    assert record["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_a_sequence_gets_one_label():
    tokens = GENERATOR.integers(0, 7, size=(N, 6))
    own = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(30, 2))
    assert 0.0 <= last(own, (tokens, Y))["accuracy"] <= 1.0


def test_a_loss_of_ones_own_is_judged_by_itself():
    def distance(own, batch):
        return (own(batch[0]).squeeze(1) - batch[1]).abs().mean()

    own = model(1)
    record = last(own, (X, REAL), loss=distance)
    data = torch.from_numpy(X).float(), torch.from_numpy(REAL).float()
    assert record["test_loss"] == pytest.approx(float(distance(own, data).detach()), rel=1e-5)
    assert "accuracy" in last(model(), (X, Y), loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]))


def test_a_metric_of_ones_own():
    def worst(outputs, targets):
        return (outputs.squeeze(1) - targets).abs().max()

    own = model(1)
    record = last(own, (X, REAL), loss=nn.MSELoss(), metric=worst)
    off = outputs(own).squeeze(1) - torch.from_numpy(REAL).float()
    assert record["worst"] == pytest.approx(float(off.abs().max()), rel=1e-5)
    assert last(own, (X, REAL), loss=nn.MSELoss(), metric="mae")["mae"] > 0


def test_reductions_and_class_weights_mean_what_they_say():
    """Of one example a weighted mean would divide its weight away."""
    plain = weights((X, Y), loss=nn.CrossEntropyLoss())
    assert torch.equal(plain, weights((X, Y)))
    for reduction in ("sum", "none"):
        found = weights((X, Y), loss=nn.CrossEntropyLoss(reduction=reduction))
        torch.testing.assert_close(found, plain)
    heavy = weights((X, Y), loss=nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0])), clip=9.0)
    assert not torch.allclose(heavy, weights((X, Y), clip=9.0))


# pandas


pandas = pytest.importorskip("pandas")


def frame():
    kinds = pandas.CategoricalDtype(["a", "b", "never"], ordered=True)
    return pandas.DataFrame({
        "age": np.arange(N), "height": X[:, 0], "member": Y > 0,
        "kind": pandas.Series(["a", "b"] * (N // 2), dtype=kinds),
    })  # fmt: skip


def test_a_frame_has_a_column_for_each_declared_category():
    table = frame()
    plain = np.concatenate([
        np.arange(N)[:, None], X[:, :1], Y[:, None],
        np.array([[1, 0, 0], [0, 1, 0]] * (N // 2)),
    ], 1)  # fmt: skip
    found = weights((table, pandas.Series(Y)), model=model(inputs=6))
    assert torch.equal(found, weights((plain, Y), model=model(inputs=6)))
    result = dpdt.train(
        model(1, 6), (table, table["height"]), test=(table, table["height"]),
        task="regression", **QUICK,
    )  # fmt: skip
    assert result.history[-1]["mse"] > 0


def test_what_a_frame_is_never_depends_on_values():
    few = frame().iloc[:2].reset_index(drop=True)
    few["kind"] = few["kind"].where(few["kind"] != "b", "a")
    y = pandas.Series([0, 1])
    dpdt.prepare(model(inputs=6), (few, y), method="dpsgd", batch_size=2, noise=1.0)


@pytest.mark.parametrize(("change", "match"), [
    (lambda t: t.assign(name="x"), r"column 'name' holds .*, not numbers"),
    (lambda t: t.assign(at=pandas.Timestamp(0)), r"column 'at' holds datetime64"),
    (lambda t: t.assign(height=np.nan), r"column 'height' has missing values"),
    (lambda t: t.assign(kind=t["kind"].where(t.index > 0)), r"column 'kind' has missing values"),
])  # fmt: skip
def test_columns_that_are_no_numbers_are_refused(change, match):
    refused(model(inputs=6), (change(frame()), pandas.Series(Y)), f"^data: {match}")


def test_a_frame_needs_its_target_and_rows_that_belong_together():
    refused(model(inputs=6), frame(), r"^data: a frame needs its target beside it")
    shuffled = pandas.Series(Y, index=range(N)[::-1])
    refused(model(inputs=6), (frame(), shuffled), r"^data: the index of the inputs is not that of")
    other = frame()[["height", "age", "member", "kind"]]
    y = pandas.Series(Y)
    refused(model(inputs=6), (frame(), y), r"^test: its columns must be .* found 'height'",
            test=(other, y))  # fmt: skip
    refused(model(inputs=6), (frame(), y), r"^test: its columns must be .* 'kind' with other",
            test=(frame().astype({"kind": pandas.CategoricalDtype(["b", "a"])}), y))  # fmt: skip


def test_categories_that_may_have_been_seen_in_the_data_are_said():
    table = frame().astype({"kind": str}).astype({"kind": "category"})
    with pytest.warns(UserWarning, match="categories of column 'kind' count as public"):
        dpdt.prepare(model(inputs=5), (table, pandas.Series(Y)), **QUICK)
    for declared in (
        pandas.CategoricalDtype(["a", "b"], ordered=True), pandas.CategoricalDtype(["b", "a"])
    ):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table = frame().astype({"kind": declared})
            dpdt.prepare(model(inputs=5), (table, pandas.Series(Y)), quiet=True, **QUICK)


# Datasets and DataLoaders


class Rows(Dataset):
    """Examples as Python has them: arrays and numbers."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return X[i], int(Y[i])


def loader(data=None, **options):
    return DataLoader(Rows() if data is None else data, batch_size=8, **options)


def test_a_dataset_of_arrays_trains_as_its_tensors_do():
    assert torch.equal(weights(Rows()), weights(tensors()))
    assert torch.equal(weights(TensorDataset(*tensors())), weights(tensors()))


def test_a_loader_gives_its_dataset_collate_function_and_workers():
    def doubled(rows):
        x, y = default_collate(rows)
        return 2 * x, y

    with pytest.warns(UserWarning, match="batch size, shuffling and drop_last are not"):
        found = weights(loader(collate_fn=doubled, shuffle=True, drop_last=True))
    assert torch.equal(found, weights((2 * X, Y)))
    with pytest.warns(UserWarning, match="of the DataLoader"):
        step, _ = dpdt.prepare(model(), loader(num_workers=2), **QUICK)
    assert step.plan.training.train.workers == 2
    assert step.loader.workers == 2


def centred(rows):
    """Takes the mean of the batch away, and so mixes its examples."""
    x, y = default_collate(rows)
    return x - x.mean(0), y


@pytest.mark.filterwarnings("ignore:data. of the DataLoader")
def test_a_collate_function_never_sees_two_examples():
    """Centred by itself every example is 0, whoever else is in the batch."""

    def watched(rows):
        assert len(rows) == 1
        return centred(rows)

    assert torch.equal(weights(loader(collate_fn=watched)), weights((0 * X, Y)))


def padded(rows):
    """Pads to the longest of the batch."""
    longest = max(len(x) for x, _ in rows)
    return torch.stack([F.pad(x, (0, longest - len(x))) for x, _ in rows]), torch.tensor(
        [y for _, y in rows]
    )


@pytest.mark.filterwarnings("ignore:data. of the DataLoader")
def test_padding_to_the_longest_of_a_batch_is_refused():
    rows = [(torch.ones(4 + i % 3), i % 2) for i in range(N)]
    refused(model(), loader(rows, collate_fn=padded),
            r"^data: example 1 is .* \(5,\).*; examples are read one by one")  # fmt: skip


class Mixed(Dataset):
    """A whole number here, one with a point there: torch would find a type for each batch."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.ones(4), 1 if i % 2 else 0.5


def test_examples_of_different_types_are_refused():
    refused(model(1), Mixed(), r"^data: example 1 is .*int64.* and example 0 is .*float32",
            loss=nn.MSELoss())  # fmt: skip


class Late(Rows):
    """The last examples have another shape, which no look at a few finds."""

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return np.ones(4 if i % 100 != 99 else 5), 0


def test_an_example_of_another_shape_is_refused_when_it_comes():
    step, batches = dpdt.prepare(model(), Late(), **{**QUICK, "batch_size": 500})
    with pytest.raises(InputError, match=r"^data: example \d*99 is .*\(5,\)"):
        list(batches)
    assert step.writer.ledger.steps == 1  # it was handed out, and counts


class Remembers(Dataset):
    def __init__(self):
        self.total = torch.zeros(4)

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.total += torch.from_numpy(X[i]).float()
        return self.total.clone(), int(Y[i])


class Drawing(Rows):
    own = np.random.default_rng(0)

    def __getitem__(self, i):
        return X[i] + self.own.normal(size=4), int(Y[i])


def test_examples_that_depend_on_what_was_read_before_are_refused():
    refused(model(), Remembers(), r"^data: gives another example 0 when it is read again")


def test_a_generator_of_a_dataset_s_own_follows_the_examples():
    """What it draws for an example is the same whatever it drew before."""
    Drawing.own.normal(size=3)
    first = weights(Drawing())
    Drawing.own.normal(size=5)
    assert torch.equal(weights(Drawing()), first)


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], 0


class Scaled(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield x - x.mean(0), y


class Hurried(DataLoader):
    def _get_iterator(self):
        return iter([])


@pytest.mark.filterwarnings("ignore:data. of the DataLoader")
def test_a_loader_s_own_sampling_is_refused():
    for data in (
        loader(sampler=SubsetRandomSampler(range(9))),
        loader(sampler=torch.utils.data.RandomSampler(Rows(), replacement=True)),
        loader(sampler=torch.utils.data.WeightedRandomSampler([1.0] * N, N)),
        DataLoader(Rows(), batch_sampler=[[0, 1], [2, 3]]),
        DataLoader(Rows(), batch_size=None),
    ):
        refused(model(), data, r"^data: the DataLoader draws examples its own way")
    refused(model(), Scaled(Rows()), r"^data: Scaled iterates its own way, which would be passed")
    refused(model(), Hurried(Rows()), r"^data: Hurried iterates its own way")
    refused(model(), Endless(), r"^data: an IterableDataset has no numbered examples")
    refused(model(), DataLoader(Endless()), r"^data: an IterableDataset has no numbered")
    rows = [{"x": X[0], "name": "a"}] * N
    refused(model(), loader(rows, collate_fn=lambda rows: rows[0]["x"]),
            r"^data: must be tensors with examples along the first dimension")  # fmt: skip
