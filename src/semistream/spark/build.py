"""Building a master from a DataFrame: rows are packed, sorted and written by Spark's tasks.

Tasks pack the rows of their partition, as one blob of bytes a shard and batch, since Spark moves a
few large values many times faster than many small rows. Each shard then lies in one task, which
sorts it within its memory and writes its pages. The driver publishes the master.

A task may run twice, at the same time even. So each attempt writes into a folder of its own, and
the driver takes the files of those whose result Spark took; the rest goes.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from semistream.core.budget import parse_bytes, type_of_size
from semistream.core.errors import OptionError, StoreError
from semistream.spark.schemas import arrow_schema, shaped
from semistream.store.build import begun, put_in_place
from semistream.store.sorting import PACKED, sort_rows
from semistream.store.writing import (
    VERSION,
    BuildPlan,
    Packed,
    WrittenShard,
    publish,
    shard_name,
    write_shards,
)

_ATTEMPTS = "attempts"
_PARCELS = pa.schema(
    [
        ("shard", pa.int32()),
        ("null_keys", pa.int64()),
        ("longest_row", pa.int64()),
        ("rows", pa.binary()),  # null: none
    ]
)
_PARCELS_SPARK = "shard int, null_keys bigint, longest_row bigint, rows binary"
_RESULTS = pa.schema(
    [
        ("attempt", pa.string()),
        ("longest_row", pa.int64()),
        ("null_keys", pa.int64()),
        ("shard", pa.int32()),  # null: only what the fields before it say
        ("pages", pa.int64()),
        ("rows", pa.int64()),
        ("keys", pa.int64()),
        ("longest_run", pa.int64()),
        ("most_rows_per_page", pa.int64()),
        ("firsts", pa.binary()),
        ("continued", pa.binary()),
    ]
)
_RESULTS_SPARK = (
    "attempt string, longest_row bigint, null_keys bigint, shard int, pages bigint, rows bigint, "
    "keys bigint, longest_run bigint, most_rows_per_page bigint, firsts binary, continued binary"
)


def build_master(
    path: str | Path,
    df: DataFrame,
    key: str | Sequence[str],
    *,
    page_size: type_of_size | None = None,
    shards: int | None = None,
    fill: float = 1.0,
    memory: type_of_size = "512MB",
    hash_bits: int = 64,
) -> None:
    """Sort, index and store a DataFrame as the master of joins, at a path that does not exist yet.

    The same master as `semistream.build_master` makes of the same rows; `key`, `page_size`, `fill`
    and `hash_bits` mean the same. `shards` is also the number of tasks that sort and write; without
    it there is one for each of Spark's cores. `memory` bounds the sort of each of these tasks,
    which goes to disk beyond it, beside the target.

    `path` must be the same folder for the driver and all executors: a shared file system, or one
    machine. A build that fails or is interrupted leaves nothing at `path`.

    Rows too long for a page of 8 KiB are found out only while shards are written: unless
    `page_size` allows for them, the DataFrame is then computed a second time.
    """
    if df.isStreaming:
        raise OptionError(
            "a master is built from a DataFrame that ends, and this one is a stream",
            hint="read it with spark.read instead of spark.readStream",
        )
    spark = df.sparkSession
    plan = BuildPlan.of(
        arrow_schema(df.schema),
        key,
        page_size=page_size,
        shards=spark.sparkContext.defaultParallelism if shards is None else shards,
        fill=fill,
        hash_bits=hash_bits,
    )
    limit = parse_bytes(memory)
    with put_in_place(Path(path).absolute()) as directory:
        parcels = df.mapInArrow(_Pack(plan), _PARCELS_SPARK)
        _Build(spark, parcels, plan, limit, directory).run()


class _Build:
    """One build, seen from the driver."""

    def __init__(
        self,
        spark: SparkSession,
        parcels: DataFrame,
        plan: BuildPlan,
        memory_bytes: int,
        directory: Path,
    ) -> None:
        self.spark = spark
        self.parcels = parcels
        self.plan = plan
        self.memory_bytes = memory_bytes
        self.directory = directory

    def run(self) -> None:
        attempts = self.directory / _ATTEMPTS
        attempts.mkdir()
        page_bytes = self.plan.page_bytes_for(0)
        results = self._write(page_bytes)
        needed = self.plan.page_bytes_for(max((row.longest_row for row in results), default=0))
        if needed != page_bytes:
            page_bytes = needed
            results = self._write(page_bytes)
        (self.directory / VERSION).mkdir()
        written = {row.shard: self._take(row, page_bytes) for row in results if row.pages}
        shutil.rmtree(attempts, ignore_errors=True)
        publish(
            self.directory,
            self.plan,
            page_bytes,
            written,
            null_keys=sum(row.null_keys for row in results),
            rejected_rows=0,
        )

    def _write(self, page_bytes: int) -> list[Row]:
        write = _Write(self.plan, page_bytes, self.memory_bytes, self.directory / _ATTEMPTS)
        tag = f"semistream-build-{secrets.token_hex(8)}"
        self.spark.addTag(tag)
        try:
            shuffled = self.parcels.repartitionById(self.plan.shards, self.parcels["shard"])
            return shuffled.mapInArrow(write, _RESULTS_SPARK).collect()
        except BaseException:
            # Tasks of an interrupted build would go on for nobody.
            self.spark.interruptTag(tag)
            raise
        finally:
            self.spark.removeTag(tag)

    def _take(self, result: Row, page_bytes: int) -> WrittenShard:
        name = shard_name(result.shard)
        file = self.directory / _ATTEMPTS / result.attempt / name
        size = file.stat().st_size if file.exists() else 0
        if size != result.pages * page_bytes:
            raise StoreError(
                f"a task wrote {result.pages * page_bytes} bytes to {str(file)!r}, and the driver "
                f"finds {size} there",
                hint="the path must lead to the same folder on the driver and on all executors",
            )
        file.rename(self.directory / VERSION / name)
        return WrittenShard(
            pages=result.pages,
            rows=result.rows,
            keys=result.keys,
            longest_run=result.longest_run,
            most_rows_per_page=result.most_rows_per_page,
            firsts=np.frombuffer(result.firsts, np.int64),
            continued=np.frombuffer(result.continued, np.uint8),
        )


# ---------------------------------------------------------------------------------- in the tasks


@dataclass(frozen=True)
class _Pack:
    """Packs rows into parcels: the rows of one batch for one shard, in Arrow's stream format."""

    plan: BuildPlan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in self.plan.pack(shaped(batch, self.plan.schema)):
                yield self._parcels(packed)

    def _parcels(self, packed: Packed) -> pa.RecordBatch:
        rows = packed.rows
        shard = rows.column("shard").to_numpy()
        order = np.argsort(shard, kind="stable")
        ordered = rows.take(pa.array(order)) if self.plan.shards > 1 else rows
        shards, begins, counts = np.unique(shard[order], return_index=True, return_counts=True)
        parcels: list[tuple[int, int, int, bytes | None]] = [
            (shard, 0, packed.longest_row, _to_bytes(ordered.slice(begin, count)))
            for shard, begin, count in zip(shards, begins, counts, strict=True)
        ]
        if packed.null_keys:
            parcels.append((0, packed.null_keys, 0, None))
        columns = zip(*parcels, strict=True) if parcels else [[]] * len(_PARCELS)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _PARCELS, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_PARCELS)


