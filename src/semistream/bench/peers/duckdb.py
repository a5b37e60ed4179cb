"""DuckDB: a persistent table, joined with each micro-batch as a registered Arrow table."""

from __future__ import annotations

from typing import ClassVar

import duckdb
import pyarrow as pa

from semistream.bench.oracle import JOINED
from semistream.bench.peers.base import KEY, THREADS, Peer, PeerError, built, product_batches
from semistream.workloads import product_schema


class DuckDb(Peer):
    """It scans the table for each micro-batch; the hash table is that of the batch."""

    name = "duckdb"
    memory_is = "memory_limit"
    indexed: ClassVar[bool] = False

    def build(self) -> None:
        if self.store.exists():
            return
        with built(self.store) as folder, duckdb.connect(str(folder / "products.duckdb")) as made:
            made.execute("SET enable_progress_bar = false")
            reader = pa.RecordBatchReader.from_batches(product_schema(), product_batches(self.rows))
            made.register("made", reader)
            made.execute("CREATE TABLE product AS SELECT * FROM made")
            if self.indexed:
                made.execute(f"CREATE UNIQUE INDEX by_key ON product ({KEY})")
            made.execute("CHECKPOINT")

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        self._connection = duckdb.connect(
            str(self.store / "products.duckdb"),
            read_only=True,
            config={
                "memory_limit": f"{memory_bytes}B",
                "threads": str(THREADS),
                "preserve_insertion_order": "false",
                "temp_directory": "",
            },
        )
        self._connection.execute("SET enable_progress_bar = false")

    def join(self, batch: pa.RecordBatch) -> pa.Table:
        columns = ", ".join(JOINED.names)
        query = f"SELECT {columns} FROM sale JOIN product USING ({KEY})"
        self._connection.register("sale", pa.Table.from_batches([batch]))
        try:
            return self._connection.sql(query).to_arrow_table()
        except duckdb.OutOfMemoryException as error:
            raise PeerError(f"{self.name} is out of memory: {str(error).splitlines()[0]}") from None
        finally:
            self._connection.unregister("sale")

    def close(self) -> None:
        self._connection.close()


class DuckDbIndexed(DuckDb):
    """The same with a unique index on the key."""

    name = "duckdb-index"
    indexed = True
