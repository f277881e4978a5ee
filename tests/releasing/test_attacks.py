"""What attacks on releases and budgets have found, each by its name."""

import copy
import json
import warnings

import pytest
import torch
from torch import nn

import dpdt
from dpdt import seal
from dpdt.accounting import account_together
from dpdt.accounting.cost import Cost
from dpdt.data.access import sample
from dpdt.errors import InputError
from dpdt.ledger import Ledger, LedgerWriter
from dpdt.releasing.budget import budget
from dpdt.releasing.description import _refuse_strange
from dpdt.releasing.loading import opened
from dpdt.runs import Run
from dpdt.weights import storable

from .conftest import run_in


def data(number=60):
    made = torch.Generator().manual_seed(0)
    return torch.randn(number, 4, generator=made), torch.arange(number) % 2


def trained(model=None, **options):
    given = {"epochs": 2, "batch_size": 30, "epsilon": 5.0, "delta": 1e-4, **options}
    return dpdt.train(model or nn.Linear(4, 2), data(), **given)


def copied(run, to, change):
    """A copy of a run's ledger with other records at its end, under a chain that is right."""
    ledger = run.ledger()
    writer = LedgerWriter(ledger.header)
    writer.ledger.data = ledger.data
    to.mkdir(parents=True)
    writer.open(to / "ledger.jsonl")
    writer.adopt(ledger.runs)
    change(writer)


class TestForks:
    """A run that was copied, and went on twice: what is the same counts once, else both count."""

    @pytest.mark.parametrize(
        ("change", "number"),
        [
            (lambda writer: writer.pause(), 1),
            (lambda writer: (writer.fork(), writer.pause()), 2),
            (lambda writer: writer.close("0" * 64), 2),
        ],
        ids=["unfinished copy", "fresh noise", "another model"],
    )
    def test_copies(self, run, tmp_path, change, number):
        copied(run, tmp_path / "runs" / "copy", change)
        (found,) = budget([run.path, tmp_path / "runs"]).data
        assert len(found.runs) == number

    def test_two_copies_with_fresh_noise_count_twice(self, run, tmp_path):
        for name in "ab":
            copied(run, tmp_path / "runs" / name, lambda writer: (writer.fork(), writer.pause()))
        (found,) = budget([tmp_path / "runs"]).data
        assert len(found.runs) == 2

    def test_a_fork_is_read_back(self, tmp_path, run):
        copied(run, tmp_path / "a", lambda writer: (writer.fork(), writer.pause()))
        found = Ledger.read(tmp_path / "a" / "ledger.jsonl").forks
        assert len(found) == 1
        assert len(bytes.fromhex(found[0])) == 16


def test_a_ledger_that_is_looked_at_stays_as_it_is(tmp_path):
    result = trained()
    steps = result.ledger.steps
    result.ledger.runs.pop()
    assert result.ledger.steps == steps
    done = dpdt.release(result, to=tmp_path / "one")
    assert done.guarantee["epsilon"] == pytest.approx(result.privacy.epsilon)


def test_a_ledger_that_was_rewritten_is_not_certified(tmp_path):
    result = trained()
    result._ledger.runs.pop()
    with pytest.raises(InputError, match="not the one that its privacy was computed from"):
        dpdt.release(result, to=tmp_path / "one")


def test_shards_of_two_runs_are_not_the_same():
    """So there is no total for a shard: it is for one example."""
    one = trained(
        unit="shard", auxiliaries=4, memory="none", sampling="partition", lr=0.1, penalty=1.0,
        preconditioner="identity", averaging=0.0,
    ).ledger  # fmt: skip
    assert account_together([one], 1e-5).unit == "shard"
    assert account_together([one, copy.deepcopy(one)], 1e-5).unit == "example"


class TestIdentities:
    def test_a_name_joins_and_never_splits(self, tmp_path):
        for folder, name in (("a", None), ("b", "ward"), ("c", "typo")):
            trained(ledger=tmp_path / f"{folder}.jsonl", dataset=name)
        (found,) = budget([tmp_path]).data
        assert len(found.runs) == 3

    def test_other_data_of_the_same_name_belong_to_it(self):
        key = bytes(32)
        one, two = seal.sealed(key, "x", "ward"), seal.sealed(key, "y", "ward")
        assert not seal.differ(key, one, two)
        assert seal.differ(key, seal.sealed(key, "x"), seal.sealed(key, "y"))

    def test_groups_that_share_a_run_are_one(self, tmp_path):
        x, y = data()
        for number, (inputs, name) in enumerate(((x, None), (x, "both"), (-x, "both"))):
            path = tmp_path / f"{number}.jsonl"
            dpdt.train(
                nn.Linear(4, 2), (inputs, y), epochs=1, batch_size=60, epsilon=5.0, delta=1e-4,
                ledger=path, dataset=name,
            )  # fmt: skip
        (found,) = budget([tmp_path]).data
        assert len(found.runs) == 3

    def test_the_same_numbers_in_another_precision_are_the_same_data(self):
        x, y = data()
        assert sample((x, y)) == sample((x.double(), y.int()))
        assert sample((x, y)) != sample((x + 1, y))


class TestLost:
    def test_a_run_without_its_ledger_is_refused_not_skipped(self, run):
        path = run.ledger_path
        text = path.read_bytes()
        path.unlink()
        for ask in (lambda: budget([run.path]), lambda: Run.open(run.path)):
            with pytest.raises(InputError, match="what it spent is not known"):
                ask()
        path.symlink_to("nowhere")
        with pytest.raises(InputError, match="could be false"):
            budget([run.path])
        path.unlink()
        path.write_bytes(text)
        assert len(budget([run.path]).data) == 1

    def test_a_run_that_never_began_is_no_run(self, tmp_path):
        (tmp_path / "new" / "private").mkdir(parents=True)
        (tmp_path / "new" / "config.toml").write_text("")
        assert budget([tmp_path]).data == ()

    def test_a_ledger_of_python_counts_under_any_name(self, tmp_path):
        trained(ledger=tmp_path / "mine.jsonl")
        (tmp_path / "other.jsonl").write_text('{"epoch": 1}\n')
        (found,) = budget([tmp_path]).data
        assert [run.path.name for run in found.runs] == ["mine.jsonl"]


