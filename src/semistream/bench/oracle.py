"""What a join must have produced, computed by DuckDB from the source and not from our store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.checksum import Checksum, row_hashes
from semistream.kernels.jit import kernel
from semistream.workloads import product_rows, product_schema, products, sale_schema

PAYLOAD = [name for name in product_schema().names if name != "product_id"]
"""Columns that a sale gets from its product."""

JOINED = pa.schema([*sale_schema(), *(product_schema().field(name) for name in PAYLOAD)])
"""Columns of sales joined with their products."""


@dataclass(frozen=True)
class Expected:
    """The checksum and number of results of every prefix of a stream that is played in a loop."""

    checksums: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]

    def of_prefix(self, rows: int) -> tuple[int, int]:
        """Checksum and number of results of the first `rows` stream rows."""
        length = len(self.counts) - 1
        rounds, rest = divmod(rows, length) if length else (0, 0)
        value = rounds * int(self.checksums[-1]) + int(self.checksums[rest])
        return value % 2**64, rounds * int(self.counts[-1]) + int(self.counts[rest])

    def agrees(self, produced: Checksum, rows: int) -> bool:
        """Whether these are exactly the results of the first `rows` stream rows."""
        return (produced.value, produced.rows) == self.of_prefix(rows)


class ProductOracle:
    """Joins sales with products in DuckDB; the products are made anew, not read from a master.

    `scratch` is a directory for what does not fit DuckDB's memory. With `only` it knows no other
    products than these: enough for a stream that asks for no others.
    """

    def __init__(
        self,
        rows: int,
        *,
        seed: int = 0,
        only: npt.NDArray[np.int64] | None = None,
        scratch: Path | None = None,
    ) -> None:
        config: dict[str, Any] = {"preserve_insertion_order": "false"}
        if scratch is not None:
            config["temp_directory"] = str(scratch)
        self._connection = duckdb.connect(":memory:", config=config)
        # Its bar would be drawn on standard output, where only results belong.
        self._connection.execute("SET enable_progress_bar = false")
        self._connection.register("made", _made(rows, seed, only))
        self._connection.execute("CREATE TABLE product AS SELECT * FROM made")
        self._connection.unregister("made")

    def expected(self, stream: Sequence[pa.RecordBatch]) -> Expected:
        """The results of all prefixes of sales that are numbered from 0 on."""
        length = sum(batch.num_rows for batch in stream)
        sums, counts = np.zeros(length + 1, np.uint64), np.zeros(length + 1, np.int64)
        for batch in self.joined(pa.Table.from_batches(stream, schema=sale_schema())):
            sale = batch.column("sale_id").to_numpy()
            _add_rows(sums[1:], counts[1:], sale, row_hashes(batch))
        return Expected(np.cumsum(sums, dtype=np.uint64), np.cumsum(counts))

    def joined(self, sales: pa.Table) -> Iterator[pa.RecordBatch]:
        """Sales with their products, as batches of `JOINED`, in no order."""
        self._connection.register("sale", sales)
        columns = ", ".join(JOINED.names)
        query = f"SELECT {columns} FROM sale JOIN product USING (product_id)"
        for batch in self._connection.sql(query).to_arrow_reader(65_536):
            yield batch.cast(JOINED)
        self._connection.unregister("sale")

    def close(self) -> None:
        """Free DuckDB's memory."""
        self._connection.close()

    def __enter__(self) -> ProductOracle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _made(rows: int, seed: int, only: npt.NDArray[np.int64] | None) -> pa.RecordBatchReader:
    if only is None:
        return products(rows, seed=seed)
    ids = only[only < rows]
    batches = (product_rows(ids[at : at + 65_536], seed=seed) for at in range(0, len(ids), 65_536))
    return pa.RecordBatchReader.from_batches(product_schema(), batches)


@kernel
def _add_rows(sums: Any, counts: Any, rows: Any, hashes: Any) -> None:
    for i in range(rows.size):
        sums[rows[i]] += hashes[i]
        counts[rows[i]] += 1
