"""Rows that wait for their key to come to the master, as Spark's state.

The stream is divided into parts by a hash of the key. Every part joins its rows as they come; those
without a partner are kept, in segments of rows that came together, with the version of the master
that did not know them. When a micro-batch sees a newer version, rows are looked up again whose keys
it touched, and when a segment's time is over its rows are dead letters. A beat every second lets
that happen without data too.

What leaves depends on nothing but the state, the rows that came, the version that the micro-batch
sees and its recorded time: a replay lets the same rows go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from semistream.core.errors import SchemaError
from semistream.core.hot_keys import HotKeys
from semistream.core.stats import JoinStats
from semistream.joins.api import run
from semistream.spark.dead import DeadLetters
from semistream.spark.heartbeat import heartbeat
from semistream.spark.metrics import record, record_waiting, type_of_records
from semistream.spark.packing import PACKED, Packer, pack, unpack, unpacked
from semistream.spark.schemas import spark_schema
from semistream.spark.versions import query_run
from semistream.spark.waiting import NOW, checked_parts
from semistream.spark.worker import MARK, Held, Recipe, borrowed

BEAT_MS = 1000


@dataclass
class Segment:
    """Rows that came together: their number in the state, how many, until when they wait, and the
    version of the master that does not know them."""

    number: int
    rows: int
    deadline_ms: int
    version: int


@dataclass
class RetryLedger:
    """What waits in a part, and which run of the query said so."""

    schema: str
    segments: list[Segment] = field(default_factory=list)
    next_segment: int = 0
    run: str = ""

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(segment.rows for segment in self.segments)

    def to_json(self) -> str:
        """The ledger as it is kept in the state."""
        listed = [[s.number, s.rows, s.deadline_ms, s.version] for s in self.segments]
        return json.dumps([self.schema, listed, self.next_segment, self.run])

    @classmethod
    def from_json(cls, text: str) -> RetryLedger:
        """The ledger that `to_json` wrote."""
        schema, listed, next_segment, run = json.loads(text)
        return cls(schema, [Segment(*one) for one in listed], next_segment, run)


class RetryRoom(StatefulProcessor):
    """Spark's side of it: packed rows of the stream in, packed results out."""

    def __init__(self, recipe: Recipe, accumulator: Accumulator[type_of_records]) -> None:
        self.recipe = recipe
        self.accumulator = accumulator

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first row of a task."""
        self.handle = handle
        self.ledger = handle.getValueState("ledger", "ledger string")
        self.segments = handle.getMapState("segments", "segment long", "data binary")
        self._did: list[JoinStats] = []
        self._dead_rows = 0

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Called by Spark with the packed rows of a part that came in a micro-batch."""
        frames = list(rows)
        now_ms = int(frames[0][NOW].iloc[0])
        values = [data for frame in frames for data in frame["data"].tolist() if len(data)]
        with borrowed(self.recipe) as held:
            work = _Work(self, held, self._opened(), now_ms)
            for result in work.results(values):
                yield pd.DataFrame(
                    {
                        "part": [key[0]],
                        "bucket": [0],
                        "count": [result.num_rows],
                        "data": [pack(result)],
                    }
                )
            self.ledger.update((work.ledger.to_json(),))
            self._did.append(work.did())
            self._dead_rows += work.dead.rows
            total = JoinStats.total(self._did).with_holdings_of(self._did[-1])
            most = held.operator.master.manifest.longest_run
            record(
                self.accumulator, self.recipe, held.version, total, self._dead_rows, work.hot, most
            )
        deadlines = [segment.deadline_ms for segment in work.ledger.segments]
        oldest_ms = min(deadlines) - self.recipe.retry_ms if deadlines else None
        record_waiting(self.accumulator, int(key[0]), work.ledger.rows, oldest_ms, counted=True)

    def close(self) -> None:
        """Called by Spark at the end of a task."""

    def _opened(self) -> RetryLedger:
        schema = str(self.recipe.stream_schema.remove_metadata())
        kept = self.ledger.get() if self.ledger.exists() else None
        if kept is None:
            return RetryLedger(schema)
        ledger = RetryLedger.from_json(kept[0])
        if ledger.schema != schema:
            if ledger.rows:
                raise SchemaError(
                    f"rows that wait for their key in the checkpoint have other columns than the "
                    f"stream: {ledger.schema!r}",
                    hint="let them leave with the old schema first, or start from a new checkpoint",
                )
            ledger.schema = schema
        return ledger


