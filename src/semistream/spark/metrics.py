"""Statistics of the tasks, brought to the driver and summed per micro-batch.

Each task adds one record to an accumulator of its join, under the query, the micro-batch and the
partition: a task that runs twice replaces its record instead of counting twice. Nothing travels
with the rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.budget import format_bytes
from semistream.core.errors import OptionError
from semistream.core.hot_keys import HotKeys, merged
from semistream.core.stats import JoinStats
from semistream.spark.versions import micro_batch, query_run
from semistream.spark.worker import Recipe, worker_name

KEPT = 8
"""Micro-batches of a query whose statistics the driver keeps."""

HOT_KEYS = 32
"""Keys of a task's sample that are told to the driver."""

WAITING = -2
"""Stands for the micro-batch in records of rows that wait: they hold until the next such record,
since a part of the stream without news has no task that could speak for it."""

CACHES = ("cache", "buffer pool", "R-buffer", "non-swappable part", "pages")
"""What the joins call the part of their memory that holds master rows or pages."""

JOIN_NAME = "_semistream_join"
"""The attribute of a DataFrame that `enrich` returned, by which its statistics are found."""

logger = logging.getLogger("semistream.spark")


class TaskKey(NamedTuple):
    """What a task works on: the same for every attempt."""

    query: str
    batch: int
    partition: int


@dataclass(frozen=True)
class TaskRecord:
    """What one task did, and with which version of the master.

    `most_partners` is the number of master rows of the most frequent key, `failures` that of
    attempts that failed before this one. `run` is the query's run that says so. `since_batch` and
    `counted` are there for rows that wait: since which micro-batch, and whether they are among the
    rows in already.
    """

    worker: str
    version: int
    stats: JoinStats
    how: str = "inner"
    dead_rows: int = 0
    hot_keys: dict[str, int] = field(default_factory=dict)
    sampled_rows: int = 0
    oldest_ms: int | None = None
    master: str = ""
    most_partners: int = 0
    failures: int = 0
    run: str = ""
    since_batch: int = -1
    counted: bool = True


@dataclass
class BatchStats:
    """What the tasks of one micro-batch did together; `batch` is -1 for a batch DataFrame.

    `join` sums their counters. Memory is summed over workers, each counted once however many tasks
    it ran. `pairs` are results with a master row, `dead_rows` rows that went to the dead letters,
    `failures` attempts of tasks that failed and were repeated. No stream row can have more partners
    than `most_partners`. `held_back` are the rows that wait and that no join has counted as rows in
    yet. `hot_keys` are the keys that occurred most among `sampled_rows` rows, with
    their counts. `oldest_ms` is when the oldest row that waits between micro-batches came, since
    1970.
    """

    batch: int
    tasks: int
    version: int
    join: JoinStats
    pairs: int = 0
    dead_rows: int = 0
    hot_keys: dict[str, int] = field(default_factory=dict)
    sampled_rows: int = 0
    oldest_ms: int | None = None
    most_partners: int = 0
    failures: int = 0
    held_back: int = 0

    def metrics(self) -> dict[str, float]:
        """The figures under the names that lookup joins elsewhere use."""
        join = self.join
        return {
            "numRecordsIn": join.rows_in,
            "numRecordsOut": join.rows_out,
            "hitCount": join.hits,
            "missCount": join.misses,
            "loadCount": join.requests,
            "numLoadFailures": self.failures,
            "latestLoadTime": round(join.time_io_s * 1000, 3),
            "numCachedRecords": join.cached_rows,
            "numCachedBytes": sum(join.bytes_by_component.get(name, 0) for name in CACHES),
            "numProbeSideRecordsBuffered": join.rows_waiting,
            "numUnmatchedProbeRecords": join.rows_unmatched,
            "maxJoinFanOut": self.most_partners if self.pairs else 0,
            "avgJoinFanOut": self.pairs / join.rows_matched if join.rows_matched else 0.0,
            "numDeadLetters": self.dead_rows,
            "numShedRecords": join.rows_shed,
            "pagesRead": join.pages_read,
            "bytesRead": join.bytes_read,
            "budgetUsedBytes": join.bytes_in_use,
            "budgetLimitBytes": join.bytes_limit,
            "masterVersion": self.version,
        }

    def line(self) -> str:
        """One line for a log."""
        join = self.join
        return (
            f"batch {self.batch}: {join.rows_in:,} in, {join.rows_out:,} out, "
            f"{join.rows_waiting:,} waiting, {join.hit_share:.1%} hits, "
            f"{join.pages_read:,} pages read, {format_bytes(join.bytes_in_use)} of "
            f"{format_bytes(join.bytes_limit)}, {self.dead_rows:,} dead, master v{self.version}"
        )


