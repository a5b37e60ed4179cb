"""A recorded run once more, at its own pace or faster."""

from __future__ import annotations

import threading
from dataclasses import replace

from semistream.core.clock import Clock
from semistream.dashboard.history import History
from semistream.dashboard.moment import STOPPED, Moment
from semistream.dashboard.recording import RecordedRun

LONGEST_PAUSE_S = 5.0
"""A recording may span a night in which the machine slept; nobody waits for that."""


def replay(
    run: RecordedRun,
    into: History,
    clock: Clock,
    stop: threading.Event,
    *,
    speed: float = 1.0,
    hide_keys: bool = False,
) -> int:
    """Add the moments of a run to a history, `speed` times as fast as they were; how many.

    The last moment says what is wrong with the recording, if anything is. Ends early when `stop`
    is set.
    """
    assert clock.real, "a replay waits"
    due_ns, before, count = clock.now_ns(), None, 0
    last: Moment | None = None
    for moment in run.moments():
        if before is not None:
            due_ns += int(min(max(moment.at - before, 0.0), LONGEST_PAUSE_S) / speed * 1e9)
        before = moment.at
        wait_s = (due_ns - clock.now_ns()) / 1e9
        if wait_s > 0 and stop.wait(wait_s):
            return count
        last = without_keys(moment) if hide_keys else moment
        into.add(last)
        count += 1
    if run.problem and last is not None:
        into.add(replace(last, at=last.at + 1e-3, state=STOPPED, reason=run.problem))
    return count


def without_keys(moment: Moment) -> Moment:
    """The moment with numbers instead of keys."""
    hidden = [(f"key {number}", share) for number, (_, share) in enumerate(moment.hot_keys, 1)]
    return replace(moment, hot_keys=hidden)
