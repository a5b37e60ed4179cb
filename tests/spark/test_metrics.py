"""Statistics of tasks, summed: retries count once, memory once per worker."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from semistream import build_master
from semistream.core.errors import OptionError
from semistream.core.hot_keys import HotKeys
from semistream.core.stats import JoinStats
from semistream.spark import enrich, log_stats, metrics, stats
from semistream.spark.metrics import KEPT, WAITING, TaskKey, TaskRecord, _Latest, sum_of_tasks
from tests.spark.streams import FileStream, until


def done(rows: int, worker: str = "w", waiting: int = 0) -> TaskRecord:
    join = JoinStats(rows_in=rows, rows_waiting=waiting, bytes_in_use=100, cached_rows=7)
    return TaskRecord(worker, 1, join)


def test_a_task_that_runs_twice_counts_once() -> None:
    param = _Latest()
    held = param.addInPlace({}, {TaskKey("q", 0, 0): done(10)})
    held = param.addInPlace(held, {TaskKey("q", 0, 1): done(20)})
    held = param.addInPlace(held, {TaskKey("q", 0, 0): done(10)})
    assert sum_of_tasks(held.values()).rows_in == 30


def test_old_micro_batches_are_forgotten_but_for_rows_that_wait() -> None:
    param = _Latest()
    held = param.addInPlace({}, {TaskKey("q", WAITING, 0): done(0, waiting=5)})
    for batch in range(KEPT + 3):
        held = param.addInPlace(held, {TaskKey("q", batch, 0): done(1)})
    batches = sorted(key.batch for key in held)
    assert batches == [WAITING, *range(3, KEPT + 3)]


def test_memory_counts_once_per_worker() -> None:
    total = sum_of_tasks([done(1, "a"), done(2, "a"), done(4, "b")])
    assert (total.rows_in, total.bytes_in_use, total.cached_rows) == (7, 200, 14)


def test_a_line_per_micro_batch(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build_master(tmp_path / "m", pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}), "k")
    table = pa.table({"k": [1, 2, 9]})
    stream = FileStream(spark, tmp_path / "s", table.schema)
    stream.send(table)
    stream.send(table)
    caplog.set_level(logging.INFO, logger="semistream.spark")
    listeners = [log_stats(spark), log_stats(spark, structured=True)]
    try:
        query = stream.start(enrich(stream.frame(), tmp_path / "m", "k", memory="4MB"), "out")
        assert query.awaitTermination(200)
        until(lambda: len(caplog.messages) >= 4)
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    structured = [json.loads(line) for line in caplog.messages if line.startswith("{")]
    plain = [line for line in caplog.messages if not line.startswith("{")]
    assert all("3 in, 2 out" in line and "master v1" in line for line in plain)
    assert [line["batch"] for line in structured] == [0, 1]
    assert [line["numRecordsOut"] for line in structured] == [2, 2]
    assert stats(query).hot_keys == {"1": 1, "2": 1, "9": 1}
    assert stats(query).sampled_rows == 3
    figures = stats(query).metrics()
    assert (figures["numRecordsIn"], figures["numUnmatchedProbeRecords"]) == (3, 1)
    assert (figures["avgJoinFanOut"], figures["maxJoinFanOut"]) == (1.0, 1)


NAMES_THAT_PEOPLE_KNOW = (
    "hitCount missCount loadCount numLoadFailures latestLoadTime numCachedRecords numCachedBytes "
    "numProbeSideRecordsBuffered numUnmatchedProbeRecords maxJoinFanOut avgJoinFanOut"
)


def test_names_and_fan_out(spark: SparkSession, tmp_path: Path) -> None:
    build_master(tmp_path / "m", pa.table({"k": [1, 2, 2, 2], "v": ["a", "b", "c", "d"]}), "k")
    out = enrich(spark.createDataFrame([(1,), (2,)], "k long"), tmp_path / "m", "k", memory="4MB")
    assert out.count() == 4
    figures = stats(out).metrics()
    assert set(NAMES_THAT_PEOPLE_KNOW.split()) <= set(figures)
    assert (figures["avgJoinFanOut"], figures["maxJoinFanOut"]) == (2.0, 3)
    assert figures["numCachedBytes"] > 0
    assert figures["numLoadFailures"] == 0


def test_attempts_that_failed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SimpleNamespace(
        partitionId=lambda: 3, attemptNumber=lambda: 2, getLocalProperty=lambda name: None
    )
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    records: list[dict[TaskKey, TaskRecord]] = []
    accumulator: Any = SimpleNamespace(add=records.append)
    recipe: Any = SimpleNamespace(name="j", how="inner", master="m")
    metrics.record(accumulator, recipe, 1, JoinStats(), 0, HotKeys(["k"]), 5)
    ((key, one),) = records[0].items()
    assert (key.partition, one.failures, one.most_partners) == (3, 2, 5)


def test_what_an_earlier_run_said_of_rows_that_wait_holds_no_more() -> None:
    def waits(run: str, batch: int, rows: int) -> TaskRecord:
        return TaskRecord("", 0, JoinStats(rows_waiting=rows), run=run, since_batch=batch)

    said = [waits("old", 7, 100), waits("new", 8, 10), waits("new", 9, 1)]
    assert metrics._rows_waiting(said) == 11
    assert metrics._rows_waiting([]) == 0


def test_statistics_of_something_else(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="does not come from enrich"):
        stats(spark.range(3))
