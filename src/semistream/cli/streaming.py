"""What the commands that run a Spark query share: the session, watching it, ending it.

Imported only by commands that run, so that the others do without PySpark.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semistream.cli import render
from semistream.core.budget import format_bytes
from semistream.core.clock import Clock
from semistream.core.errors import QueryError
from semistream.core.stats import JoinStats
from semistream.dashboard import Watch
from semistream.etl.pipeline import Spark
from semistream.spark.pipeline import failure
from semistream.spark.recorder import Balance, MicroBatch, Recorder
from semistream.spark.session import local_session

WINDOW_S = 3.0
"""Rates are those of the micro-batches that ended within this time."""

PATIENCE_S = 30.0
"""How long a first micro-batch with rows may take to come before time runs without it."""

SHUFFLES = "spark.sql.shuffle.partitions"


@contextmanager
def session(spark: Spark, log: Path) -> Iterator[SparkSession]:
    """The session that is there, or a new one, whose Java process writes what it says to `log`."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    try:
        with _errors_into(log):
            settings: dict[str, Any] = spark.settings
            made = local_session(spark.name, master=spark.master, **settings)
    except PySparkException as error:
        raise QueryError(
            f"Spark does not start: {error}",
            hint=f"it needs Java 17 or newer ('make java' looks for one); see {str(log)!r}",
        ) from error
    if SHUFFLES not in spark.settings:
        # Spark's 200 are for large batches; micro-batches would start as many tiny tasks.
        made.conf.set(SHUFFLES, made.sparkContext.defaultParallelism)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def _errors_into(log: Path) -> Iterator[None]:
    """Processes that start in here write their standard error to a file."""
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that the query ends in order; a second one kills.

    To be used inside `session`: Spark sets a handler of its own when it starts.
    """
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def watch(
    query: StreamingQuery,
    recorder: Recorder,
    live: render.LiveFacts,
    stop: threading.Event,
    clock: Clock,
    seconds: float | None = None,
    watcher: Watch | None = None,
    feeds: Sequence[StreamingQuery] = (),
) -> float:
    """Show a query until it ends, `stop` is set or the seconds are over; how long it worked, in s.

    They run from the end of the first micro-batch with rows on, in which kernels are loaded; where
    none comes, from half a minute after the start. A feed of changes that fails ends it too.
    """
    start_ns = clock.now_ns() + int(PATIENCE_S * 1e9)
    ended = "the source has ended"
    if watcher is not None:
        watcher.tracker.working = lambda: _at_work(query)
    while query.isActive and not stop.is_set():
        batches = worked(recorder)
        now_ns = clock.now_ns()
        if any(failure(feed) is not None for feed in feeds):
            break
        if batches:
            live.show(moment(batches, now_ns))
        begun_ns = recorder.first.ended_ns if recorder.first is not None else start_ns
        if seconds is not None and (now_ns - begun_ns) / 1e9 >= seconds:
            ended = f"its {seconds:g} seconds are over"
            break
        stop.wait(live.every_s)
    if query.isActive:
        query.stop()
    for one in (query, *feeds):
        error = failure(one)
        if error is not None:
            raise error
    recorder.ended(query)
    if watcher is not None:
        watcher.stop("ended by Ctrl-C" if stop.is_set() else ended)
    first, batches = recorder.first, worked(recorder)
    if first is None:
        return 0.0
    return (batches[-1].ended_ns - first.ended_ns) / 1e9 + first.seconds


def _at_work(query: StreamingQuery) -> bool:
    """Whether a micro-batch is at work; no, if Spark is about to end and cannot be asked."""
    try:
        return bool(query.status["isTriggerActive"])
    except (PySparkException, Py4JError, OSError):
        return False


def moment(batches: Sequence[MicroBatch], now_ns: int) -> list[tuple[str, render.Cell]]:
    """What the latest micro-batches did."""
    since_ns = now_ns - int(WINDOW_S * 1e9)
    recent = [one for one in batches if one.ended_ns > since_ns] or list(batches[-1:])
    first = len(batches) - len(recent)
    if first > 0:
        span_s = (recent[-1].ended_ns - batches[first - 1].ended_ns) / 1e9
    else:
        span_s = sum(one.seconds for one in recent)
    span_s = max(span_s, 1e-3)
    did = JoinStats.total(one.stats.join for one in recent)
    holds = recent[-1].stats.join
    rows_in = sum(one.rows_in for one in recent)
    return [
        ("input", f"{render.count(rows_in / span_s)} rows/s"),
        ("joined", f"{render.count(did.rows_out / span_s)} rows/s"),
        ("hits", f"{did.hit_share:.0%}"),
        ("read", f"{render.count(did.pages_read / span_s)} pages/s"),
        ("memory", f"{format_bytes(holds.bytes_in_use)} of {format_bytes(holds.bytes_limit)}"),
        ("waiting", _waiting(recent[-1])),
        ("batch", f"{recent[-1].batch}, {recent[-1].seconds:.2f} s"),
    ]


def _waiting(batch: MicroBatch) -> str:
    held = f"{batch.stats.join.rows_waiting:,} rows in the join"
    if batch.rows_behind is None:
        return held
    return f"{held}, {batch.rows_behind:,} at the source"


def summary(recorder: Recorder, seconds: float) -> list[tuple[str, render.Cell]]:
    """What all micro-batches did, for people."""
    stats, batches = recorder.total(), worked(recorder)
    rate = stats.rows_out / seconds if seconds else 0.0
    times = sorted(one.seconds for one in batches) or [0.0]
    return [
        ("algorithm", stats.algorithm),
        ("stream rows", f"{stats.rows_in:,} in {seconds:.1f} s ({render.count(rate)} joined/s)"),
        (
            "micro-batches",
            f"{recorder.worked:,}, half below {statistics.median(times):.2f} s, "
            f"the longest {times[-1]:.2f} s",
        ),
        ("joined rows", f"{stats.rows_out:,}"),
        ("hits in the cache", f"{stats.hit_share:.0%} of the look-ups"),
        ("pages read", f"{stats.pages_read:,} ({stats.pages_per_row:.4f} per stream row)"),
        ("read requests", f"{stats.requests:,}"),
        (
            "memory at most",
            f"{format_bytes(stats.bytes_peak)} of {format_bytes(stats.bytes_limit)}",
        ),
        (
            "divided into",
            ", ".join(
                f"{name} {format_bytes(size)}"
                for name, size in stats.bytes_by_component.items()
                if size
            ),
        ),
        ("still waiting", f"{stats.rows_waiting:,} rows"),
        *((Path(one.master).name, _balance(one)) for one in recorder.balances()),
    ]


def _balance(one: Balance) -> str:
    return (
        f"{one.rows_in:,} in = {one.matched:,} matched + {one.unmatched:,} unmatched + "
        f"{one.dead:,} dead + {one.waiting:,} waiting"
    )


def plain_summary(recorder: Recorder, seconds: float) -> dict[str, Any]:
    """What all micro-batches did, for JSON."""
    times = [one.seconds for one in worked(recorder)] or [0.0]
    return {
        "seconds": seconds,
        "micro_batches": recorder.worked,
        "batch_s_median": statistics.median(times),
        "batch_s_max": max(times),
        "joins": [asdict(one) for one in recorder.balances()],
        **recorder.total().to_dict(),
    }


def worked(recorder: Recorder) -> list[MicroBatch]:
    """The micro-batches that had rows to join; of a long run the latest."""
    return [one for one in recorder.batches if one.stats.tasks]
