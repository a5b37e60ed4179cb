"""LMDB: one call for the distinct keys of a micro-batch, on a file that is mapped into memory."""

from __future__ import annotations

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

MAP_BYTES_PER_ROW = 400
"""Room in the map: an upper bound, not what the file takes."""


class Lmdb(Lookup):
    """The map takes as much of the operating system's cache as it wants: nothing bounds it."""

    name = "lmdb"
    package = "lmdb"
    memory_is = "not bounded: the whole file is mapped"

    def build(self) -> None:
        if self.store.exists():
            return
        import lmdb

        with built(self.store) as folder:
            made = lmdb.open(str(folder), map_size=self._map_bytes, max_dbs=1, sync=False)
            table = made.open_db(b"product", integerkey=True)
            for batch in product_batches(self.rows):
                keys = batch.column(KEY).to_numpy().view("V8").tolist()
                values = records_of(batch).view(f"V{RECORD.itemsize}").tolist()
                with made.begin(db=table, write=True) as change, change.cursor() as cursor:
                    cursor.putmulti(zip(keys, values, strict=True), append=True)
            made.close()

    @property
    def _map_bytes(self) -> int:
        return self.rows * MAP_BYTES_PER_ROW + (1 << 24)

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        import lmdb

        self._map = lmdb.open(
            str(self.store), map_size=self._map_bytes, max_dbs=1, readonly=True, lock=False
        )
        self._table = self._map.open_db(b"product", integerkey=True, create=False)

    def look_up(self, keys: npt.NDArray[np.int64]) -> pa.RecordBatch:
        with self._map.begin(db=self._table) as view, view.cursor() as cursor:
            pairs = cursor.getmulti(keys.view("V8").tolist())
        return batch_of(np.frombuffer(b"".join([value for _, value in pairs]), RECORD))

    def drop_cache(self) -> None:
        # What is mapped stays in the cache: let go of the map first.
        self._map.close()
        super().drop_cache()
        self.open(0, cold=True)

    def close(self) -> None:
        self._map.close()
