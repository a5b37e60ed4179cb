"""Rows that wait between micro-batches, as Spark's state.

The stream is divided into parts by a hash of the key, and in each part into buckets, ranges of the
master's pages. Rows of a bucket wait together. All of them leave together, and are then joined
within the micro-batch, when

- reading the bucket's pages is worth it: there are enough rows for every page, or
- one of them has waited as long as it may, or
- more rows wait than the state should hold: the fullest buckets leave first.

State of a part: one record that lists the segments of every bucket, and a map from segment to
packed rows. A row is written once and read once, so that a micro-batch costs what comes and what
leaves, however many rows wait.

What leaves depends on nothing but the state, the rows that came, the version of the master that the
micro-batch sees, and its recorded time. So a replay after a crash lets the same rows go, which
every exactly-once sink relies on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from semistream.core.errors import OptionError, SchemaError
from semistream.spark.metrics import record_waiting, type_of_records
from semistream.spark.packing import PACKED, Packer
from semistream.spark.schemas import spark_schema
from semistream.spark.worker import Recipe
from semistream.store.manifest import read_manifest

BUCKETS = 16
"""Ranges of pages in a part: many small ones cost calls, few large ones wait for less."""

WORTH_ROWS_PER_PAGE = 4.0
"""Rows per page of a bucket for which reading it is worth it at once."""

MOST_BYTES = 256_000_000
"""Packed rows that may wait in a part."""


@dataclass
class Bucket:
    """The segments of a bucket, oldest first, with the rows and bytes in each and its deadline."""

    segments: list[list[int]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(rows for _, rows, _, _ in self.segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of the packed rows."""
        return sum(size for _, _, size, _ in self.segments)

    @property
    def deadline_ms(self) -> int:
        """When the first of them must leave."""
        return min(deadline for _, _, _, deadline in self.segments)


@dataclass
class Ledger:
    """What waits in a part; the decisions. `timer_ms` is when Spark will wake the part, or 0."""

    schema: str
    buckets: dict[int, Bucket] = field(default_factory=dict)
    next_segment: int = 0
    timer_ms: int = 0

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(bucket.rows for bucket in self.buckets.values())

    def add(self, bucket: int, rows: int, size_bytes: int, deadline_ms: int) -> int:
        """Note a new segment; its number."""
        number = self.next_segment
        self.next_segment += 1
        segments = self.buckets.setdefault(bucket, Bucket()).segments
        segments.append([number, rows, size_bytes, deadline_ms])
        return number

    def due(self, now_ms: int, pages_per_bucket: float) -> list[int]:
        """The buckets that leave now, in the order of the master's pages."""
        worth = WORTH_ROWS_PER_PAGE * max(pages_per_bucket, 1.0)
        leave = {
            number
            for number, bucket in self.buckets.items()
            if bucket.deadline_ms <= now_ms or bucket.rows >= worth
        }
        stay = [number for number in self.buckets if number not in leave]
        excess = sum(self.buckets[number].size_bytes for number in stay) - MOST_BYTES
        for number in sorted(stay, key=lambda number: (-self.buckets[number].rows, number)):
            if excess <= 0:
                break
            leave.add(number)
            excess -= self.buckets[number].size_bytes
        return sorted(leave)

    def to_json(self) -> str:
        """The ledger as it is kept in the state."""
        listed = {str(number): bucket.segments for number, bucket in self.buckets.items()}
        return json.dumps([self.schema, listed, self.next_segment, self.timer_ms])

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger that `to_json` wrote."""
        schema, listed, next_segment, timer_ms = json.loads(text)
        buckets = {int(number): Bucket(segments) for number, segments in listed.items()}
        return cls(schema, buckets, next_segment, timer_ms)


class WaitingRoom(StatefulProcessor):
    """Spark's side of it: state, timers, and packed rows in and out."""

    def __init__(
        self, recipe: Recipe, accumulator: Accumulator[type_of_records], wait_ms: int, parts: int
    ) -> None:
        self.recipe = recipe
        self.accumulator = accumulator
        self.wait_ms = wait_ms
        self.parts = parts

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first row of a task."""
        self.handle = handle
        self.ledger = handle.getValueState("ledger", "ledger string")
        self.segments = handle.getMapState("segments", "segment long", "data binary")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Called by Spark with the packed rows of a part that came in a micro-batch."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        ledger = self._opened()
        came: dict[int, list[bytes]] = {}
        counts: dict[int, int] = {}
        for frame in rows:
            columns = (frame["bucket"].tolist(), frame["count"].tolist(), frame["data"].tolist())
            for bucket, count, data in zip(*columns, strict=True):
                if count == 0:
                    continue  # a heartbeat
                came.setdefault(bucket, []).append(data)
                counts[bucket] = counts.get(bucket, 0) + count
        fresh: dict[int, bytes] = {}
        for bucket, values in sorted(came.items()):
            data = b"".join(values)
            number = ledger.add(bucket, counts[bucket], len(data), now_ms + self.wait_ms)
            fresh[number] = data
        yield from self._leave(key, ledger, fresh, now_ms)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        """Called by Spark when the deadline of a part has come."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        yield from self._leave(key, self._opened(), {}, now_ms)

    def close(self) -> None:
        """Called by Spark at the end of a task."""

    def _opened(self) -> Ledger:
        schema = str(self.recipe.stream_schema.remove_metadata())
        kept = self.ledger.get() if self.ledger.exists() else None
        if kept is None:
            return Ledger(schema)
        ledger = Ledger.from_json(kept[0])
        if ledger.schema != schema:
            if ledger.rows:
                raise SchemaError(
                    f"rows that wait in the checkpoint have the columns {_line(ledger.schema)}, "
                    f"and the stream now has {_line(schema)}",
                    hint="let them leave with the old schema first, or start from a new checkpoint",
                )
            ledger.schema = schema
        return ledger

    def _leave(
        self, key: Any, ledger: Ledger, fresh: dict[int, bytes], now_ms: int
    ) -> Iterator[pd.DataFrame]:
        """Let go what is due, keep the rest, and say when to be woken."""
        manifest = read_manifest(self.recipe.master, self.recipe.current_version())
        for number in ledger.due(now_ms, manifest.pages / (BUCKETS * self.parts)):
            bucket = ledger.buckets.pop(number)
            for segment, rows, _, _ in bucket.segments:
                data = fresh.pop(segment) if segment in fresh else self._taken(segment)
                yield pd.DataFrame(
                    {"part": [key[0]], "bucket": [number], "count": [rows], "data": [data]}
                )
        for segment, data in fresh.items():
            self.segments.updateValue((segment,), (data,))
        waiting = ledger.buckets.values()
        if waiting and ledger.timer_ms <= now_ms:
            ledger.timer_ms = min(bucket.deadline_ms for bucket in waiting)
            self.handle.registerTimer(ledger.timer_ms)
        self.ledger.update((ledger.to_json(),))
        deadline_ms = min((bucket.deadline_ms for bucket in waiting), default=None)
        oldest_ms = None if deadline_ms is None else deadline_ms - self.wait_ms
        record_waiting(self.accumulator, int(key[0]), ledger.rows, oldest_ms)

    def _taken(self, segment: int) -> bytes:
        kept = self.segments.getValue((segment,))
        assert kept is not None, "the ledger names segments that are there"
        self.segments.removeKey((segment,))
        return bytes(kept[0])


