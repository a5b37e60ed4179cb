"""Tables in PostgreSQL and MariaDB as masters: the same joins, a connection that goes away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import OptionError, SemiStreamError, SourceError, StoreError
from semistream.joins import parallel
from semistream.joins.api import run
from semistream.store.sql import TableMaster
from semistream.testing.mariadb import MariaDBServer
from semistream.testing.postgres import PostgresServer
from semistream.testing.server import DatabaseServer, ServerMissingError

ROWS = 3000


def customers() -> pa.Table:
    """Keys with gaps, some of them several times."""
    keys = np.sort(np.concatenate([np.arange(0, 2 * ROWS, 2), np.repeat(np.arange(0, 60, 6), 40)]))
    names = [None if key % 7 == 0 else "n" * int(key % 90) for key in keys]
    return pa.table({"id": keys, "name": names, "price": keys / 4})


class Postgres:
    """Tables in PostgreSQL, and how they are changed."""

    driver = "adbc_driver_postgresql.dbapi"
    server_type: type[DatabaseServer] = PostgresServer

    def __init__(self, server: DatabaseServer) -> None:
        self.server, self.uri = server, server.uri

    def execute(self, *statements: str) -> None:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.uri, autocommit=True) as connection:
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.execute(statement)

    def end_connections(self) -> None:
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


class Maria(Postgres):
    """The same in MariaDB."""

    driver = "connectorx"
    server_type = MariaDBServer

    def execute(self, *statements: str) -> None:
        assert isinstance(self.server, MariaDBServer)
        self.server.execute(*statements)

    def end_connections(self) -> None:
        """It has none between queries: the server is away for a moment instead."""
        self.server.crash()


def sql_rows(table: pa.Table) -> str:
    def shown(value: object) -> str:
        return "NULL" if value is None else repr(value)

    rows = zip(*table.to_pydict().values(), strict=True)
    return ", ".join(f"({', '.join(map(shown, row))})" for row in rows)


@pytest.fixture(scope="module", params=[Postgres, Maria], ids=["postgres", "mariadb"])
def site(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A database with tables on a server of its own, which tests stop."""
    kind: type[Postgres] = request.param
    pytest.importorskip(kind.driver)
    try:
        server = kind.server_type().start()
    except ServerMissingError as error:
        pytest.skip(str(error))
    made = kind(server)
    days = pa.table({"day": [f"2026-{m:02}-{d:02}" for m in range(1, 13) for d in range(1, 29)]})
    made.execute(
        "CREATE TABLE customers (id bigint, name varchar(100), price double precision)",
        f"INSERT INTO customers VALUES {sql_rows(customers())}",
        "CREATE INDEX by_id ON customers (id)",
        "INSERT INTO customers VALUES (NULL, 'nobody', 0)",
        "CREATE TABLE days (day date, number int)",
        f"INSERT INTO days (day) VALUES {sql_rows(days)}",
        "UPDATE days SET number = extract(month FROM day) * 100 + extract(day FROM day)",
        "CREATE TABLE empty (id bigint, name varchar(10))",
        "CREATE TABLE moments (at timestamp(6) NULL, label varchar(10))",
        "INSERT INTO moments VALUES ('2026-03-01 12:00:00.000250', 'noon'), (NULL, 'never'), "
        "('2026-03-01 18:00:00', 'evening')",
    )
    yield made
    server.stop()


@pytest.fixture(scope="module")
def uri(site: Postgres) -> str:
    return site.uri


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


