"""The state of a pipeline in one word, with its reason."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from semistream.core.budget import format_bytes
from semistream.dashboard.moment import FALLING_BEHIND, KEEPING_UP, OVER_BUDGET, STARTING

TREND_S = 6.0
"""Whether rows pile up is seen over this time."""

LONG_LINE_S = 2.0
"""Rows of so many seconds in line, and more and more of them, mean falling behind."""

SOON_S = 60.0
"""A line that becomes shorter is no trouble if it will be gone in this time."""

GROWTH = 0.02
"""Of the input rate: a line that grows or shrinks by less is taken as even."""

LATE = 1.1
"""Micro-batches that take so many times the trigger's interval are late."""


@dataclass(frozen=True)
class Facts:
    """What the state depends on; None where it is not known.

    `worked` micro-batches had rows to join. The last one took `batch_s`, and ended `quiet_s` ago.
    """

    now_s: float
    worked: int = 0
    rows_in_line: int | None = None
    input_rows_s: float = 0.0
    batch_s: float = 0.0
    every_s: float | None = None
    quiet_s: float = 0.0
    working: bool = False
    bytes_in_use: int = 0
    bytes_limit: int = 0


class Judge:
    """Tells the state from the facts of one moment after the other.

    A pipeline falls behind when the rows that wait at its source are many and become more. It is
    back when they become fewer so fast that they will be gone soon. Where the source does
    not count, a pipeline falls behind when its micro-batches take longer than the time from one
    to the next.
    """

    def __init__(self) -> None:
        self._line: deque[tuple[float, int]] = deque(maxlen=1024)
        self._behind = False

    def state(self, facts: Facts) -> tuple[str, str]:
        """The state in a word, and the reason."""
        behind, reason = self._judged(facts)
        self._behind = behind
        if facts.bytes_limit and facts.bytes_in_use > facts.bytes_limit:
            return OVER_BUDGET, (
                f"{format_bytes(facts.bytes_in_use)} in use, "
                f"and the budget is {format_bytes(facts.bytes_limit)}"
            )
        if facts.worked == 0:
            return STARTING, "no rows have been joined yet"
        return FALLING_BEHIND if behind else KEEPING_UP, reason

    def _judged(self, facts: Facts) -> tuple[bool, str]:
        if facts.quiet_s > max(10.0, 3 * facts.batch_s):
            if facts.working:
                return True, f"the micro-batch at work has taken {facts.quiet_s:.0f} s"
            return False, f"no rows came for {facts.quiet_s:.0f} s"
        if facts.rows_in_line is None:
            return self._by_time(facts)
        growth = self._growth(facts.now_s, facts.rows_in_line)
        rate = max(facts.input_rows_s, 1.0)
        in_line_s = facts.rows_in_line / rate
        in_line = f"{facts.rows_in_line:,} rows wait at the source"
        if in_line_s > LONG_LINE_S and growth > GROWTH * rate:
            return True, f"{in_line}, and {growth:,.0f} more every second"
        if in_line_s > LONG_LINE_S and growth < 0 and facts.rows_in_line < SOON_S * -growth:
            return False, f"catching up: {in_line}, {-growth:,.0f} fewer every second"
        if in_line_s > LONG_LINE_S and self._behind:
            return True, f"{in_line}, and will not be joined soon"
        if in_line_s > LONG_LINE_S:
            return False, f"{in_line}, and they do not become more"
        return False, "rows are joined as fast as they come"

    def _by_time(self, facts: Facts) -> tuple[bool, str]:
        if facts.every_s and facts.batch_s > LATE * facts.every_s:
            return True, (
                f"a micro-batch takes {facts.batch_s:.1f} s, and one is due every "
                f"{facts.every_s:g} s"
            )
        return False, "micro-batches end in time"

    def _growth(self, now_s: float, rows: int) -> float:
        """By how many rows per second the line grew over the last seconds."""
        self._line.append((now_s, rows))
        while len(self._line) > 2 and self._line[1][0] <= now_s - TREND_S:
            self._line.popleft()
        since_s, before = self._line[0]
        if now_s - since_s < TREND_S / 2:
            return 0.0
        return (rows - before) / (now_s - since_s)
