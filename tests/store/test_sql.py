"""Tables in PostgreSQL as masters: the same joins, a connection that goes away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import OptionError, SemiStreamError, SourceError, StoreError
from semistream.joins.api import run
from semistream.store.sql import TableMaster
from semistream.testing.postgres import PostgresServer

dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")

ROWS = 3000


def customers() -> pa.Table:
    """Keys with gaps, some of them several times."""
    keys = np.sort(np.concatenate([np.arange(0, 2 * ROWS, 2), np.repeat(np.arange(0, 60, 6), 40)]))
    names = [None if key % 7 == 0 else "n" * int(key % 90) for key in keys]
    return pa.table({"id": keys, "name": names, "price": keys / 4})


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of its own, which a test stops."""
    from semistream.testing.postgres import PostgresMissingError

    try:
        made = PostgresServer().start()
    except PostgresMissingError as error:
        pytest.skip(str(error))
    yield made
    made.stop()


def execute(uri: str, *statements: str) -> None:
    with dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(scope="module")
def uri(server: PostgresServer) -> str:
    with dbapi.connect(server.uri) as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest("customers", customers())
            cursor.execute("CREATE INDEX ON customers (id)")
            cursor.execute("INSERT INTO customers VALUES (NULL, 'nobody', 0)")
            cursor.execute(
                "CREATE TABLE days AS SELECT d::date AS day, extract(doy FROM d)::int AS number "
                "FROM generate_series(date '2026-01-01', date '2026-12-31', '1 day') d"
            )
            cursor.execute("CREATE TABLE empty (id bigint, name text)")
        connection.commit()
    return server.uri


def stream(rows: int = 5000) -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table({"id": random.zipf(1.3, rows) % (2 * ROWS + 500), "number": np.arange(rows)})


def expected(sent: pa.Table, how: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("s", sent)
        connection.register("c", customers())
        query = f"select s.*, c.name, c.price from s {how} join c on s.id = c.id"
        return Counter(connection.sql(query).fetchall())


def rows_of(batches: Any) -> Counter[tuple[Any, ...]]:
    return Counter(row for b in batches for row in zip(*b.to_pydict().values(), strict=True))


@pytest.mark.parametrize("name", ["sweepjoin", "hybridjoin", "meshjoin", "inlj", "ssij"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_joins_are_the_same(name: str, how: str, uri: str) -> None:
    sent = stream()
    with ss.open_table(uri, "customers", "id", rows_per_page=50) as master:
        assert master.rows == customers().num_rows
        joined = ss.join(sent, master, on="id", how=how, memory="2MB", algorithm=name)
        assert rows_of(joined) == expected(sent, how)
        assert joined.stats.pages_read > 0
        assert joined.stats.bytes_peak <= 2_000_000


def test_other_keys_and_columns(uri: str) -> None:
    sent = pa.table({"day": pa.array([20500, 20454, 30000, None], pa.int32()).cast(pa.date32())})
    with ss.open_table(uri, "public.days", "day", rows_per_page=30) as master:
        found = rows_of(ss.join(sent, master, on="day", how="left"))
    assert sorted(number for _, number in found if number is not None) == [1, 47]
    with ss.open_table(uri, "customers", "id", columns=["price"]) as master:
        assert master.schema.names == ["id", "price"]
    with ss.open_table(uri, "empty", "id") as master:
        assert list(ss.join(stream(), master, on="id")) == []


def test_a_master_is_built_from_a_table(uri: str, tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", ss.read_table(uri, "customers"), key="id")
    sent = stream()
    assert rows_of(ss.join(sent, tmp_path / "m", on="id")) == expected(sent, "inner")
    assert ss.open_master(tmp_path / "m").manifest.null_keys == 1


def test_a_table_is_seen_as_it_was(uri: str) -> None:
    with ss.open_table(uri, "customers", "id") as master:
        execute(uri, "INSERT INTO customers VALUES (1, 'new', 1)")
        try:
            asked = pa.table({"id": [1, 2]})
            assert [row[0] for row in rows_of(ss.join(asked, master, on="id"))] == [2]
        finally:
            execute(uri, "DELETE FROM customers WHERE id = 1")


def test_a_connection_that_is_lost(uri: str) -> None:
    """It is opened again in the middle of a join, and nothing is lost."""
    pauses: list[float] = []
    sent = stream(20_000)
    clients = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    others = f"FROM pg_stat_activity WHERE {clients}"
    found: list[pa.RecordBatch] = []
    with (
        ss.open_table(uri, "customers", "id", rows_per_page=20, pause=pauses.append) as master,
        ss.make_join("inlj", master, on="id", schema=sent.schema, memory="2MB") as join,
    ):
        for number, batch in enumerate(sent.to_batches(max_chunksize=2000)):
            if number in (3, 6):
                execute(uri, f"SELECT pg_terminate_backend(pid) {others}")
            found += run(join, [batch])
    assert rows_of(found) == expected(sent, "inner")
    assert set(pauses) == {0.1}, "the first try was enough"


def test_what_does_not_fit(uri: str) -> None:
    for table, key, text in (
        ("customers", "name", "has no order"),
        ("customers", "nokey", "has no column 'nokey'"),
        ("nothing", "id", "nothing"),
    ):
        with pytest.raises(SemiStreamError, match=text):
            ss.open_table(uri, table, key)
    with pytest.raises(OptionError, match="postgresql://"):
        ss.open_table("mysql://h/d", "customers", "id")
    with pytest.raises(OptionError, match="rows_per_page"):
        ss.open_table(uri, "customers", "id", rows_per_page=0)


def test_a_database_that_stays_away(server: PostgresServer, uri: str) -> None:
    """After a few tries with growing pauses a clear error; the last test, it stops the server."""
    pauses: list[float] = []
    master = ss.open_table(uri, "customers", "id", pause=pauses.append)
    assert isinstance(master, TableMaster)
    server.stop()
    with pytest.raises(StoreError, match=r"does not answer, after 5 tries.*Hint: nothing"):
        list(ss.join(stream(), master, on="id", algorithm="inlj"))
    assert pauses == [0.1, 0.5, 2.0, 5.0]
    master.close()
    with pytest.raises(SourceError, match="does not answer"):
        ss.open_table(uri, "customers", "id", pauses_s=())
