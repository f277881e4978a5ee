"""A real browser for tests: the system's chromium, driven by playwright.

With DPDT_SHOTS=FOLDER the pictures that tests take on the way are kept. Those of docs/images/ that
end in .png are such pictures.
"""

import io
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

SHOTS = os.environ.get("DPDT_SHOTS")
LOOKS = [("light", 1280), ("dark", 360)]
RIGHT = """() => Math.max(document.documentElement.scrollWidth,
  ...[...document.querySelectorAll("main *")].filter((e) => !e.closest("pre, .scroll"))
    .map((e) => e.getBoundingClientRect().right))"""


@pytest.fixture(scope="module")
def chromium():
    """The browser. Where there is none, tests are skipped, and say what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium here; on Debian, apt-get install chromium")
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = started.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@contextmanager
def opened(chromium, address, look):
    """A page; at the end nothing may have been complained of, or asked of others."""
    scheme, width = look
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


def shot(page, name):
    """Keep a picture, in few colours: what is seen at once, or on a phone the whole page."""
    if SHOTS:
        width = page.viewport_size["width"]
        page.evaluate("() => window.scrollTo(0, 0)")
        taken = Image.open(io.BytesIO(page.screenshot(full_page=width < 500)))
        named = f"{name}.png" if width == LOOKS[0][1] else f"{name}-{width}.png"
        few = taken.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
        few.save(Path(SHOTS) / named, optimize=True)
