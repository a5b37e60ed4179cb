"""Building a master from a DataFrame: rows are packed, sorted and written by Spark's tasks.

Two jobs. In the first, tasks pack the rows of their partition and write them, ordered by shard,
into a file of their own in the folder of the build, which all executors reach anyway. Only where
they lie goes back to the driver: rows that took the way through Spark's shuffle would be copied
four times more. In the second job each shard is one task, which sorts its rows within its memory
and writes its pages. The driver publishes the master.

A task may run twice, at the same time even. So each attempt writes into a folder of its own, and
only the files of those are used whose result Spark took; the rest goes.
"""

from __future__ import annotations

import secrets
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from semistream.core.budget import parse_bytes, type_of_size
from semistream.core.errors import OptionError, StoreError
from semistream.spark.schemas import arrow_schema, shaped, spark_schema
from semistream.store.build import put_in_place
from semistream.store.classes import ClassWriter
from semistream.store.sorting import BATCH_ROWS, sort_rows
from semistream.store.writing import (
    VERSION,
    BuildPlan,
    WrittenShard,
    publish,
    shard_name,
    write_shards,
)

_ATTEMPTS = "attempts"
_ROWS = "rows"
PARCEL_BYTES = 32 << 20
"""Packed rows of a task that are ordered by shard and written at once, about."""

_PARCELS = pa.schema(
    [
        ("null_keys", pa.int64()),
        ("longest_row", pa.int64()),
        ("shard", pa.int32()),  # null: only what the fields before it say
        ("attempt", pa.string()),
        ("begin", pa.int64()),
        ("size", pa.int64()),
    ]
)
_RESULTS = pa.schema(
    [
        ("attempt", pa.string()),
        ("shard", pa.int32()),
        ("pages", pa.int64()),
        ("rows", pa.int64()),
        ("keys", pa.int64()),
        ("longest_run", pa.int64()),
        ("most_rows_per_page", pa.int64()),
        ("firsts", pa.binary()),
        ("continued", pa.binary()),
        ("class_ends", pa.list_(pa.int64())),
    ]
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
    frequency: str | None = None,
    hash_bits: int = 64,
) -> None:
    """Sort, index and store a DataFrame as the master of joins, at a path that does not exist yet.

    The same master as `semistream.build_master` makes of the same rows; `key`, `page_size`, `fill`,
    `frequency` and `hash_bits` mean the same. `shards` is also the number of tasks that sort and
    write; without it there is one for each of Spark's cores. `memory` bounds the sort of each of
    these tasks, which goes to disk beyond it, beside the target.

    `path` must be the same folder for the driver and all executors: a shared file system, or one
    machine. A build needs about three times the table's size there; one that fails or is
    interrupted leaves nothing at `path`. The DataFrame is computed once.
    """
    if df.isStreaming:
        raise OptionError(
            "a master is built from a DataFrame that ends, and this one is a stream",
            hint="read it with spark.read instead of spark.readStream",
        )
    plan = BuildPlan.of(
        arrow_schema(df.schema),
        key,
        page_size=page_size,
        shards=df.sparkSession.sparkContext.defaultParallelism if shards is None else shards,
        fill=fill,
        hash_bits=hash_bits,
        frequency=frequency,
    )
    limit = parse_bytes(memory)
    with put_in_place(Path(path).absolute()) as directory:
        _Build(df, plan, limit, directory).run()


class _Build:
    """One build, seen from the driver."""

    def __init__(self, df: DataFrame, plan: BuildPlan, memory_bytes: int, directory: Path) -> None:
        self.df = df
        self.spark = df.sparkSession
        self.plan = plan
        self.memory_bytes = memory_bytes
        self.directory = directory
        self.attempts = directory / _ATTEMPTS

    def run(self) -> None:
        self.attempts.mkdir()
        parcels = self._run(self.df, _Pack(self.plan, self.attempts), _PARCELS)
        longest_row = pc.max(parcels["longest_row"]).as_py() or 0
        page_bytes = self.plan.page_bytes_for(longest_row)
        wanted = parcels.filter(pc.is_valid(parcels["shard"]))
        results = []
        if wanted.num_rows:
            tasks = self.spark.createDataFrame(wanted)
            tasks = tasks.repartitionById(self.plan.shards, tasks["shard"])
            write = _Write(self.plan, page_bytes, self.memory_bytes, self.attempts)
            results = self._run(tasks, write, _RESULTS).to_pylist()
        (self.directory / VERSION).mkdir()
        written = {result["shard"]: self._take(result, page_bytes) for result in results}
        scratch = self.attempts / "classes"
        scratch.mkdir()
        with _class_writer(self.plan, scratch, self.memory_bytes) as classes:
            if classes is not None:
                for attempt in {result["attempt"] for result in results}:
                    classes.add_all(self.attempts / attempt)
            publish(
                self.directory,
                self.plan,
                page_bytes,
                written,
                null_keys=pc.sum(parcels["null_keys"]).as_py() or 0,
                rejected_rows=0,
                classes=classes,
            )
        shutil.rmtree(self.attempts, ignore_errors=True)

    def _run(self, df: DataFrame, function: Any, schema: pa.Schema) -> pa.Table:
        """What a function makes of a DataFrame, at the driver."""
        tag = f"semistream-build-{secrets.token_hex(8)}"
        self.spark.addTag(tag)
        try:
            return df.mapInArrow(function, spark_schema(schema)[0]).toArrow().cast(schema)
        except BaseException:
            # Tasks of an interrupted build would go on for nobody.
            self.spark.interruptTag(tag)
            raise
        finally:
            self.spark.removeTag(tag)

    def _take(self, result: dict[str, Any], page_bytes: int) -> WrittenShard:
        name = shard_name(result["shard"])
        file = self.attempts / result["attempt"] / name
        size = file.stat().st_size if file.exists() else 0
        if size != result["pages"] * page_bytes:
            raise StoreError(
                f"a task wrote {result['pages'] * page_bytes} bytes to {str(file)!r}, and the "
                f"driver finds {size} there",
                hint=_SHARED,
            )
        file.rename(self.directory / VERSION / name)
        values = {one.name: result[one.name] for one in fields(WrittenShard)}
        values["firsts"] = np.frombuffer(result["firsts"], np.int64)
        values["continued"] = np.frombuffer(result["continued"], np.uint8)
        values["class_ends"] = tuple(result["class_ends"])
        return WrittenShard(**values)


