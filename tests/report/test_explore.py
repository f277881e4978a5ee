"""What the explorer says of a position is what `dpdt account` says of the settings it gives."""

import html
import json
import os
import random
import re
import shlex
import sys
import threading
from dataclasses import replace
from http.client import HTTPConnection

import pytest
from click.testing import CliRunner

from dpdt import report
from dpdt.cli.main import cli
from dpdt.errors import InputError
from dpdt.report import explorer, exploring, loopback
from dpdt.report.choices import GIVEN, TARGET, Source, controls, toml
from dpdt.report.newest import Turns

NUMBER = int(os.environ.get("DPDT_EXAMPLES", "50"))
TOKEN = "a-token-of-the-test"
SOURCES = (
    Source(name="digits"),
    Source(name="digits", overrides=("model.name=mlp",), method="dpsgd"),
    Source(name="digits", overrides=("method.averaging=0.0",)),
    Source(name="cifar10-small"),
    Source(name="paper-small", overrides=("privacy.release=last",)),
)


def said(*words):
    done = CliRunner().invoke(cli, list(words), catch_exceptions=False)
    return json.loads(done.stdout)


def drawn(random):
    """A position with some controls elsewhere. Sampled mini-batches are rare, for their time."""
    source = random.choice(SOURCES)
    known, places = controls(source), {}
    for control in random.sample(known, random.randint(1, 5)):
        places[control.name] = random.choice(control.values)
    if "sampling" in {c.name for c in known}:
        places["sampling"] = random.choices(("partition", "poisson"), (4, 1))[0]
    return exploring.position(source, places, random.choice((TARGET, GIVEN)))


def test_the_numbers_are_those_of_the_command_and_of_the_file(tmp_path):
    """50 positions that can be; those that cannot are refused by the command as well."""
    coins, found, refused = random.Random(18), 0, 0
    while found < NUMBER:
        at = drawn(coins)
        words = shlex.split(at.source.command(at.changes))
        assert words[:2] == ["dpdt", "account"]
        here = exploring._try(at)
        if isinstance(here, InputError):
            refused += 1
            with pytest.raises(InputError) as again:
                CliRunner().invoke(cli, words[1:], catch_exceptions=False)
            assert str(again.value) == str(here)
            continue
        found += 1
        shown = here.privacy.as_json()
        assert shown == said(*words[1:], "--json")
        path = tmp_path / f"{found}.toml"
        path.write_text(toml(here.config), "utf-8")
        assert shown == said("account", str(path), "--json")
        if not here.slow:
            last = exploring.curves(at.source, at.changes)
            for g in here.privacy.guarantees:
                if g.applies:
                    assert last[g.accountant][-1] == g.epsilon
    assert refused


def test_what_was_not_moved_is_the_source_itself():
    for source in SOURCES:
        aim = TARGET if source.config.privacy.epsilon else GIVEN
        at = exploring.position(source, {c.name: c.text for c in controls(source)}, aim)
        assert at.changes == ()
        assert all(c.text in c.values for c in controls(source))


def test_what_a_choice_costs_is_said():
    source = Source(name="cifar10-small")
    at = exploring.position(source, {"memory": "shared", "epochs": "10"}, GIVEN)
    here = exploring.found(at)
    without = exploring.found(at.moved("memory", "auxiliary"))
    told = exploring.costs(at)
    up = exploring.up
    assert told[0].startswith("memory shared, not auxiliary as in cifar10-small: ε ≤ ")
    assert f"{up(here.privacy.epsilon)} in place of {up(without.privacy.epsilon)}" in told[0]
    twice = exploring.found(at.moved("epochs", "20"))
    assert f"Twice the epochs would mean ε ≤ {up(twice.privacy.epsilon)} in place of" in told[2]
    target = exploring.costs(replace(at, noise=TARGET))
    assert any("times the noise for the same ε" in words for words in target)


