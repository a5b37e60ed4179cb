"""The page in a real browser, on a pipeline that is played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")  # whose micro-batches are played

from semistream.dashboard import About, Access, DashboardServer, History, report
from semistream.dashboard.tracker import Tracker
from tests.dashboard.feed import Feed, HandClock
from tests.dashboard.pages import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<script>alert(1)</script>"
ABOUT = About("<b>orders</b>", {"memory": "8MB"})


@dataclass
class Played:
    """A pipeline with its page."""

    feed: Feed
    history: History
    server: DashboardServer

    def seconds(self, count: int, rows: int = 100_000, **options: Any) -> None:
        """Let some seconds pass, at once."""
        for _ in range(count):
            self.feed.second(rows, **options)
            self.history.add(self.feed.tracker.moment())


@pytest.fixture
def played() -> Iterator[Played]:
    clock, history = HandClock(), History()
    server = DashboardServer(ABOUT, history, Access(port=0))
    yield Played(Feed(Tracker(clock), clock), history, server)
    if not history.closed:
        history.close()
        server.close()


def test_panels_fill_numbers_change_and_nothing_scrolls(browser: Browser, played: Played) -> None:
    with opened(browser, played.server.address) as seen:
        assert seen.wait_for_state("starting") is not None
        assert seen.page.locator(".panel[data-filled=true]").count() == 0
        played.seconds(30, predicted=170_000.0)
        seen.wait_for_panels(5)
        assert not seen.scrolls()
        assert min(seen.colours().values()) > 10
        # All thirty seconds have arrived when the rates of the last are shown.
        for shown in ("input 100 k/s", "joined 100 k/s"):
            seen.page.wait_for_function(
                "(shown) => document.querySelector('#panel-rates .legend').innerText"
                ".replace(/\\s+/g, ' ').includes(shown)",
                arg=shown,
                timeout=5000,
            )
        assert "predicted 170 k/s" in seen.legend("cost")
        assert "budget 8.0 MB" in seen.legend("memory")
        played.seconds(10, rows=50_000)
        seen.page.wait_for_function(
            "() => document.querySelector('#panel-rates .legend').textContent.includes('50.0 k/s')"
        )
        assert "predicted \N{EN DASH}" in seen.legend("cost")
        for hint in seen.page.locator(".hint").all():
            assert len(hint.inner_text()) > 20
            assert hint.evaluate("(line) => line.scrollWidth <= line.clientWidth"), (
                hint.inner_text()
            )


def test_keys_and_names_are_text(browser: Browser, played: Played) -> None:
    played.seconds(3)
    with opened(browser, played.server.address) as seen:
        seen.wait_for_panels()
        keys = [line.split("\n")[0] for line in seen.page.locator(".keys li").all_inner_texts()]
        assert HOSTILE in keys
        assert 'a&b "c"' in keys
        assert seen.text("#name") == ABOUT.name
        assert seen.page.locator("main script, main b b, header b").count() == 0


def test_the_states_come_and_go(browser: Browser, played: Played) -> None:
    with opened(browser, played.server.address) as seen:
        played.seconds(10)
        seen.wait_for_state("keeping up")
        played.seconds(15, rows=400_000)
        assert "rows wait at the source" in seen.wait_for_state("falling behind")
        assert seen.page.title().startswith("falling behind")
        calm = seen.page.evaluate("getComputedStyle(document.getElementById('state')).color")
        played.seconds(40, rows=10_000)
        assert seen.wait_for_state("keeping up") == "rows are joined as fast as they come"
        assert calm != seen.page.evaluate(
            "getComputedStyle(document.getElementById('state')).color"
        )
        played.seconds(1, over=2_000_000)
        assert "the budget is 8.0 MB" in seen.wait_for_state("over budget")
        played.seconds(5)
        seen.wait_for_state("keeping up")
        played.feed.tracker.stop("the source has ended")
        played.history.add(played.feed.tracker.moment())
        assert seen.wait_for_state("stopped") == "the source has ended"
        played.history.close()
        played.server.close()
        seen.page.wait_for_timeout(500)
        assert seen.text("#reason") == "the source has ended"


def test_a_pipeline_that_vanished_is_stopped(browser: Browser, played: Played) -> None:
    played.seconds(3)
    with opened(browser, played.server.address) as seen:
        seen.wait_for_panels()
        # As if the process were killed: the connection breaks, without a last word.
        seen.page.context.set_offline(True)
        seen.page.evaluate("window.stop()")
        assert "no connection to the pipeline since" in seen.wait_for_state("stopped", 20)
        seen.problems.clear()  # the browser reports the lost connection, as it should


def test_light_and_dark_and_the_whole_run(browser: Browser, played: Played) -> None:
    played.seconds(900)
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, played.server.address, color_scheme="dark") as seen:
        seen.wait_for_panels()
        dark = seen.page.evaluate(ground)
        seen.page.click("#theme")
        light = seen.page.evaluate(ground)
        assert dark != light
        assert min(seen.colours().values()) > 10
        seen.page.click("text=Whole run")
        seen.page.wait_for_function(
            "() => performance.getEntriesByName(location.href + 'history.json').length > 0"
        )
        assert seen.page.locator("[data-range=whole][aria-pressed=true]").count() == 1
        assert min(seen.colours().values()) > 10
        # The cursor reads the values of its moment.
        box = seen.page.locator("#panel-rates .u-over").bounding_box()
        assert box is not None
        seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
        assert "input" in seen.legend("rates")
    with opened(browser, played.server.address, color_scheme="light") as seen:
        seen.wait_for_panels()
        assert seen.page.evaluate(ground) == light


def test_small_windows_scroll_and_show_all(browser: Browser, played: Played) -> None:
    played.seconds(5)
    with opened(browser, played.server.address, viewport={"width": 420, "height": 800}) as seen:
        seen.wait_for_panels()
        assert min(seen.colours().values()) > 5
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_report_opens_without_a_server(
    browser: Browser, played: Played, tmp_path: Path
) -> None:
    played.seconds(60)
    played.feed.tracker.stop("its 60 seconds are over")
    played.history.add(played.feed.tracker.moment())
    file = tmp_path / "run.html"
    file.write_text(report(ABOUT, played.history.whole, note="the recording is cut"))
    with opened(browser, file.as_uri()) as seen:
        seen.wait_for_panels()
        assert min(seen.colours().values()) > 10
        assert seen.wait_for_state("stopped") == "its 60 seconds are over"
        assert seen.text("#note") == "the recording is cut"
        assert HOSTILE in seen.text(".keys")
        assert seen.asked == {file.as_uri()}
        assert not seen.page.locator("nav a").is_visible()


def test_the_token_in_the_address(browser: Browser) -> None:
    history = History()
    token = "correct horse & battery staple"
    server = DashboardServer(ABOUT, history, Access(port=0, token=token))
    feed = Feed(Tracker(clock := HandClock()), clock)
    try:
        for _ in range(3):
            feed.second()
            history.add(feed.tracker.moment())
        with opened(browser, server.address) as seen:
            seen.wait_for_panels()
            assert "token" not in seen.page.url
            assert "battery" not in seen.page.evaluate("document.cookie")
        wrong = server.address.split("?")[0] + "?token=no+horse+at+all"
        with opened(browser, wrong) as seen:
            assert "The token is wrong." in seen.text("body")
            seen.problems.clear()  # the browser reports the status 401
    finally:
        history.close()
        server.close()


def test_hidden_keys_do_not_reach_the_page(browser: Browser) -> None:
    history, clock = History(), HandClock()
    server = DashboardServer(ABOUT, history, Access(port=0))
    feed = Feed(Tracker(clock, hide_keys=True), clock)
    try:
        feed.second()
        history.add(feed.tracker.moment())
        with opened(browser, server.address) as seen:
            seen.wait_for_panels()
            assert "4711" not in seen.page.content()
            assert "key 1" in seen.text(".keys")
    finally:
        history.close()
        server.close()
