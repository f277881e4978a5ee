"""What one data set has paid in all, from folders of runs and releases."""

import json
import math
import os
import shutil
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dpdt import Ledger, config, prepare, seal
from dpdt.accounting import account, account_together
from dpdt.accounting.gaussian import epsilon_of
from dpdt.cli.budget import command
from dpdt.errors import ArgumentError, InputError
from dpdt.ledger import LedgerWriter, Planned, Tuned, text_of
from dpdt.ledger.lines import chain
from dpdt.releasing.budget import around, budget, refuse_beyond
from dpdt.releasing.found import found_below
from dpdt.runs import Run
from dpdt.runs.plan import at_its_end
from dpdt.training import recorder
from dpdt.training.run import run
from tests.accounting.test_composition import ledger
from tests.accounting.test_poisson import poisson
from tests.training.interrupted import cut
from tests.training.test_kept import interrupted, train
from tests.training.test_tune import tuned

DELTA = 1e-5
SMALL = ("train.epochs=2", "privacy.epsilon=3.0")
SOME = ledger([(1.0, 2.0, 20)])
MU = math.sqrt(20) * 2 / 4 / 2.0  # of SOME


def sealed(content="a", key=None):
    return seal.sealed(key or seal.own_key(), content)


def write(path, what=SOME, data=None, *, closed=True, exports=(), voids=()):
    """A run's folder with this ledger."""
    path.mkdir(parents=True)
    writer = LedgerWriter(what.header)
    writer.ledger.data = sealed() if data is None else data
    writer.open(path / "ledger.jsonl")
    writer.adopt(what.runs)
    for export in exports:
        writer.export(export)
    for void in voids:
        writer.void(void)
    writer.close() if closed else writer.pause()
    return writer.ledger


def release(path, run_folder, *, delta=DELTA):
    path.mkdir(parents=True)
    lines = (run_folder / "ledger.jsonl").read_text().splitlines()
    record = {"ledger": {"lines": lines}, "privacy": {"delta": delta}}
    (path / "certificate.json").write_text(json.dumps(record))


def paid(*folders):
    """ε and the number of runs of each data set."""
    return sorted((len(data.runs), data.epsilon) for data in budget(folders, DELTA).data)


def together(mu, number):
    return pytest.approx(epsilon_of(mu * math.sqrt(number), DELTA), rel=1e-12)


class TestCounting:
    def test_runs_on_the_same_data_are_added_up_and_others_are_not(self, tmp_path):
        for name, content in (("one", "a"), ("two", "a"), ("deep/er/three", "a"), ("four", "b")):
            write(tmp_path / name, data=sealed(content))
        assert paid(tmp_path) == [(1, together(MU, 1)), (3, together(MU, 3))]

    def test_a_run_of_unknown_data_counts_to_all_data_and_it_is_said(self, tmp_path):
        write(tmp_path / "a", data=sealed("a"))
        write(tmp_path / "b", data=sealed("b"))
        write(tmp_path / "foreign", data=sealed("a", bytes(32)))
        write(tmp_path / "without", data="")
        assert paid(tmp_path) == [(3, together(MU, 3))] * 2
        assert "2 runs of unknown data" in budget([tmp_path]).table()

    def test_runs_of_unknown_data_alone_are_one_data_set(self, tmp_path):
        for name in "ab":
            write(tmp_path / name, data=sealed(name, bytes(32)))
        (found,) = budget([tmp_path], DELTA).data
        assert (found.id, found.epsilon) == (None, together(MU, 2))

    def test_runs_without_a_seal_are_never_taken_for_copies(self, tmp_path):
        for name in "abc":
            write(tmp_path / name, data="")
        assert paid(tmp_path) == [(3, together(MU, 3))]

    def test_what_cannot_be_bounded_is_infinite_and_says_why(self, tmp_path):
        write(tmp_path / "good")
        write(tmp_path / "void", voids=["something was found"])
        (found,) = budget([tmp_path], DELTA).data
        assert (found.epsilon, found.total.bounded) == (math.inf, together(MU, 1))
        said = budget([tmp_path], DELTA).table()
        assert "something was found" in said
        assert "ε = ∞, by 1 run without privacy; the other 1: ε ≤" in said

    def test_a_run_without_an_end_counts_and_it_is_said(self, tmp_path):
        write(tmp_path / "open", closed=False)
        write(tmp_path / "closed")
        assert paid(tmp_path) == [(2, together(MU, 2))]
        assert "1 run not closed: counted as far as the ledger goes" in budget([tmp_path]).table()

    def test_units_are_explained(self, tmp_path):
        write(tmp_path / "a")
        write(tmp_path / "b", ledger([(1.0, 2.0, 20)], unit="user"))
        notes = budget([tmp_path]).data[0].notes()
        assert any("different units (example, user)" in note for note in notes)
        assert any("no total: some runs protect single examples" in note for note in notes)


