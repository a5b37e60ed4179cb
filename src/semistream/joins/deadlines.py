"""Deadlines: when waiting rows must be answered so that none waits longer than it may."""

from __future__ import annotations

import numpy as np

from semistream.core.clock import Clock
from semistream.core.durations import parse_milliseconds
from semistream.core.errors import DeadlineError, OptionError

SEEK_S, PAGE_S = 8e-3, 1e-4
"""A slow disk, until it is known better: rows are answered too early rather than too late."""

LEAST_READ_S, FASTEST_BYTES_PER_S = 2e-5, 16e9
"""No disk is faster: what takes longer even so cannot be kept."""

SURE = 16
"""Answers of a size after which the longest of them is what is expected."""

MARGIN = 1.2
"""Rows are answered when so many times the expected duration is left."""

MOST_LATE = 16
"""Deadlines missed in a row after which they cannot be kept."""

Wait = float | str


def parse_wait(max_wait: Wait | None) -> int | None:
    """Nanoseconds of `2.5` (seconds) or `"500 ms"`."""
    if max_wait is None:
        return None
    if isinstance(max_wait, str):
        wait_ns = parse_milliseconds(max_wait, what="max_wait") * 1_000_000
    elif isinstance(max_wait, int | float) and 0 < max_wait < float("inf"):
        wait_ns = int(max_wait * 1e9)
    else:
        wait_ns = 0
    if wait_ns <= 0:
        raise OptionError(
            f"max_wait={max_wait!r} is not a time above zero",
            hint='give seconds, or "500 ms"',
        )
    return wait_ns


class Durations:
    """How long it takes to answer so many pages: the longest seen for about as many.

    Until enough were seen it is at least what is reckoned (SSIJ paper, §IV-F).
    """

    def __init__(self) -> None:
        self._longest_ns = np.zeros(64, np.int64)
        self._seen = np.zeros(64, np.int64)

    def note(self, pages: int, took_ns: int) -> None:
        """So many pages took so long."""
        size = pages.bit_length()
        self._longest_ns[size] = max(self._longest_ns[size], took_ns)
        self._seen[size] += 1

    def expected_ns(self, pages: int, reckoned_ns: float) -> float:
        """How long so many pages will take."""
        size = pages.bit_length()
        seen = int(self._longest_ns[: size + 1].max())
        return seen if self._seen[size] >= SURE else max(seen, reckoned_ns)


class Gaps:
    """How long it may be until one is asked again: the longest of late.

    What was long is forgotten by half with each `half_life_ns`.
    """

    def __init__(self, clock: Clock, half_life_ns: int) -> None:
        self._clock = clock
        self._half_life_ns = half_life_ns
        self._asked_ns = clock.now_ns()
        self._longest_ns = 0.0

    def ask(self) -> float:
        """One is asked now; how many nanoseconds it may be until the next time."""
        gap = self._clock.now_ns() - self._asked_ns
        self._longest_ns = max(gap, self._longest_ns * 0.5 ** (gap / self._half_life_ns))
        self.skip()
        return self._longest_ns

    def skip(self) -> None:
        """The time up to now was spent at work, and is no gap."""
        self._asked_ns = self._clock.now_ns()


class Deadline:
    """The bound on waiting of one join, kept by *flushes*: work until all rows are answered.

    A flush begins when 1.2 times its expected duration, and the time until one is asked again, is
    left for the oldest row; also when that would be half of the bound, so that rows which come
    meanwhile are in time as well. Not so where a flush is `rolling`, a pass over the master: there
    rows are answered one pass after they came, whether one flush follows the other or not.

    The owner says how many rows wait, how many pages a flush reads and what part of it is left.
    """

    def __init__(
        self, max_wait_ns: int, clock: Clock, owner: str, *, rolling: bool = False
    ) -> None:
        self.max_wait_ns = max_wait_ns
        self.durations = Durations()
        self.is_flushing = False
        self._clock = clock
        self._owner = owner
        self._rolling = rolling
        self._gaps = Gaps(clock, max_wait_ns)
        self._since_ns: int | None = None
        self._looked_ns = clock.now_ns()
        self._began_ns = 0
        self._pages = 0
        self._late = 0
        self._was_kept = False

    def look(self, waiting: int) -> None:
        """Note since when rows wait, before others come; so many do now."""
        if waiting == 0:
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = self._looked_ns
        self._looked_ns = self._clock.now_ns()

    def is_urgent(self, pages: int, reckoned_ns: float, left: float = 1.0) -> bool:
        """Whether a row would be late if the flush, of so many pages, did not go on now."""
        gap = self._gaps.ask()
        if self._since_ns is None:
            return False
        needed = MARGIN * (left * self.durations.expected_ns(pages, reckoned_ns) + gap)
        slack = self._since_ns + self.max_wait_ns - self._clock.now_ns()
        return needed >= slack or (not self._rolling and 2 * needed >= self.max_wait_ns)

    def begin_flush(self, pages: int) -> None:
        """From now on all rows that wait are being answered."""
        self.is_flushing, self._pages = True, pages
        self._began_ns = self._clock.now_ns()

    def worked(self) -> None:
        """A step is over; its time was no gap."""
        self._gaps.skip()

    def end_flush(self, waiting: int) -> None:
        """All rows that waited when it began are answered; those that wait now came later."""
        now, since = self._clock.now_ns(), self._since_ns
        took = now - self._began_ns
        self.is_flushing = False
        self.durations.note(self._pages, took)
        waited = took if self._rolling or since is None else now - since
        self._since_ns = self._began_ns if waiting else None
        is_late = waited > self.max_wait_ns
        self._late = self._late + 1 if is_late else 0
        self._was_kept = self._was_kept or not is_late
        if self._late >= MOST_LATE:
            self._late = 0
            raise self.error(waited / 1e9, f"{MOST_LATE} times in a row rows waited")

    def check_pass(self, share: float) -> None:
        """Raise if a flush that is a pass over the master, so much of it done, takes too long.

        Not if an earlier one was in time: then it may be so again.
        """
        took = self._clock.now_ns() - self._began_ns
        if took > self.max_wait_ns and not self._was_kept:
            whole_s = took / max(share, 1e-9) / 1e9
            raise self.error(whole_s, "a row waits for a pass over the master, which takes")

    def check(self, least_s: float, why: str) -> None:
        """Raise if rows wait at least so long, whatever is done."""
        if least_s * 1e9 > self.max_wait_ns:
            raise self.error(least_s, why)

    def error(self, least_s: float, why: str) -> DeadlineError:
        """That the bound cannot be kept, because of what takes so long."""
        return DeadlineError(
            f"{self._owner} cannot keep max_wait={self.max_wait_ns / 1e9:g} s: {why} "
            f"{_short(least_s)}",
            hint="allow a longer wait, or use ssij or sweepjoin, which read only what rows need",
        )


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
