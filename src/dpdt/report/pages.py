"""One HTML file of runs. It needs no network, and its policy forbids any.

Everything from a run is data: Jinja escapes it, and charts are JSON that only page.js reads. The
policy names the two scripts by their hashes, so that nothing else in the file can run. Plotly sets
styles from its script, so styles are allowed inline.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from dpdt import __version__
from dpdt.accounting import Guarantee
from dpdt.accounting.guarantee import short, shown
from dpdt.errors import InputError
from dpdt.files import replacing, write_all
from dpdt.releasing.words import does_not_protect
from dpdt.report import charts, compared, training
from dpdt.report.attacker import sentences
from dpdt.report.charts import Chart
from dpdt.report.facts import Facts, several

FOLDER = "page"


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the template shows of one run."""

    id: str
    facts: Facts
    proven: Guarantee | None
    headline: Chart
    words: list[str]
    charts: list[Chart]
    training: list[Chart]
    limits: list[str]  # what the guarantee does not cover
    measured: str


def page(paths: Sequence[str | Path], *, private: bool = False) -> str:
    """The page of some runs."""
    found = several(paths, private=private)
    sections = [_section(f"run{number}", each) for number, each in enumerate(found, 1)]
    beside: list[Chart | None] = []
    if len(found) > 1:
        beside = [compared.epsilons(found), charts.attacker([(f.name, f.pairs) for f in found])]
        beside.append(compared.trade_off(found))
    scripts = [_plotly(), own("page.js")]
    text: str = _template().render(
        sections=sections,
        compared=[chart for chart in beside if chart],
        comparable=compared.comparable(found),
        private=private,
        version=__version__,
        policy=_policy(scripts),
        scripts=[Markup(script) for script in scripts],
        style=Markup(own("page.css")),
    )
    return text


def _section(name: str, facts: Facts) -> Section:
    proven = facts.privacy.proven
    proven = proven if proven and proven.applies else None
    drawn = [
        charts.attacker([(facts.name, facts.pairs)]),
        charts.epochs(facts),
        charts.kinds(facts),
    ]
    return Section(
        id=name,
        facts=facts,
        proven=proven,
        headline=charts.headline(facts),
        words=sentences(facts.privacy, facts.pairs),
        charts=[chart for chart in drawn if chart],
        training=training.charts(facts),
        limits=does_not_protect(proven) if proven else [],
        measured=compared.measured_words(facts),
    )


def write(path: Path, text: str, *, private: bool = False, over: bool = False) -> None:
    """The page as a file, whole or not at all. A private one is for its owner alone.

    Unless `over`, the file must be new.
    """
    if not over and os.path.lexists(path):
        raise InputError(f"{path}: already exists; choose a new name")
    with replacing(path) as part:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
        try:
            if private:
                os.fchmod(file, 0o600)  # also if the file was there
            write_all(file, text.encode())
        finally:
            os.close(file)


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("dpdt.report", FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "up": charts.up,
        "number": shown,
        "short": short,
        "about": charts.relation,
    }
    return environment.get_template("page.html")


def own(name: str) -> str:
    """A file of the folder of pages."""
    return (files("dpdt.report") / FOLDER / name).read_text("utf-8")


@cache
def _plotly() -> str:
    return str(get_plotlyjs())


def as_text(text: str) -> str:
    """Write a text so that no browser takes it for markup, and Dash for no place to fill."""
    return escape(text).replace("%", "&#37;")


def allowed(scripts: Sequence[str]) -> str:
    """These scripts, as a browser's policy names them."""
    hashes = [hashlib.sha256(script.encode()).digest() for script in scripts]
    return " ".join(f"'sha256-{base64.b64encode(h).decode()}'" for h in hashes)


def _policy(scripts: Sequence[str]) -> str:
    """What the browser lets the page do: run these scripts, style itself, and nothing else."""
    return (
        f"default-src 'none'; script-src {allowed(scripts)}; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )
