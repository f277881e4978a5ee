"""The documentation site is built without a warning, and its pages ask nothing of the network."""

import os
import re
import subprocess
import sys
from html import unescape

import click
import pytest

from dpdt.cli.main import COMMANDS, cli
from tests.docs.pages import ROOT

LOADS = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*?\b(?:src|href)=\"?(https?:|//)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site):
    made = {path.stem for path in site.glob("*.html")} - {"404"}
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert made == written | {"index", "commands", "contributing", "changes"}


def test_no_page_loads_anything_from_elsewhere(site):
    assert LOADS.search('<link rel="stylesheet" href="https://fonts.example/css">')
    assert LOADS.search("<script async src=//cdn.example/x.js>")
    for page in site.glob("*.html"):
        text = page.read_text("utf-8")
        assert LOADS.search(text) is None, page.name
        assert "mermaid" not in text, page.name  # the theme would fetch a script for it
        assert "api.github.com" not in text, page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:|//)", sheet.read_text("utf-8"))


def test_the_command_page_has_every_command_and_option(site):
    text = unescape(re.sub(r"<[^>]+>", "", (site / "commands.html").read_text("utf-8")))
    context, written = click.Context(cli), (ROOT / "docs" / "commands.md").read_text("utf-8")
    for name in COMMANDS:
        assert f"\ndpdt {name}" in written
        part = text[text.index(f"\ndpdt {name} [") :]
        for parameter in cli.get_command(context, name).params:
            if isinstance(parameter, click.Option):
                assert max(parameter.opts) in part


def test_the_python_page_has_every_public_name(site):
    import dpdt

    text = (site / "api.html").read_text("utf-8")
    for name in dpdt.__all__:
        assert f"dpdt.{name}" in text
