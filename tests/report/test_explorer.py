"""The explorer in a real browser."""

import re
import shlex
import threading

import pytest
from click.testing import CliRunner

from dpdt.cli.main import cli
from dpdt.report import loopback
from dpdt.report.choices import Source, controls
from tests.report.conftest import LOOKS, RIGHT, opened, shot

IDLE = "() => document.querySelectorAll('.pending').length === 0"
ENDS = "() => document.querySelector('#curves .js-plotly-plot').data.map((c) => c.y.at(-1))"
LAST = "() => document.querySelector('#curves .js-plotly-plot').data[0].x.at(-1)"


@pytest.fixture(scope="module")
def address():
    explorer = pytest.importorskip("dpdt.report.explorer", reason="dash is not installed")
    token = loopback.new_token()
    page = explorer.application(Source(name="cifar10-small"), token)
    with loopback.server(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.port}/{token}/"
        server.shutdown()
        thread.join()


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def page(request, chromium, address):
    with opened(chromium, address, request.param) as page:
        yield page


def says(page, name, words):
    """Wait until a part of the page says so, and all that follows has followed."""
    page.locator(f"#{name}", has_text=re.compile(rf"{re.escape(words)}(?![0-9])")).wait_for()
    page.wait_for_function(IDLE)


def seen(page):
    """What a reader sees of a position."""
    page.locator("#costs li").first.wait_for()
    page.locator("#curves .scatterlayer .trace").first.wait_for()
    page.wait_for_function(IDLE)
    return page.inner_text("#headline"), page.inner_text("#costs"), page.evaluate(ENDS)


def test_the_page_follows_whoever_uses_it(page):
    before, width = seen(page), page.viewport_size["width"]
    sliders = page.locator("[role=slider]")
    names = [sliders.nth(i).get_attribute("aria-label") for i in range(sliders.count())]
    assert len(names) > 7
    assert all(names)

    page.locator("#slide-epochs [role=slider]").focus()
    page.keyboard.press("ArrowRight")
    says(page, "command", "epochs=7")
    assert page.input_value("#at-epochs") == "7"
    assert all(a != b for a, b in zip(before, seen(page), strict=True))

    (steps,) = [c.values for c in controls(Source(name="cifar10-small")) if c.name == "epochs"]
    last = steps[steps.index("7") + 5]
    for _ in range(6):  # faster than answers come
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    says(page, "command", f"epochs={last}")
    assert page.evaluate(LAST) == int(last)
    page.fill("#at-epochs", "7")
    page.keyboard.press("Enter")
    says(page, "command", "epochs=7")

    page.locator("#at-memory input[value=shared]").check()
    says(page, "costs", "memory shared, not auxiliary as in cifar10-small")
    shot(page, "explore")
    told = CliRunner().invoke(cli, shlex.split(page.inner_text("#command"))[1:]).stdout
    (number,) = re.findall(r"ε ≤ (\S+)", page.inner_text("#headline"))
    assert told.startswith(f"ε ≤ {number} ")
    assert page.evaluate(RIGHT) <= width

    for name in ("command", "toml"):
        page.locator(f"#copy-{name}").click()
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert copied.strip() == page.locator(f"#{name}").text_content().strip()

    page.fill("#at-epochs", "-3")
    page.keyboard.press("Enter")
    says(page, "headline", "train.epochs: must be a whole number")
    page.locator("#costs li").first.wait_for(state="detached")
    assert page.locator("#curves .scatterlayer .trace").count() == 0
    assert [page.inner_text(f"#{name}") for name in ("command", "toml")] == ["", ""]
    assert page.evaluate(RIGHT) <= width
