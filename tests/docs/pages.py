"""What stands in the pages of the documentation, and how it is run or checked.

A block that is fenced as `python` or `sh` is run as it stands. If it has a title, it takes long or
needs what is not in the package, and the title says which. It is then only checked: Python must
compile, and commands must be such as their parsers accept. What is indented is no code: output,
formulas, files.
"""

from __future__ import annotations

import re
import shlex
import string
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from dpdt import config
from dpdt.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"\n]*)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ {4}(\$ )?(dpdt|python|torchrun|make|pip|git) ", re.MULTILINE)
PLACEHOLDER = re.compile(r"[A-Z]+(\.\w+)?|…")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, why it is not run (if it is not), its text and its line.

    `output` is the indented block below it, if there is one.
    """

    language: str
    title: str
    text: str
    line: int
    output: str = ""

    @property
    def runs(self) -> bool:
        return not self.title and self.language in ("python", "sh")


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    for found in FENCE.finditer(text):
        language, title, body = found.groups()
        below = re.match(r"\n+((?: {4}.*\n|\n)*)", text[found.end() :])
        output = textwrap.dedent(below[1]) if below else ""
        yield Block(language, title or "", body, text.count("\n", 0, found.start()) + 1, output)


def commands(text: str) -> Iterator[str]:
    """The commands of a shell script. A line that ends in a backslash goes on in the next."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def run(block: Block, namespace: dict[str, object]) -> None:
    """Run a block in the current folder; Python in the namespace of its page."""
    if block.language == "python":
        exec(compile("\n" * block.line + block.text, "page", "exec"), namespace)
        return
    for line in commands(block.text):
        words = shlex.split(line, comments=True)
        if words[0] == "dpdt" and not {"|", ">", "&&", "<"} & set(words):
            assert not cli.main(words[1:], prog_name="dpdt", standalone_mode=False), line
        else:
            done = subprocess.run(["sh", "-e", "-c", line], capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


def check(block: Block, variables: dict[str, str]) -> None:
    """Check a block that is not run. `variables` are those that earlier blocks have set."""
    if block.language == "python":
        compile(block.text, "page", "exec")
    elif block.language == "sh":
        for line in commands(block.text):
            for part in line.split("&&"):
                told = string.Template(part).safe_substitute(variables)
                words = shlex.split(told, comments=True)
                while words and (assigned := re.fullmatch(r"(\w+)=(.*)", words[0])):
                    variables[assigned[1]] = assigned[2]
                    del words[0]
                if words:
                    _accepted(words)


def _accepted(words: list[str]) -> None:
    """Refuse a command that cannot be right."""
    if words[0] == "torchrun" and "-m" in words:
        words = words[words.index("-m") + 1 :]
    if words[0] == "dpdt":
        name, command, rest = cli.resolve_command(click.Context(cli), words[1:])
        assert command is not None
        _configured(command.make_context(name, rest).params)
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    elif words[0] == "make":
        assert all(f"\n{word}:" in (ROOT / "Makefile").read_text() for word in words[1:]), words


def _configured(given: dict[str, object]) -> None:
    """Refuse keys and values that no configuration has. Files of the reader's own are not here."""
    source, overrides = given.get("source"), given.get("overrides", ())
    assert isinstance(overrides, tuple)
    known = tuple(o for o in overrides if not PLACEHOLDER.fullmatch(o.partition("=")[2]))
    if source is None or "." in str(source) or "/" in str(source) or PLACEHOLDER.match(str(source)):
        return
    method = given.get("method")
    assert method is None or isinstance(method, str)
    config.load(str(source), known, method)


def wrapper(folder: Path) -> None:
    """A `dpdt`, `python` and `torchrun` in a folder, as an installation would have them."""
    for name, arguments in (
        ("dpdt", "-m dpdt"), ("python", ""), ("torchrun", "-m torch.distributed.run"),
    ):  # fmt: skip
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        path.chmod(0o755)
