"""`dpdt report`: nothing private without --private, nothing that runs but two scripts."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from dpdt.cli.main import cli
from dpdt.errors import InputError
from dpdt.ledger import Block
from dpdt.releasing.making import release
from dpdt.report import compared, pages, training
from dpdt.report import facts as private
from dpdt.report.charts import COLOURS
from dpdt.report.diagnostics import PANELS
from dpdt.report.facts import kinds_of
from dpdt.report.privacy import over_epochs
from dpdt.runs import Run
from dpdt.tasks import METRICS
from tests.releasing.conftest import run_in
from tests.report.test_attacker import ledger_of

HOSTILE = "<img src=x onerror=alert(1)>%{x}</script>'\"&"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of two epochs, with the private files of an audit and of diagnostics."""
    run = run_in(tmp_path_factory.mktemp("report") / "first")
    attack = {"attack": "loss SECRET", "auc": 0.5123, "accuracy": 0.5321, "tpr_at_1e-2_fpr": 0.0234}
    measured = {"epsilon": 0.7654, "confidence": 0.95, "how": "one-run audit"}
    run.write_audit({
        "attacks": [attack], "thresholds": "own", "one_run": {"right": 61, "guesses": 97},
        "refuted": [], "claims_refuted": ["paper"], "privacy": {"measured": measured},
    })  # fmt: skip
    run.add_diagnostics({"step": 1, "share_cut": 0.4321, "share_step_bound": 0.1, "lr_limit": 1.0,
                         "noise_to_signal": 2.5, "lr_condition": True,
                         "global_lr_condition": True})  # fmt: skip
    return run.path


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "first")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Plotly's 5 MB are for the browser (test_browser.py)."""
    monkeypatch.setattr(pages, "_plotly", lambda: "/* the library */")


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.words = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words += data


def report(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], standalone_mode=False)


def test_the_public_page_is_the_same_without_the_private_folder(run):
    with_it = pages.page([run])
    shutil.rmtree(run / "private")
    assert pages.page([run]) == with_it
    assert "ε ≤" in with_it
    assert "An attacker who knows everyone else&#39;s records" in with_it


def test_private_numbers_need_to_be_asked_for(run):
    seen = Run(run).private_metrics()
    numbers = [f"{r['accuracy']:.2%}" for r in seen] + [str(r["loss"]) for r in seen]
    assert len(numbers) == 4
    secrets = [
        "SECRET",
        "0.7654",
        "61 of 97",
        "43%",
        "Accuracy",
        "Loss",
        'class="private"',
        *numbers,
    ]
    public, private = pages.page([run]), pages.page([run], private=True)
    body = public[public.index("<body") :]
    for secret in secrets:
        assert secret not in body, secret
        assert secret in private, secret
    assert "Do not pass this file on" in private
    assert "Do not pass" not in body


def test_diagnostics_and_metrics_of_any_task_are_drawn(run):
    """Only with --private. Curves that have no number at all are left out."""
    record = {name: 0.25 for _, _, curves in PANELS for name in curves}
    record |= {"global_bound": None, "step": 1, "noise_to_signal": 0.0}
    kept = Run(run)
    seen = private.facts(kept.path, private=True)
    assert seen.private is not None
    epochs = [dict.fromkeys(METRICS) | {"epoch": 1, "loss": 0.5, "mse": 0.125}]
    given = replace(seen, private=replace(seen.private, epochs=epochs, steps=[record, record]))
    found = {chart.key: chart for chart in training.charts(given)}
    assert found.keys() == {
        "mse", "loss", "what-limits-the-step", "loss-and-Lagrangian",
        "a-steps-changes-and-their-bounds", "distances",
    }  # fmt: skip
    assert found["mse"].rows == [["1", "0.125"]]
    limits, changes = found["what-limits-the-step"], found["a-steps-changes-and-their-bounds"]
    names = [trace["name"] for trace in limits.traces]
    assert names == ["share clipped", "share of blocks at the step bound"]
    assert changes.columns.count("its bound") == 1
    assert training.charts(replace(seen, private=None)) == []


def test_result_of_a_comparison_is_private_too(run):
    Run(run).write_result({"accuracy": 0.98765})
    assert "98765" not in pages.page([run])


def test_hostile_words_are_shown_and_not_obeyed(run, tmp_path):
    settings = (run / "config.toml").read_text().replace('"digits"', json.dumps(HOSTILE))
    evil = tmp_path / HOSTILE.replace("/", "∕")
    shutil.copytree(run, evil)
    (evil / "config.toml").write_text(settings)
    text = pages.page([evil, run], private=True)
    page = Elements(text)
    assert not [tag for tag, _ in page.found if tag in {"img", "iframe", "link", "object", "base"}]
    scripts = [given.get("type") for tag, given in page.found if tag == "script"]
    assert scripts.count(None) == 2
    for tag, given in page.found:
        assert not [name for name in given if name.startswith("on")], tag
        assert not re.match(r"\s*(https?:|//|javascript:|data:)", given.get("href") or "")
        assert "src" not in given
    assert HOSTILE in page.words  # in the table of settings
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    drawn = [json.loads(part) for part in found]
    assert len(drawn) == text.count("<figure")
    for text_of in (trace.get("name", "") for chart in drawn for trace in chart["data"]):
        assert "<" not in text_of
        assert "%" not in text_of


