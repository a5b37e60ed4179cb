"""Rows that wait between micro-batches, as Spark's state.

The stream is divided into parts by a hash of the key, and in each part into buckets, ranges of the
master's pages. Rows of a bucket wait together. All of them leave together, and are then joined
within the micro-batch, when

- reading the bucket's pages is worth it: there are enough rows for every page, or
- one of them has waited as long as it may, or
- more rows wait than the state should hold: the fullest buckets leave first, or
- the run is one that ends (`availableNow`): nothing waits for a run that may never come.

State of a part: one record that lists the segments of every bucket, and a map from segment to
packed rows. A row is written once and read once, so that a micro-batch costs what comes and what
leaves, however many rows wait.

What leaves depends on nothing but the state, the rows and beats that came, the version of the
master that the micro-batch sees, and its time, which Spark writes down before it begins. So a
replay after a crash lets the same rows go, which every exactly-once sink relies on. There are no
timers: a query with timers runs micro-batches one after the other, for ever. A heartbeat makes
micro-batches happen while nothing comes.
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
from semistream.spark.heartbeat import LAST_RUN, heartbeat
from semistream.spark.metrics import record_waiting, type_of_records
from semistream.spark.packing import PACKED, Packer
from semistream.spark.schemas import spark_schema
from semistream.spark.worker import Recipe
from semistream.store.manifest import read_manifest

BUCKETS = 4
"""Ranges of pages in a part. A bucket costs three calls of Spark's state in a micro-batch, a
millisecond and more each; many pay only for streams that move through the master's keys."""

WORTH_ROWS_PER_PAGE = 4.0
"""Rows per page of a bucket for which reading it is worth it at once."""

MOST_BYTES = 256_000_000
"""Packed rows that may wait in a part."""

CALL_BYTES = 32_000_000
"""Packed rows that leave in one frame, about."""

NOW = "now"
"""The column with the time of the micro-batch, in milliseconds."""

Value = tuple[int, bytes]
"""A packed value behind the number of rows in it."""


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
    """What waits in a part; the decisions. In a run that `ends` nothing waits."""

    schema: str
    buckets: dict[int, Bucket] = field(default_factory=dict)
    next_segment: int = 0
    ends: bool = False

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
            if self.ends or bucket.deadline_ms <= now_ms or bucket.rows >= worth
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
        return json.dumps([self.schema, listed, self.next_segment, self.ends])

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger that `to_json` wrote."""
        schema, listed, next_segment, ends = json.loads(text)
        buckets = {int(number): Bucket(segments) for number, segments in listed.items()}
        return cls(schema, buckets, next_segment, ends)


class WaitingRoom(StatefulProcessor):
    """Spark's side of it: state, and packed rows in and out.

    Rows are let go `early_ms` before they must: no micro-batch need come sooner than that.
    """

    def __init__(
        self,
        recipe: Recipe,
        accumulator: Accumulator[type_of_records],
        wait_ms: int,
        early_ms: int,
        parts: int,
    ) -> None:
        self.recipe = recipe
        self.accumulator = accumulator
        self.wait_ms = wait_ms
        self.early_ms = early_ms
        self.parts = parts

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first row of a task."""
        self.ledger = handle.getValueState("ledger", "ledger string")
        self.segments = handle.getMapState("segments", "segment long", "data binary")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Called by Spark with the packed rows and beats of a part that came in a micro-batch."""
        ledger = self._opened()
        came: dict[int, list[Value]] = {}
        now_ms = 0
        for frame in rows:
            now_ms = int(frame[NOW].iloc[0])
            columns = (frame["bucket"].tolist(), frame["count"].tolist(), frame["data"].tolist())
            for bucket, count, data in zip(*columns, strict=True):
                if count > 0:
                    came.setdefault(bucket, []).append((count, data))
                else:
                    ledger.ends = count == LAST_RUN
        deadline_ms = now_ms + self.wait_ms - self.early_ms
        fresh: dict[int, list[Value]] = {}
        for bucket, values in sorted(came.items()):
            count = sum(count for count, _ in values)
            size_bytes = sum(len(data) for _, data in values)
            fresh[ledger.add(bucket, count, size_bytes, deadline_ms)] = values
        yield from self._leave(key, ledger, fresh, now_ms)

    def close(self) -> None:
        """Called by Spark at the end of a task."""

    def _opened(self) -> Ledger:
        schema = str(self.recipe.stream_schema.remove_metadata())
        kept = self.ledger.get()
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
        self, key: Any, ledger: Ledger, fresh: dict[int, list[Value]], now_ms: int
    ) -> Iterator[pd.DataFrame]:
        """Let go what is due and keep the rest."""
        assert isinstance(self.recipe.master, str), "rows wait for pages of files"
        manifest = read_manifest(self.recipe.master, self.recipe.current_version())
        leaving: list[tuple[int, int, int, bytes]] = []
        size = 0
        for number in ledger.due(now_ms, manifest.pages / (BUCKETS * self.parts)):
            for segment, rows, _, _ in ledger.buckets.pop(number).segments:
                values = fresh.pop(segment, None) or [(rows, self._taken(segment))]
                leaving += ((key[0], number, count, data) for count, data in values)
                size += sum(len(data) for _, data in values)
                if size >= CALL_BYTES:
                    yield pd.DataFrame(leaving, columns=PACKED.names)
                    leaving, size = [], 0
        if leaving:
            yield pd.DataFrame(leaving, columns=PACKED.names)
        for segment, values in fresh.items():
            self.segments.updateValue((segment,), (b"".join(data for _, data in values),))
        self.ledger.update((ledger.to_json(),))
        waiting = ledger.buckets.values()
        deadline_ms = min((bucket.deadline_ms for bucket in waiting), default=None)
        oldest_ms = None if deadline_ms is None else deadline_ms - self.wait_ms + self.early_ms
        record_waiting(self.accumulator, int(key[0]), ledger.rows, oldest_ms, counted=False)

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
    every_ms = beat_ms(wait_ms)
    packed = df.mapInArrow(Packer(recipe, parts, BUCKETS), schema)
    packed = packed.unionByName(heartbeat(df.sparkSession, parts, every_ms))
    # In a stream this is the time in Spark's log of the micro-batch, the same in a replay.
    packed = packed.withColumn(NOW, F.unix_millis(F.current_timestamp()))
    room = WaitingRoom(recipe, accumulator, wait_ms, every_ms, len(parts))
    return packed.groupBy("part").transformWithStateInPandas(
        room, schema, outputMode="Append", timeMode="None"
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


def beat_ms(wait_ms: int) -> int:
    """How often a stream needs a micro-batch if rows may wait so long.

    Not more than once a second: the query must be idle in between, or `processAllAvailable`, which
    waits for such a moment, would not return.
    """
    return max(wait_ms // 4, 1000)


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
