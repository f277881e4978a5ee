"""Arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


def _presets(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    from dpdt import config

    found = [CompletionItem(name) for name in config.presets() if name.startswith(begun)]
    return [*found, CompletionItem(begun, type="file")]


def _keys(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    from dpdt import config

    return [CompletionItem(f"{key}=") for key in config.every_key() if key.startswith(begun)]


def _methods(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    from dpdt.methods import METHODS

    return [CompletionItem(name) for name in METHODS if name.startswith(begun)]


def words(text: str | None) -> list[str]:
    """What stands between commas, with or without spaces."""
    return [word.strip() for word in text.split(",")] if text else []


def source(metavar: str = "[PRESET|FILE]") -> Callable[[F], F]:
    """What a run is configured by. Shells complete the names of presets and files."""
    return click.argument("source", metavar=metavar, required=False, shell_complete=_presets)


overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, such as train.epochs=5. May be repeated.",
    shell_complete=_keys,
)
method = click.option(
    "--method",
    help="Another method than the file's own, with the file's values for it, if any.",
    shell_complete=_methods,
)
limit = click.option(
    "--limit",
    type=float,
    help="Refuse if the data would have paid more than this ε in all, by runs beside this one.",
)
paid = click.option(
    "--paid",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Another folder of runs to count for --limit. May be repeated.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
