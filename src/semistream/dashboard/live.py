"""A pipeline that runs, watched: moments at regular times, for all who want them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from semistream.core.clock import Clock
from semistream.core.errors import SemiStreamError
from semistream.dashboard.history import History
from semistream.dashboard.metrics import structured_line
from semistream.dashboard.moment import Moment
from semistream.dashboard.recording import About, Recording
from semistream.dashboard.report import report
from semistream.dashboard.server import Access, DashboardServer
from semistream.dashboard.tracker import Tracker

if TYPE_CHECKING:
    from semistream.spark.recorder import MicroBatch

logger = logging.getLogger("semistream.dashboard")

EVERY_S = 0.8
"""A page that is to change once a second must not be late by a little."""

LINE_EVERY_S = 10.0
"""A structured line comes so often, and whenever the state changes."""


class Watch:
    """Watches a pipeline from before it starts until it has stopped.

    Use it as a context, hand `add` the micro-batches, and say `stop` with the reason when the
    pipeline ends; leaving the context by an error says so too. With `access` there is a page at
    `address`. `record` is a file for the moments, `report` one for the report at the end, `lines`
    one that structured lines are added to.
    """

    def __init__(
        self,
        about: About,
        clock: Clock,
        *,
        access: Access | None = None,
        record: Path | None = None,
        report: Path | None = None,
        lines: Path | None = None,
        hide_keys: bool = False,
        every_s: float = EVERY_S,
    ) -> None:
        self.about = about
        self.tracker = Tracker(clock, hide_keys=hide_keys)
        self.history = History()
        self.server: DashboardServer | None = None
        self._access = access
        self._record, self._report, self._lines = record, report, lines
        self._every_s = every_s
        self._ended = threading.Event()
        self._takers: list[Callable[[Moment], None]] = [self.history.add]
        self._files = ExitStack()
        self._thread = threading.Thread(target=self._tick, name="semistream-watch", daemon=True)

    def add(self, batch: MicroBatch) -> None:
        """A micro-batch has ended."""
        self.tracker.add(batch)

    def stop(self, reason: str) -> None:
        """The pipeline has ended; the first reason counts."""
        self.tracker.stop(reason)

    def __enter__(self) -> Watch:
        with ExitStack() as files:  # closed at once if one of them cannot be opened
            if self._report is not None:
                # Better now than after a run of hours.
                self._report.open("a").close()
            if self._record is not None:
                recording = files.enter_context(Recording(self._record, self.about))
                self._takers.append(recording.add)
            if self._lines is not None:
                lines = files.enter_context(Lines(self._lines, self.about))
                self._takers.append(lines.add)
            if self._access is not None:
                self.server = DashboardServer(self.about, self.history, self._access)
            self._files = files.pop_all()
        self._take()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SemiStreamError):
            self.stop(f"failed: {error.message}")
        elif isinstance(error, KeyboardInterrupt):
            self.stop("ended by Ctrl-C")
        elif error is not None:
            self.stop(f"failed: {type(error).__name__}")
        self.stop("ended")
        self._ended.set()
        self._thread.join()
        self._take()
        self.history.close()
        self._files.close()
        if self.server is not None:
            self.server.close()
        if self._report is not None:
            self._report.write_text(report(self.about, self.history.whole), encoding="utf-8")

    def _tick(self) -> None:
        while not self._ended.wait(self._every_s):
            self._take()

    def _take(self) -> None:
        moment = self.tracker.moment()
        for taker in list(self._takers):
            try:
                taker(moment)
            except OSError as error:  # a full disk ends a recording, not the pipeline or its page
                self._takers.remove(taker)
                logger.warning("what the pipeline does is no longer written: %s", error)


class Lines:
    """A log file of structured lines."""

    def __init__(self, path: Path, about: About) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._about = about
        self._before: Moment | None = None

    def add(self, moment: Moment) -> None:
        """A line, if it is time for one or the state is another."""
        before = self._before
        changed = before is None or before.state != moment.state
        if before is not None and not changed and moment.at - before.at < LINE_EVERY_S:
            return
        event = "state" if changed else "progress"
        self._file.write(structured_line(self._about, moment, event=event) + "\n")
        self._file.flush()
        self._before = moment

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