class TestCopies:
    def test_a_copy_counts_once_and_a_release_is_marked(self, tmp_path):
        one = write(tmp_path / "runs" / "a")
        write(tmp_path / "copy", data=one.data)
        for name in ("released", "again"):
            release(tmp_path / name, tmp_path / "runs" / "a")
        (found,) = budget([tmp_path], DELTA).data
        assert [r.released for r in found.runs] == [True]
        assert found.epsilon == together(MU, 1)

    def test_a_release_whose_run_is_gone_counts(self, tmp_path):
        write(tmp_path / "a")
        release(tmp_path / "b" / "released", tmp_path / "a", delta=1e-6)
        (found,) = budget([tmp_path / "b"]).data
        assert (found.runs[0].released, found.total.delta) == (True, 1e-6)

    def test_the_longer_of_a_run_and_its_continuation_counts(self, tmp_path):
        shorter = ledger([(1.0, 2.0, 12)])
        first = write(tmp_path / "then", shorter, closed=False)
        write(tmp_path / "now", data=first.data)
        write(tmp_path / "begun", ledger([]), first.data, closed=False)
        assert paid(tmp_path) == [(1, together(MU, 1))]

    @pytest.mark.parametrize(
        ("what", "options"),
        [
            (ledger([(1.0, 3.0, 12)]), {"closed": False}),  # other steps
            (ledger([(1.0, 2.0, 12)]), {"closed": True}),  # an end, after which more was done
            (ledger([(1.0, 2.0, 12)]), {"closed": False, "exports": ["an iterate"]}),
            (ledger([(1.0, 2.0, 12)]), {"closed": False, "voids": ["a reason"]}),
            (ledger([(1.0, 2.0, 12)], M=6), {"closed": False}),  # another header
            (ledger([(1.0, 2.0, 5), (1.0, 3.0, 1)]), {"closed": False}),
        ],
    )
    def test_what_is_no_continuation_counts_too(self, tmp_path, what, options):
        first = write(tmp_path / "one")
        write(tmp_path / "other", what, first.data, **options)
        (found,) = budget([tmp_path], DELTA).data
        assert len(found.runs) == 2


