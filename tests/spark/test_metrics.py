"""Statistics of tasks, summed: retries count once, memory once per worker."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from semistream import build_master
from semistream.core.errors import OptionError
from semistream.core.stats import JoinStats
from semistream.spark import enrich, log_stats, stats
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
    assert figures["avgJoinFanOut"] == 1.0


def test_statistics_of_something_else(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="does not come from enrich"):
        stats(spark.range(3))
