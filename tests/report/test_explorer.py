"""The explorer in a real browser. Skipped where there is no chromium or no playwright.

With DPDT_SHOTS=FOLDER the pictures that are taken on the way are kept. docs/images/explore.png is
one of them.
"""

import io
import os
import re
import shlex
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from dpdt.cli.main import cli
from dpdt.report import loopback
from dpdt.report.choices import Source, controls

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
SHOTS = os.environ.get("DPDT_SHOTS")
LOOKS = [("light", 1280), ("dark", 360)]
IDLE = "() => document.querySelectorAll('.pending').length === 0"
ENDS = "() => document.querySelector('#curves .js-plotly-plot').data.map((c) => c.y.at(-1))"
LAST = "() => document.querySelector('#curves .js-plotly-plot').data[0].x.at(-1)"
RIGHT = """() => Math.max(document.documentElement.scrollWidth,
  ...[...document.querySelectorAll("main *")].filter((e) => !e.closest("pre"))
    .map((e) => e.getBoundingClientRect().right))"""


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


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def page(request, chromium, address):
    """The page, opened; at the end nothing may have been complained of, or asked of others."""
    scheme, width = request.param
    context = chromium.new_context(
        viewport={"width": width, "height": 960}, color_scheme=scheme, reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )  # fmt: skip
    page, complaints = context.new_page(), []
    page.set_default_timeout(60_000)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: r.url.startswith((address, "data:")) or complaints.append(r.url))
    page.goto(address)
    yield page
    context.close()
    assert complaints == []


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


def shot(page, name):
    """Keep a picture, in few colours: what is seen at once, or on a phone the whole page."""
    if SHOTS:
        whole = page.viewport_size["width"] < 500
        page.evaluate("() => window.scrollTo(0, 0)")
        taken = Image.open(io.BytesIO(page.screenshot(full_page=whole)))
        taken.convert("RGB").quantize(200).save(Path(SHOTS) / f"{name}.png", optimize=True)


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
    shot(page, "explore" if width == 1280 else f"explore-{width}")
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
