"""The server: what it answers, to whom, and what it does not."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from semistream.core.errors import OptionError
from semistream.dashboard import About, Access, DashboardServer, History, Moment
from semistream.dashboard.metrics import LABELLED, NOW, PREFIX, TOTALS, prometheus, structured_line
from semistream.dashboard.moment import FALLING_BEHIND, KEEPING_UP, OVER_BUDGET, STOPPED
from semistream.dashboard.server import ASSETS, MOST_VIEWERS, is_loopback

TOKEN = "a token of more than 16"
ROOT = Path(__file__).parents[2]
ABOUT = About('orders "new"\n', {"memory": "8MB"})


def full(at: float = 1.7e9, state: str = KEEPING_UP) -> Moment:
    """A moment in which everything is known."""
    return Moment(
        at, state, "because", "sweepjoin", 1.0, 2.0, 3.0, 4.0, 5.0, {"cache": 6}, 7, 8, 0.1, 0.2,
        0.7, 9.0, 0.001, 0.002, 0.003, 0.6, [("k", 0.1)], 0.5, 3, {"addBatch": 10}, 1, 2, 3.0, 4.0,
        5.0, dict.fromkeys(TOTALS, 11),
    )  # fmt: skip


@contextmanager
def served(token: str | None = None, port: int = 0) -> Iterator[tuple[DashboardServer, History]]:
    history = History()
    server = DashboardServer(ABOUT, history, Access(port=port, token=token))
    try:
        yield server, history
    finally:
        history.close()
        server.close()


@dataclass
class Answer:
    """What the server said."""

    status: int
    headers: Message
    text: str


def get(server: DashboardServer, path: str, **headers: str) -> Answer:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read().decode())


@contextmanager
def listening(server: DashboardServer) -> Iterator[HTTPResponse]:
    """The events, as they come."""
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("GET", "/events")
        with closing(connection.getresponse()) as answer:
            yield answer


def test_every_asset_with_its_headers() -> None:
    with served() as (server, _):
        for path in ASSETS:
            answer = get(server, path)
            assert answer.status == 200, path
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Leon Sorokin" in get(server, "/uplot/LICENSE").text
        page = get(server, "/").text
        # Everything the page names is served, and nothing of it comes from elsewhere.
        named = set(re.findall(r'(?:src|href)="([^"]+)"', page)) - {"report.html"}
        assert {f"/{name}" for name in named} <= set(ASSETS)


@pytest.mark.parametrize(
    "path", ["/nothing", "/../server.py", "/web/index.html", "/%2e%2e/x", "//x"]
)
def test_nothing_else_is_served(path: str) -> None:
    with served() as (server, _):
        assert get(server, path).status == 404


def test_health_says_the_same_to_all() -> None:
    with served() as (server, history):
        answers = []
        for state in (KEEPING_UP, FALLING_BEHIND, OVER_BUDGET, STOPPED):
            history.add(full(state=state))
            answer = get(server, "/health")
            said = json.loads(answer.text)
            assert (said["state"], said["reason"]) == (state, "because")
            answers.append(answer.status)
        assert answers == [200, 200, 503, 503]


def test_metrics_in_prometheus_format() -> None:
    with served() as (server, history):
        history.add(full())
        answer = get(server, "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    sample = re.compile(
        r'semistream_[A-Za-z]+\{pipeline="orders \\"new\\"\\n",algorithm="sweepjoin"'
        r'(,[a-z]+="[^"]+")?\} [-+0-9.e]+'
    )
    for line in lines:
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line
    given = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert given == {PREFIX + name for name in (*TOTALS, *NOW, *LABELLED)}
    assert "semistream_hitCount" in given  # as Flink says
    assert sum(line.endswith(" 1") and "state=" in line for line in lines) == 1
    # What is not known is left out, and never 0.
    assert "hitShare" not in prometheus(ABOUT, Moment(1.0))


def test_the_grafana_file_asks_for_what_is_there() -> None:
    board = (ROOT / "deploy" / "grafana" / "semistream.json").read_text()
    asked = set(re.findall(r"semistream_([A-Za-z]+)", board))
    assert asked <= {*TOTALS, *NOW, *LABELLED}
    assert len(asked) > 15
    assert len(json.loads(board)["panels"]) >= 8


def test_a_structured_line() -> None:
    line = json.loads(structured_line(ABOUT, full(), event="state"))
    assert line["time"] == "2023-11-14T22:13:20.000+00:00"
    assert (line["event"], line["state"], line["reason"]) == ("state", KEEPING_UP, "because")
    assert (line["hitCount"], line["inputRowsPerSecond"]) == (11, 1.0)
    assert "k" not in line


def next_event(answer: HTTPResponse) -> list[dict[str, object]]:
    while line := answer.readline():
        if line.startswith(b"data: ["):
            found: list[dict[str, object]] = json.loads(line[6:])
            return found
    raise AssertionError("the events have ended")


def test_events_tell_the_past_and_what_comes() -> None:
    with served() as (server, history):
        for second in range(3):
            history.add(full(1.7e9 + second))
        with listening(server) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            first = next_event(answer)
            assert [moment["at"] for moment in first] == [1.7e9, 1.7e9 + 1, 1.7e9 + 2]
            assert first[0]["hot_keys"] == [["k", 0.1]]
            history.add(full(1.7e9 + 3))
            assert [moment["at"] for moment in next_event(answer)] == [1.7e9 + 3]
            history.close()
            assert b"event: end" in answer.read()


def test_too_many_pages() -> None:
    with served() as (server, history):
        history.add(full())
        with ExitStack() as stack:
            for _ in range(MOST_VIEWERS):
                assert stack.enter_context(listening(server)).status == 200
            assert get(server, "/events").status == 503
            assert get(server, "/metrics").status == 200


def test_a_token_is_wanted_and_the_wrong_one_refused() -> None:
    with served(TOKEN) as (server, history):
        history.add(full())
        for path in (
            *ASSETS,
            "/events",
            "/metrics",
            "/history.json",
            "/about.json",
            "/report.html",
        ):
            assert get(server, path).status == 401, path
        wrong = get(server, "/?token=not+that+one+at+all")
        assert wrong.status == 401
        assert "The token is wrong." in wrong.text
        assert get(server, "/metrics", Authorization="Bearer wrong").status == 401
        assert get(server, "/metrics", Cookie="semistream_token=wrong").status == 401
        assert get(server, "/metrics", Authorization=f"Bearer {TOKEN}").status == 200
        # Load balancers need none, and hear only the state.
        health = get(server, "/health")
        assert json.loads(health.text) == {"state": KEEPING_UP}
        welcome = get(server, "/" + server.address.split("/", 3)[3])
        assert welcome.status == 303
        assert welcome.headers["Location"] == "/"
        cookie = welcome.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert get(server, "/", Cookie=cookie.split(";")[0]).status == 200


def test_no_name_that_others_can_give_us() -> None:
    with served() as (server, _):
        assert get(server, "/", Host="evil.example").status == 421
        assert get(server, "/health", Host="evil.example:80").status == 421
        assert get(server, "/", Host=f"localhost:{server.port}").status == 200
        assert get(server, "/", Host="[::1]").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org", ""])
def test_elsewhere_only_with_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(OptionError, match="no token"):
        Access(host)
    assert Access(host, token=TOKEN)


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with served(port=port) as (server, _):
            assert server.moved
            assert port < server.port < port + 20
            assert get(server, "/health").status == 200
    with served() as (server, _):
        assert not server.moved


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(OptionError, match="cannot listen"):
        DashboardServer(ABOUT, History(), Access("192.0.2.1", 0, TOKEN))


def test_requests_that_make_no_sense() -> None:
    with served() as (server, _):
        for request in (
            b"\x00\xff\r\n\r\n",
            b"GET\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
                raw.sendall(request)
                assert b"200" not in raw.recv(200)
        assert get(server, "/health").status == 200
