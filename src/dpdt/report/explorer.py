"""The explorer: a page of controls and curves, by Dash. What it shows comes from exploring.py."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from flask import Flask
from werkzeug.exceptions import HTTPException

from dpdt import __version__
from dpdt.errors import InputError
from dpdt.report import charts, exploring, pages
from dpdt.report.choices import GIVEN, TARGET, Control, Source, controls, toml
from dpdt.report.loopback import LARGEST, Application, Guard
from dpdt.report.newest import Turns

PLOT = {"displayModeBar": False, "scrollZoom": False, "doubleClick": False, "responsive": True}
NEW = {"data-about": "0"}
EMPTY = {"data": [], "layout": charts.layout_of("", "")}
AIMS = ({"label": "found for a target ε", "value": TARGET}, {"label": "given", "value": GIVEN})
# A slider has no name of its own for who cannot see it, and appears when it is ready. And what is
# not about the settings as they stand is marked, whatever else the page is doing.
WATCH = """
new MutationObserver(() => {
  for (const thumb of document.querySelectorAll(".control [role=slider]:not([aria-label])"))
    thumb.setAttribute("aria-label", thumb.closest(".control").querySelector("label").textContent);
  for (const part of document.querySelectorAll("[data-about]"))
    part.classList.toggle("pending", part.dataset.about !== document.body.dataset.asked);
}).observe(document.documentElement, {
  childList: true, subtree: true, attributes: true, attributeFilter: ["data-about", "data-asked"],
});
"""
# Every position that is asked for has a number, which its answers carry.
ASK = """(...at) => {
  const turn = Number(document.body.dataset.asked || 0) + 1;
  document.body.dataset.asked = turn;
  return { texts: Object.fromEntries(NAMES.map((name, i) => [name, at[i]])), aim: at.at(-1), turn };
}"""
INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{%title%}</title>
{%css%}
<style>STYLE</style>
<script>WATCH</script>
</head>
<body class="explorer">
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""


def application(source: Source, token: str) -> Application:
    """The page, for who has the token."""
    style = pages.own("page.css") + pages.own("explore.css")
    server = Flask("dpdt", static_folder=None)
    server.config["MAX_CONTENT_LENGTH"] = LARGEST
    server.register_error_handler(Exception, _refused)
    app = Dash(
        "dpdt",
        server=server,
        url_base_pathname=f"/{token}/",
        include_assets_files=False,
        serve_locally=True,
        eager_loading=True,
        index_string=INDEX.replace("STYLE", style).replace("WATCH", WATCH),
        title=pages.as_text(f"dpdt explore {source.name}"),
        update_title=None,
        add_log_handler=False,
        enable_mcp=False,
    )
    known = controls(source)
    app.layout = lambda: _layout(source, known)
    _calls(app, source, known)
    scripts = " ".join(("'self'", pages.allowed([WATCH]), *app.csp_hashes()))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src "
        "'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return Guard(server, token, policy)


def _refused(error: Exception) -> tuple[str, int]:
    """What a request that makes no sense gets: no traceback, nothing of the machine."""
    status = error.code if isinstance(error, HTTPException) and error.code else 400
    return f"{status}: no such request\n", status


def _layout(source: Source, known: tuple[Control, ...]) -> html.Main:
    return html.Main(
        [
            dcc.Store(id="page", data=secrets.token_hex(8)),
            *(dcc.Store(id=name) for name in ("asked", "shown", "drawn")),
            html.Header(
                [
                    html.H1(f"What {source.name} would guarantee"),
                    html.P(
                        f"dpdt {__version__}. Move a setting, and every ε moves. Nothing is "
                        "trained, no example is read, and nothing leaves this computer.",
                        className="quiet",
                    ),
                ]
            ),
            html.Section(id="headline", **NEW, **{"aria-live": "polite"}),
            html.Section(
                [
                    html.H2("ε over epochs"),
                    html.Div(id="legend", className="toggles"),
                    dcc.Graph(id="curves", className="plot", config=PLOT),
                    html.P(id="told", className="quiet"),
                ],
                id="chart",
                **NEW,
            ),
            html.Section(
                [_aim(source), *(_control(control) for control in known)],
                id="controls",
                **{"aria-label": "Settings"},
            ),
            html.Section(
                [html.H2("What each choice costs"), html.Ul(id="costs")], id="prices", **NEW
            ),
            html.Section(id="meaning"),
            html.Section(
                [
                    html.H2("Take it with you"),
                    _copied("command", "copy as command"),
                    _copied("toml", "copy as TOML"),
                    html.Details([html.Summary("Every accountant"), html.Pre(id="table")]),
                ],
                id="taken",
            ),
        ]
    )


def _copied(name: str, label: str) -> html.Div:
    return html.Div(
        [
            html.Div(
                [dcc.Clipboard(id=f"copy-{name}", target_id=name, className="copy", title=label)]
            ),
            html.Span(label, className="label"),
            html.Pre(id=name, tabIndex="0"),
        ],
        className="copied",
    )


def _aim(source: Source) -> html.Div:
    """Whether the noise is found for a target ε or given."""
    target = source.config.privacy.epsilon is not None
    options = dcc.RadioItems(list(AIMS), TARGET if target else GIVEN, id="aim", inline=True,
                             className="options")  # fmt: skip
    return html.Div([html.Label("noise is", htmlFor="aim"), options], className="control")


def _control(control: Control) -> html.Div:
    label = html.Label([control.label, html.Span(f" {control.help}", className="quiet")],
                       htmlFor=f"at-{control.name}")  # fmt: skip
    if not control.slides:
        options = dcc.RadioItems(list(control.values), control.text, id=f"at-{control.name}",
                                 inline=True, className="options")  # fmt: skip
        return html.Div([label, options], className="control")
    slider = dcc.Slider(
        0,
        len(control.values) - 1,
        1,
        value=control.values.index(control.text),
        id=f"slide-{control.name}",
        marks=None,
        updatemode="drag",
        allow_direct_input=False,
        className="slide",
    )
    text = dcc.Input(control.text, id=f"at-{control.name}", debounce=True, className="at",
                     autoComplete="off")  # fmt: skip
    parts = [html.Div([label, text], className="line"), slider]
    return html.Div(parts, className="control", id=f"control-{control.name}")


def _calls(app: Dash, source: Source, known: tuple[Control, ...]) -> None:
    """What moves when something is moved."""
    turns = Turns()
    for control in known:
        if control.slides:
            app.clientside_callback(
                f"(place) => ({json.dumps(control.values)})[place]",
                Output(f"at-{control.name}", "value"),
                Input(f"slide-{control.name}", "value"),
                prevent_initial_call=True,
            )
    hidden = [Output(f"control-{name}", "hidden") for name in ("epsilon", "noise")]
    app.clientside_callback(
        f'(aim) => [aim !== "{TARGET}", aim === "{TARGET}"]', hidden, Input("aim", "value")
    )
    names = json.dumps([control.name for control in known])
    app.clientside_callback(
        ASK.replace("NAMES", names),
        Output("asked", "data"),
        *(Input(f"at-{control.name}", "value") for control in known),
        Input("aim", "value"),
    )

    def answers(
        to: str, outputs: dict[str, str], about: str, work: Callable[[Any], list[Any]]
    ) -> None:
        """Answer what is asked, or shown, with these parts. `about` then says the number."""

        def call(asked: Any, page: Any) -> list[Any]:
            found = asked.get("turn") if isinstance(asked, dict) else None
            number = found if isinstance(found, int) else 0
            with turns.turn(page, to, number) as newest:
                answer = work(asked) if newest else [no_update] * len(outputs)
            return [*answer, str(number) if newest else no_update]

        app.callback(
            [*(Output(n, kind) for n, kind in outputs.items()), Output(about, "data-about")],
            [Input(to, "data"), State("page", "data")],
            prevent_initial_call=True,
        )(call)

    at_once = dict.fromkeys(("headline", "meaning", "command", "toml", "table"), "children")
    answers("asked", {**at_once, "shown": "data"}, "headline", lambda at: _moved(source, at))
    drawn = {"curves": "figure", "legend": "children", "told": "children", "drawn": "data"}
    nothing = [EMPTY, [], ""]
    answers("shown", drawn, "chart", lambda at: [*_after(source, at, _drawn, nothing), at])
    answers("drawn", {"costs": "children"}, "prices", lambda at: _after(source, at, _priced, [[]]))


def _moved(source: Source, asked: dict[str, Any]) -> list[Any]:
    """Everything that is said of a position at once, or why it cannot be; and what it is about."""
    try:
        position = _position(source, asked)
        here = exploring.found(position)
    except Exception as error:  # never an old number beside new settings
        why = str(error) if isinstance(error, InputError) else type(error).__name__
        refused = [html.P("This cannot be run", className="headline"), html.P(why)]
        turn = asked.get("turn") if isinstance(asked, dict) else None
        return [refused, [], "", "", "", {"turn": turn}]
    number, by = exploring.headline(here.privacy)
    proven = math.isfinite(here.privacy.epsilon)
    headline = [
        html.P(
            [html.Span(number, className="epsilon" if proven else "epsilon none"), f" {by}"],
            className="headline",
        ),
        html.P(exploring.needed(here)),
        *(html.P(note, className="note") for note in (*position.notes, *here.warnings)),
    ]
    words = [html.H2("What it means"), html.P(" ".join(exploring.meaning(here)))]
    command, table = source.command(position.changes), here.privacy.table(all=True)
    return [headline, words, command, toml(here.config), table, asked]


def _position(source: Source, asked: dict[str, Any]) -> exploring.Position:
    texts = {str(k): "" if v is None else str(v) for k, v in asked["texts"].items()}
    return exploring.position(source, texts, TARGET if asked["aim"] == TARGET else GIVEN)


def _after(
    source: Source, shown: Any, work: Callable[[exploring.Position], list[Any]], nothing: list[Any]
) -> list[Any]:
    """What takes longer. It is empty where nothing is shown."""
    try:
        return work(_position(source, shown))
    except Exception:  # never an old number beside new settings
        return nothing


def _priced(position: exploring.Position) -> list[Any]:
    return [[html.Li(told) for told in exploring.costs(position)]]


def _drawn(position: exploring.Position) -> list[Any]:
    """The curves, what they are called, and how to read them."""
    here = exploring.found(position)
    chart = charts.over_epochs(exploring.curves(position.source, position.changes), here.privacy)
    if chart is None:
        return [EMPTY, [], "No accountant has a number for this run."]
    legend = [
        html.Span(
            [html.Span(className=f"swatch c{colour}{' dashed' if dashed else ''}"), name],
            className="curve",
        )
        for _, name, colour, dashed in chart.toggles
    ]
    return [{"data": chart.traces, "layout": chart.layout}, legend, chart.note]
