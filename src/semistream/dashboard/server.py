"""The page and its figures over HTTP, on the standard library.

Safe by default: it listens on the loopback interface, where it answers only requests that were sent
to a loopback name, so that no page from elsewhere can reach it under a name of its own. On any
other address it wants a token, as `Authorization: Bearer`, or once as `?token=` in the page's
address, which becomes a cookie. It reads nothing but the request's head, and changes nothing.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, urlsplit

from semistream.core.errors import OptionError
from semistream.dashboard.history import History
from semistream.dashboard.metrics import CONTENT_TYPE, prometheus
from semistream.dashboard.moment import OVER_BUDGET, STARTING, STOPPED, Moment
from semistream.dashboard.recording import About
from semistream.dashboard.report import asset, report

LOOPBACK = "127.0.0.1"
PORT = 8470
PORTS_TRIED = 20

LEAST_TOKEN_CHARACTERS = 16
COOKIE = "semistream_token"

MOST_VIEWERS = 16
"""Pages that are told of every moment at once; each takes a thread."""

EVENT_PAUSE_S = 0.4
"""A page is told of new moments at most so often, however fast they come."""

FAREWELL_S = 2.0
"""How long pages that are open have to hear that the pipeline has stopped."""

HEARTBEAT_S = 10.0
REQUEST_TIMEOUT_S = 20.0

ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/panels.js": ("panels.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/uplot/uPlot.iife.min.js": ("uplot/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/uplot/uPlot.min.css": ("uplot/uPlot.min.css", "text/css; charset=utf-8"),
    "/uplot/LICENSE": ("uplot/LICENSE", "text/plain; charset=utf-8"),
}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer. No scripts but ours, no framing, nothing kept, nothing for other origins."""

logger = logging.getLogger("semistream.dashboard")


def health(moment: Moment | None) -> tuple[HTTPStatus, str, str]:
    """The status for load balancers, and the state and reason for people: always the same."""
    state = STARTING if moment is None else moment.state
    reason = "" if moment is None else moment.reason
    ill = state in (STOPPED, OVER_BUDGET)
    return HTTPStatus.SERVICE_UNAVAILABLE if ill else HTTPStatus.OK, state, reason


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Access:
    """Where the server listens, and what a request must bring along."""

    host: str = LOOPBACK
    port: int = PORT
    token: str | None = None

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and self.token is None:
            raise OptionError(
                f"{self.host!r} can be reached by others, and there is no token",
                hint=f"give one, for example --token {secrets.token_urlsafe(18)}, or leave the "
                "host out to listen on this machine only",
            )
        if self.token is not None and len(self.token) < LEAST_TOKEN_CHARACTERS:
            raise OptionError(
                f"the token has {len(self.token)} characters, and "
                f"{LEAST_TOKEN_CHARACTERS} are wanted",
                hint=f"for example --token {secrets.token_urlsafe(18)}",
            )