def test_policy_allows_two_scripts_and_no_network(run):
    (policy,) = (
        given["content"]
        for tag, given in Elements(pages.page([run])).found
        if given.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("'sha256-") == 2
    for word in ("connect-src", "img-src", "http", "eval", "script-src 'unsafe", "*"):
        assert word not in policy


def test_charts_have_words_and_tables(run):
    page = Elements(pages.page([run]))
    plots = [given for tag, given in page.found if given.get("class") == "plot"]
    assert len(plots) >= 3
    assert all(len(given["aria-label"]) > 20 and given["tabindex"] == "0" for given in plots)
    figures = [tag for tag, _ in page.found if tag in {"figure", "table"}]
    assert figures.count("table") >= figures.count("figure")


def test_several_runs_are_told_apart(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "more" / "first")
    text = pages.page([run, other], private=True)
    for word in ("The runs side by side", "first (2)", "same change of the data", "Accuracy over"):
        assert word in text
    with pytest.raises(InputError, match="is given twice"):
        pages.page([run, run / "."])


def test_runs_whose_names_begin_alike_have_places_of_their_own(run, tmp_path):
    names = [f"{'a-very-long-name-' * 4}{i}" for i in range(2)]
    runs = [private.facts(shutil.copytree(run, tmp_path / name)) for name in names]
    (proven, *_) = (chart := compared.epsilons(runs)).traces
    assert proven["y"] == chart.layout["yaxis"]["tickvals"] == ["0", "1"]
    for shown in chart.layout["yaxis"]["ticktext"]:
        assert all(len(line) <= 14 for line in shown.split("<br>"))


def test_accuracy_that_was_published_is_compared_and_no_other(run, tmp_path):
    other = replace(private.facts(run), name="other")
    method = replace(other.ledger.header, method="dpsgd")
    runs = [private.facts(run), replace(other, ledger=replace(other.ledger, header=method))]
    assert compared.trade_off(runs) is None
    said = [{"certificate": {"accuracy": {"value": a, "examples": 9}}} for a in (0.75, 0.5)]
    runs = [replace(each, released=told) for each, told in zip(runs, said, strict=True)]
    chart = compared.trade_off(runs)
    assert [trace["name"] for trace in chart.traces] == ["dpdt", "dpsgd"]
    assert [row[-1] for row in chart.rows] == ["75.00%", "50.00%"]
    assert "published" in chart.note
    assert chart.layout["xaxis"]["range"][0] == 0.0  # equal ε are not drawn apart
    seen = [replace(each, private=private.facts(run, private=True).private) for each in runs]
    assert "published" not in compared.trade_off(seen).note
    assert compared.trade_off(seen).rows[0][-1] != "75.00%"


def test_few_epochs_are_all_drawn():
    ledger = ledger_of(steps=6)
    assert over_epochs(ledger, 1e-5)["epochs"] == [*range(1, round(ledger.epochs) + 1)]
    assert over_epochs(ledger_of(steps=900), 1e-5, points=9)["epochs"][::8] == [1, 900]


def test_command_writes_where_it_says(run, tmp_path):
    done = report(run)
    assert done.exception is None
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert report(run).exception is None  # a run's own page is replaced
    assert report(run, "--private").exception is None
    assert (run / "private" / "report.html").stat().st_mode & 0o777 == 0o600
    out = tmp_path / "mine.html"
    assert report(run, "--out", out, "--private").exception is None
    assert out.stat().st_mode & 0o777 == 0o600
    before = out.read_bytes()
    assert "already exists" in str(report(run, "--out", out).exception)
    assert out.read_bytes() == before
    assert "not the folder of a run" in str(report(tmp_path).exception)
    assert "cannot be written" in str(report(run, "--out", tmp_path / "no" / "x.html").exception)


@pytest.mark.parametrize(
    ("file", "text"),
    [("audit.json", '{"one_run": 3}'), ("diagnostics.jsonl", '{"step": 1}\n')],
)
def test_damaged_private_files_are_named(run, file, text):
    (run / "private" / file).write_text(text)
    with pytest.raises(InputError, match="private"):
        pages.page([run], private=True)
    assert "ε ≤" in pages.page([run])


def test_certificate_is_told_if_it_is_the_runs_own(run):
    (run / "private" / "audit.json").unlink()
    release(run, description="ten <b>pairs</b>")
    text = pages.page([run])
    assert "ten &lt;b&gt;pairs&lt;/b&gt;" in text
    path = run / "release" / "certificate.json"
    path.write_text(path.read_text().replace("ten <b>", "six <b>"))
    text = pages.page([run])
    assert "six" not in text
    assert Run(run).released()["digest"] in text


def test_kinds_share_what_composition_adds_up():
    blocks = [Block(name=n, kind=k, size=s) for n, k, s in
              (("a", "conv", 3), ("b", "conv", 4), ("c", "linear", 5))]  # fmt: skip
    conv, linear = kinds_of(ledger_of(blocks=tuple(blocks), steps=4))
    assert (conv.share, linear.share) == pytest.approx((2 / 3, 1 / 3))
    assert (conv.blocks, conv.parameters, linear.parameters) == (2, 7, 5)
    assert kinds_of(ledger_of()) == []
    assert kinds_of(ledger_of(blocks=tuple(blocks), noise=0.0)) == []


def luminance(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_wcag_aa():
    style = pages.own("page.css")
    for scheme in re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", scheme))
        for name in ("text", "quiet", "link", "yes", "no"):
            assert contrast(colours[name], colours["ground"]) >= 4.5, name
        assert contrast(colours["text"], colours["panel"]) >= 4.5
        assert contrast(colours["on-alarm"], colours["alarm"]) >= 4.5
        for number, colour in enumerate(COLOURS):
            assert f".c{number} {{ border-color: {colour}; }}" in style
            assert contrast(colour, colours["ground"]) >= 3.0, colour
