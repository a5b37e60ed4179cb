"""Polars and PyArrow: joins that scan Parquet files for every micro-batch."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import acero

from semistream.bench.masters import product_files
from semistream.bench.oracle import JOINED, PAYLOAD
from semistream.bench.peers.base import KEY, THREADS, Peer, write_out
from semistream.workloads import sale_schema


class _Scan(Peer):
    memory_is = "not bounded"

    @property
    def store(self) -> Path:
        return product_files(self.workdir, self.rows)

    def build(self) -> None:
        self.workdir.mkdir(parents=True, exist_ok=True)
        write_out(product_files(self.workdir, self.rows))

    def close(self) -> None:
        pass


class Polars(_Scan):
    """A lazy scan of the files, joined with the batch by the streaming engine."""

    name = "polars"
    package = "polars"

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        # Read when it is first loaded.
        os.environ.setdefault("POLARS_MAX_THREADS", str(THREADS))
        import polars

        self._products = polars.scan_parquet(self.store / "*.parquet")

    def join(self, batch: pa.RecordBatch) -> pa.Table:
        import polars

        stream = polars.from_arrow(batch)
        assert isinstance(stream, polars.DataFrame)
        joined = self._products.join(stream.lazy(), on=KEY, how="inner")
        return joined.select(JOINED.names).collect(engine="streaming").to_arrow()


class PyArrow(_Scan):
    """Arrow's hash join: the batch is the hash table, the scan goes past it."""

    name = "pyarrow"

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        self._products = ds.dataset(self.store)

    def join(self, batch: pa.RecordBatch) -> pa.Table:
        scan = acero.Declaration("scan", acero.ScanNodeOptions(self._products))
        stream = acero.Declaration(
            "table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        )
        options = acero.HashJoinNodeOptions(
            "inner", [KEY], [KEY], left_output=PAYLOAD, right_output=sale_schema().names
        )
        return acero.Declaration("hashjoin", options, [scan, stream]).to_table(use_threads=True)