type_of_records = dict[TaskKey, TaskRecord]


class _Latest(AccumulatorParam[type_of_records]):
    """Keeps the records of the latest micro-batches of every query."""

    def zero(self, value: type_of_records) -> type_of_records:
        return {}

    def addInPlace(self, value1: type_of_records, value2: type_of_records) -> type_of_records:
        value1.update(value2)
        newest: dict[str, int] = {}
        for key in value1:
            newest[key.query] = max(newest.get(key.query, key.batch), key.batch)
        for key in list(value1):
            if WAITING < key.batch <= newest[key.query] - KEPT:
                del value1[key]
        return value1


@dataclass
class _Driver:
    """What the driver knows: the accumulator of every join."""

    joins: dict[str, Accumulator[type_of_records]] = field(default_factory=dict)


_driver = _Driver()


def new_accumulator(context: SparkContext, name: str) -> Accumulator[type_of_records]:
    """The accumulator of the join of this name."""
    _driver.joins[name] = context.accumulator({}, _Latest())
    return _driver.joins[name]


def record(
    accumulator: Accumulator[type_of_records],
    recipe: Recipe,
    version: int,
    did: JoinStats,
    dead_rows: int,
    hot: HotKeys,
    most_partners: int,
) -> None:
    """Called by a task at its end."""
    context = TaskContext.get()
    partition, failures = 0, 0
    if context is not None:
        partition, failures = context.partitionId(), context.attemptNumber()
    query, batch = micro_batch() or (recipe.name, -1)
    done = TaskRecord(
        worker_name(),
        version,
        did,
        recipe.how,
        dead_rows,
        hot.top(HOT_KEYS),
        hot.sampled,
        master=str(recipe.master),
        most_partners=most_partners,
        failures=failures,
        run=query_run(),
    )
    accumulator.add({TaskKey(query, batch, partition): done})


def record_waiting(
    accumulator: Accumulator[type_of_records],
    part: int,
    rows: int,
    oldest_ms: int | None,
    *,
    counted: bool,
) -> None:
    """Called by a task when the rows that wait in a part of the stream may be others."""
    query, batch = micro_batch() or ("", 0)
    waiting = TaskRecord(
        f"part {part}",
        0,
        JoinStats(rows_waiting=rows),
        oldest_ms=oldest_ms,
        run=query_run(),
        since_batch=batch,
        counted=counted,
    )
    accumulator.add({TaskKey(query, WAITING, part): waiting})


def stats(query: StreamingQuery | DataFrame) -> BatchStats:
    """What the joins of a streaming query did in its latest micro-batch, summed over its tasks.

    Also takes a batch DataFrame that `enrich` returned, after it was computed.
    """
    if isinstance(query, DataFrame):
        name = getattr(query, JOIN_NAME, None)
        if name is None:
            raise OptionError(
                "this DataFrame does not come from enrich",
                hint="keep what enrich returned, and ask for its statistics",
            )
        return summed(name, None)
    return summed(str(query.id), None)


def summed(query: str, batch: int | None) -> BatchStats:
    """What the joins of the query of this id did in a micro-batch, or in the latest."""
    return _summed(list(_driver.joins.values()), query, batch)


def summed_by_join(query: str, batch: int, run: str) -> list[tuple[str, BatchStats]]:
    """The same for every join of a run on its own, in their order: its master, and what it did.

    The joins of an earlier run of the query, in the same process, are others.
    """
    found = []
    for accumulator in list(_driver.joins.values()):
        did = _summed([accumulator], query, batch, run)
        masters = [one.master for key, one in list(accumulator.value.items()) if one.master]
        if did.tasks or did.join.rows_waiting:
            found.append((masters[0] if masters else "", did))
    return found


