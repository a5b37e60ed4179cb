"""The moments of a run in bounded memory, and those who wait for the next one."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import NamedTuple

from semistream.dashboard.moment import Moment

RECENT = 400
"""Moments kept as they came: the last five minutes."""

MOST_POINTS = 720
"""Moments that stand for a whole run, however long."""


class Numbered(NamedTuple):
    """A moment with its number in the run, and as JSON, made once for all who look."""

    number: int
    moment: Moment
    text: str


class WholeRun:
    """A run in at most so many moments: when there are too many, each two become one."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        assert most >= 2
        self._most = most
        self._points: list[Moment] = []
        self._each = 1
        self._open: Moment | None = None
        self._in_open = 0

    def add(self, moment: Moment) -> None:
        """The next moment."""
        self._open = moment if self._open is None else self._open.merged(moment)
        self._in_open += 1
        if self._in_open < self._each:
            return
        self._points.append(self._open)
        self._open, self._in_open = None, 0
        if len(self._points) >= self._most:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            last = self._points[-1:] if len(self._points) % 2 else []
            self._points = [one.merged(other) for one, other in pairs] + last
            self._each *= 2

    @property
    def moments(self) -> list[Moment]:
        """The run up to now, in order."""
        return self._points + ([self._open] if self._open is not None else [])


class History:
    """The moments of a run, for any number of threads: one adds, others look and wait."""

    def __init__(self, recent: int = RECENT, whole: int = MOST_POINTS) -> None:
        self._changed = threading.Condition()
        self._recent: deque[Numbered] = deque(maxlen=recent)
        self._whole = WholeRun(whole)
        self._added = 0
        self._closed = False

    def add(self, moment: Moment) -> None:
        """The next moment, of which all who wait are told."""
        text = json.dumps(moment.to_dict(), ensure_ascii=False, separators=(",", ":"))
        with self._changed:
            self._added += 1
            self._recent.append(Numbered(self._added, moment, text))
            self._whole.add(moment)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    @property
    def latest(self) -> Moment | None:
        """The last moment."""
        with self._changed:
            return self._recent[-1].moment if self._recent else None

    @property
    def whole(self) -> list[Moment]:
        """The run from its start, in a bounded number of moments."""
        with self._changed:
            return self._whole.moments

    def after(self, number: int, timeout_s: float) -> list[Numbered]:
        """The recent moments beyond a number; waits for one if there is none yet."""
        with self._changed:
            if self._added <= number and not self._closed:
                self._changed.wait(timeout_s)
            return [one for one in self._recent if one.number > number]
