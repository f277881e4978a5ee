"""Pages that are made when the site is built: from files at the root, and from the parsers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dpdt.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[1]
COPIES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
}
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?!https?:|#)(examples|LICENSE|benchmarks)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no file in docs/ holds."""
    for name, source in COPIES.items():
        text = copied((ROOT / source).read_text("utf-8"))
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Add what the parsers say to the page of commands."""
    return markdown + commands() if page.file.src_uri == "commands.md" else markdown


def copied(text: str) -> str:
    """A file at the root as a page: links to docs/ stay, links that leave docs/ become words."""
    text = re.sub(r"(\]\(|src=\")docs/", r"\1", text)
    for page, source in COPIES.items():
        text = text.replace(f"]({source})", f"]({page})")
    return OUTSIDE.sub(r"\1", text)


def commands() -> str:
    """Every command with its arguments, from the parsers themselves."""
    parts = list[str]()
    root = click.Context(cli, info_name="dpdt")
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        parts += [f"## dpdt {name}\n", *described(command, click.Context(command, root, name)), ""]
    return "\n".join(parts)


def described(command: click.Command, context: click.Context) -> list[str]:
    """Usage, words, options and example of one command."""
    usage = command.collect_usage_pieces(context)
    told = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    options = [option.get_help_record(context) for option in told]
    rows = [f"| `{left}` | {right} |" for left, right in filter(None, options)]
    words = inspect.cleandoc(command.help or "")
    example = (command.epilog or "").removeprefix("Example: ")
    return [
        f"    {context.command_path} {' '.join(usage)}\n",
        f"{words}\n",
        "| option | |\n|---|---|",
        *rows,
        *([f"\nExample: `{example}`\n"] if example else []),
    ]
