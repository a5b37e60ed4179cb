"""What people write by hand on Spark: `mapInArrow` with lookups behind a cache of rows.

Each Python worker keeps a connection and the rows that it used last. The cache is an `OrderedDict`,
as in most such code; a task asks the store once for all keys of a batch that the cache lacks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.peers.base import KEY, RECORD, batch_of, records_of, with_products
from semistream.workloads import product_schema

CACHED_ROW_BYTES = 300
"""What a record takes in an OrderedDict: its bytes object, its key, its entry."""

Records = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.void]]
"""From keys that ascend to the records of those that are there."""


@dataclass(frozen=True)
class LookupTask:
    """What `mapInArrow` calls in every task. `memory_bytes` is of one worker."""

    store: str
    place: str
    memory_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker = _workers.get(self)
        if worker is None:
            worker = _workers[self] = _Worker(self)
        for batch in batches:
            if batch.num_rows:
                yield from worker.join(batch)


_workers: dict[LookupTask, _Worker] = {}
"""Of this process: Spark uses a Python worker again for the next task."""


class _Worker:
    def __init__(self, task: LookupTask) -> None:
        self._records = _STORES[task.store](task.place, task.memory_bytes // 2)
        self._most = max(task.memory_bytes // 2 // CACHED_ROW_BYTES, 1)
        self._cached: OrderedDict[int, bytes] = OrderedDict()

    def join(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        keys, place = np.unique(batch.column(KEY).to_numpy(), return_inverse=True)
        found = batch_of(self._look_up(keys))
        joined = with_products(batch, keys, place, found)
        info = joined.schema.get_field_index("info")
        joined = joined.set_column(info, "info", joined.column(info).cast(pa.binary()))
        batches: list[pa.RecordBatch] = joined.combine_chunks().to_batches()
        return batches

    def _look_up(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        cached = self._cached
        found: dict[int, bytes] = {}
        missed = []
        for key in keys.tolist():
            record = cached.get(key)
            if record is None:
                missed.append(key)
            else:
                cached.move_to_end(key)
                found[key] = record
        if missed:
            records = self._records(np.array(missed, np.int64))
            raw = records.view(f"V{RECORD.itemsize}").tolist()
            for key, record in zip(records[KEY].tolist(), raw, strict=True):
                found[key] = cached[key] = record
            while len(cached) > self._most:
                cached.popitem(last=False)
        return np.frombuffer(b"".join(found.values()), RECORD)


def _rocksdb(place: str, memory_bytes: int) -> Records:
    from semistream.bench.peers.rocksdb import get_records, open_read_only

    rows = open_read_only(place, memory_bytes, direct=False)
    return lambda keys: get_records(rows, keys)


def _postgres(place: str, memory_bytes: int) -> Records:
    from semistream.bench.peers.postgres import Connection

    connection = Connection(place)

    def records(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        table = connection.look_up(keys).cast(product_schema()).combine_chunks()
        parts = [records_of(batch) for batch in table.to_batches()]
        return np.concatenate([np.empty(0, RECORD), *parts])

    return records


_STORES: dict[str, Callable[[str, int], Any]] = {"rocksdb": _rocksdb, "postgres": _postgres}
