"""What a query did, micro-batch by micro-batch: Spark's own figures and those of the joins."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.clock import Clock, SystemClock
from semistream.core.stats import JoinStats
from semistream.spark.metrics import BatchStats, summed, summed_by_join
from semistream.spark.sources import rows_behind

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
    """Where the rows of one join are. Those that came are matched, unmatched, dead or waiting."""

    master: str
    rows_in: int = 0
    matched: int = 0
    unmatched: int = 0
    dead: int = 0
    waiting: int = 0


class Recorder(StreamingQueryListener):
    """Keeps the micro-batches of the queries that start while it listens, in their order."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._batches: list[MicroBatch] = []
        self._ended = threading.Event()

    @property
    def batches(self) -> list[MicroBatch]:
        """Up to now."""
        return list(self._batches)

    def total(self) -> JoinStats:
        """The counters of the joins over all micro-batches, and what they hold now."""
        worked = [one.stats.join for one in self.batches if one.stats.tasks]
        if not worked:
            return JoinStats()
        total = JoinStats.total(worked).with_holdings_of(worked[-1])
        total.bytes_peak = max(one.bytes_peak for one in worked)
        return total

    def balances(self) -> list[Balance]:
        """Where the rows of every join are, over all micro-batches."""
        found: dict[int, Balance] = {}
        for batch in self.batches:
            for number, (master, did) in enumerate(batch.joins):
                one = found.setdefault(number, Balance(master))
                one.master = one.master or master
                one.rows_in += did.join.rows_in
                one.matched += did.join.rows_matched
                one.unmatched += did.join.rows_unmatched
                one.dead += did.dead_rows
                one.waiting = did.join.rows_waiting
        return list(found.values())

    def ended(self, query: StreamingQuery) -> None:
        """Wait until everything that an ended query did has been heard of."""
        assert not query.isActive
        self._ended.wait(_LAST_WORD_S)

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        behind = [rows_behind(one.latestOffset, one.endOffset) for one in progress.sources]
        self._batches.append(
            MicroBatch(
                batch=progress.batchId,
                rows_in=progress.numInputRows,
                ended_ns=self._clock.now_ns(),
                durations_ms=dict(progress.durationMs),
                stats=summed(str(progress.id), progress.batchId),
                observed={
                    name: row.asDict() for name, row in (progress.observedMetrics or {}).items()
                },
                rows_behind=behind[0] if len(behind) == 1 else None,
                joins=tuple(summed_by_join(str(progress.id), progress.batchId)),
            )
        )

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self._ended.set()


@contextmanager
def recorded(session: SparkSession, clock: Clock | None = None) -> Iterator[Recorder]:
    """Records the queries of a session that start in here. One at a time."""
    recorder = Recorder(clock)
    session.streams.addListener(recorder)
    try:
        yield recorder
    finally:
        session.streams.removeListener(recorder)
