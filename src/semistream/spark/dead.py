"""Rows that cannot be processed: in the results, with a reason.

They are part of the output, told apart by a column of their own, so that they arrive exactly once
wherever the results do. The stream's columns are kept, the master's are null.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import format_bytes
from semistream.joins.operator import LONGEST_ROW_SHARE
from semistream.spark.schemas import shaped
from semistream.spark.worker import Recipe

NULL_KEY = "the key is null"


class DeadLetters:
    """Sorts dead rows out of the stream of one task; does nothing where none were asked for."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._asked = recipe.dead_letters is not None
        self._ready: list[pa.RecordBatch] = []
        self._longest = recipe.memory_bytes // LONGEST_ROW_SHARE
        self.rows = 0

    def sorted_out(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that can be processed."""
        return map(self._alive, batches) if self._asked else batches

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The dead rows since the last call, as rows of the output."""
        ready, self._ready = self._ready, []
        yield from ready

    def marked_alive(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results in the schema of the output."""
        if self._asked:
            nothing = pa.nulls(results.num_rows, pa.string())
            results = results.append_column(self._recipe.dead_letters, nothing)
        return shaped(results, self._recipe.output_schema)

    def _alive(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self._recipe.key_names:
            if batch.column(name).null_count:
                batch = self._without(batch, batch.column(name).is_null(), NULL_KEY)
        strings = [column for column in batch.columns if _has_length(column.type)]
        if sum(column.nbytes for column in strings) > self._longest:
            length = _lengths(strings)
            reason = f"its strings take more than {format_bytes(self._longest)}, memory / 64"
            batch = self._without(batch, pc.greater(length, self._longest), reason)
        return batch

    def _without(self, batch: pa.RecordBatch, dead: pa.Array, reason: str) -> pa.RecordBatch:
        rows = batch.filter(dead)
        if rows.num_rows == 0:
            return batch
        self.rows += rows.num_rows
        schema = self._recipe.output_schema
        columns = [*shaped(rows, _first(schema, rows.num_columns)).columns]
        columns += [pa.nulls(rows.num_rows, field.type) for field in list(schema)[len(columns) :]]
        columns[-1] = pa.array([reason] * rows.num_rows, pa.string())
        self._ready.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return batch.filter(pc.invert(dead))


def _has_length(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_large_string(type_)
        or kinds.is_binary(type_)
        or kinds.is_large_binary(type_)
    )


def _lengths(columns: list[pa.Array]) -> pa.Array:
    """Bytes of all strings of every row."""
    total = pa.scalar(0, pa.int64())
    for column in columns:
        total = pc.add(total, pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0))
    return total


def _first(schema: pa.Schema, columns: int) -> pa.Schema:
    return pa.schema([schema.field(i) for i in range(columns)])