def held_back(
    df: DataFrame,
    recipe: Recipe,
    accumulator: Accumulator[type_of_records],
    tasks: int,
    wait_ms: int,
) -> DataFrame:
    """The rows of a stream, packed, when they have waited enough."""
    parts = checked_parts(df.sparkSession, tasks)
    schema = spark_schema(PACKED)[0]
    packed = df.mapInArrow(Packer(recipe, parts, BUCKETS), schema)
    packed = packed.unionByName(heartbeat(df.sparkSession, parts, wait_ms))
    room = WaitingRoom(recipe, accumulator, wait_ms, len(parts))
    return packed.groupBy("part").transformWithStateInPandas(
        room, schema, outputMode="Append", timeMode="ProcessingTime"
    )


def checked_parts(session: SparkSession, tasks: int) -> tuple[int, ...]:
    """Ids of the parts into which a stream with state is divided, one for each task."""
    partitions = int(session.conf.get("spark.sql.shuffle.partitions") or "200")
    if partitions > 8 * tasks:
        raise OptionError(
            f"spark.sql.shuffle.partitions is {partitions}: Spark would start as many tasks with "
            f"state in every micro-batch, and {tasks} can run at once",
            hint=f'set it to {tasks}: spark.conf.set("spark.sql.shuffle.partitions", {tasks})',
        )
    return even_ids(min(tasks, partitions), partitions)


def heartbeat(session: SparkSession, parts: tuple[int, ...], wait_ms: int) -> DataFrame:
    """A packed value without rows for every part, once a second or as often as rows may wait.

    After a restart Spark runs no micro-batch, and so no timer, before data comes: rows that wait in
    the checkpoint would wait for it.
    """
    beats = session.readStream.format("rate").option("numPartitions", 1)
    beats = beats.option("rowsPerSecond", max(1, round(1000 / max(wait_ms, 100))))
    return beats.load().select(
        F.explode(F.array(*(F.lit(part) for part in parts))).alias("part"),
        F.lit(0).alias("bucket"),
        F.lit(0).alias("count"),
        F.lit(b"").alias("data"),
    )


def even_ids(count: int, partitions: int) -> tuple[int, ...]:
    """Ids that Spark's hash spreads evenly over partitions: numbers in a row may fall together."""
    ids: list[int] = []
    wanted = 0
    for number in range(1 << 20):
        if len(ids) == count:
            break
        if _hash_of_int(number) % partitions == wanted % partitions:
            ids.append(number)
            wanted += 1
    return tuple(ids)


def _hash_of_int(number: int) -> int:
    """Spark's hash of an integer column: Murmur3 of 32 bits with the seed 42."""
    mask = 0xFFFFFFFF

    def rotated(word: int, by: int) -> int:
        return ((word << by) | (word >> (32 - by))) & mask

    word = (number * 0xCC9E2D51) & mask
    word = (rotated(word, 15) * 0x1B873593) & mask
    result = (rotated(42 ^ word, 13) * 5 + 0xE6546B64) & mask
    result ^= 4
    result = ((result ^ (result >> 16)) * 0x85EBCA6B) & mask
    result = ((result ^ (result >> 13)) * 0xC2B2AE35) & mask
    result ^= result >> 16
    return result - (1 << 32) if result >> 31 else result


def _line(schema: str) -> str:
    return ", ".join(schema.splitlines())