class _Work:
    """One call: rows that came, rows that waited, and what becomes of them."""

    def __init__(self, room: RetryRoom, held: Held, ledger: RetryLedger, now_ms: int) -> None:
        self.room, self.held, self.ledger, self.now_ms = room, held, ledger, now_ms
        self.recipe = room.recipe
        self.dead = DeadLetters(room.recipe)
        self.hot = HotKeys(room.recipe.key_names)
        self._before = held.operator.stats
        # Rows that an earlier run left are, to the statistics of this one, rows that come.
        self._came = 0 if ledger.run == query_run() else ledger.rows
        ledger.run = query_run()

    def results(self, values: list[bytes]) -> Iterator[pa.RecordBatch]:
        """Everything that leaves: matched rows and dead letters."""
        waiting, self.ledger.segments = self.ledger.segments, []
        for segment in waiting:
            yield from self._again(segment)
        schema = self.recipe.stream_schema
        rows = self.hot.watched(unpacked((pa.py_buffer(value) for value in values), schema))
        lost: list[pa.RecordBatch] = []
        for batch in self.dead.sorted_out(rows):
            self._came += batch.num_rows
            yield from self._joined(batch, lost)
        yield from self.dead.taken()
        self._keep(lost, self.now_ms + self.recipe.retry_ms)

    def did(self) -> JoinStats:
        """The counters of this call, a row that is tried again counted once."""
        did = self.held.did_since(self._before)
        dead_early = self.dead.rows - self.dead.unmatched
        return replace(did, rows_in=self._came + dead_early, rows_unmatched=0, rows_waiting=0)

    def _joined(
        self, batch: pa.RecordBatch, lost: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Results of rows with a partner; those without are added to `lost`."""
        names = self.recipe.stream_schema.names
        for result in run(self.held.operator, [batch]):
            met = result.column(MARK)
            matched = result.filter(met)
            if matched.num_rows:
                yield self.dead.finished(matched)
            if matched.num_rows < result.num_rows:
                lost.append(result.filter(pc.invert(met)).select(names))

    def _again(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Look rows up again whose keys were touched; give those up whose time is over."""
        over = segment.deadline_ms <= self.now_ms
        newer = segment.version != self.held.version
        if not over and not newer:
            self.ledger.segments.append(segment)
            return
        rows = self._taken(segment)
        lost: list[pa.RecordBatch] = []
        for batch in rows:
            touched = self._touched(batch, segment.version) if newer else None
            if touched is None:
                lost.append(batch)
                continue
            yield from self._joined(batch.filter(pa.array(touched)), lost)
            lost.append(batch.filter(pa.array(~touched)))
        if not over:
            self._keep(lost, segment.deadline_ms)
            return
        for batch in lost:
            if batch.num_rows:
                self.dead.unmatched += batch.num_rows
                reason = f"{self.dead.no_partner} within {self.recipe.retry_for}"
                yield self.dead.dead(batch, reason)

    def _touched(self, batch: pa.RecordBatch, version: int) -> npt.NDArray[np.bool_]:
        operator = self.held.operator
        keys = operator.master.touched_since(version)
        if keys is None:
            return np.ones(batch.num_rows, bool)
        found: npt.NDArray[np.bool_] = np.isin(operator.binding.keys(batch)[0].key64, keys)
        return found

    def _keep(self, batches: list[pa.RecordBatch], deadline_ms: int) -> None:
        rows = sum(batch.num_rows for batch in batches)
        if rows == 0:
            return
        number = self.ledger.next_segment
        self.ledger.next_segment += 1
        data = b"".join(pack(batch) for batch in batches if batch.num_rows)
        self.room.segments.updateValue((number,), (data,))
        self.ledger.segments.append(Segment(number, rows, deadline_ms, self.held.version))

    def _taken(self, segment: Segment) -> list[pa.RecordBatch]:
        kept = self.room.segments.getValue((segment.number,))
        assert kept is not None, "the ledger names segments that are there"
        self.room.segments.removeKey((segment.number,))
        return list(unpack(pa.py_buffer(bytes(kept[0])), self.recipe.stream_schema))


class Unpacked:
    """What `mapInArrow` calls: packed results as rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        column = PACKED.names.index("data")
        for batch in batches:
            for value in batch.column(column):
                yield from unpack(value.as_buffer(), self.schema)


def retried(
    df: DataFrame,
    recipe: Recipe,
    accumulator: Accumulator[type_of_records],
    tasks: int,
    output: StructType,
) -> DataFrame:
    """The results of a stream, of which rows without a partner wait for it."""
    parts = checked_parts(df.sparkSession, tasks)
    schema = spark_schema(PACKED)[0]
    packed = df.mapInArrow(Packer(recipe, parts), schema)
    packed = packed.unionByName(heartbeat(df.sparkSession, parts, BEAT_MS))
    packed = packed.withColumn(NOW, F.unix_millis(F.current_timestamp()))
    results = packed.groupBy("part").transformWithStateInPandas(
        RetryRoom(recipe, accumulator), schema, outputMode="Append", timeMode="None"
    )
    return results.mapInArrow(Unpacked(recipe.output_schema), output)