def test_what_a_move_takes_along_is_said():
    source = Source(name="digits")
    at = exploring.position(source, {"n": "500", "k": "1024"}, TARGET)
    assert at.changes == ("data.limit=500", "train.batch_size=500", "method.auxiliaries=500",
                          "method.lr=0.1")  # fmt: skip
    assert len(at.notes) == 3
    assert exploring.found(at).ledger.header.auxiliaries == 500


@pytest.mark.parametrize("name", ["pate", "plain"])
def test_methods_without_clipped_steps_are_refused(name):
    with pytest.raises(InputError, match=f"method.name: {name} has no clipped steps"):
        controls(Source(name="digits", method=name))


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "0", "1e999", "10" * 40, "x" * 500,
                                  "'", "]\n[privacy]\nepsilon = 1e9", "{a=1}", "true", "\0",
                                  "9" * 18, "../../etc/passwd", "<script>"])  # fmt: skip
@pytest.mark.parametrize("name", [c.name for c in controls(Source(name="cifar10-small"))])
def test_whatever_is_typed_is_a_position_or_one_sentence(name, text):
    """Also what takes a control to where no run is."""
    asked = {"texts": {name: text}, "aim": TARGET, "turn": 7}
    shown = explorer._moved(Source(name="cifar10-small"), asked)
    headline, *_, store = json.loads(json.dumps(shown, default=lambda c: c.to_plotly_json()))
    if store == {"turn": 7}:
        title, why = (part["props"]["children"] for part in headline)
        assert title == "This cannot be run"
        assert why not in ("", "TypeError", "KeyError", "AttributeError", "ValueError")
        assert shown[1:5] == [[], "", "", ""]
    else:
        assert store == asked


def test_what_is_newest_counts_in_whatever_order_it_comes():
    turns, seen, started = Turns(), [], threading.Event()

    def ask(number):
        with turns.turn("page", "asked", number) as newest:
            seen.append((number, newest))

    with turns.turn("page", "asked", 1) as newest:
        waiting = [threading.Thread(target=ask, args=(number,)) for number in (4, 2, 3)]
        for thread in waiting:
            thread.start()
        while turns._newest["page", "asked"] < 4:
            started.wait(0.001)
        assert newest
    for thread in waiting:
        thread.join()
    assert dict(seen)[4] is True
    assert dict(seen)[2] is dict(seen)[3] is False
    with turns.turn("another page", "asked", 1) as newest:
        assert newest


@pytest.fixture(scope="module")
def address():
    page = explorer.application(Source(name="cifar10-small"), TOKEN)
    with loopback.server(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address
        server.shutdown()
        thread.join()


def asked(address, path=f"/{TOKEN}/", method="GET", host=None, body=None, **headers):
    connection = HTTPConnection(*address, timeout=20)
    names = {"Host": host or "{}:{}".format(*address), **headers}
    connection.request(method, path, body=body, headers=names)
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def test_it_listens_on_loopback_alone_and_answers_who_has_the_address(address):
    assert address[0] == "127.0.0.1"
    status, body, headers = asked(address)
    assert status == 200
    assert b"dpdt explore cifar10-small" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert asked(address, host=f"localhost:{address[1]}")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost",
                                  "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "0.0.0.0:{port}",
                                  "[::1]:{port}", "LOCALHOST.:{port}", " "])  # fmt: skip
def test_another_host_is_refused(address, host):
    status, body, _ = asked(address, host=host.format(port=address[1]))
    assert status in (400, 403)
    assert TOKEN.encode() not in body
    assert b"cifar10" not in body


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://127.0.0.1:{port}",
                                    "http://127.0.0.1:1", "http://127.0.0.1:{port}.evil.example",
                                    "http://localhost:{port}", ""])  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_origin_is_refused(address, origin, method):
    told = origin.format(port=address[1])
    assert asked(address, method=method, Origin=told)[0] == 403
    assert asked(address, f"/{TOKEN}/_dash-layout", method=method, Origin=told)[0] == 403