class TestFolders:
    def test_a_folder_that_is_given_twice_or_linked_to_counts_once(self, tmp_path):
        write(tmp_path / "runs" / "a", data="")
        (tmp_path / "link").symlink_to(tmp_path / "runs")
        (tmp_path / "runs" / "self").symlink_to(tmp_path / "runs")
        assert len(found_below([tmp_path, tmp_path / "runs", tmp_path / "link"])) == 1

    def test_runs_count_wherever_they_are(self, tmp_path):
        """`dpdt train --out A/private/b` was accepted once, and never counted."""
        write(tmp_path / "a")
        write(tmp_path / "a" / "private" / "b")
        write(tmp_path / "a" / "private" / "runs" / "0")
        write(tmp_path / "private" / "c")
        names = [str(f.path.relative_to(tmp_path)) for f in found_below([tmp_path])]
        assert names == ["a", "a/private/b", "a/private/runs/0", "private/c"]

    def test_the_private_folder_of_somebody_else_is_passed_over(self, tmp_path, monkeypatch):
        write(tmp_path / "a")
        (tmp_path / "a" / "private").mkdir()
        scan = os.scandir

        def closed(path):
            if str(path).endswith("private"):
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", closed)
        assert len(found_below([tmp_path])) == 1

    def test_runs_of_a_tune_are_paid_by_the_tune_and_others_there_are_not(self, tmp_path):
        plans = (Planned(header=SOME.header, runs=tuple(SOME.runs)),)
        whole = Ledger(SOME.header, tuned=Tuned(runs=2.0, noise=1.0, candidates=plans))
        for name, what in (("t", whole), ("t/private/runs/0", whole), ("t/private/runs/1", SOME)):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "ledger.jsonl").write_text(text_of(replace(what, data=sealed())))
        torn = tmp_path / "t/private/runs/2/private"
        torn.mkdir(parents=True)  # of a run that was being deleted when the tune was killed
        (torn / "checkpoint.pt").touch()
        names = [str(f.path.relative_to(tmp_path)) for f in found_below([tmp_path])]
        assert names == ["t", "t/private/runs/1"]

    def test_no_run_begins_in_the_private_folder_of_another(self, tmp_path):
        write(tmp_path / "a")
        (tmp_path / "a" / "private").mkdir()
        place = tmp_path / "a" / "private" / "b"
        with pytest.raises(InputError, match="b: lies in the private folder of a run"):
            run(config.load("digits", SMALL), place, show_progress=False)
        assert not place.exists()


