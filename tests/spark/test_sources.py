"""The workload source: rows are a function of their offsets, however they are asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from semistream.core.errors import OptionError, SemiStreamError, UnknownNameError
from semistream.spark import register
from semistream.spark.sources import Workload, WorkloadSource, WorkloadStreamReader, rows_behind
from semistream.testing import ManualClock
from semistream.workloads import sales

OPTIONS = {"products": "5000", "seed": "4", "rows": "30000", "skew": "0.8", "missing": "0.1"}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def expected(rows: int = 30_000, start: int = 0) -> pa.Table:
    return sales(rows, start=start, products=5000, seed=4, skew=0.8, missing=0.1).read_all()


def by_sale(table: pa.Table) -> pa.Table:
    return table.sort_by("sale_id").combine_chunks()


def test_read(session: SparkSession) -> None:
    df = session.read.format("semistream-workload").options(**OPTIONS).load()
    assert by_sale(df.toArrow()).cast(expected().schema).equals(expected())


def test_what_has_arrived_is_reported() -> None:
    clock = ManualClock()
    reader = WorkloadStreamReader(Workload(rate=1000.0, batch_rows=100, rows=1500), clock)
    assert reader.latestOffset({"sale": 0}, ReadMaxRows(100)) == {"sale": 0}
    clock.advance(1.0)
    assert reader.latestOffset({"sale": 0}, ReadMaxRows(100)) == {"sale": 100}
    assert reader.reportLatestOffset() == {"sale": 1000}
    clock.advance(1.0)
    assert reader.reportLatestOffset() == {"sale": 1500}
    assert WorkloadStreamReader(Workload(), clock).reportLatestOffset() is None
    assert rows_behind('{"sale":1500}', '{"sale":100}') == 1400
    assert rows_behind("7", '{"sale":100}') is None
    assert rows_behind(None, None) is None


def test_a_stream_goes_on_at_its_checkpoint(session: SparkSession, tmp_path: Path) -> None:
    def run(rows: int) -> list[Any]:
        options: dict[str, Any] = {**OPTIONS, "rows": rows, "batch_rows": 4000}
        stream = session.readStream.format("semistream-workload").options(**options).load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]

    assert [rows for rows in run(10_000) if rows] == [4000, 4000, 2000]
    assert [rows for rows in run(30_000) if rows] == [4000] * 5
    written = session.read.parquet(str(tmp_path / "out")).toArrow()
    assert by_sale(written).cast(expected().schema).equals(expected())


def test_unknown_options_are_errors(session: SparkSession) -> None:
    reader = session.read.format("semistream-workload").option("rowz", 10)
    with pytest.raises(Exception, match="there is no option of semistream-workload 'rowz'"):
        reader.load().count()


# ------------------------------------------------------------------------------- without Spark


def reader(**options: str) -> tuple[WorkloadStreamReader, ManualClock]:
    clock = ManualClock()
    return WorkloadStreamReader(Workload.of(options), clock), clock


def rows_between(source: WorkloadStreamReader, start: int, end: int) -> pa.Table:
    parts = source.partitions({"sale": start}, {"sale": end})
    return pa.Table.from_batches([batch for part in parts for batch in source.read(part)])


def test_any_range_can_be_made_again() -> None:
    source, _ = reader(**{**OPTIONS, "rows": "1000000000000", "partitions": "3"})
    far = 999_999_000_000
    once = rows_between(source, far, far + 9000)
    assert once.combine_chunks().equals(expected(9000, far).combine_chunks())
    again, _ = reader(**{**OPTIONS, "rows": "1000000000000", "partitions": "1"})
    assert rows_between(again, far + 4000, far + 9000).equals(once.slice(4000))


def test_batches_are_limited_and_end() -> None:
    source, _ = reader(rows="250", batch_rows="100")
    limit = source.getDefaultReadLimit()
    offsets = [source.initialOffset()]
    for _ in range(4):
        offsets.append(source.latestOffset(offsets[-1], limit))
    assert [offset["sale"] for offset in offsets] == [0, 100, 200, 250, 250]
    assert json.loads(json.dumps(offsets[-1])) == offsets[-1]
    assert source.partitions(offsets[-1], offsets[-1]) == []
    assert source.latestOffset({"sale": 0}, ReadAllAvailable()) == {"sale": 250}


@pytest.mark.parametrize("bursty", ["false", "true"])
def test_a_rate_lets_rows_arrive(bursty: str) -> None:
    source, clock = reader(rate="1000", bursty=bursty)
    limit = ReadMaxRows(10**9)
    assert source.latestOffset({"sale": 0}, limit) == {"sale": 0}
    clock.advance(30)
    offset = source.latestOffset({"sale": 0}, limit)
    assert 3000 < offset["sale"] < 300_000
    if bursty == "false":
        assert offset == {"sale": 30_000}
    # A restart takes the time up where the checkpoint left it.
    restarted, clock = reader(rate="1000", bursty=bursty)
    at = restarted.latestOffset(offset, limit)["sale"]
    assert offset["sale"] <= at <= offset["sale"] + 30
    clock.advance(600)
    assert restarted.latestOffset(offset, limit)["sale"] > at


def test_available_now_needs_an_end() -> None:
    source, _ = reader(rate="1000")
    with pytest.raises(OptionError, match="no end"):
        source.prepareForTriggerAvailableNow()
    source, _ = reader(rate="1000", rows="500")
    source.prepareForTriggerAvailableNow()
    assert source.latestOffset({"sale": 0}, ReadMaxRows(10**6)) == {"sale": 500}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"rowz": "1"}, UnknownNameError, "known: batch_rows, bursty, distribution"),
        ({"rows": "many"}, OptionError, "rows='many' is not a whole number"),
        ({"bursty": "perhaps", "rate": "1"}, OptionError, "not true or false"),
        ({"bursty": "true"}, OptionError, "needs a rate"),
        ({"distribution": "normal"}, UnknownNameError, "known: uniform, zipf"),
        ({"distribution": "uniform", "skew": "1"}, OptionError, "has no skew"),
        ({"batch_rows": "0"}, OptionError, "not above zero"),
        ({"rows": "-1"}, OptionError, "negative"),
        ({"rate": "0"}, OptionError, "rows per second"),
        ({"products": "0"}, OptionError, "no keys"),
        ({"placement": "here"}, OptionError, "no placement"),
        ({"skew": "-1"}, OptionError, "Zipf exponent"),
    ],
)
def test_bad_options(options: dict[str, str], error: type[SemiStreamError], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        WorkloadSource(options)


def test_reading_everything_needs_an_end() -> None:
    source = WorkloadSource({})
    with pytest.raises(OptionError, match="has no end"):
        source.reader(source.schema())


def test_names_are_taken_in_any_case() -> None:
    assert Workload.of({"Batch_Rows": "7", "DISTRIBUTION": "uniform"}).batch_rows == 7
