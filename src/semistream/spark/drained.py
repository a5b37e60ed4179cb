"""Each micro-batch joined completely within itself; stateless for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pyarrow as pa
from pyspark.accumulators import Accumulator

from semistream.core.hot_keys import HotKeys
from semistream.joins.api import run
from semistream.joins.operator import Operator
from semistream.spark.dead import DeadLetters
from semistream.spark.metrics import record, type_of_records
from semistream.spark.packing import PACKED, gathered, unpack
from semistream.spark.schemas import shaped
from semistream.spark.worker import Recipe, borrowed


class DrainedJoin:
    """What `mapInArrow` calls in every task: the rows of a partition in, their results out.

    Rows come some thousand at a time. They are put together as far as the memory for rows in hand
    reaches: the more rows of a micro-batch a join knows of, the fewer pages it looks at for each.
    The rows come as they are or packed. `by_shard` says that all of them belong to one shard of the
    master, whose number is their part; the operator then knows only that shard.
    """

    def __init__(
        self,
        recipe: Recipe,
        accumulator: Accumulator[type_of_records],
        *,
        packed: bool = False,
        by_shard: bool = False,
    ) -> None:
        self.recipe = recipe
        self.accumulator = accumulator
        self.packed = packed
        self.by_shard = by_shard

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        while first is not None and first.num_rows == 0:
            first = next(batches, None)
        if first is None:
            return
        shard = first.column(PACKED.names.index("part"))[0].as_py() if self.by_shard else None
        recipe = self.recipe
        with borrowed(recipe, shard) as held:
            operator, before = held.operator, held.operator.stats
            dead, hot = DeadLetters(recipe), HotKeys(recipe.key_names)
            rows = hot.watched(self._rows(_chained(first, batches)))
            # What is put together lies there twice for a moment.
            together = gathered(dead.sorted_out(rows), size_bytes=recipe.hand_bytes // 2)
            for result in _joined(operator, together):
                yield dead.finished(result)
                yield from dead.taken()
            yield from dead.taken()
            did = held.did_since(before)
            # Rows in = matched + unmatched + dead + waiting.
            did = replace(did, rows_in=did.rows_in + dead.rows - dead.unmatched)
            if recipe.marks:
                did = replace(did, rows_unmatched=0)
            most = operator.master.manifest.longest_run
            record(self.accumulator, recipe, held.version, did, dead.rows, hot, most)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self.recipe.stream_schema
        if not self.packed:
            return (shaped(batch, schema) for batch in batches)
        column = PACKED.names.index("data")
        values = (value.as_buffer() for batch in batches for value in batch.column(column))
        return (batch for value in values for batch in unpack(value, schema))


def _joined(operator: Operator, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The results of all rows: of one batch by itself, of several so that rows may wait."""
    first = next(batches, None)
    if first is None:
        return
    second = next(batches, None)
    if second is None:
        yield from operator.drained(first)
        return
    yield from run(operator, chain((first, second), batches))


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
