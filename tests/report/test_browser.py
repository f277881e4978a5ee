"""The page in a real browser. Skipped where there is no chromium."""

import json
import re
import shutil
import subprocess

import pytest

from dpdt.report import pages
from tests.releasing.conftest import run_in

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--enable-logging=stderr", "--virtual-time-budget=20000")  # fmt: skip
# Goes behind page.js: uses the page as a person would, and leaves what it saw in the document.
USE = """
const first = document.querySelector("#run1-attacker");
const plot = first.querySelector(".plot");
const seen = { lines: first.querySelectorAll(".scatterlayer .trace").length };
first.querySelector("input[data-trace='0']").click();
seen.toggled = plot.data[0].visible === false;
first.querySelector("input[data-trace='0']").click();
seen.back = plot.data[0].visible === true;
for (let i = 0; i < 3; i += 1)
  plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
seen.hovered = [...plot.querySelectorAll(".hoverlayer text")].map((t) => t.textContent).join(" ");
seen.charts = document.querySelectorAll("figure.chart").length;
seen.drawn = document.querySelectorAll("figure.chart .plot > .plot-container svg.main-svg").length;
document.documentElement.style.width = "340px";
seen.bold = document.querySelectorAll("figure.chart b, figure.chart img").length;
Promise.all([...document.querySelectorAll(".plot")].map((p) => Plotly.Plots.resize(p))).then(() => {
  const drawn = [...document.querySelectorAll(".main-svg")];
  seen.width = Math.max(document.body.scrollWidth,
    ...drawn.map((svg) => svg.getBoundingClientRect().right));
  document.body.dataset.seen = JSON.stringify(seen);
});
"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_a_browser_draws_everything_and_complains_of_nothing(tmp_path, monkeypatch):
    run = run_in(tmp_path / "<b>bold<img src=x onerror=alert(1)>")
    own = pages.own
    monkeypatch.setattr(pages, "own", lambda name: own(name) + (USE if name == "page.js" else ""))
    path = tmp_path / "report.html"
    path.write_text(pages.page([run.path, shutil.copytree(run.path, tmp_path / "other")]), "utf-8")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    (found,) = re.findall(r'data-seen="([^"]*)"', done.stdout)
    seen = json.loads(found.replace("&quot;", '"'))
    assert seen["charts"] >= 7
    assert seen["drawn"] >= seen["charts"]
    assert (seen["lines"], seen["toggled"], seen["back"]) == (2, True, True)
    assert "true positives at most" in seen["hovered"]
    assert seen["width"] <= 340
    assert seen["bold"] == 0