def test_every_data_set_has_its_own_delta(tmp_path):
    trained(ledger=tmp_path / "a.jsonl")
    run_in(tmp_path / "b")
    deltas = {tuple(d.names): d.total.delta for d in budget([tmp_path]).data}
    assert deltas[("digits",)] == 1e-5


def test_a_refuted_audit_is_not_forgotten_by_another(run, tmp_path):
    record = {"refuted": ["composition"], "measured_epsilon": 99.0}
    run.write_audit(record)
    run.write_audit({**record, "refuted": [], "measured_epsilon": 0.1})
    with pytest.raises(InputError, match="an audit has refuted"):
        dpdt.release(run.path, to=tmp_path / "one")


def test_messages_say_what_to_do(run, unsigned, keys, tmp_path):
    with pytest.raises(InputError, match="is a private key; give the public one"):
        dpdt.verify(unsigned, key=keys[0])
    dpdt.release(run.path, to=tmp_path / "one", forget=True)
    with pytest.raises(InputError, match="has forgotten its model"):
        run.load_model(nn.Linear(64, 10))


class Odd(nn.Linear):
    def __init__(self, buffer):
        super().__init__(4, 2)
        self.register_buffer("odd", buffer)


@pytest.mark.parametrize(
    ("buffer", "fits"),
    [
        (torch.zeros(3), True),
        (torch.zeros(3, dtype=torch.complex64), True),
        (torch.zeros(3, dtype=torch.complex128), False),
        (torch.zeros(3).to_sparse(), False),
        (torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8), False),
        (torch.zeros(1).expand(5), False),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_no_file_can_hold_is_said_before_training(buffer, fits):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = trained(Odd(buffer))
    assert any("cannot hold" in str(w.message) for w in said) != fits
    assert storable(result.model) == fits
    assert (result.ledger.model is not None) == fits


def test_a_step_of_huge_loss_is_accounted_without_a_grid():
    """Its grid would have more places than there is memory for."""
    cost = Cost(steps=((1e-5, 1000.0, 1),), everyone=1000.0)
    assert cost.epsilon("zero-out", 1e-5) > 1000.0


class TestFolders:
    def test_a_release_lies_in_no_other_and_in_no_private_folder(self, run, tmp_path):
        dpdt.release(run.path)
        other = run_in(tmp_path / "other")
        for place, message in (
            (run.path / "release" / "transformers" / "z", "lies in another release"),
            (other.private_path / "z", "lies in the private folder"),
            (run.private_path / "z", "lies in the private folder"),
        ):
            with pytest.raises(InputError, match=message):
                dpdt.release(run.path, to=place)

    def test_what_a_killed_release_has_left_is_built_again(self, run):
        left = run.path / ".release.0123456789abcdef.part"
        left.mkdir()
        assert dpdt.verify(dpdt.release(run.path).path).ok
        assert not left.exists()

    @pytest.mark.parametrize("name", ["release.part", ".release.part", ".release.mine.part"])
    def test_a_release_deletes_nothing_of_anybody_else(self, run, name):
        """`dpdt release A --to A/b` deleted A/b.part, which was another run."""
        other = run_in(run.path / name)
        before = other.ledger_path.read_bytes()
        (run.path / "notes.part").write_text("mine")
        dpdt.release(run.path)
        assert other.ledger_path.read_bytes() == before
        assert (run.path / "notes.part").read_text() == "mine"

    def test_every_listed_file_is_compared_before_a_model_is_loaded(self, run):
        folder = dpdt.release(run.path).path
        opened(folder)
        (folder / "transformers").mkdir()
        (folder / "transformers" / "tokenizer.json").write_text("{}")
        with pytest.raises(InputError, match="is not listed"):
            opened(folder)
        certificate = json.loads((folder / "certificate.json").read_text())
        certificate["files"]["../x"] = {"sha256": "0" * 64, "size": 1}
        (folder / "certificate.json").write_text(json.dumps(certificate))
        with pytest.raises(InputError, match="is no name of a file"):
            opened(folder)

    def test_a_certificate_that_is_nested_deeply_is_one_sentence(self, tmp_path):
        (tmp_path / "certificate.json").write_text("[" * 200_000)
        with pytest.raises(InputError, match=r"nested too deeply|not JSON"):
            budget([tmp_path])

    @pytest.mark.parametrize("key", ["depths", "num_hidden_layers", "num_blocks", "stage_repeats"])
    def test_a_model_of_endless_layers_is_not_built(self, key):
        for value in (5000, [2, 5000], {"inner_depth": 5000}):
            with pytest.raises(InputError, match="must be at most 1000"):
                _refuse_strange({key: value})


def test_a_second_end_is_refused(run):
    lines = run.ledger_path.read_text().splitlines()
    ledger = Ledger.read(run.ledger_path)
    assert ledger.closed
    from dpdt.ledger.lines import chain

    last = json.loads(lines[-1])
    previous = last.pop("hash")
    run.ledger_path.write_text(
        "\n".join([*lines, json.dumps({**last, "hash": chain(previous, last)})]) + "\n"
    )
    with pytest.raises(InputError, match="cannot stand here"):
        Ledger.read(run.ledger_path)