def _summed(
    accumulators: Iterable[Accumulator[type_of_records]],
    query: str,
    batch: int | None,
    run: str | None = None,
) -> BatchStats:
    found: list[tuple[TaskKey, TaskRecord]] = [
        (key, one)
        for accumulator in accumulators
        for key, one in list(accumulator.value.items())
        if key.query == query
        and (batch is None or key.batch in (batch, WAITING))
        and (run is None or one.run == run)
    ]
    latest = max((key.batch for key, _ in found if key.batch != WAITING), default=-1)
    records = [one for key, one in found if key.batch == latest]
    join = sum_of_tasks(records)
    waiting = [one for key, one in found if key.batch == WAITING]
    join.rows_waiting += _rows_waiting(waiting)
    return BatchStats(
        batch=latest,
        tasks=len(records),
        version=max((one.version for one in records), default=0),
        join=join,
        pairs=sum(_pairs(one) for one in records),
        dead_rows=sum(one.dead_rows for one in records),
        hot_keys=merged(one.hot_keys for one in records),
        sampled_rows=sum(one.sampled_rows for one in records),
        oldest_ms=min(
            (one.oldest_ms for _, one in found if one.oldest_ms is not None), default=None
        ),
        most_partners=max((one.most_partners for one in records), default=0),
        failures=sum(one.failures for one in records),
        held_back=_rows_waiting(one for one in waiting if not one.counted),
    )


def _rows_waiting(records: Iterable[TaskRecord]) -> int:
    """Summed over the parts; what an earlier run of the query said holds no more."""
    records = list(records)
    latest = max(records, key=lambda one: one.since_batch, default=None)
    return sum(one.stats.rows_waiting for one in records if latest and one.run == latest.run)


def _pairs(one: TaskRecord) -> int:
    if one.how not in ("inner", "left"):
        return 0
    return one.stats.rows_out - (one.stats.rows_unmatched if one.how == "left" else 0)


def sum_of_tasks(records: Iterable[TaskRecord]) -> JoinStats:
    """Counters summed over tasks; memory and cache over workers, of which the last word counts."""
    records = list(records)
    total = JoinStats.total(one.stats for one in records)
    held = JoinStats.total({one.worker: one.stats for one in records}.values())
    return total.with_holdings_of(held)


class _Log(StreamingQueryListener):
    """Writes a line per micro-batch in which an `enrich` worked."""

    def __init__(self, structured: bool) -> None:
        self._structured = structured

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        did = summed(str(progress.id), progress.batchId)
        name = str(progress.name or progress.id)
        if did.tasks and self._structured:
            logger.info("%s", json.dumps({"query": name, "batch": did.batch, **did.metrics()}))
        elif did.tasks:
            logger.info("%s %s", name, did.line())

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


def log_stats(session: SparkSession, *, structured: bool = False) -> StreamingQueryListener:
    """Log a line per micro-batch of every query of this session, to the logger `semistream.spark`.

    `structured` lines are JSON objects with the names of `BatchStats.metrics`. Returns the
    listener, for `session.streams.removeListener`.
    """
    listener = _Log(structured)
    listen(session, listener)
    return listener


def listen(session: SparkSession, listener: StreamingQueryListener) -> None:
    """Let a listener hear of the session's micro-batches, at less cost than PySpark's own way.

    For each map in a progress PySpark catches an exception of Java's and asks a dozen times for
    the class that tells what it is; each time all of Spark's archives are searched. That takes
    tens of milliseconds of the processor per micro-batch, unless the class is kept once found.
    """
    jvm: Any = session.sparkContext._jvm
    package = jvm.py4j
    package.reflection = package.reflection
    package.reflection.TypeUtil = package.reflection.TypeUtil
    package.reflection.TypeUtil.isInstanceOf = package.reflection.TypeUtil.isInstanceOf
    jvm.py4j = package
    jvm.PythonSQLUtils = jvm.PythonSQLUtils
    session.streams.addListener(listener)