@dataclass(frozen=True)
class _Write:
    """Sorts the rows of its shards and writes their pages, in a folder of this attempt's own.

    Where a row does not fit the pages, nothing is written: the length of the longest is the result.
    """

    plan: BuildPlan
    page_bytes: int
    memory_bytes: int
    attempts: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = secrets.token_hex(8)
        folder = self.attempts / attempt
        folder.mkdir()
        scratch = folder / "sort"
        scratch.mkdir()
        content = _Content()
        ordered = sort_rows(
            content.of(batches), scratch, self.memory_bytes, by_row=self.plan.sorts_by_row
        )
        found = []
        with closing(ordered):
            rows = begun(ordered)
            if self.plan.fits(content.longest_row, self.page_bytes):
                found = list(write_shards(rows, folder, self.plan, self.page_bytes))
        shutil.rmtree(scratch, ignore_errors=True)
        about = {"attempt": attempt, "longest_row": content.longest_row}
        results = [{**about, "null_keys": content.null_keys}]
        for shard, written in found:
            plain = {**vars(written), "firsts": written.firsts.tobytes()}
            plain["continued"] = written.continued.tobytes()
            results.append({**about, "null_keys": 0, "shard": shard, **plain})
        yield pa.RecordBatch.from_pylist(results, schema=_RESULTS)


@dataclass
class _Content:
    """What parcels hold, found out while they are opened."""

    null_keys: int = 0
    longest_row: int = 0

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.null_keys += int(batch.column("null_keys").to_numpy().sum())
            longest = int(batch.column("longest_row").to_numpy().max(initial=0))
            self.longest_row = max(self.longest_row, longest)
            for blob in batch.column("rows").drop_null():
                yield pa.ipc.open_stream(blob.as_buffer()).read_next_batch()


def _to_bytes(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PACKED) as writer:
        writer.write_batch(rows)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob
