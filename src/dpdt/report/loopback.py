"""Who may talk to a page on loopback: only who has its whole address, and no other site's script.

A browser lets any site send requests to 127.0.0.1. Three things keep them out. The address holds a
token that cannot be guessed. A request must be addressed to this very server, so that a foreign
name that was made to point to 127.0.0.1 ("DNS rebinding") is refused. And what names an origin must
name this one.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from dpdt.errors import InputError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
LARGEST = 100_000  # bytes of a request
METHODS = ("GET", "HEAD", "POST")
HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
REFUSED = "This page needs the whole address that dpdt explore has printed.\n"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def new_token() -> str:
    """192 bits that stand in an address."""
    return secrets.token_urlsafe(24)


class Guard:
    """An application that answers nobody but who has the token, by one of this server's names."""

    def __init__(self, application: Application, token: str, policy: str):
        self._application = application
        self._token = token
        self._policy = policy

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not self._admits(environ):
            body = REFUSED.encode()
            length = ("Content-Length", str(len(body)))
            start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8"), length])
            return [body]

        def with_headers(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            policy = ("Content-Security-Policy", self._policy)
            kept = [(k, v) for k, v in headers if k.lower() != "access-control-allow-origin"]
            return start(status, [*kept, *HEADERS, policy], *rest)

        return self._application(environ, with_headers)

    def _admits(self, environ: dict[str, Any]) -> bool:
        hosts = [f"{name}:{environ['SERVER_PORT']}" for name in NAMES]
        host, origin = environ.get("HTTP_HOST"), environ.get("HTTP_ORIGIN")
        if host not in hosts or (origin is not None and origin != f"http://{host}"):
            return False
        if environ["REQUEST_METHOD"] not in METHODS or _length(environ) > LARGEST:
            return False
        given = environ.get("PATH_INFO", "").split("/")
        token = given[1] if len(given) > 2 else ""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())


def _length(environ: dict[str, Any]) -> int:
    """The length of a request; too long if it is not told."""
    if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
        return LARGEST + 1
    text = environ.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isdecimal() and len(text) < 10 else LARGEST + 1


class _Quiet(WSGIRequestHandler):
    """Addresses hold the token, so requests are not logged. A peer that is silent is dropped."""

    timeout = 60

    def log(self, *_: Any) -> None:
        pass


def server(application: Application, port: int) -> BaseWSGIServer:
    """The application on loopback, at a port; 0: any that is free."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        bound = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise InputError(f"--port: {port} cannot be used ({error})") from None
    found = make_server(
        HOST,
        bound.getsockname()[1],
        application,
        threaded=True,
        request_handler=_Quiet,
        fd=bound.detach(),
    )
    found.daemon_threads = True  # type: ignore[attr-defined]
    return found
