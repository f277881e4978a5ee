"""Which accountants speak of a run, and the table that a user sees."""

import math
from dataclasses import replace

import pytest

from dpdt.accounting import ACCOUNTANTS, account, by_name
from dpdt.accounting.guarantee import Measurement, Privacy

from .test_composition import ledger
from .test_conformance import make
from .test_poisson import poisson

RUN = [(1.0, 1.0, 20)]
OTHER_METHODS = ("dpsgd", "gep", "pate", "plain")


def of(method, runs=RUN, **options):
    """The ledger of a run by another method."""
    run = ledger(runs, **options)
    return replace(run, header=replace(run.header, method=method))


def silent(run):
    """The accountants that do not support the run, with their reasons."""
    reasons = {a.name: a.unsupported(run.header) for a in ACCOUNTANTS}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def words(line):
    """The status and the accountant of a line."""
    return tuple(line.split("·")[0].split()[-2:])


class TestSupport:
    @pytest.mark.parametrize("memory", ["auxiliary", "shared", "none"])
    def test_algorithm_1_on_a_partition(self, memory):
        found = silent(ledger(RUN, memory=memory))
        assert set(found) == ({"hidden-state-convex"} if memory != "none" else set())
        assert all(f"memory is {memory}" in reason for reason in found.values())

    @pytest.mark.parametrize("method", OTHER_METHODS)
    def test_what_is_known_of_algorithm_1_is_not_known_of_others(self, method):
        found = silent(of(method))
        assert set(found) == {a.name for a in ACCOUNTANTS} - {"composition"}
        for reason in found.values():
            assert reason == f"the bound is about Algorithm 1; this run is {method}"

    def test_poisson_sampling(self):
        found = silent(poisson(RUN))
        assert set(found) == {"hidden-state-convex", "paper", "paper-per-block"}
        assert all("this run samples by Poisson" in reason for reason in found.values())

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"memory": "auxiliary"}, "not accounted with memory auxiliary"),
            ({"unit": "shard"}, "the unit is shard"),
            ({"relation": "replace-one"}, "replace-one is not accounted"),
        ],
    )
    def test_composition_under_poisson_sampling(self, change, reason):
        """No configuration makes such runs, but a ledger could say so."""
        privacy = account(poisson(RUN, **change), 1e-5)
        assert privacy.proven is None
        first = str(privacy).splitlines()[0]
        assert first.startswith("no ε is proven: ")
        assert reason in first

    @pytest.mark.parametrize("run", [of("dpsgd"), of("dpsgd", []), poisson(RUN), poisson([])])
    def test_without_support_there_is_no_number(self, run):
        reasons = silent(run)
        for guarantee in account(run, 1e-5).guarantees:
            if guarantee.accountant in reasons:
                assert guarantee.epsilon == math.inf
                assert guarantee.mu is None
                assert not guarantee.valid
                assert guarantee.failed.why == reasons[guarantee.accountant]

    @pytest.mark.parametrize("run", [of("dpsgd"), poisson(RUN), make(), make(private=False)])
    def test_json_lists_every_accountant(self, run):
        listed = account(run, 1e-5).as_json()["guarantees"]
        assert [g["accountant"] for g in listed] == [a.name for a in ACCOUNTANTS]
        assert all(g["conditions"] for g in listed)


class TestTable:
    def test_the_headline_then_what_holds_then_claims(self):
        run = make(steps=4000, decay=0.5, noise=3.0)
        run.closed = True
        privacy = account(run, 1e-5)
        lines = str(privacy).splitlines()
        assert [words(line) for line in lines] == [
            ("proven", privacy.proven.accountant),
            ("holds", "composition"),
            ("holds", "hidden-state-contraction"),
            ("claimed", "paper"),
            ("claimed", "paper-per-block"),
        ]
        assert privacy.proven.accountant == "hidden-state-convex"
        assert "replace one example · δ = 1e-5 · last iterate" in lines[0]
        assert all(line.startswith("ε ≤ ") for line in lines[:3])
        assert all(line.startswith("ε = ") and "not valid here: " in line for line in lines[3:])
        assert privacy.hidden == 0
        assert privacy.table(all=True) == str(privacy)

    def test_what_does_not_apply_is_left_out(self):
        privacy = account(ledger(RUN), 1e-5)
        lines = str(privacy).splitlines()
        assert [words(line) for line in lines[:-1]] == [
            ("far", "composition"), ("claimed", "paper"), ("claimed", "paper-per-block"),
        ]  # fmt: skip
        assert lines[-1].startswith("not closed")
        assert privacy.hidden == 2
        lines = privacy.table(all=True).splitlines()
        assert [words(line) for line in lines[3:-1]] == [
            ("bound", "hidden-state-convex"), ("bound", "hidden-state-contraction"),
        ]  # fmt: skip
        assert "this run's memory is auxiliary" in lines[3]
        assert "there is no L2 weight decay on θ" in lines[4]

    @pytest.mark.parametrize("method", OTHER_METHODS)
    def test_the_paper_claims_nothing_about_other_methods(self, method):
        privacy = account(of(method), 1e-5)
        assert "paper" not in str(privacy)
        assert privacy.hidden == 4
        assert privacy.table(all=True).count("the bound is about Algorithm 1") == 4

    def test_measured_comes_last(self):
        run = ledger(RUN)
        run.closed = True
        measured = Measurement(epsilon=0.5, confidence=0.95, how="one-run audit")
        privacy = replace(account(run, 1e-5), measured=measured)
        for table in (str(privacy), privacy.table(all=True)):
            assert table.splitlines()[-1].startswith("ε ≥ 0.5       measured  one-run audit")

    @pytest.mark.parametrize(
        ("run", "why"),
        [
            (ledger(RUN, private=False), "a fixed seed was used"),
            (ledger([(1.0, 0.0, 3)]), "the bound is infinite, as it is without noise"),
            (of("plain", [(0.0, 0.0, 3)]), "the bound is infinite, as it is without noise"),
            (poisson(RUN, memory="auxiliary"), "not accounted with memory auxiliary"),
        ],
    )
    def test_a_table_without_a_headline_says_why(self, run, why):
        privacy = account(run, 1e-5)
        for table in (str(privacy), privacy.table(all=True)):
            first, *others = table.splitlines()
            assert first.startswith("no ε is proven: ")
            assert why in first
            assert not any("proven" in line or line.startswith("ε ≤") for line in others)

    def test_a_void_run_has_no_headline_but_its_claims(self):
        run = make()
        run.voids.append("the source of noise was replaced")
        lines = str(account(run, 1e-5)).splitlines()
        assert lines[0] == "no ε is proven: the source of noise was replaced"
        claims = [words(line)[1] for line in lines if "claimed" in line]
        assert claims == ["composition", "paper", "paper-per-block"]

    def test_no_accountant_at_all(self):
        privacy = Privacy(
            delta=1e-5, unit="example", relation="replace-one", steps=1, epochs=1.0
        )  # fmt: skip
        assert str(privacy) == "no ε is proven: no accountant was asked"

    def test_no_steps_cost_nothing(self):
        assert str(account(of("dpsgd", []), 1e-5)).startswith("ε ≤ 0         so far")
        assert by_name("hidden-state-contraction").guarantee(make(0), 1e-5).epsilon == 0.0
