"""Tables in databases as masters of DataFrames: what tasks see, and servers that go away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import semistream as ss
from semistream.core.errors import OptionError
from semistream.spark import enrich, read_sink, stats
from semistream.spark.pipeline import failure
from semistream.store import databases
from semistream.testing.mariadb import MariaDBServer
from semistream.testing.postgres import PostgresServer
from semistream.testing.server import DatabaseServer, ServerMissingError
from tests.spark.streams import FileStream, until

SCHEMA = pa.schema({"number": pa.int64(), "customer": pa.int64()})


class Site:
    """A server with a table of a hundred customers, 1 to 100, all of version 1."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.table = ss.Table(server.uri, "customers", "id", rows_per_page=20, refresh="0 s")
        rows = ", ".join(f"({key}, 'c{key}', 1)" for key in range(1, 101))
        self.execute(
            "CREATE TABLE customers (id bigint PRIMARY KEY, name varchar(20), version int)",
            f"INSERT INTO customers VALUES {rows}",
        )

    def execute(self, *statements: str) -> None:
        if isinstance(self.server, MariaDBServer):
            self.server.execute(*statements)
            return
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.server.uri, autocommit=True) as connection:
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.execute(statement)


@pytest.fixture(params=["postgres", "mariadb"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    kinds = {"postgres": PostgresServer, "mariadb": MariaDBServer}
    drivers = {"postgres": "adbc_driver_postgresql", "mariadb": "connectorx"}
    pytest.importorskip(drivers[request.param])
    try:
        server = kinds[request.param]().start()
    except ServerMissingError as error:
        pytest.skip(str(error))
    yield Site(server)
    server.stop()


def orders(first: int, keys: list[int | None]) -> pa.Table:
    numbers = range(first, first + len(keys))
    return pa.table({"number": list(numbers), "customer": keys}, schema=SCHEMA)


def arrived(stream: FileStream, *columns: str) -> Counter[tuple[Any, ...]]:
    found = read_sink(stream.directory / "out").to_table().select(columns)
    return Counter(zip(*found.to_pydict().values(), strict=True))


def test_what_a_stream_sees(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """Changes are seen by the next micro-batch; a database that is away ends the query with a
    clear error, and the next run goes on where it was: no row is lost, none comes twice."""
    stream = FileStream(spark, tmp_path / "s", SCHEMA)
    on = {"customer": "id"}

    def run() -> Any:
        out = enrich(stream.frame(), site.table, on, how="left", memory="8MB")
        query = stream.start(out, "out")
        query.awaitTermination()
        return stats(query)

    stream.send(orders(0, [1, 50, 100, 101, None, 1]))
    assert run().join.rows_matched == 4
    site.execute("UPDATE customers SET version = 2", "INSERT INTO customers VALUES (101, 'new', 2)")
    stream.send(orders(100, [1, 101, 102]))
    run()
    stream.send(orders(200, [2, 3]))
    out = enrich(stream.frame(), site.table, on, how="left", memory="8MB")
    site.server.fail()
    query = stream.start(out, "out")
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    failed = failure(query)
    assert failed is not None
    assert "does not answer, after 5 tries" in failed.message
    assert "start again when it is back" in failed.hint
    site.server.go_on()
    run()
    seen = arrived(stream, "number", "customer", "name", "version")
    assert seen == Counter(
        {
            (0, 1, "c1", 1): 1, (1, 50, "c50", 1): 1, (2, 100, "c100", 1): 1,
            (3, 101, None, None): 1, (4, None, None, None): 1, (5, 1, "c1", 1): 1,
            (100, 1, "c1", 2): 1, (101, 101, "new", 2): 1, (102, 102, None, None): 1,
            (200, 2, "c2", 2): 1, (201, 3, "c3", 2): 1,
        }
    )  # fmt: skip


def test_late_dimensions(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """Rows wait until the table has their key; then they leave once."""
    stream = FileStream(spark, tmp_path / "s", SCHEMA)
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    try:
        stream.send(orders(0, [1, 200, 200, 201]))
        out = enrich(
            stream.frame(), site.table, {"customer": "id"}, missing="retry", memory="8MB",
            retry_for="1 hour", dead_letters="problem",
        )  # fmt: skip
        query = stream.start(out, "out", processingTime="300 milliseconds")
        until(lambda: stream.rows_written("out") == 1, query)
        site.execute("INSERT INTO customers VALUES (200, 'late', 1)")
        until(lambda: stream.rows_written("out") == 3, query)
        query.stop()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", 200)
    assert arrived(stream, "number", "name", "problem") == Counter(
        {(0, "c1", None): 1, (1, "late", None): 1, (2, "late", None): 1}
    )


def test_a_batch_and_what_does_not_go(spark: SparkSession, site: Site) -> None:
    df = spark.createDataFrame(orders(0, [7, 8, 500]))
    found = enrich(df, site.table, {"customer": "id"}, memory="8MB", columns=["name"]).collect()
    assert sorted(row["name"] for row in found) == ["c7", "c8"]
    for options in ({"by_shard": True}, {"max_wait": "1 s"}):
        with pytest.raises(OptionError, match="masters in files"):
            enrich(df, site.table, {"customer": "id"}, **options)
    assert "semistream@" not in repr(site.table), "an address may have a password"
    assert databases.is_database(site.table.uri)
