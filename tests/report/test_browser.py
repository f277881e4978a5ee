"""The page in a real browser, as a person uses it: wide, dark on a phone, and on paper."""

import json
import re
import shutil

import pytest

from dpdt import config
from dpdt.report import pages
from dpdt.runs import Run
from dpdt.training import run as running
from tests.report.conftest import LOOKS, RIGHT, opened, shot

SHORT = ("train.epochs=3", "privacy.epsilon=3.0")
MEASURED = {"epsilon": 0.7654, "confidence": 0.95, "how": "one-run audit"}
AUDIT = {
    "attacks": [], "thresholds": "own", "one_run": {"right": 61, "guesses": 97}, "refuted": [],
    "claims_refuted": ["paper"], "privacy": {"measured": MEASURED},
}  # fmt: skip
SHOWN = "() => document.querySelector('#run1-epochs .plot').data.map((c) => c.visible !== false)"
GROUND = "() => getComputedStyle(document.body).backgroundColor"
OPEN = "() => document.querySelectorAll('details:not([open])').length"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of a network with layers of three kinds and claims, and one whose name is hostile."""
    folder = tmp_path_factory.mktemp("browser")
    running.run(config.load("paper-small", SHORT), folder / "first", show_progress=False)
    Run(folder / "first").write_audit(AUDIT)
    evil = folder / "<b>bold<img src=x onerror=alert(1)>"
    return folder / "first", shutil.copytree(folder / "first", evil)


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def look(request):
    return request.param


def address_of(path, runs, **options):
    path.write_text(pages.page(runs, **options), "utf-8")
    return path.as_uri()


def hovered(page):
    return page.locator(".hoverlayer text").all_text_contents()


def test_one_run_as_a_person_looks_at_it(chromium, look, runs, tmp_path):
    with opened(chromium, address_of(tmp_path / "report.html", runs[:1]), look) as page:
        page.locator("#run1-kinds .main-svg").first.wait_for()
        charts = page.locator("figure.chart")
        assert charts.count() == 4
        for i in range(4):
            assert charts.nth(i).locator(".plot > .plot-container svg.main-svg").count() > 0
            assert charts.nth(i).locator(".plot").get_attribute("aria-label")
        shot(page, "report")
        assert page.evaluate(RIGHT) <= look[1]
        light = sum(map(int, re.findall(r"\d+", page.evaluate(GROUND))[:3])) > 384
        assert light == (look[0] == "light")

        names = page.locator("#run1-epochs .toggles label").all_inner_texts()
        assert [name.split()[0] for name in names] == ["composition", "paper", "paper-per-block"]
        page.get_by_role("checkbox", name=names[0], exact=True).uncheck()
        assert page.evaluate(SHOWN) == [False, True, True]
        page.get_by_role("checkbox", name=names[0], exact=True).press("Space")
        assert page.evaluate(SHOWN) == [True, True, True]

        page.locator("#run1-epochs .point").last.hover(force=True)
        page.locator(".hoverlayer text").first.wait_for()
        assert any("epoch 3" in text for text in hovered(page))
        page.mouse.move(0, 0)
        page.locator(".hoverlayer text").first.wait_for(state="detached")
        plot = page.locator("#run1-attacker .plot")
        plot.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert any("true positives at most" in text for text in hovered(page))
        page.keyboard.press("Tab")
        assert hovered(page) == []


def test_three_epsilons_on_one_axis_if_private_numbers_are_asked_for(chromium, runs, tmp_path):
    address = address_of(tmp_path / "report.html", runs[:1], private=True)
    with opened(chromium, address, LOOKS[1]) as page:
        marks = page.locator("#run1-headline .ytick text")
        marks.first.wait_for()
        words = {text.split("ε")[0] for text in marks.all_text_contents()}
        assert words == {"proven", "claimed", "measured"}
        assert page.locator(".banner").is_visible()
        assert page.evaluate(RIGHT) <= LOOKS[1][1]


def test_several_runs_whatever_they_are_called(chromium, look, runs, tmp_path):
    with opened(chromium, address_of(tmp_path / "both.html", runs), look) as page:
        page.locator("#run2-kinds .main-svg").first.wait_for()
        assert page.locator("figure.chart b, figure.chart img, nav b, nav img").count() == 0
        assert runs[1].name in page.inner_text("nav")
        assert page.evaluate(RIGHT) <= look[1]


def test_on_paper_every_table_is_open_on_white(chromium, runs, tmp_path):
    with opened(chromium, address_of(tmp_path / "report.html", runs[:1]), ("dark", 800)) as page:
        closed = page.evaluate(OPEN)
        assert closed > 4
        page.emulate_media(media="print")
        page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(OPEN) == 0
        assert page.evaluate(GROUND) == "rgb(255, 255, 255)"
        page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(OPEN) == closed
        assert json.loads(page.locator("#run1-epochs script").text_content())["data"]