def test_a_table_is_joined_by_one_thread(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is: its connection is one."""
    for name in ("LEAST_MASTER", "LEAST_BYTES", "LEAST_FIRST"):
        monkeypatch.setattr(parallel, name, 1)
    monkeypatch.setattr(parallel, "default_threads", lambda: 4)
    sent = stream()
    with ss.open_table(uri, "customers", "id", rows_per_page=50) as master:
        joined = ss.join(sent, master, on="id", memory="20MB")
        assert rows_of(joined) == expected(sent, "inner")
        with pytest.raises(OptionError, match="a table in a database is joined by one thread"):
            ss.join(sent, master, on="id", memory="20MB", threads=2)


def test_other_keys_and_columns(uri: str, site: Postgres) -> None:
    asked = [date(2026, 1, 1), date(2026, 2, 17), date(2040, 1, 1), date(1999, 1, 1), None]
    schema = "shop" if isinstance(site, Maria) else "public"
    with ss.open_table(uri, f"{schema}.days", "day", rows_per_page=30) as master:
        sent = pa.table({"day": pa.array(asked, pa.date32())})
        found = rows_of(ss.join(sent, master, on="day", how="left"))
    assert found == Counter(zip(asked, [101, 217, None, None, None], strict=True))
    times = [datetime(2026, 3, 1, 12, 0, 0, 250), datetime(2026, 3, 1, 18), datetime(2026, 3, 2)]
    with ss.open_table(uri, "moments", "at", rows_per_page=1) as master:
        sent = pa.table({"at": pa.array(times, pa.timestamp("us"))})
        found = rows_of(ss.join(sent, master, on="at"))
    assert found == Counter(zip(times, ["noon", "evening"], strict=False))
    with ss.open_table(uri, "customers", "id", columns=["price"]) as master:
        assert master.schema.names == ["id", "price"]
    with ss.open_table(uri, "empty", "id") as master:
        assert list(ss.join(stream(), master, on="id")) == []


def test_a_master_is_built_from_a_table(uri: str, tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", ss.read_table(uri, "customers"), key="id")
    sent = stream()
    assert rows_of(ss.join(sent, tmp_path / "m", on="id")) == expected(sent, "inner")
    assert ss.open_master(tmp_path / "m").manifest.null_keys == 1


def test_a_table_that_changes(uri: str, site: Postgres) -> None:
    """PostgreSQL shows it as it was; MariaDB as it is, between the keys that were there."""
    with ss.open_table(uri, "customers", "id") as master:
        site.execute(f"INSERT INTO customers VALUES (1, 'new', 1), ({9 * ROWS}, 'newer', 1)")
        try:
            asked = pa.table({"id": [1, 2, 9 * ROWS]})
            found = sorted(row[0] for row in rows_of(ss.join(asked, master, on="id")))
            assert found == ([1, 2] if isinstance(site, Maria) else [2])
        finally:
            site.execute(f"DELETE FROM customers WHERE id = 1 OR id = {9 * ROWS}")


def test_a_table_that_grows_too_much(uri: str, site: Postgres) -> None:
    """More rows than a page has room for are an error that says what to do, never a wrong join."""
    with ss.open_table(uri, "customers", "id", rows_per_page=50) as master:
        values = sql_rows(pa.table({"id": [1001] * 900, "name": ["x"] * 900, "price": [0.5] * 900}))
        site.execute(f"INSERT INTO customers VALUES {values}")
        try:
            asked = ss.join(pa.table({"id": [1001]}), master, on="id", algorithm="inlj")
            if isinstance(site, Maria):
                with pytest.raises(StoreError, match=r"since it was opened.*Hint: open it"):
                    list(asked)
            else:
                assert list(asked) == []
        finally:
            site.execute("DELETE FROM customers WHERE id = 1001")


def test_a_connection_that_is_lost(uri: str, site: Postgres) -> None:
    """It is opened again in the middle of a join, and nothing is lost."""
    pauses: list[float] = []
    sent = stream(20_000)
    found: list[pa.RecordBatch] = []
    with (
        ss.open_table(uri, "customers", "id", rows_per_page=20, pause=pauses.append) as master,
        ss.make_join("inlj", master, on="id", schema=sent.schema, memory="2MB") as join,
    ):
        for number, batch in enumerate(sent.to_batches(max_chunksize=2000)):
            if number in (3, 6):
                site.end_connections()
            found += run(join, [batch])
    assert rows_of(found) == expected(sent, "inner")
    assert set(pauses) <= {0.1}, "the first try was enough"
    assert pauses or isinstance(site, Maria)


def test_what_does_not_fit(uri: str) -> None:
    for table, key, text in (
        ("customers", "name", "has no order"),
        ("customers", "nokey", "has no column 'nokey'"),
        ("nothing", "id", "nothing"),
    ):
        with pytest.raises(SemiStreamError, match=text):
            ss.open_table(uri, table, key)
    with pytest.raises(OptionError, match="postgresql://"):
        ss.open_table("oracle://h/d", "customers", "id")
    with pytest.raises(OptionError, match="rows_per_page"):
        ss.open_table(uri, "customers", "id", rows_per_page=0)


def test_a_database_that_goes_away(uri: str, site: Postgres) -> None:
    """It is tried again with growing pauses; where it comes back in time, nothing is lost."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            site.server.go_on()

    sent = stream()
    master = ss.open_table(uri, "customers", "id", pause=pause)
    with master:
        site.server.fail()
        master.database.close()  # or ConnectorX would try for half a minute by itself
        assert rows_of(ss.join(sent, master, on="id", algorithm="inlj")) == expected(sent, "inner")
    assert pauses == [0.1, 0.5, 2.0]
    site.server.crash()  # it ends with the thread that it goes on in


def test_a_database_that_stays_away(uri: str, site: Postgres) -> None:
    """After a few tries a clear error; the last test, it stops the server."""
    pauses: list[float] = []
    master = ss.open_table(uri, "customers", "id", pause=pauses.append)
    assert isinstance(master, TableMaster)
    site.server.stop()
    master.database.close()
    with pytest.raises(StoreError, match=r"does not answer, after 5 tries.*Hint: nothing"):
        list(ss.join(stream(), master, on="id", algorithm="inlj"))
    assert pauses == [0.1, 0.5, 2.0, 5.0]
    master.close()
    with pytest.raises(SourceError, match="does not answer"):
        ss.open_table(uri, "customers", "id", pauses_s=())
