"""SQLite: the distinct keys of a micro-batch as a JSON array, looked up by row id."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.peers.base import (
    KEY,
    RECORD,
    Lookup,
    batch_of,
    built,
    product_batches,
    records_of,
)


class Sqlite(Lookup):
    """Records lie as blobs in a table whose key is its row id: the fastest it has."""

    name = "sqlite"
    memory_is = "page cache (cache_size)"

    def build(self) -> None:
        if self.store.exists():
            return
        with built(self.store) as folder:
            made = sqlite3.connect(folder / "products.sqlite")
            made.execute("PRAGMA journal_mode = off")
            made.execute(f"CREATE TABLE product ({KEY} INTEGER PRIMARY KEY, record BLOB)")
            for batch in product_batches(self.rows):
                keys = batch.column(KEY).to_pylist()
                values = records_of(batch).view(f"V{RECORD.itemsize}").tolist()
                made.executemany(
                    "INSERT INTO product VALUES (?, ?)", zip(keys, values, strict=True)
                )
                made.commit()
            made.close()

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        path = f"file:{self.store / 'products.sqlite'}?immutable=1"
        self._connection = sqlite3.connect(path, uri=True, check_same_thread=False)
        self._connection.execute(f"PRAGMA cache_size = -{memory_bytes // 1024}")

    def look_up(self, keys: npt.NDArray[np.int64]) -> pa.RecordBatch:
        # CROSS JOIN: SQLite takes the tables in this order.
        query = (
            "SELECT record FROM json_each(?) AS wanted "
            f"CROSS JOIN product ON product.{KEY} = wanted.value"
        )
        rows = self._connection.execute(query, [json.dumps(keys.tolist())]).fetchall()
        return batch_of(np.frombuffer(b"".join([record for (record,) in rows]), RECORD))

    def close(self) -> None:
        self._connection.close()
