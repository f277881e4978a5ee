"""Every code block and command of README and docs is run as it stands, or at least checked."""

import os
import re
import shutil

import click
import pytest
from markdown_it import MarkdownIt

from dpdt.errors import InputError
from tests.docs.pages import COMMAND, PAGES, ROOT, Block, blocks, check, run, wrapper

pytestmark = pytest.mark.usefixtures("threads_of_users")
FIRST = """
dpdt train digits --set audit.canaries=200 --out runs/first
dpdt audit runs/first
dpdt release runs/first --description "handwritten digits of scikit-learn"
"""
README, *DOCS = PAGES  # README is run by test_readme.py
RUN = [page for page in DOCS if any(block.runs for block in blocks(page))]

SURE = re.compile(
    r"(ε [≤=]|noise for| *\d+ epochs: exact|\d\.\d+ \d\.\d+$)"
)  # the same in every run


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The run that the tutorial makes, and that other pages speak of as runs/first."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(Block("sh", "", FIRST, 1), {})
    return folder


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_stands_on_a_page_runs(page, request, tmp_path, monkeypatch, capsys):
    (tmp_path / "bin").mkdir()
    wrapper(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    run_blocks = [block for block in blocks(page) if block.runs]
    text = "".join(block.text for block in run_blocks)
    if "runs/first" in text and "--out runs/first\n" not in text:
        shutil.copytree(request.getfixturevalue("first") / "runs", tmp_path / "runs")
    namespace: dict[str, object] = {}
    for block in run_blocks:
        run(block, namespace)
        said = capsys.readouterr().out
        for line in filter(SURE.match, block.output.splitlines()):
            assert line in said, f"line {block.line} prints something else"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_run_is_right_as_far_as_one_can_see(page):
    variables: dict[str, str] = {}
    fences = re.findall(r"^ *```", page.read_text("utf-8"), flags=re.MULTILINE)
    assert len(fences) == 2 * len(list(blocks(page)))
    for block in blocks(page):
        assert block.language, f"line {block.line}: a fence without a language"
        if not block.runs:
            check(block, variables)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_escapes(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert COMMAND.search(text) is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_underscore_of_a_formula_begins_italics(page):
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        assert not any("_" in part.markup for part in token.children or []), token.content


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("dpdt train digits --nosuch", click.UsageError),
        ("dpdt train digits --set method.nosuch=1", InputError),
        ("dpdt nosuch", InputError),
        ("python benchmarks/nosuch.py", AssertionError),
        ("make nosuch", AssertionError),
    ],
)
def test_a_command_that_cannot_be_right_is_noticed(text, error):
    with pytest.raises(error):
        check(Block("sh", "minutes", f"{text}\n", 1), {})