@pytest.mark.parametrize("path", ["/", "", "/_dash-layout", "/_dash-update-component", f"/{TOKEN}",
                                  f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", f"/x/{TOKEN}/", "//",
                                  "/%C3%A9/", f"/{TOKEN.upper()}/", f"/?token={TOKEN}", "/%00/",
                                  f"/../{TOKEN}/../_dash-layout", "/static/a"])  # fmt: skip
def test_who_has_not_the_token_is_refused(address, path):
    status, body, _ = asked(address, path or "/")
    assert status in (400, 403)
    assert b"cifar10" not in body


@pytest.mark.parametrize("path", ["_dash-component-suites/dash/../../../../etc/passwd",
                                  "_dash-component-suites/os/os.py", "assets/../../etc/passwd",
                                  "_dash-component-suites/dpdt/cli/main.py",
                                  "_dash-component-suites/dash/dash.py",
                                  "assets/%2e%2e/%2e%2e/passwd", "_favicon.ico/.."])  # fmt: skip
def test_no_file_is_given_away(address, path):
    status, body, _ = asked(address, f"/{TOKEN}/{path}")
    assert b"root:" not in body
    assert b"import " not in body
    assert status != 500


@pytest.mark.parametrize(("body", "headers"), [
    (b"{}", {}), (b"[]", {}), (b"null", {}), (b"\xff", {}), (b"", {}), (b'{"output": 3}', {}),
    (b'{"output":"x.y","outputs":[],"inputs":[],"changedPropIds":[]}', {}),
    (b"[" * 50_000, {}), (b"x" * 99_999, {}), (b"x", {"Content-Length": "-1"}),
    (b"x" * 200_000, {}), (b"", {"Content-Length": "9" * 30}), (b"", {"Content-Length": "x"}),
])  # fmt: skip
def test_nonsense_is_refused_without_a_traceback(address, body, headers):
    path, kind = f"/{TOKEN}/_dash-update-component", {"Content-Type": "application/json"}
    status, answer, _ = asked(address, path, "POST", body=body, **kind, **headers)
    assert 400 <= status < 500
    assert b"Traceback" not in answer
    assert asked(address)[0] == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_other_methods_are_refused(address, method):
    assert asked(address, method=method)[0] in (400, 403, 405, 501)


def test_a_port_that_is_taken_is_one_sentence(address):
    with pytest.raises(InputError, match=f"--port: {address[1]} cannot be used"):
        loopback.server(lambda *_: [], address[1])


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] == "dash" or name == "dpdt.report.explorer":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(report, "explorer")
    monkeypatch.setitem(sys.modules, "dash", None)
    with pytest.raises(InputError, match=r"pip install 'dpdt\[explore\]'"):
        CliRunner().invoke(cli, ["explore"], catch_exceptions=False)


@pytest.mark.parametrize(
    "name",
    ["</title><meta http-equiv=refresh content='0;url=//a.example'>", "{%config%}", "&lt;"],
)
def test_a_path_enters_the_title_as_text(tmp_path, name):
    """A `<meta refresh>` in the path that `dpdt explore` is given led away from the page."""
    folder = tmp_path / name
    folder.mkdir(parents=True)
    path = folder / "a.toml"
    path.write_text(toml(Source(name="digits").config))
    page = explorer.application(Source(name=str(path)), TOKEN)
    sent = []
    environment = {
        "REQUEST_METHOD": "GET", "PATH_INFO": f"/{TOKEN}/", "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80", "HTTP_HOST": "127.0.0.1:80", "wsgi.url_scheme": "http",
    }  # fmt: skip
    body = b"".join(page(environment, lambda status, headers: sent.append(status))).decode()
    assert sent == ["200 OK"]
    (title,) = re.findall("<title>(.*?)</title>", body, re.DOTALL)
    assert html.unescape(title) == f"dpdt explore {path}"
    assert "<" not in title