class TestCutLedgers:
    """A ledger that was cut behind any line is whole by its own hashes.

    A finished run whose ledger was cut to two lines counted ε ≤ 0, although metrics.jsonl said
    that eight steps were taken.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def done(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("runs") / "done"
        run(config.load("digits", SMALL), folder, show_progress=False)
        return folder

    @pytest.fixture
    def copy(self, done, tmp_path):
        return shutil.copytree(done, tmp_path / "copy")

    def cut(self, folder, lines):
        path = folder / "ledger.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))

    def test_metrics_ahead_of_the_ledger_are_refused(self, copy):
        shutil.rmtree(copy / "private")
        self.cut(copy, 2)
        with pytest.raises(InputError, match=r"ends at step 0, and .*metrics\.jsonl says that"):
            budget([copy.parent])

    @pytest.mark.parametrize("lines", [2, -1])
    def test_the_closing_hash_is_kept_elsewhere_too(self, copy, lines):
        (copy / "metrics.jsonl").unlink()
        self.cut(copy, lines)
        with pytest.raises(InputError, match=r"hash is in .*tail\.json; it was cut or changed"):
            budget([copy.parent])

    def test_a_ledger_whose_hashes_were_made_anew_is_refused(self, copy):
        found = Run(copy).ledger()
        quieter = replace(found.runs[0].setting, noise=(1000.0,) * len(found.header.blocks))
        found.runs = [replace(found.runs[0], setting=quieter), *found.runs[1:]]
        (copy / "ledger.jsonl").write_text(text_of(found))
        with pytest.raises(InputError, match=r"tail\.json; it was cut or changed"):
            budget([copy.parent])

    def test_an_interrupted_run_is_known_by_its_checkpoint(self, tmp_path, monkeypatch):
        cut(monkeypatch, config.load("digits", SMALL), tmp_path / "cut", steps=1)
        (tmp_path / "cut" / "metrics.jsonl").unlink()
        assert budget([tmp_path]).data[0].epsilon > 0
        self.cut(tmp_path / "cut", 2)
        with pytest.raises(InputError, match=r"tail\.json; it was cut or changed"):
            budget([tmp_path])

    def test_what_is_kept_of_a_ledger_that_grew_is_no_complaint(self, copy):
        tail = copy / "private" / "tail.json"
        first = json.loads((copy / "ledger.jsonl").read_text().splitlines()[2])["hash"]
        tail.write_text(json.dumps({"hash": first}))
        assert budget([copy.parent]).data[0].epsilon > 0

    @pytest.mark.parametrize("text", [b'{"hash": 5}', b"[]", b"", b"\xff", b"[" * 100_000])
    def test_what_is_kept_may_be_anything(self, copy, text):
        tail = copy / "private" / "tail.json"
        tail.write_bytes(text)
        with pytest.raises(InputError, match=r"tail\.json: (cannot be read|must hold the hash)"):
            budget([copy.parent])
        tail.unlink()
        (copy / "metrics.jsonl").write_bytes(text + b"\n")
        assert budget([copy.parent]).data[0].epsilon > 0

    def test_a_pipe_is_not_waited_for(self, copy):
        tail = copy / "private" / "tail.json"
        tail.unlink()
        os.mkfifo(tail)
        with pytest.raises(InputError, match=r"tail\.json: is a named pipe"):
            budget([copy.parent])


class TestRefusals:
    def test_what_is_missing_or_cannot_be_looked_into_is_refused(self, tmp_path, monkeypatch):
        with pytest.raises(InputError, match="nowhere: no such folder"):
            budget([tmp_path / "nowhere"])
        scan = os.scandir

        def closed(path):
            if str(path).endswith("closed"):
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        (tmp_path / "closed").mkdir()
        monkeypatch.setattr(os, "scandir", closed)
        with pytest.raises(InputError, match=r"closed: cannot be looked into \(Permission"):
            budget([tmp_path])

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "{}", '{"ledger": 5}', '{"ledger": {"lines": ["{}"]}}', "\x00"]
    )
    def test_a_certificate_that_cannot_be_read_is_refused(self, tmp_path, text):
        (tmp_path / "certificate.json").write_text(text)
        with pytest.raises(InputError, match=r"certificate\.json: "):
            budget([tmp_path])

    def test_a_damaged_ledger_is_refused_by_name(self, tmp_path):
        write(tmp_path / "good")
        write(tmp_path / "bad")
        path = tmp_path / "bad" / "ledger.jsonl"
        path.write_text(path.read_text().replace('"step": 3', '"step": 2'))
        with pytest.raises(InputError, match=r"bad.ledger\.jsonl: line .* does not match"):
            budget([tmp_path])

    def test_numbers_that_no_run_has_are_refused_by_name(self, tmp_path):
        header = replace(SOME.header, rate=2.0)
        write(tmp_path / "odd", Ledger(header, SOME.runs))
        with pytest.raises(InputError, match=r"odd: the ledger has a rate of 2\.0"):
            budget([tmp_path])

    def test_hundreds_of_runs_of_one_setting_are_one_distribution(self, tmp_path):
        what = poisson([(1.0, 5.0, 3)], per_example=True)
        for number in range(120):
            write(tmp_path / str(number), what)
        (found,) = budget([tmp_path], DELTA).data
        assert found.total.cost.steps == ((0.04, pytest.approx(1 / 20), 360),)


class TestLimit:
    def planned(self, content="a"):
        return replace(SOME, closed=True, data=sealed(content))

    def test_within_beyond_and_just_at_it(self, tmp_path):
        write(tmp_path / "a")
        write(tmp_path / "other", data=sealed("b"))
        exact = epsilon_of(MU * math.sqrt(2), DELTA)
        refuse_beyond(exact * (1 + 1e-12), self.planned(), [tmp_path], delta=DELTA)
        with pytest.raises(
            ArgumentError, match=r"ε = 7\.512 at δ = 1e-5.*1 run before it paid 4\.984"
        ):
            refuse_beyond(exact * (1 - 1e-9), self.planned(), [tmp_path], delta=DELTA)

    def test_runs_of_unknown_data_count(self, tmp_path):
        write(tmp_path / "foreign", data=sealed("b", bytes(32)))
        limit = epsilon_of(MU * 1.2, DELTA)
        refuse_beyond(limit, self.planned(), [tmp_path / "none"], delta=DELTA)
        with pytest.raises(ArgumentError, match="1 run before it"):
            refuse_beyond(limit, self.planned(), [tmp_path], delta=DELTA)

    def test_a_run_of_unknown_data_is_counted_with_everything(self, tmp_path):
        write(tmp_path / "a")
        mine = replace(self.planned(), data="")
        with pytest.raises(ArgumentError, match="1 run before it"):
            refuse_beyond(epsilon_of(MU * 1.2, DELTA), mine, [tmp_path], delta=DELTA)

    def test_the_run_itself_counts_once(self, tmp_path):
        begun = write(tmp_path / "a", ledger([(1.0, 2.0, 7)]), closed=False)
        mine = replace(SOME, closed=True, data=begun.data)
        refuse_beyond(epsilon_of(MU, DELTA) * (1 + 1e-9), mine, [tmp_path], delta=DELTA)

    def test_the_smallest_delta_of_the_same_data_is_taken(self, tmp_path):
        mine, limit = self.planned(), epsilon_of(MU, DELTA) * 1.01
        refuse_beyond(limit, mine, [], delta=DELTA)
        with pytest.raises(ArgumentError, match="1e-6"):
            refuse_beyond(limit, mine, [], delta=1e-6)

    @pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
    def test_a_limit_is_a_positive_number(self, limit):
        with pytest.raises(ArgumentError, match="limit: must be a positive number"):
            refuse_beyond(limit, self.planned(), [], delta=DELTA)


class TestCommand:
    def ask(self, *arguments):
        return CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False)

    def test_the_table_and_what_is_left(self, tmp_path):
        write(tmp_path / "a")
        write(tmp_path / "b")
        done = self.ask(tmp_path, "--limit", 10)
        assert done.return_value == 0
        assert "total: ε ≤ 7.512 at δ = 1e-5" in done.output
        assert "limit: 10, of which 2.488 is left" in done.output
        assert "(replace one example); μ² add up to 1.581²" in done.output
        done = self.ask(tmp_path, "--limit", 7.5)
        assert done.return_value == 1
        assert "limit: 7.5 is exceeded" in done.output

    def test_json(self, tmp_path):
        write(tmp_path / "a")
        write(tmp_path / "b", voids=["found"])
        done = self.ask(tmp_path, "--json", "--limit", 3, "--delta", 1e-6)
        found = json.loads(done.output)
        assert done.return_value == 1
        assert (found["delta"], found["limit"]) == (1e-6, 3.0)
        (data,) = found["data"]
        assert data["epsilon"] is None
        assert data["bounded_epsilon"] == pytest.approx(epsilon_of(MU, 1e-6))
        assert [r["epsilon"] is None for r in data["runs"]] == [False, True]
        assert {"path", "epsilon", "closed", "released"} <= set(data["runs"][0])

    def test_nothing_there(self, tmp_path):
        done = self.ask(tmp_path, "--limit", 1)
        assert (done.return_value, done.output) == (0, f"no runs below {tmp_path}\n")

    def test_a_delta_that_guarantees_nothing_is_refused(self, tmp_path):
        write(tmp_path / "a")
        with pytest.raises(InputError, match="must be below 1/n"):
            budget([tmp_path], 0.5)


BOTH = 3.9  # less than two runs of ε = 3 cost, and more than one and some steps of another


class TestUnderWay:
    """Runs that may go on count to their end, wherever they are."""

    @pytest.fixture
    def chosen(self):
        return config.load("digits", ("train.epochs=6", "privacy.epsilon=3.0"))

    def within(self, folder, limit=BOTH, own=None):
        return lambda planned: refuse_beyond(limit, planned, [folder], delta=DELTA, own=own)

    def test_an_interrupted_run_counts_to_its_end_while_it_may_go_on(
        self, tmp_path, monkeypatch, chosen
    ):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        with pytest.raises(InputError, match=r"limit:.*1 run before it paid 3, with .*cut to the"):
            run(chosen, tmp_path / "b", show_progress=False, approve=self.within(tmp_path))
        assert not (tmp_path / "b").exists()
        (Run(tmp_path / "cut").private_path / "checkpoint.pt").unlink()
        run(chosen, tmp_path / "b", show_progress=False, approve=self.within(tmp_path))

    def test_a_copy_without_its_private_part_hides_nothing(self, tmp_path, monkeypatch, chosen):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        (tmp_path / "a").mkdir()
        for name in ("config.toml", "ledger.jsonl"):
            shutil.copy(tmp_path / "cut" / name, tmp_path / "a" / name)
        with pytest.raises(InputError, match="1 run before it paid 3"):
            run(chosen, tmp_path / "b", show_progress=False, approve=self.within(tmp_path))

    def test_a_run_may_go_on_within_what_it_has_planned(self, tmp_path, monkeypatch, chosen):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        approve = self.within(tmp_path, 3.0, own=tmp_path / "cut")
        run(chosen, tmp_path / "cut", show_progress=False, resume=True, approve=approve)
        assert not (Run(tmp_path / "cut").private_path / "plan.jsonl").exists()

    def test_of_two_that_begin_at_once_one_is_refused(self, tmp_path, chosen):
        def meanwhile(planned):
            with pytest.raises(InputError, match=r"1 run before it paid 3, with .*a to the end"):
                run(chosen, tmp_path / "b", show_progress=False, approve=self.within(tmp_path))
            self.within(tmp_path)(planned)

        run(chosen, tmp_path / "a", show_progress=False, approve=meanwhile)
        assert paid(tmp_path) == [(1, pytest.approx(3.0, abs=1e-3))]

    def test_a_tune_that_begins_is_seen(self, tmp_path):
        def meanwhile(planned):
            (found,) = budget([tmp_path], DELTA).data
            assert found.runs[0].ledger.tuned == planned.tuned
            raise InputError("seen")

        with pytest.raises(InputError, match="seen"):
            tuned(tmp_path / "tune", approve=meanwhile)
        assert not (tmp_path / "tune").exists()

    def test_a_run_of_python_counts_to_its_end(self, tmp_path):
        interrupted(tmp_path / "a", 4)
        (begun,) = found_below([tmp_path])
        (end,) = begun.at_the_end()
        assert (begun.ledger.steps, end.ledger.steps, end.goes_on) == (4, 12, True)
        with pytest.raises(InputError, match="other settings"):
            train(tmp_path / "a", resume=True, epochs=1)
        assert begun.at_the_end() == [end]  # a run that is refused leaves the plan as it was

    def test_a_copy_that_goes_on_with_fresh_noise_is_another_run(
        self, tmp_path, monkeypatch, chosen
    ):
        one, two = tmp_path / "one", tmp_path / "two"
        cut(monkeypatch, chosen, one, steps=2)
        shutil.copytree(one, two)
        run(chosen, one, show_progress=False, resume=True, approve=self.within(tmp_path, own=one))
        before = (two / "private" / "plan.jsonl").read_bytes()
        monkeypatch.setattr(recorder, "same_ranks", lambda *_: False)
        go_on = {"show_progress": False, "resume": True}
        with pytest.raises(InputError, match="1 run before it paid 3;"):
            run(chosen, two, **go_on, approve=self.within(tmp_path, own=two))
        assert (two / "private" / "plan.jsonl").read_bytes() == before
        run(chosen, two, **go_on, approve=self.within(tmp_path, 5.0, own=two))
        assert [len(data.runs) for data in budget([tmp_path]).data] == [2]

    def test_a_run_that_may_not_end_counts_as_if_all_of_it_were_seen(
        self, tmp_path, monkeypatch, chosen
    ):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        ledger, more = at_its_end(Run(tmp_path / "cut"))
        assert (ledger.steps, ledger.closed, more) == (6, False, True)

    def test_what_a_folder_has_forgotten_its_ledger_may_know(self, tmp_path, monkeypatch, chosen):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        shutil.copy(tmp_path / "cut" / "ledger.jsonl", tmp_path / "kept.jsonl")
        run(chosen, tmp_path / "cut", show_progress=False, resume=True)
        shutil.rmtree(tmp_path / "cut" / "private")
        (tmp_path / "cut" / "metrics.jsonl").unlink()
        lines = (tmp_path / "cut" / "ledger.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "kept.jsonl").write_text("".join(lines[:-1]))
        (tmp_path / "cut" / "ledger.jsonl").write_text("".join(lines[:-3]))
        (found,) = found_below([tmp_path])
        steps = [end.ledger.steps for one in [found] for end in one.at_the_end()]
        assert steps == [6, 4]

    def test_a_run_that_is_refused_takes_no_other_with_it(self, tmp_path, chosen):
        def meanwhile(planned):
            run(chosen, tmp_path / "runs" / "b", show_progress=False)
            raise InputError("refused")

        with pytest.raises(InputError, match="refused"):
            run(chosen, tmp_path / "runs", show_progress=False, approve=meanwhile)
        assert [len(data.runs) for data in budget([tmp_path]).data] == [1]
        assert os.listdir(tmp_path / "runs") == ["b"]

    def test_what_vanishes_while_it_is_looked_at_is_looked_at_again(self, tmp_path, monkeypatch):
        write(tmp_path / "a")
        asked, walk = [], os.walk

        def vanishing(folder, onerror):
            asked.append(folder)
            if len(asked) == 1:
                onerror(FileNotFoundError(2, "No such file or directory", "b"))
            return walk(folder, onerror=onerror)

        monkeypatch.setattr(os, "walk", vanishing)
        assert (len(found_below([tmp_path])), len(asked)) == (1, 2)

    def test_a_run_is_beside_others_whatever_its_path_looks_like(self, tmp_path):
        (tmp_path / "a" / "private").mkdir(parents=True)
        (tmp_path / "far").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "far")
        assert set(around(tmp_path / "a" / "private" / "..")) == {tmp_path}
        assert set(around(tmp_path / "link" / "b")) == {tmp_path / "link", tmp_path / "far"}

    def test_what_voids_a_run_that_is_under_way_counts(self, tmp_path, monkeypatch, chosen):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        writer = LedgerWriter(Run(tmp_path / "cut").ledger().header)
        writer.reopen(tmp_path / "cut" / "ledger.jsonl")
        writer.void("found")
        writer.pause()
        with pytest.raises(InputError, match="will have paid ε = ∞"):
            run(chosen, tmp_path / "b", show_progress=False, approve=self.within(tmp_path))

    @pytest.mark.parametrize("steps", [0, 2])
    def test_a_plan_that_is_lost_is_not_taken_for_nothing(
        self, tmp_path, monkeypatch, chosen, steps
    ):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=steps)
        (Run(tmp_path / "cut").private_path / "plan.jsonl").unlink()
        with pytest.raises(InputError, match=r"plan\.jsonl: cannot be read, and the run may go on"):
            run(chosen, tmp_path / "b", show_progress=False, approve=self.within(tmp_path))
        assert budget([tmp_path]).data  # which counts what was done

    @pytest.mark.parametrize("change", ["cut", "end", "stale", "other run", "other settings"])
    def test_a_plan_that_is_not_of_the_run_is_not_counted_by(
        self, tmp_path, monkeypatch, chosen, change
    ):
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        folder = Run(tmp_path / "cut")
        path = folder.private_path / "plan.jsonl"
        plan = Ledger.read(path)
        text = {
            "cut": text_of(replace(plan, closed=False, runs=plan.runs[:1])),
            "end": text_of(replace(plan, closed=False)),
            "stale": text_of(replace(plan, runs=[replace(plan.runs[0], steps=1)])),
            "other run": text_of(replace(plan, data=sealed("other"))),
            "other settings": text_of(replace(plan, header=replace(plan.header, examples=9))),
        }[change]
        path.write_text(text)
        with pytest.raises(InputError, match=r"plan\.jsonl: is not the whole plan of this run"):
            at_its_end(folder)
        assert budget([tmp_path]).data  # which counts what was done


class TestRuns:
    """From configurations and from Python."""

    @pytest.fixture(scope="class")
    def runs(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("budget")
        for name, method, more in (
            ("a", None, ()),
            ("b", "dpsgd", ("data.limit=300", "train.batch_size=50", "privacy.delta=1e-6")),
            ("c", None, ("audit.canaries=10", "data.public=50", "train.seed=1")),
        ):
            run(config.load("digits", (*SMALL, *more), method), folder / name, show_progress=False)
        return folder

    def test_limits_canaries_and_public_parts_do_not_change_whose_data_they_are(self, runs):
        (found,) = budget([runs]).data
        assert (len(found.runs), found.names) == (3, ["digits"])
        assert found.total.delta == 1e-6  # the smallest
        ledgers = [Run(runs / name).ledger() for name in "abc"]
        assert found.epsilon == account_together(ledgers, 1e-6).epsilon
        assert found.epsilon > max(account(one, 1e-6).epsilon for one in ledgers)

    def test_no_two_ledgers_share_anything_about_their_data(self, runs):
        seals = [Run(runs / name).ledger().data for name in "abc"]
        parts = {s[i : i + 32] for s in seals for i in (0, 32, 64)}
        assert len(parts) == 9

    def test_a_run_beyond_the_limit_writes_nothing(self, runs):
        chosen = config.load("digits", SMALL)

        def approve(planned):
            assert planned.steps == Run(runs / "a").ledger().steps
            refuse_beyond(3.5, planned, [runs], delta=DELTA)

        with pytest.raises(InputError, match="3 runs before it paid"):
            run(chosen, runs / "d", show_progress=False, approve=approve)
        assert not (runs / "d").exists()

    def test_a_run_that_goes_on_keeps_its_seal_and_counts_once(self, tmp_path, monkeypatch):
        chosen = config.load("digits", ("train.epochs=6", "privacy.epsilon=3.0"))
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        before, shown = Run(tmp_path / "cut").ledger(), []
        approved = {"approve": lambda planned: shown.append(planned)}
        run(chosen, tmp_path / "cut", show_progress=False, resume=True, **approved)
        after = Run(tmp_path / "cut").ledger()
        assert before.data == after.data != ""
        assert (shown[0].runs, shown[0].data) == (after.runs, after.data)
        refuse_beyond(3.0, shown[0], [tmp_path], delta=DELTA)

    def test_a_run_on_other_data_is_not_gone_on_with(self, tmp_path, monkeypatch):
        chosen = config.load("digits", ("train.epochs=6", "privacy.epsilon=3.0"))
        cut(monkeypatch, chosen, tmp_path / "cut", steps=2)
        path, previous, lines = tmp_path / "cut" / "ledger.jsonl", "", []
        for line in path.read_text().splitlines():
            record = {k: v for k, v in json.loads(line).items() if k != "hash"}
            record = {**record, "seal": sealed("other")} if record["kind"] == "data" else record
            previous = chain(previous, record)
            lines.append(json.dumps({**record, "hash": previous}) + "\n")
        path.write_text("".join(lines))
        (tmp_path / "cut" / "private" / "tail.json").unlink()
        with pytest.raises(InputError, match="cut: belongs to a run on other data"):
            run(chosen, tmp_path / "cut", show_progress=False, resume=True)

    def test_in_python_data_are_known_by_their_examples_or_their_name(self, tmp_path):
        x, y = torch.randn(40, 6), torch.arange(40) % 3
        more = (torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))

        def identity(data, **options):
            step, _ = prepare(nn.Linear(6, 3), data, batch_size=10, noise=1.0, **options)
            return seal.opened(seal.own_key(), step.writer.ledger.data)

        assert identity((x, y)) == identity((x.clone(), y.clone()))
        assert identity((x, y)) != identity(more)
        assert identity((x, y)).isdisjoint(identity(more))
        assert identity((x, y), dataset="ward-7") & identity(more, dataset="ward-7")
        assert identity((x, y), dataset="ward-7") & identity((x, y), dataset="ward-8")
        assert identity((x, y), dataset="ward-7") & identity((x, y))
        assert identity((x, y), dataset="ward-7").isdisjoint(identity(more))

    def test_a_name_is_a_text(self):
        with pytest.raises(InputError, match=r"privacy\.dataset: must be a name"):
            config.load("digits", ("privacy.dataset=5",))
