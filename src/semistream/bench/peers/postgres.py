"""PostgreSQL: the distinct keys of a micro-batch as a temporary table, an index nested loop."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.peers.base import KEY, Lookup, product_batches, write_out
from semistream.testing.postgres import PostgresMissingError, PostgresServer, find_postgres

SETTINGS = {
    # An index nested loop, whatever it believes of a temporary table that it knows nothing about.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "autovacuum": "off",
    "max_wal_size": "4GB",
}


class Postgres(Lookup):
    """A server of its own, spoken to in Arrow by binary COPY in both directions."""

    name = "postgres"
    package = "adbc_driver_postgresql"
    memory_is = "shared_buffers"

    @classmethod
    def missing(cls) -> str | None:
        try:
            find_postgres()
        except PostgresMissingError as error:
            return str(error)
        return super().missing()

    def build(self) -> None:
        if self.store.exists():
            return
        from adbc_driver_postgresql import dbapi

        self.workdir.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f"{self.store.name}-", dir=self.workdir))
        beside.rmdir()
        try:
            settings = {"shared_buffers": "256MB", "maintenance_work_mem": "512MB"}
            with (
                PostgresServer(data=beside, settings=SETTINGS | settings) as server,
                dbapi.connect(server.uri, autocommit=True) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(
                    f"CREATE TABLE product ({KEY} bigint, price float8, stock bigint, "
                    "supplier_id bigint, info bytea)"
                )
                for batch in product_batches(self.rows):
                    info = batch.column("info").cast(pa.binary())
                    batch = batch.set_column(batch.num_columns - 1, "info", info)
                    cursor.adbc_ingest("product", batch, mode="append")
                cursor.execute(f"ALTER TABLE product ADD PRIMARY KEY ({KEY})")
                cursor.execute("VACUUM (ANALYZE, FREEZE) product")
            beside.rename(self.store)
            write_out(self.store)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        self.server = self.serve(memory_bytes).start()
        self._connection = Connection(self.server.uri)

    def serve(self, memory_bytes: int) -> PostgresServer:
        """The server of its store, to be started."""
        settings = SETTINGS | {"shared_buffers": f"{memory_bytes // 1024}kB"}
        return PostgresServer(data=self.store, settings=settings)

    def look_up(self, keys: npt.NDArray[np.int64]) -> pa.Table:
        return self._connection.look_up(keys)

    def close(self) -> None:
        self._connection.close()
        self.server.stop()


class Connection:
    """A connection with its temporary table of keys."""

    def __init__(self, uri: str) -> None:
        from adbc_driver_postgresql import dbapi

        self._connection = dbapi.connect(uri, autocommit=True)
        self._cursor = self._connection.cursor()
        self._cursor.execute(f"CREATE TEMPORARY TABLE wanted ({KEY} bigint)")

    def look_up(self, keys: npt.NDArray[np.int64]) -> pa.Table:
        """The products of these keys."""
        self._cursor.execute("TRUNCATE wanted")
        self._cursor.adbc_ingest(
            "wanted", pa.record_batch([pa.array(keys)], names=[KEY]), mode="append", temporary=True
        )
        self._cursor.execute(f"SELECT product.* FROM wanted JOIN product USING ({KEY})")
        return self._cursor.fetch_arrow_table()

    def close(self) -> None:
        """End it."""
        self._cursor.close()
        self._connection.close()
