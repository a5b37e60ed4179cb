"""Rows that cannot be processed: in the results, with a reason.

They are part of the output, told apart by a column of their own, so that they arrive exactly once
wherever the results do. The stream's columns are kept, the master's are null. A stream that has the
column already, as one that was enriched before has, lets its dead rows pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import format_bytes
from semistream.joins.operator import LONGEST_ROW_SHARE
from semistream.spark.schemas import shaped
from semistream.spark.worker import MARK, Recipe

NULL_KEY = "the key is null"


class DeadLetters:
    """Sorts dead rows out of the stream of one task; does nothing where none were asked for.

    `rows` counts those that died here, `unmatched` of them for the lack of a partner; `passed` had
    died before.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._asked = recipe.dead_letters is not None
        self._passes = recipe.dead_letters in recipe.stream_schema.names
        self._ready: list[pa.RecordBatch] = []
        self._longest = recipe.memory_bytes // LONGEST_ROW_SHARE
        self.no_partner = f"no partner in {recipe.title}"
        self.rows = 0
        self.unmatched = 0
        self.passed = 0

    def sorted_out(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that can be processed."""
        return map(self._alive, batches) if self._asked else batches

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The dead rows since the last call, as rows of the output."""
        ready, self._ready = self._ready, []
        yield from ready

    def finished(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results in the schema of the output; those without a partner are dead, if so ruled."""
        recipe = self._recipe
        reasons = pa.nulls(results.num_rows, pa.string())
        if recipe.missing == "dead":
            met = results.column(MARK)
            lost = results.num_rows - (pc.sum(met).as_py() or 0)
            self.rows += lost
            self.unmatched += lost
            if lost:
                reasons = pc.if_else(met, reasons, self.no_partner)
        if recipe.marks:
            results = results.select(results.schema.names[:-1])
        if self._asked:
            results = self._with_reasons(results, reasons)
        return shaped(results, recipe.output_schema)

    def dead(self, rows: pa.RecordBatch, reason: str) -> pa.RecordBatch:
        """Rows of the stream as dead rows of the output."""
        self.rows += rows.num_rows
        return self._as_output(rows, pa.array([reason] * rows.num_rows, pa.string()))

    def _with_reasons(self, results: pa.RecordBatch, reasons: pa.Array) -> pa.RecordBatch:
        name = self._recipe.dead_letters
        if not self._passes:
            return results.append_column(name, reasons)
        return results.set_column(results.schema.get_field_index(name), name, reasons)

    def _alive(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._passes:
            before = batch.column(self._recipe.dead_letters)
            if before.null_count < batch.num_rows:
                passing = batch.filter(before.is_valid())
                self.passed += passing.num_rows
                reasons = passing.column(self._recipe.dead_letters)
                self._ready.append(self._as_output(passing, reasons))
                batch = batch.filter(before.is_null())
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
        self._ready.append(self.dead(rows, reason))
        return batch.filter(pc.invert(dead))

    def _as_output(self, rows: pa.RecordBatch, reasons: pa.Array) -> pa.RecordBatch:
        schema = self._recipe.output_schema
        columns = [*shaped(rows, _first(schema, rows.num_columns)).columns]
        columns += [pa.nulls(rows.num_rows, field.type) for field in list(schema)[len(columns) :]]
        columns[schema.get_field_index(self._recipe.dead_letters)] = reasons
        return pa.RecordBatch.from_arrays(columns, schema=schema)


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
