"""Time is handed in, so that tests drive it by hand and runs can be replayed."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the library asks for the time. `real` says whether it advances by itself."""

    real: bool

    def now_ns(self) -> int:
        """Nanoseconds since some fixed moment; never goes back."""


class ProcessorClock:
    """The time for which this process had a processor, in all threads.

    For measuring on a machine that others use too, what does not wait: buffered reads of what the
    operating system has in its cache.
    """

    real = True

    def now_ns(self) -> int:
        """Nanoseconds of processor time."""
        return time.process_time_ns()


class SystemClock:
    """The machine's monotonic clock."""

    real = True

    def now_ns(self) -> int:
        """Nanoseconds of the monotonic clock."""
        return time.monotonic_ns()
