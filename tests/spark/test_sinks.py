"""Sinks: a table in PostgreSQL changed exactly once, and folders of files read exactly."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.errors import OptionError, SinkError, SourceError
from semistream.spark import postgres_sink, read_sink, register
from semistream.spark.sinks import _lock_of, connect, sink_files
from semistream.testing.postgres import PostgresServer
from semistream.workloads import sales

ROWS = 3000
BATCH_ROWS = 1000


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    register(spark)
    options = {"rows": ROWS, "batch_rows": BATCH_ROWS, "products": 500, "seed": 2}
    return spark.readStream.format("semistream-workload").options(**options).load()


def expected() -> pa.Table:
    return sales(ROWS, products=500, seed=2).read_all()


def run(stream: DataFrame, sink: Any, checkpoint: Path) -> Any:
    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def fetch(server: PostgresServer, sql: str) -> pa.Table:
    with closing(connect(server.uri)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetch_arrow_table()


def execute(server: PostgresServer, sql: str) -> None:
    with closing(connect(server.uri)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        connection.commit()


def rows_of(table: pa.Table, schema: pa.Schema | None = None) -> list[Any]:
    table = table.cast(schema) if schema is not None else table
    return sorted(table.to_pylist(), key=str)


# ------------------------------------------------------------------------------------- PostgreSQL


def stages(postgres: PostgresServer) -> set[str]:
    """Tables through which rows go; queries of other tests may have been stopped in the middle."""
    found = fetch(postgres, "SELECT tablename FROM pg_tables WHERE tablename LIKE '%stage%'")
    return set(found["tablename"].to_pylist())


def test_rows_are_added(stream: DataFrame, postgres: PostgresServer, tmp_path: Path) -> None:
    before = stages(postgres)
    run(stream, postgres_sink(postgres.uri, "added"), tmp_path / "checkpoint")
    found = fetch(postgres, "SELECT * FROM added")
    assert rows_of(found, expected().schema) == rows_of(expected())
    assert stages(postgres) == before


def test_a_batch_that_is_repeated_changes_nothing(
    stream: DataFrame, postgres: PostgresServer, tmp_path: Path
) -> None:
    sink = postgres_sink(postgres.uri, "repeated")
    run(stream, sink, tmp_path / "checkpoint")
    # As after a crash between the sink's transaction and Spark's own note of it.
    for commit in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        commit.unlink()
    query = run(stream, sink, tmp_path / "checkpoint")
    assert query.lastProgress.batchId == 2
    assert fetch(postgres, "SELECT * FROM repeated").num_rows == ROWS
    # A query of its own adds its rows.
    run(stream, sink, tmp_path / "another")
    assert fetch(postgres, "SELECT * FROM repeated").num_rows == 2 * ROWS


def test_a_failure_in_the_middle_leaves_nothing(
    stream: DataFrame, postgres: PostgresServer, tmp_path: Path
) -> None:
    before = stages(postgres)
    execute(postgres, "CREATE TABLE strict (product_id bigint, quantity int, sale_id bigint)")
    execute(postgres, "ALTER TABLE strict ADD CONSTRAINT low CHECK (sale_id < 1500)")
    sink = postgres_sink(postgres.uri, "strict")
    with pytest.raises(Exception, match="violates check constraint"):
        run(stream, sink, tmp_path / "checkpoint")
    assert fetch(postgres, "SELECT * FROM strict").num_rows == BATCH_ROWS
    assert stages(postgres) == before, "the table of the failed tasks is not left behind"
    execute(postgres, "ALTER TABLE strict DROP CONSTRAINT low")
    run(stream, sink, tmp_path / "checkpoint")
    found = fetch(postgres, "SELECT * FROM strict")
    assert rows_of(found, expected().schema) == rows_of(expected())
    assert stages(postgres) == before


def test_tables_that_a_killed_driver_left_behind(
    stream: DataFrame, postgres: PostgresServer, tmp_path: Path
) -> None:
    # The names that queries of other checkpoints use: one is at work, of the other nothing is left.
    at_work, left = "semistream_stage_0a_01", "semistream_stage_0b_02"
    for name in (at_work, left):
        execute(postgres, f"CREATE TABLE {name} (sale_id bigint)")
    with closing(connect(postgres.uri)) as other, other.cursor() as cursor:
        cursor.execute(f"SELECT pg_advisory_lock({_lock_of('public', at_work)})")
        run(stream, postgres_sink(postgres.uri, "swept"), tmp_path / "checkpoint")
        assert stages(postgres) & {at_work, left} == {at_work}
    run(stream, postgres_sink(postgres.uri, "swept"), tmp_path / "another")
    assert not stages(postgres) & {at_work, left}


def test_upsert(stream: DataFrame, postgres: PostgresServer, tmp_path: Path) -> None:
    def latest(df: DataFrame) -> DataFrame:
        return df.groupBy("product_id").agg(F.max("sale_id").alias("sale_id"))

    sink = postgres_sink(postgres.uri, "latest", key="product_id")
    run(stream, lambda df, batch: sink(latest(df), batch), tmp_path / "checkpoint")
    wanted = expected().group_by("product_id").aggregate([("sale_id", "max")])
    found = fetch(postgres, "SELECT product_id, sale_id AS sale_id_max FROM latest")
    assert rows_of(found.select(wanted.column_names)) == rows_of(wanted)


def test_two_rows_of_one_key_in_a_batch(
    stream: DataFrame, postgres: PostgresServer, tmp_path: Path
) -> None:
    sink = postgres_sink(postgres.uri, "twice", key="product_id")
    with pytest.raises(Exception, match="two rows of one key"):
        run(stream, sink, tmp_path / "checkpoint")


def test_types_come_back_as_they_went(
    spark: SparkSession, stream: DataFrame, postgres: PostgresServer, tmp_path: Path
) -> None:
    moment = dt.datetime(2026, 1, 31, 12, 30, 1, 250, tzinfo=dt.UTC)
    row = {
        "tiny": 7,
        "text": 'q"uo\\te\n',
        "empty": "",
        "none": None,
        "yes": True,
        "bytes": b"\x00\xff",
        "real": 0.1,
        "day": dt.date(2026, 1, 31),
        "moment": moment,
        "plain": moment.replace(tzinfo=None),
        "amount": decimal.Decimal("12.50"),
        "list": ["a", "b"],
    }
    types = (
        "tiny tinyint, text string, empty string, none int, yes boolean, bytes binary, "
        "real double, day date, moment timestamp, plain timestamp_ntz, amount decimal(9,2), "
        "list array<string>"
    )
    one = spark.createDataFrame([tuple(row.values())], types)
    sink = postgres_sink(postgres.uri, "Ty pes")
    limited = stream.limit(1)
    run(limited, lambda df, batch: sink(df.select().crossJoin(one), batch), tmp_path / "c")
    (found,) = fetch(postgres, 'SELECT *, amount::text AS amount FROM "Ty pes"').to_pylist()
    assert decimal.Decimal(found.pop("amount")) == row.pop("amount")
    assert found == row


def test_sink_errors(stream: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=re.escape("postgresql://me:…@nowhere.invalid/db")):
        connect("postgresql://me:secret@nowhere.invalid/db?connect_timeout=1")
    with pytest.raises(OptionError, match="not part of one"):
        postgres_sink("postgresql:///db", "t")(spark.range(3), 0)
    with pytest.raises(Exception, match="there is no key column 'product'"):
        run(stream, postgres_sink("postgresql:///db", "t", key="product"), tmp_path / "c")


# ------------------------------------------------------------------------------------------ files


def write_files(stream: DataFrame, folder: Path, batches: int) -> None:
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out put"))
    )
    query.awaitTermination()
    assert len([p for p in query.recentProgress if p.numInputRows]) == batches


def test_only_noted_files_are_read(stream: DataFrame, tmp_path: Path) -> None:
    write_files(stream, tmp_path, 3)
    out = tmp_path / "out put"
    rubbish = next(out.glob("*.parquet"))
    shutil.copy(rubbish, out / "part-00000-again.snappy.parquet")
    (out / "part-00001-half.snappy.parquet").write_bytes(b"PAR1")
    assert rows_of(read_sink(out).to_table(), expected().schema) == rows_of(expected())


def test_notes_that_were_compacted(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    options = {"rows": 1200, "batch_rows": 100, "products": 500, "seed": 2}
    stream = spark.readStream.format("semistream-workload").options(**options).load()
    write_files(stream, tmp_path, 12)
    out = tmp_path / "out put"
    assert (out / "_spark_metadata" / "9.compact").exists()
    # What the compacted note replaces may go at any time.
    for old in range(9):
        (out / "_spark_metadata" / str(old)).unlink(missing_ok=True)
    assert sorted(read_sink(out).to_table()["sale_id"].to_pylist()) == list(range(1200))


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="_spark_metadata"):
        read_sink(tmp_path)
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    with pytest.raises(SourceError, match="no rows yet"):
        read_sink(tmp_path)
    (log / "0").write_text('v1\n{"path":"file:///a%20b/c.parquet","action":"add"}\n')
    assert sink_files(tmp_path) == [Path("/a b/c.parquet")]
    (log / "1").write_text('v1\n{"path":"file:///a%20b/c.parquet","action":"delete"}\n')
    assert sink_files(tmp_path) == []
    (log / "2").write_text("v2\n")
    with pytest.raises(SourceError, match="version 'v2'"):
        sink_files(tmp_path)


def test_local_files_have_none_for_checksums_beside_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A program is forked for each file that is written."""
    spark.range(10).write.parquet(str(tmp_path / "rows"))
    written = [file.name for file in (tmp_path / "rows").iterdir()]
    assert any(name.endswith(".parquet") for name in written)
    assert not [name for name in written if name.endswith(".crc")]
