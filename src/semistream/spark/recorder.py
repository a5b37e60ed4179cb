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
from semistream.spark.heartbeat import HEARTBEAT
from semistream.spark.metrics import BatchStats, summed
from semistream.spark.sources import rows_behind

_LAST_WORD_S = 20.0
"""How long to wait for the last events of a query that has ended."""


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: rows that came in, where Spark's time went, what the joins did.

    `ended_ns` is the clock's time when the driver heard of it. `observed` are the values of
    `DataFrame.observe`, by name. `rows_behind` have arrived at the source and were not taken yet,
    where the source counts them.
    """

    batch: int
    rows_in: int
    ended_ns: int
    durations_ms: Mapping[str, int]
    stats: BatchStats
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows_behind: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took, from the look at the source to the commit."""
        return self.durations_ms.get("triggerExecution", 0) / 1000


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

    def ended(self, query: StreamingQuery) -> None:
        """Wait until everything that an ended query did has been heard of."""
        assert not query.isActive
        self._ended.wait(_LAST_WORD_S)

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        # Beats, which wake rows that wait, are no rows of the stream.
        sources = [one for one in progress.sources if HEARTBEAT not in (one.description or "")]
        behind = [rows_behind(one.latestOffset, one.endOffset) for one in sources]
        self._batches.append(
            MicroBatch(
                batch=progress.batchId,
                rows_in=sum(one.numInputRows for one in sources),
                ended_ns=self._clock.now_ns(),
                durations_ms=dict(progress.durationMs),
                stats=summed(str(progress.id), progress.batchId),
                observed={
                    name: row.asDict() for name, row in (progress.observedMetrics or {}).items()
                },
                rows_behind=behind[0] if len(behind) == 1 else None,
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