# ---------------------------------------------------------------------------------- in the tasks

_SHARED = "the path must lead to the same folder on the driver and on all executors"


def _new_attempt(attempts: Path) -> Path:
    """A folder for an attempt of a task."""
    folder = attempts / secrets.token_hex(8)
    try:
        folder.mkdir()
    except OSError as error:
        raise StoreError(
            f"a task on {socket.gethostname()} cannot write in {str(attempts)!r}: {error.strerror}",
            hint=_SHARED,
        ) from error
    return folder


@dataclass(frozen=True)
class _Pack:
    """Packs the rows of a task into a file, and says where those of each shard lie in it.

    A parcel is the rows of some batches for one shard, in Arrow's stream format.
    """

    plan: BuildPlan
    attempts: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = _new_attempt(self.attempts)
        with pa.OSFile(str(folder / _ROWS), "wb") as file:
            held: list[pa.RecordBatch] = []
            size, null_keys, longest_row = 0, 0, 0
            for batch in batches:
                for packed in self.plan.pack(shaped(batch, self.plan.schema)):
                    null_keys += packed.null_keys
                    longest_row = max(longest_row, packed.longest_row)
                    if packed.rows.num_rows:
                        held.append(packed.rows)
                        size += packed.rows.nbytes
                    if size >= PARCEL_BYTES:
                        yield self._written(held, file, folder.name)
                        held, size = [], 0
            if held:
                yield self._written(held, file, folder.name)
        yield _records(_PARCELS, [(null_keys, longest_row, None, None, None, None)])

    def _written(
        self, held: list[pa.RecordBatch], file: pa.NativeFile, attempt: str
    ) -> pa.RecordBatch:
        rows = pa.concat_batches(held)
        shard = rows.column("shard").to_numpy()
        if self.plan.shards > 1:
            order = np.argsort(shard.astype(np.int16), kind="stable")  # which NumPy does by radix
            rows, shard = rows.take(pa.array(order)), shard[order]
        shards, begins, counts = np.unique(shard, return_index=True, return_counts=True)
        parcels = []
        for number, begin, count in zip(shards, begins, counts, strict=True):
            at = file.tell()
            with pa.ipc.new_stream(file, rows.schema) as writer:
                writer.write_batch(rows.slice(begin, count))
            parcels.append((0, 0, number, attempt, at, file.tell() - at))
        return _records(_PARCELS, parcels)


@dataclass(frozen=True)
class _Write:
    """Sorts the rows of its shards and writes their pages, in a folder of this attempt's own."""

    plan: BuildPlan
    page_bytes: int
    memory_bytes: int
    attempts: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parcels = [row for batch in batches for row in batch.to_pylist()]
        if not parcels:
            return
        folder = _new_attempt(self.attempts)
        scratch = folder / "sort"
        scratch.mkdir()
        ordered = sort_rows(
            self._rows(parcels),
            scratch,
            self.memory_bytes,
            by_row=self.plan.sorts_by_row,
            by_frequency=self.plan.frequency is not None,
        )
        with closing(ordered), _class_writer(self.plan, folder, self.memory_bytes) as classes:
            found = list(write_shards(ordered, folder, self.plan, self.page_bytes, classes))
        shutil.rmtree(scratch, ignore_errors=True)
        results = []
        for shard, written in found:
            plain = {**vars(written), "firsts": written.firsts.tobytes()}
            plain["continued"] = written.continued.tobytes()
            results.append({"attempt": folder.name, "shard": shard, **plain})
        yield pa.RecordBatch.from_pylist(results, schema=_RESULTS)

    def _rows(self, parcels: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        by_file = sorted(parcels, key=lambda parcel: (parcel["attempt"], parcel["begin"]))
        for attempt, group in groupby(by_file, key=lambda parcel: parcel["attempt"]):
            with pa.memory_map(str(self.attempts / attempt / _ROWS)) as file:
                for parcel in group:
                    file.seek(parcel["begin"])
                    rows = pa.ipc.open_stream(file.read_buffer(parcel["size"])).read_next_batch()
                    # In portions: DuckDB's threads each take one.
                    for start in range(0, rows.num_rows, BATCH_ROWS):
                        yield rows.slice(start, BATCH_ROWS)


@contextmanager
def _class_writer(plan: BuildPlan, folder: Path, memory_bytes: int) -> Iterator[ClassWriter | None]:
    """What takes the classes of keys, where rows are in frequency order."""
    if plan.frequency is None:
        yield None
        return
    with closing(ClassWriter(folder, memory_bytes)) as classes:
        yield classes


def _records(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
