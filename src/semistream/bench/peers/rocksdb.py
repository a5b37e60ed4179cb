"""RocksDB: one multi-get of the distinct keys of a micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.peers.base import (
    KEY,
    RECORD,
    THREADS,
    Lookup,
    batch_of,
    built,
    product_batches,
    records_of,
)


class RocksDb(Lookup):
    """Keys are big-endian, so that they lie in their order; values are whole records."""

    name = "rocksdb"
    package = "rocksdict"
    memory_is = "block cache"

    def build(self) -> None:
        if self.store.exists():
            return
        from rocksdict import Rdict, SstFileWriter

        with built(self.store) as folder:
            paths = []
            for number, batch in enumerate(product_batches(self.rows)):
                # Files of sorted rows become the store as they are: nothing is left to compact.
                path = str(folder / f"{number:04}.sst")
                writer = SstFileWriter(options=_options())
                writer.open(path)
                keys = np.ascontiguousarray(batch.column(KEY).to_numpy()).astype(">i8")
                values = records_of(batch).view(f"V{RECORD.itemsize}")
                for key, value in zip(keys.view("V8").tolist(), values.tolist(), strict=True):
                    writer[key] = value
                writer.finish()
                paths.append(path)
            made = Rdict(str(folder), options=_options())
            made.ingest_external_file(paths)
            made.close()
            for path in paths:
                Path(path).unlink()  # it was copied or linked

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        self._rows = open_read_only(str(self.store), memory_bytes, direct=cold)

    def look_up(self, keys: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return batch_of(get_records(self._rows, keys))

    def close(self) -> None:
        self._rows.close()


def open_read_only(path: str, memory_bytes: int, *, direct: bool) -> Any:
    """A store with a block cache of this size, which others may have open too."""
    from rocksdict import AccessType, BlockBasedOptions, Cache, Rdict

    options = _options()
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(memory_bytes))
    options.set_block_based_table_factory(blocks)
    options.set_use_direct_reads(direct)
    return Rdict(path, options=options, access_type=AccessType.read_only())


def _options() -> Any:
    from rocksdict import DBCompressionType, Options

    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())
    options.increase_parallelism(THREADS)
    return options


def get_records(rows: Any, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """The records of these keys, in their order; those that are not there are left out."""
    values = rows.get(keys.astype(">i8").view("V8").tolist())
    return np.frombuffer(b"".join(value for value in values if value is not None), RECORD)
