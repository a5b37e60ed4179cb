"""From micro-batches to moments."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from semistream.core.clock import Clock
from semistream.core.stats import JoinStats
from semistream.dashboard.judge import Facts, Judge
from semistream.dashboard.moment import STOPPED, Moment

if TYPE_CHECKING:
    from semistream.spark.recorder import MicroBatch

WINDOW_S = 3.0
"""Rates are those of the micro-batches that ended within this time, or of the last one."""

HOT_KEYS = 8
"""Keys shown."""

HALF_LIFE_S = 10.0
"""After this time a sampled key counts half."""


@dataclass
class Tally:
    """How often keys occur, where what is long ago counts less."""

    most: int = 8 * HOT_KEYS
    weights: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    at_s: float = 0.0

    def add(self, counts: Mapping[str, int], sampled: int, now_s: float) -> None:
        """A sample of so many rows."""
        fade = 0.5 ** (max(now_s - self.at_s, 0.0) / HALF_LIFE_S)
        self.at_s = now_s
        self.total = self.total * fade + sampled
        weights = {key: weight * fade for key, weight in self.weights.items()}
        for key, count in counts.items():
            weights[key] = weights.get(key, 0.0) + count
        best = sorted(weights.items(), key=lambda item: -item[1])[: self.most]
        self.weights = dict(best)

    def top(self, most: int) -> list[tuple[str, float]]:
        """The most frequent keys and their shares of the rows."""
        return [(key, weight / self.total) for key, weight in list(self.weights.items())[:most]]


class Arrivals:
    """When rows arrived at the source, in order to know how long the next one has waited."""

    def __init__(self) -> None:
        self.taken = 0
        self.arrived = 0
        self._points: deque[tuple[float, int]] = deque(maxlen=4096)

    def add(self, rows: int, behind: int, looked_s: float) -> None:
        """So many rows were taken, and others were there when the source was looked at."""
        self.taken += rows
        self.arrived = max(self.taken + behind, self.arrived)
        self._points.append((looked_s, self.arrived))
        while len(self._points) > 2 and self._points[1][1] <= self.taken:
            self._points.popleft()

    def oldest_s(self, now_s: float) -> float:
        """How long the first row that was not taken yet has waited; 0 if there is none."""
        if self.arrived <= self.taken:
            return 0.0
        before_s, before = self._points[0]
        for at_s, arrived in self._points:
            if arrived > self.taken:
                share = (self.taken - before) / (arrived - before) if arrived > before else 1.0
                return max(now_s - (before_s + share * (at_s - before_s)), 0.0)
            before_s, before = at_s, arrived
        return 0.0

    def rate(self, since_s: float) -> float | None:
        """Rows per second that arrived since a time or a little earlier; None with one look."""
        if len(self._points) < 2:
            return None
        last_s, last = self._points[-1]
        first_s, first = self._points[0]
        for at_s, arrived in self._points:
            if at_s > since_s:
                break
            first_s, first = at_s, arrived
        if last_s <= first_s:
            return None
        return (last - first) / (last_s - first_s)


class Tracker:
    """Hears of micro-batches and says, at any time, what the pipeline does.

    Memory does not grow with the run. `every_s` is the trigger's interval, if it has one; `working`
    says whether a micro-batch is at work, and is only asked when none has ended for a while.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        every_s: float | None = None,
        working: Callable[[], bool] | None = None,
        hide_keys: bool = False,
    ) -> None:
        self.every_s = every_s
        self.working = working
        self._clock = clock
        self._hide_keys = hide_keys
        self._lock = threading.Lock()
        # The clock counts from anywhere; a person wants to know when something was.
        self._epoch_s = datetime.now(UTC).timestamp() - clock.now_ns() / 1e9
        self._judge = Judge()
        self._tally = Tally()
        self._arrivals: Arrivals | None = None
        self._recent: list[MicroBatch] = []
        self._before_s: float | None = None
        self._total = JoinStats()
        self._dead_rows = 0
        self._pairs = 0
        self._batches = 0
        self._worked = 0
        self._stopped: str | None = None

    def add(self, batch: MicroBatch) -> None:
        """A micro-batch has ended."""
        now_s = batch.ended_ns / 1e9
        stats = batch.stats
        with self._lock:
            self._batches += 1
            if stats.tasks:
                self._worked += 1
                peak = max(self._total.bytes_peak, stats.join.bytes_peak)
                total = JoinStats.total([self._total, stats.join]).with_holdings_of(stats.join)
                total.bytes_peak = peak
                self._total = total
                self._dead_rows += stats.dead_rows
                self._pairs += stats.pairs
                self._tally.add(stats.hot_keys, stats.sampled_rows, now_s)
            if batch.rows_behind is not None:
                self._arrivals = self._arrivals or Arrivals()
                self._arrivals.add(batch.rows_in, batch.rows_behind, now_s - batch.seconds)
            self._recent.append(batch)
            while len(self._recent) > 1 and self._recent[0].ended_ns / 1e9 <= now_s - WINDOW_S:
                self._before_s = self._recent.pop(0).ended_ns / 1e9

    def stop(self, reason: str) -> None:
        """The pipeline has ended; every later moment says so."""
        with self._lock:
            self._stopped = self._stopped or reason

    def moment(self) -> Moment:
        """What the pipeline does now."""
        with self._lock:
            last_s = self._recent[-1].ended_ns / 1e9 if self._recent else None
        # Asked without the lock: it may take a while, and micro-batches come meanwhile.
        quiet = last_s is not None and self._clock.now_ns() / 1e9 - last_s > WINDOW_S
        working = bool(quiet and self.working is not None and self.working())
        with self._lock:
            return self._moment(self._clock.now_ns() / 1e9, working)

    def _moment(self, now_s: float, working: bool) -> Moment:
        at = self._epoch_s + now_s
        if not self._recent:
            state, reason = self._judge.state(Facts(now_s))
            if self._stopped is not None:
                state, reason = STOPPED, self._stopped
            return Moment(at, state, reason)
        last = self._recent[-1]
        quiet_s = now_s - last.ended_ns / 1e9
        still = self._stopped is not None or quiet_s > max(WINDOW_S, 3 * last.seconds)
        recent = [] if still else self._recent
        total = self._total
        # A small micro-batch hears only of the workers that had a task in it; the others still hold
        # what they held.
        fullest = max(self._recent, key=lambda one: (one.stats.join.bytes_limit, one.ended_ns))
        held = fullest.stats.join if fullest.stats.tasks else total
        did = JoinStats.total(one.stats.join for one in recent)
        span_s = self._span_s()
        slots = max((one.stats.tasks for one in recent), default=0)
        answered = did.rows_matched + did.rows_unmatched
        work_s = did.time_busy_s + did.time_io_s
        rows_in = sum(one.rows_in for one in recent)
        input_rows_s = None
        if self._arrivals is not None and not still:
            input_rows_s = self._arrivals.rate(now_s - 2 * WINDOW_S)
        if input_rows_s is None:
            input_rows_s = rows_in / span_s
        behind = last.rows_behind
        state, reason = self._judge.state(
            Facts(
                now_s=now_s,
                worked=self._worked,
                rows_in_line=behind,
                input_rows_s=input_rows_s,
                batch_s=last.seconds,
                every_s=self.every_s,
                quiet_s=quiet_s,
                working=working,
                bytes_in_use=held.bytes_in_use,
                bytes_limit=held.bytes_limit,
            )
        )
        if self._stopped is not None:
            state, reason = STOPPED, self._stopped
        room_s = max(slots * span_s, work_s, 1e-9)
        looked_up = did.hits + did.misses
        waited = int(did.latency_histogram.sum())
        return Moment(
            at=at,
            state=state,
            reason=reason,
            algorithm=total.algorithm,
            input_rows_s=input_rows_s,
            joined_rows_s=answered / span_s,
            output_rows_s=did.rows_out / span_s,
            measured_rows_s=answered * slots / work_s if work_s > 0 and answered else None,
            predicted_rows_s=held.predicted_rows_s or None,
            bytes_by_component={
                name: size for name, size in held.bytes_by_component.items() if size
            },
            bytes_in_use=held.bytes_in_use,
            bytes_limit=held.bytes_limit,
            busy_share=did.time_busy_s / room_s,
            io_share=did.time_io_s / room_s,
            idle_share=max(1 - work_s / room_s, 0.0),
            oldest_s=self._oldest_s(last, at),
            latency_p50_s=did.latency_s(50) if waited else None,
            latency_p95_s=did.latency_s(95) if waited else None,
            latency_p99_s=did.latency_s(99) if waited else None,
            hit_share=did.hit_share if looked_up else None,
            hot_keys=self._hot_keys(),
            pages_per_row=did.pages_per_row if did.rows_in else None,
            batch=last.batch,
            batch_ms=dict(last.durations_ms),
            rows_waiting=last.stats.join.rows_waiting,
            rows_behind=behind,
            unmatched_rows_s=did.rows_unmatched / span_s,
            dead_rows_s=sum(one.stats.dead_rows for one in recent) / span_s,
            shed_rows_s=did.rows_shed / span_s,
            totals=self._totals(last),
        )

    def _span_s(self) -> float:
        """The time in which the recent micro-batches ended."""
        last_s = self._recent[-1].ended_ns / 1e9
        if self._before_s is not None:
            return max(last_s - self._before_s, 1e-3)
        return max(last_s - self._recent[0].ended_ns / 1e9 + self._recent[0].seconds, 1e-3)

    def _oldest_s(self, last: MicroBatch, at: float) -> float | None:
        """The age of the oldest row that waits in the join or, where it is known, at the source."""
        ages = []
        if self._arrivals is not None:
            ages.append(self._arrivals.oldest_s(at - self._epoch_s))
        if last.stats.oldest_ms is not None:
            ages.append(max(at - last.stats.oldest_ms / 1000, 0.0))
        return max(ages, default=None)

    def _hot_keys(self) -> list[tuple[str, float]]:
        top = self._tally.top(HOT_KEYS)
        if self._hide_keys:
            return [(f"key {number}", share) for number, (_, share) in enumerate(top, 1)]
        return top

    def _totals(self, last: MicroBatch) -> dict[str, float]:
        """Counters from the start and what is held now, under the names of the metrics."""
        from semistream.spark.metrics import BatchStats

        whole = BatchStats(
            batch=last.batch,
            tasks=last.stats.tasks,
            version=last.stats.version,
            join=self._total,
            pairs=self._pairs,
            dead_rows=self._dead_rows,
        )
        figures = whole.metrics()
        figures["latestLoadTime"] = last.stats.metrics()["latestLoadTime"]
        figures["numProbeSideRecordsBuffered"] = last.stats.join.rows_waiting
        figures["numMicroBatches"] = self._batches
        figures["budgetPeakBytes"] = self._total.bytes_peak
        figures["busyTime"] = round(self._total.time_busy_s * 1000, 3)
        figures["loadTime"] = round(self._total.time_io_s * 1000, 3)
        return figures
