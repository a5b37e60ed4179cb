"""What a query did, micro-batch by micro-batch: Spark's own figures and those of the joins."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.clock import Clock, SystemClock
from semistream.core.stats import JoinStats
from semistream.spark.heartbeat import HEARTBEAT
from semistream.spark.metrics import BatchStats, listen, summed, summed_by_join
from semistream.spark.sources import rows_behind

KEPT_BATCHES = 4096
"""Micro-batches that are kept, about 20 MB of them."""

_LAST_WORD_S = 20.0
"""How long to wait for the last events of a query that has ended."""


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: rows that came in, where Spark's time went, what the joins did.

    `ended_ns` is the clock's time when the driver heard of it. `observed` are the values of
    `DataFrame.observe`, by name. `rows_behind` have arrived at the source and were not taken yet,
    where the source counts them. `joins` tells of every join: its master, and what it did.
    """

    batch: int
    rows_in: int
    ended_ns: int
    durations_ms: Mapping[str, int]
    stats: BatchStats
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows_behind: int | None = None

    joins: tuple[tuple[str, BatchStats], ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took, from the look at the source to the commit."""
        return self.durations_ms.get("triggerExecution", 0) / 1000


@dataclass
class Balance:
    """Where the rows of one join are. Those that came, or that an earlier run left waiting, are
    matched, unmatched, dead or waiting."""

    master: str
    rows_in: int = 0
    matched: int = 0
    unmatched: int = 0
    dead: int = 0
    waiting: int = 0


class Recorder(StreamingQueryListener):
    """Keeps the micro-batches of the queries that start while it listens, in their order.

    Of a run that goes on for days the latest are kept, and the sum of all. `first` is the first in
    which rows were joined, `worked` the number of these. `tell` is called with every micro-batch,
    in the thread of Spark's events.
    """

    def __init__(
        self, clock: Clock | None = None, tell: Callable[[MicroBatch], None] | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._tell = tell
        self._batches: deque[MicroBatch] = deque(maxlen=KEPT_BATCHES)
        self._total = JoinStats()
        self._balances: dict[int, Balance] = {}
        self._held_back: dict[int, int] = {}
        self._ended = threading.Event()
        self.first: MicroBatch | None = None
        self.worked = 0

    @property
    def batches(self) -> list[MicroBatch]:
        """Up to now; of a long run the latest ones."""
        return list(self._batches)

    def total(self) -> JoinStats:
        """The counters of the joins over all micro-batches, and what they hold now."""
        return self._total

    def add(self, batch: MicroBatch) -> None:
        """The next micro-batch."""
        self._batches.append(batch)
        if batch.stats.tasks:
            self.first = self.first or batch
            self.worked += 1
            join = batch.stats.join
            # A small micro-batch may have had a task on one of several workers only.
            self._total = replace(
                JoinStats.total([self._total, join]).with_holdings_of(join),
                bytes_peak=max(self._total.bytes_peak, join.bytes_peak),
                bytes_limit=max(self._total.bytes_limit, join.bytes_limit),
            )
        for number, (master, did) in enumerate(batch.joins):
            one = self._balances.setdefault(number, Balance(master))
            one.master = one.master or master
            one.rows_in += did.join.rows_in + did.held_back - self._held_back.get(number, 0)
            self._held_back[number] = did.held_back
            one.matched += did.join.rows_matched
            one.unmatched += did.join.rows_unmatched
            one.dead += did.dead_rows
            one.waiting = did.join.rows_waiting
        if self._tell is not None:
            self._tell(batch)

    def balances(self) -> list[Balance]:
        """Where the rows of every join are, over all micro-batches."""
        return list(self._balances.values())

    def ended(self, query: StreamingQuery) -> None:
        """Wait until everything that an ended query did has been heard of."""
        assert not query.isActive
        self._ended.wait(_LAST_WORD_S)

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        # Beats, which wake rows that wait, are no rows of the stream.
        sources = [one for one in progress.sources if HEARTBEAT not in (one.description or "")]
        counted = [rows_behind(one.latestOffset, one.endOffset) for one in sources]
        behind = [rows for rows in counted if rows is not None]
        batch = MicroBatch(
            batch=progress.batchId,
            rows_in=sum(one.numInputRows for one in sources),
            ended_ns=self._clock.now_ns(),
            durations_ms=dict(progress.durationMs),
            stats=summed(str(progress.id), progress.batchId),
            observed={name: row.asDict() for name, row in (progress.observedMetrics or {}).items()},
            rows_behind=sum(behind) if behind else None,
            joins=tuple(summed_by_join(str(progress.id), progress.batchId, str(progress.runId))),
        )
        self.add(batch)

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self._ended.set()


@contextmanager
def recorded(
    session: SparkSession,
    clock: Clock | None = None,
    tell: Callable[[MicroBatch], None] | None = None,
) -> Iterator[Recorder]:
    """Records the queries of a session that start in here. One at a time."""
    recorder = Recorder(clock, tell)
    listen(session, recorder)
    try:
        yield recorder
    finally:
        session.streams.removeListener(recorder)
