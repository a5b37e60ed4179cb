"""A beat now and then, so that a stream has micro-batches while nothing comes.

Rows that wait as Spark's state can leave only in a micro-batch, and Spark runs none without data.
The heartbeat is a source of its own, united with the stream: its rows carry nothing but the number
of a part and what the beat means.

An offset is the number of the last beat, and whether a run that ends (`availableNow`) gave it. So a
micro-batch that is repeated has the same beats in it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

HEARTBEAT = "semistream-heartbeat"

BEAT = 0
"""Stands for the number of rows in the beats of a run that goes on."""

LAST_RUN = -1
"""Stands for the number of rows in the one beat of a run that ends: nothing may wait in it."""


def heartbeat(session: SparkSession, parts: tuple[int, ...], every_ms: int) -> DataFrame:
    """Beats for every part, with the columns `part`, `bucket`, `count` and `data`.

    A run that goes on has one at its start and then every so many milliseconds, in the next
    micro-batch. A run that ends has one, at its start.
    """
    session.dataSource.register(_source())
    reader = session.readStream.format(HEARTBEAT)
    return reader.options(parts=",".join(map(str, parts)), every_ms=every_ms).load()


def _source() -> type[DataSource]:
    """The source's class: made in a function so that Spark sends all of it to its Python processes.

    A class of a module is sent by name, and importing this package, with its compiled kernels, into
    the processes that plan a query would cost more than a second at every start.
    """
    import time
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        SupportsTriggerAvailableNow,
    )

    name, beat, last_run = HEARTBEAT, BEAT, LAST_RUN
    columns = ("part int", "bucket int", "count int", "data binary")

    class Beats(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, parts: list[int], every_ms: int) -> None:
            self.parts = parts
            self.every_ms = every_ms
            self.ends = False
            self.beaten_ms: float | None = None

        def initialOffset(self) -> dict[str, Any]:
            return {"beat": 0, "ends": False}

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            self.ends = True

        def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
            now_ms = time.monotonic() * 1000
            if self.beaten_ms is not None and (
                self.ends or now_ms < self.beaten_ms + self.every_ms
            ):
                return dict(start)
            self.beaten_ms = now_ms
            return {"beat": start["beat"] + 1, "ends": self.ends}

        def partitions(
            self, start: Mapping[str, Any], end: Mapping[str, Any]
        ) -> Sequence[InputPartition]:
            return [InputPartition(end["ends"])] if end["beat"] > start["beat"] else []

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            meaning = last_run if partition.value else beat
            return iter([(part, 0, meaning, b"") for part in self.parts])

    class Heartbeat(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return ", ".join(f"{column} not null" for column in columns)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            parts = [int(part) for part in self.options["parts"].split(",")]
            return Beats(parts, int(self.options["every_ms"]))

    return Heartbeat