class DashboardServer:
    """Serves a history in threads of its own until it is closed.

    If the port is in use the next ones are tried; `port` is the one it got, 0 takes any.
    """

    def __init__(self, about: About, history: History, access: Access) -> None:
        self.access = access
        self._context = _Context(about, history, access)
        self._http = _listen(access, self._context)
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.25,), name="semistream-dashboard", daemon=True
        )
        self._thread.start()

    @property
    def moved(self) -> bool:
        """Whether it listens on another port than was asked for."""
        return self.access.port not in (0, self.port)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = self.access.host
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        elif ":" in host:
            host = f"[{host.strip('[]')}]"
        query = f"?token={quote(self.access.token)}" if self.access.token else ""
        return f"http://{host}:{self.port}/{query}"

    def close(self) -> None:
        """Stop listening. If the history is closed, pages that are open see its end first."""
        if self._context.history.closed:
            self._context.wait_until_empty(FAREWELL_S)
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@dataclass
class _Context:
    """What requests are answered from."""

    about: About
    history: History
    access: Access
    viewers: int = 0

    def __post_init__(self) -> None:
        self._changed = threading.Condition()

    def enter(self) -> bool:
        """One more page is told of events; False if there are too many."""
        with self._changed:
            if self.viewers == MOST_VIEWERS:
                return False
            self.viewers += 1
            return True

    def leave(self) -> None:
        """One page less."""
        with self._changed:
            self.viewers -= 1
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> None:
        """Until no page is told of events any more, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.viewers == 0, timeout_s)


def _listen(access: Access, context: _Context) -> _Server:
    family = socket.AF_INET6 if ":" in access.host else socket.AF_INET
    handler = type("Handler", (_Handler,), {"context": context})
    last = access.port + (PORTS_TRIED if access.port else 1)
    for port in range(access.port, min(last, 65536)):
        try:
            return _Server((access.host.strip("[]"), port), handler, family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OptionError(
                    f"the dashboard cannot listen on {access.host!r}, port {port}: "
                    f"{error.strerror or error}",
                    hint="give another --host or --port",
                ) from error
    raise OptionError(
        f"ports {access.port} to {last - 1} are all in use",
        hint="give another --port, or 0 for any",
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Two servers on one port would each get some of the requests.
    allow_reuse_port = False

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        family: socket.AddressFamily,
    ) -> None:
        self.address_family = family
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Without HTTPServer's look-up of the host's name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request ended early", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    context: ClassVar[_Context]
    protocol_version = "HTTP/1.1"
    server_version = "semistream"
    sys_version = ""
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        """Answer a request."""
        url = urlsplit(self.path)
        if not self._asked_for_us():
            self._text(
                HTTPStatus.MISDIRECTED_REQUEST, "This server answers to the name localhost only.\n"
            )
            return
        if url.path == "/health":
            self._health()
            return
        if not self._may():
            given = parse_qs(url.query).get("token", [])
            if len(given) == 1 and self._is_token(given[0]):
                self._welcome()
            else:
                self._refuse(wrong=bool(given))
            return
        routes: dict[str, Callable[[], None]] = {
            "/events": self._events,
            "/history.json": self._history,
            "/about.json": self._about,
            "/metrics": self._metrics,
            "/report.html": self._report,
        }
        if url.path in ASSETS:
            name, kind = ASSETS[url.path]
            self._answer(HTTPStatus.OK, kind, asset(name))
        elif url.path in routes:
            routes[url.path]()
        else:
            self._text(HTTPStatus.NOT_FOUND, "There is no such page.\n")

    do_HEAD = do_GET

    # Who asks.

    def _asked_for_us(self) -> bool:
        """On loopback without a token: only by a name that others cannot give to this machine."""
        access = self.context.access
        if access.token is not None:
            return True
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return is_loopback(name)

    def _may(self) -> bool:
        if self.context.access.token is None:
            return True
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, given: str) -> bool:
        token = self.context.access.token
        return token is not None and hmac.compare_digest(given.encode(), token.encode())

    def _welcome(self) -> None:
        """The right token in the address: keep it in a cookie, and out of the address."""
        assert self.context.access.token is not None
        cookie: SimpleCookie = SimpleCookie()
        cookie[COOKIE] = self.context.access.token
        cookie[COOKIE]["httponly"] = True
        cookie[COOKIE]["samesite"] = "Strict"
        cookie[COOKIE]["path"] = "/"
        headers = {
            "Location": urlsplit(self.path).path,
            "Set-Cookie": cookie[COOKIE].OutputString(),
        }
        self._answer(HTTPStatus.SEE_OTHER, "text/plain; charset=utf-8", b"", headers)

    def _refuse(self, *, wrong: bool) -> None:
        said = "The token is wrong." if wrong else "A token is needed."
        self._text(
            HTTPStatus.UNAUTHORIZED,
            f"{said} Open the address that the pipeline printed when it started, which ends in "
            "?token=…, or send it as 'Authorization: Bearer …'.\n",
            {"WWW-Authenticate": "Bearer"},
        )

    # What is answered.

    def _health(self) -> None:
        status, state, reason = health(self.context.history.latest)
        body = {"state": state}
        if self._may():  # a reason may name files
            body["reason"] = reason
        self._json(status, body)

    def _about(self) -> None:
        self._json(HTTPStatus.OK, self.context.about.to_dict())

    def _history(self) -> None:
        self._json(HTTPStatus.OK, [moment.to_dict() for moment in self.context.history.whole])

    def _metrics(self) -> None:
        moment = self.context.history.latest or Moment(0.0)
        self._answer(HTTPStatus.OK, CONTENT_TYPE, prometheus(self.context.about, moment).encode())

    def _report(self) -> None:
        page = report(self.context.about, self.context.history.whole)
        name = {"Content-Disposition": 'attachment; filename="semistream-report.html"'}
        self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page.encode(), name)

    def _events(self) -> None:
        """Server-sent events: the recent moments, then each as it comes, until the page goes."""
        if not self.context.enter():
            self._text(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_VIEWERS} pages are open already.\n")
            return
        try:
            self._head(HTTPStatus.OK, "text/event-stream; charset=utf-8", {"Connection": "close"})
            self.close_connection = True
            if self.command != "HEAD":
                self._send_events()
        except OSError:
            pass  # the page was closed
        finally:
            self.context.leave()

    def _send_events(self) -> None:
        history, number = self.context.history, 0
        pause = threading.Event()
        while True:
            closed = history.closed
            news = history.after(number, HEARTBEAT_S)
            if news:
                number = news[-1].number
                data = ",".join(one.text for one in news)
                self.wfile.write(f"data: [{data}]\n\n".encode())
            elif closed:
                self.wfile.write(b"event: end\ndata: 0\n\n")
                return
            else:
                self.wfile.write(b": nothing new\n\n")
            self.wfile.flush()
            pause.wait(EVENT_PAUSE_S)

    # How.

    def _json(self, status: HTTPStatus, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self._answer(status, "application/json; charset=utf-8", text.encode())

    def _text(self, status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> None:
        self._answer(status, "text/plain; charset=utf-8", text.encode(), headers)

    def _answer(
        self, status: HTTPStatus, kind: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self._head(status, kind, {"Content-Length": str(len(body)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        # Never the whole request line: it may hold a token.
        logger.debug("%s %s", self.command, urlsplit(getattr(self, "path", "")).path)
