"""A page that is watched: what it asks for, what goes wrong, what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PANELS = ("rates", "memory", "time", "latency", "hits", "cost", "batches", "lost")

# Whether a plot has more than its background and grid: the colours on its canvas.
COLOURS = """(id) => {
  const canvas = document.querySelector(`#panel-${id} canvas`);
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const data = context.getImageData(0, 0, copy.width, copy.height).data;
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) {
    seen.add((data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]);
  }
  return seen.size;
}"""


@dataclass
class Seen:
    """A page with everything that must not happen on it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def text(self, selector: str) -> str:
        """What stands there."""
        return self.page.locator(selector).inner_text()

    def legend(self, panel: str) -> str:
        """The numbers of a panel."""
        return self.text(f"#panel-{panel} .legend").replace("\n", " ")

    def wait_for_panels(self, timeout_s: float = 5.0) -> None:
        """Until every panel has data, or the time is over."""
        self.page.wait_for_function(
            "(count) => document.querySelectorAll('.panel[data-filled=true]').length === count",
            arg=len(PANELS),
            timeout=1000 * timeout_s,
        )

    def wait_for_state(self, state: str, timeout_s: float = 5.0) -> str:
        """Until the page says so; the reason."""
        self.page.wait_for_function(
            "(state) => document.getElementById('word').textContent === state",
            arg=state,
            timeout=1000 * timeout_s,
        )
        return self.text("#reason")

    def colours(self) -> dict[str, int]:
        """How many colours each plot has."""
        return {panel: self.page.evaluate(COLOURS, panel) for panel in PANELS}

    def scrolls(self) -> bool:
        """Whether the page is larger than the window."""
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollHeight > innerHeight ||"
                "document.documentElement.scrollWidth > innerWidth"
            )
        )


@contextmanager
def opened(browser: Browser, address: str, **context: Any) -> Iterator[Seen]:
    """A page of 1440 x 900. Left with problems or with requests to elsewhere, it fails."""
    context.setdefault("viewport", {"width": 1440, "height": 900})
    with browser.new_context(**context) as made:
        page = made.new_page()
        seen = Seen(page)
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("dialog", lambda dialog: seen.problems.append(f"dialog {dialog.message}"))
        page.on(
            "console",
            lambda said: (
                seen.problems.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.on("request", lambda request: seen.asked.add(request.url))
        page.goto(address, wait_until="load")
        yield seen
        home = urlsplit(address)
        elsewhere = {
            url
            for url in seen.asked
            if (urlsplit(url).scheme, urlsplit(url).netloc) != (home.scheme, home.netloc)
        }
        assert elsewhere == set()
        assert seen.problems == []
