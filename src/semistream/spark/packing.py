"""Rows on their way through a shuffle or into Spark's state: packed by destination.

A shuffle handles rows one by one. Before it, the rows of an Arrow batch are ordered by where they
go, and those with one destination become one binary value. A few binary values cross the shuffle
instead of a million rows.

A packed value is one or more Arrow messages, each behind its length (8 bytes): record batches
without their schema, which both ends know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.kernels.pages import shards_of
from semistream.spark.schemas import shaped
from semistream.spark.worker import Recipe, on_this_host
from semistream.store.keys import KeySpec
from semistream.store.sql import Table, open_any

PACKED = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
"""A packed value with its destination: the part of the stream, and the bucket of pages in it."""

LEAST_ROWS = 262_144
"""Rows that are packed together, if a task has as many: small values cost more than they save."""


class Packer:
    """Packs the rows of a stream by part (a hash of the key) and bucket (a range of pages).

    `parts` are the ids of the parts. There are `buckets` ranges in the order of the master's pages,
    each of about as many pages, so that rows of one bucket are joined by one part of a sweep.
    """

    def __init__(self, recipe: Recipe, parts: tuple[int, ...], buckets: int = 1) -> None:
        self.recipe = recipe
        self.parts = parts
        self.buckets = buckets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        recipe, schema = self.recipe, self.recipe.stream_schema
        key, spec, borders = _packing(recipe, recipe.current_version(), self.buckets)
        for batch in gathered((shaped(batch, schema) for batch in batches), LEAST_ROWS):
            columns = spec.cast([batch.column(name) for name in key], key)
            key64 = spec.keys(columns).key64
            part = np.empty(batch.num_rows, np.int32)
            shards_of(key64, len(self.parts), part)
            group = part * np.int32(self.buckets)
            if self.buckets > 1:
                group += np.searchsorted(borders, key64, side="right").astype(np.int32)
            yield self._packed(batch, group)

    def _packed(self, batch: pa.RecordBatch, group: npt.NDArray[np.int32]) -> pa.RecordBatch:
        # Sorted by radix, which NumPy does for 16 bits.
        few = len(self.parts) * self.buckets < 2**15
        order = np.argsort(group.astype(np.int16) if few else group, kind="stable")
        ordered = batch.take(pa.array(order))
        numbers, counts = np.unique(group, return_counts=True)
        starts = np.cumsum(counts) - counts
        values = [
            pack(ordered.slice(int(start), int(count)))
            for start, count in zip(starts, counts, strict=True)
        ]
        parts = np.array(self.parts, np.int32)[numbers // self.buckets]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(parts),
                pa.array((numbers % self.buckets).astype(np.int32)),
                pa.array(counts.astype(np.int32)),
                pa.array(values, pa.binary()),
            ],
            schema=PACKED,
        )


@lru_cache(maxsize=8)
def _packing_of(
    master: str | Table, version: int, buckets: int
) -> tuple[KeySpec, npt.NDArray[np.int64]]:
    with on_this_host(), open_any(master, version=version) as opened:
        return opened.spec, opened.borders(buckets)


def _packing(
    recipe: Recipe, version: int, buckets: int
) -> tuple[tuple[str, ...], KeySpec, npt.NDArray[np.int64]]:
    """The stream's key columns, the master's key, and the first key64 of every bucket but one."""
    if isinstance(recipe.master, Table):
        version = 0  # the key of a table does not change, and nobody asks for more than one bucket
    spec, borders = _packing_of(recipe.master, version, buckets)
    return recipe.key_names, spec, borders


def pack(batch: pa.RecordBatch) -> bytes:
    """A batch as a packed value; values may be put one behind the other."""
    message = batch.serialize()
    return b"".join((len(message).to_bytes(8, "little"), memoryview(message)))


def unpack(value: pa.Buffer, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of a packed value, without copying their columns."""
    at = 0
    while at < len(value):
        size = int.from_bytes(value[at : at + 8], "little")
        yield pa.ipc.read_record_batch(value.slice(at + 8, size), schema)
        at += 8 + size


def unpacked(values: Iterable[pa.Buffer], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of many packed values, in batches that are worth a call each."""
    return gathered((batch for value in values for batch in unpack(value, schema)), 65_536)


def gathered(
    batches: Iterable[pa.RecordBatch], rows: int | None = None, *, size_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches put together: until they have at least so many rows, or would have more bytes."""
    held: list[pa.RecordBatch] = []
    count, size = 0, 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if held and size_bytes is not None and size + batch.nbytes > size_bytes:
            yield pa.concat_batches(held)
            held, count, size = [], 0, 0
        held.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if rows is not None and count >= rows:
            yield pa.concat_batches(held)
            held, count, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)
