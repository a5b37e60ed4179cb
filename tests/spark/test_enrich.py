"""`enrich` gives what DuckDB's join gives: every kind of join, batch and streaming, both modes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from semistream import build_master
from semistream.checks import Workspace
from semistream.checks.workspace import Case
from semistream.core.errors import BudgetError, KeyTypeError, OptionError, UnknownNameError
from semistream.core.join import HOWS
from semistream.joins.registry import JOINS
from semistream.spark import enrich, stats
from semistream.spark.schemas import arrow_schema, spark_schema
from tests.spark.streams import FileStream, until

MEMORY = "4MB"


def make_case(name: str, rows: int, master_rows: int, shards: int = 1) -> Case:
    """Keys of two columns that repeat on both sides, are missing or null; strings and nulls."""
    rng = np.random.default_rng(7)
    regions = np.array(["north", "south", "east"])
    numbers = rng.integers(0, master_rows, master_rows)
    master = pa.table(
        {
            "region": pa.array(regions[numbers % 3]),
            "number": pa.array(numbers, pa.int32()),
            "label": pa.array([f"label {n}" if n % 5 else None for n in numbers.tolist()]),
            "price": pa.array(numbers / 8),
        }
    )
    asked = rng.integers(0, master_rows, rows)
    stream = pa.table(
        {
            "n": pa.array(np.arange(rows)),
            "where": pa.array(regions[asked % 3]),
            "which": pa.array([None if n % 50 == 0 else n for n in asked.tolist()], pa.int64()),
            "label": pa.array([None if n % 7 == 0 else f"row {n}" for n in range(rows)]),
        }
    )
    return Case(name, stream, master, {"where": "region", "which": "number"}, {"shards": shards})


SMALL = make_case("spark small", 3000, 2000)
SHARDED = make_case("spark sharded", 3000, 2000, shards=3)
SPARSE = make_case("spark sparse", 900, 30_000)


def in_spark(table: pa.Table, case: Case, workspace: Workspace, how: str) -> pa.Table:
    workspace.assert_exact(table, case, how, f"enrich {how}")
    return table


@pytest.mark.parametrize("how", HOWS)
def test_a_batch_is_joined(spark: SparkSession, workspace: Workspace, how: str) -> None:
    df = spark.createDataFrame(SMALL.stream)
    out = enrich(df, workspace.master(SMALL), SMALL.on, how=how, memory=MEMORY)
    in_spark(out.toArrow(), SMALL, workspace, how)
    did = stats(out)
    assert did.join.rows_in == SMALL.stream.num_rows
    assert did.join.rows_in == did.join.rows_matched + did.join.rows_unmatched
    assert did.metrics()["budgetLimitBytes"] == 4_000_000


@pytest.mark.parametrize("name", [name for name in JOINS if name != "sweepjoin"])
def test_every_join_works(spark: SparkSession, workspace: Workspace, name: str) -> None:
    df = spark.createDataFrame(SMALL.stream)
    path = workspace.master(SMALL)
    out = enrich(df, path, SMALL.on, how="left", algorithm=name, memory="16MB", tasks=1)
    in_spark(out.toArrow(), SMALL, workspace, "left")


def test_rows_go_to_shards(spark: SparkSession, workspace: Workspace) -> None:
    df = spark.createDataFrame(SHARDED.stream)
    path = workspace.master(SHARDED)
    for how in ("inner", "anti"):
        out = enrich(df, path, SHARDED.on, how=how, memory="9MB", by_shard=True)
        in_spark(out.toArrow(), SHARDED, workspace, how)
        assert stats(out).tasks == 3


def test_a_task_joins_with_several_threads(spark: SparkSession, workspace: Workspace) -> None:
    df = spark.createDataFrame(SMALL.stream)
    path = workspace.master(SMALL)
    out = enrich(df, path, SMALL.on, how="left", memory=MEMORY, tasks=1, threads=2)
    in_spark(out.toArrow(), SMALL, workspace, "left")
    assert stats(out).join.rows_in == SMALL.stream.num_rows


def test_a_projection(spark: SparkSession, workspace: Workspace) -> None:
    df = spark.createDataFrame(SMALL.stream)
    out = enrich(df, workspace.master(SMALL), SMALL.on, memory=MEMORY, columns=["label"])
    assert out.columns == ["n", "where", "which", "label", "label_master"]
    workspace.assert_exact(out.toArrow(), SMALL, "inner", "projection", columns=["label"])


def test_the_schema_is_known_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    types = {
        "k": pa.int16(),
        "a": pa.uint64(),
        "b": pa.dictionary(pa.int8(), pa.string()),
        "c": pa.binary(3),
        "d": pa.time32("s"),
        "e": pa.timestamp("ms", "UTC"),
        "f": pa.large_string(),
        "g": pa.date32(),
    }
    columns = {
        "k": pa.array([1, 2], types["k"]),
        "a": pa.array([2**64 - 1, None], types["a"]),
        "b": pa.array(["x", None]).dictionary_encode().cast(types["b"]),
        "c": pa.array([b"abc", None], types["c"]),
        "d": pa.array([5, None], types["d"]),
        "e": pa.array([1_000_000, None], types["e"]),
        "f": pa.array(["y", None], types["f"]),
        "g": pa.array([3, None], types["g"]),
    }
    build_master(tmp_path / "m", pa.table(columns), "k")
    df = spark.createDataFrame(pa.table({"k": [1, 2, 3]}))
    out = enrich(df, tmp_path / "m", "k", how="left", memory=MEMORY)
    assert out.schema.simpleString() == (
        "struct<k:bigint,a:decimal(20,0),b:string,c:binary,d:time(6),e:timestamp,f:string,g:date>"
    )
    rows = {row.k: row for row in out.collect()}
    assert (int(rows[1].a), rows[1].b, bytes(rows[1].c), rows[1].f) == (2**64 - 1, "x", b"abc", "y")
    assert rows[2].f is None
    assert rows[3].b is None


def test_a_stream_is_drained(spark: SparkSession, workspace: Workspace, tmp_path: Path) -> None:
    stream = FileStream(spark, tmp_path / "s", SMALL.stream.schema)
    for start in range(0, 3000, 1000):
        stream.send(SMALL.stream.slice(start, 1000))
    outs = {
        how: enrich(stream.frame(), workspace.master(SMALL), SMALL.on, how=how, memory=MEMORY)
        for how in HOWS
    }
    queries = {how: stream.start(out, how) for how, out in outs.items()}
    for how, query in queries.items():
        assert query.awaitTermination(200)
        schema = spark_schema(arrow_schema(outs[how].schema))[1]
        in_spark(stream.arrived(how, schema), SMALL, workspace, how)
    did = stats(queries["inner"])
    assert (did.batch, did.join.rows_in, did.version) == (2, 1000, 1)
    assert did.join.hits > 0, "the cache must outlive a micro-batch"


def test_rows_of_a_stream_wait_and_survive_a_restart(
    spark: SparkSession, workspace: Workspace, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path / "s", SPARSE.stream.schema)
    for start in range(0, 900, 300):
        stream.send(SPARSE.stream.slice(start, 300))
    path = workspace.master(SPARSE)

    def run(how: str, max_wait: str, **trigger: Any) -> StreamingQuery:
        out = enrich(stream.frame(), path, SPARSE.on, how=how, memory="16MB", max_wait=max_wait)
        schemas[how] = spark_schema(arrow_schema(out.schema))[1]
        return stream.start(out, how, **trigger)

    schemas: dict[str, pa.Schema] = {}
    queries = {how: run(how, "1 hour", processingTime="0 seconds") for how in ("left", "anti")}
    for how, query in queries.items():
        query.processAllAvailable()
        query.stop()
        assert stats(query).join.rows_waiting, f"{how}: rows wait when the first run ends"
        oldest_ms = stats(query).oldest_ms
        assert oldest_ms is not None, "how old the oldest of them is, is known"
        assert 0 <= time.time() - oldest_ms / 1000 < 300
    # A run that ends leaves nothing behind, though nothing came and no row has waited an hour.
    queries = {how: run(how, "1 hour") for how in HOWS}
    for how, query in queries.items():
        assert query.awaitTermination(200)
        in_spark(stream.arrived(how, schemas[how]), SPARSE, workspace, how)
        assert stats(query).join.rows_waiting == 0


def numbers(path: Path) -> Path:
    """A master of so many pages that two rows wait for others."""
    rows = np.arange(20_000)
    build_master(path, pa.table({"k": rows, "v": rows + 1}), "k")
    return path


def test_no_row_waits_longer_than_it_may(spark: SparkSession, tmp_path: Path) -> None:
    stream = FileStream(spark, tmp_path / "s", pa.schema([("k", pa.int64())]))
    stream.send(pa.table({"k": [1, 15_000]}))
    out = enrich(stream.frame(), numbers(tmp_path / "m"), "k", memory="16MB", max_wait="4 seconds")
    out = out.withColumn("left", F.unix_millis(F.current_timestamp()))
    query = stream.start(out, "out", processingTime="0 seconds")
    # Tasks report before their micro-batch is committed: what the sink's log has is what counts.
    until(lambda: stream.rows_written("out") == 2, query)
    query.stop()
    rows = spark.read.parquet(str(stream.directory / "out")).orderBy("k").collect()
    assert [(row.k, row.v) for row in rows] == [(1, 2), (15_000, 15_001)]
    # By the times of micro-batches in Spark's log: they waited, and left with the first one after
    # three seconds. There is one every second.
    log = sorted((stream.directory / "out.checkpoint" / "offsets").glob("[0-9]*"))
    times = [json.loads(note.read_text().splitlines()[1])["batchTimestampMs"] for note in log]
    assert {row.left for row in rows} == {min(ms for ms in times if ms >= min(times) + 3000)}


@pytest.mark.parametrize(
    ("error", "hint", "options"),
    [
        (UnknownNameError, "nope", {"on": {"nope": "region", "which": "number"}}),
        (KeyTypeError, "cast", {"on": {"where": "number", "which": "region"}}),
        (UnknownNameError, "known", {"algorithm": "hashjoin"}),
        (UnknownNameError, "known", {"columns": ["nope"]}),
        (OptionError, "outer", {"how": "outer"}),
        (OptionError, "duration", {"max_wait": "soon"}),
        (OptionError, "stream", {"max_wait": "1 second"}),
        (OptionError, "already", {"dead_letters": "label"}),
        (BudgetError, "2 operators", {"memory": "200kB"}),
        (BudgetError, "1 operators", {"memory": "100kB", "by_shard": True}),
        (OptionError, "tasks", {"tasks": 0}),
    ],
)
def test_bad_options_are_refused_at_once(
    spark: SparkSession,
    workspace: Workspace,
    error: type[Exception],
    hint: str,
    options: dict[str, object],
) -> None:
    df = spark.createDataFrame(SMALL.stream.slice(0, 10))
    given = {"on": SMALL.on, "memory": MEMORY, **options}
    with pytest.raises(error, match=hint):
        enrich(df, workspace.master(SMALL), given.pop("on"), **given)  # type: ignore[arg-type]


def test_memory_too_small_for_the_shards(spark: SparkSession, workspace: Workspace) -> None:
    df = spark.createDataFrame(SHARDED.stream.slice(0, 10))
    with pytest.raises(BudgetError, match=r"among 3 operators.* Hint: give 3 times as much"):
        enrich(df, workspace.master(SHARDED), SHARDED.on, memory="300kB", by_shard=True)


def test_files_of_another_schema_in_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    build_master(tmp_path / "m", pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}), "k")
    stream = FileStream(spark, tmp_path / "s", pa.schema([("k", pa.int64()), ("n", pa.int64())]))
    stream.send(pa.table({"k": [1, 2], "n": [10, 20]}))
    # Columns in another order, one more, and a narrower number: the rows are what they were.
    stream.send(pa.table({"more": ["x"], "n": pa.array([30], pa.int32()), "k": [3]}))
    # Without the key there is nothing to join by.
    stream.send(pa.table({"n": [40]}))
    out = enrich(stream.frame(), tmp_path / "m", "k", memory=MEMORY, dead_letters="problem")
    query = stream.start(out, "out")
    assert query.awaitTermination(200)
    rows = spark.read.parquet(str(stream.directory / "out")).orderBy("n").collect()
    assert [tuple(row) for row in rows] == [
        (1, 10, "a", None),
        (2, 20, "b", None),
        (3, 30, "c", None),
        (None, 40, None, "the key is null"),
    ]
    # Another type altogether: Spark's reader names the column.
    stream.send(pa.table({"k": ["one"], "n": [50]}))
    query = stream.start(out, "out")
    with pytest.raises(StreamingQueryException, match=r"(?s)PARQUET_COLUMN_DATA_TYPE_MISMATCH.*k"):
        query.awaitTermination(200)


def test_another_schema_while_rows_wait(spark: SparkSession, tmp_path: Path) -> None:
    master = numbers(tmp_path / "m")
    stream = FileStream(spark, tmp_path / "s", pa.schema([("k", pa.int64()), ("n", pa.int64())]))
    stream.send(pa.table({"k": [1, 2], "n": [10, 20]}))

    def start() -> StreamingQuery:
        out = enrich(stream.frame(), master, "k", memory="16MB", max_wait="1 hour")
        return stream.start(out, "out", processingTime="0 seconds")

    query = start()
    query.processAllAvailable()
    query.stop()
    assert stats(query).join.rows_waiting == 2
    stream.schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("more", pa.string())])
    stream.send(pa.table({"k": [1], "n": [1], "more": ["x"]}))
    with pytest.raises(StreamingQueryException, match="rows that wait in the checkpoint have"):
        start().processAllAvailable()


def test_dead_letters_carry_their_reason(spark: SparkSession, workspace: Workspace) -> None:
    long = SMALL.stream.slice(1, 1).set_column(3, "label", pa.array(["x" * 40_000]))
    df = spark.createDataFrame(pa.concat_tables([SMALL.stream, long]))
    path = workspace.master(SMALL)
    out = enrich(df, path, SMALL.on, memory=MEMORY, dead_letters="reason")
    rows = out.toArrow()
    dead = rows.filter(pa.compute.is_valid(rows["reason"]))
    null_keys = SMALL.stream["which"].null_count
    reasons = dead["reason"].to_pylist()
    assert reasons.count("the key is null") == null_keys > 0
    assert len(reasons) == null_keys + 1
    assert any("strings" in reason for reason in reasons)
    assert dead["price"].null_count == len(dead)
    assert stats(out).dead_rows == len(dead)
    alive = rows.filter(pa.compute.is_null(rows["reason"])).drop_columns("reason")
    in_spark(alive, SMALL, workspace, "inner")
