"""Streams for tests: files sent one by one, and what arrived at a sink."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.errors import SourceError
from semistream.spark import read_sink
from semistream.spark.schemas import spark_schema
from semistream.store.manifest import read_manifest, version_directory, write_manifest

LONGEST_WAIT_S = 200


@dataclass
class FileStream:
    """A stream of Parquet files, each a micro-batch."""

    session: SparkSession
    directory: Path
    schema: pa.Schema
    sent: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.directory / "in").mkdir(parents=True)

    def send(self, table: pa.Table) -> None:
        """Put a file in place, whole."""
        number = len(self.sent)
        beside = self.directory / f"{number}.new"
        pq.write_table(table, beside)
        os.utime(beside, (1_000_000 + number, 1_000_000 + number))  # files are taken by age
        beside.rename(self.directory / "in" / f"{number}.parquet")
        self.sent.append(table)

    def frame(self) -> DataFrame:
        """The streaming DataFrame."""
        reader = self.session.readStream.schema(spark_schema(self.schema)[0])
        return reader.option("maxFilesPerTrigger", 1).parquet(str(self.directory / "in"))

    def start(self, rows: DataFrame, name: str, **trigger: Any) -> StreamingQuery:
        """Write rows to a file sink of this name, with a checkpoint beside it."""
        writer = rows.writeStream.format("parquet").queryName(f"{self.directory.name}-{name}")
        writer = writer.option("checkpointLocation", str(self.directory / f"{name}.checkpoint"))
        writer = writer.option("path", str(self.directory / name))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def rows_written(self, name: str) -> int:
        """How many rows the sink has committed; none before its first micro-batch."""
        try:
            return int(read_sink(self.directory / name).count_rows())
        except SourceError:
            return 0

    def arrived(self, name: str, schema: pa.Schema) -> pa.Table:
        """What the sink has committed; Spark honours its log of what that is."""
        rows = self.session.read.parquet(str(self.directory / name)).toArrow()
        return rows.select(schema.names).cast(schema)


def until(condition: Any, *queries: StreamingQuery) -> None:
    """Wait until something holds, or a query fails."""
    end = time.monotonic() + LONGEST_WAIT_S
    while not condition():
        for query in queries:
            error = query.exception()
            if error is not None:
                raise error
        assert time.monotonic() < end, "the stream did not get there"
        time.sleep(0.1)


def publish(path: Path, other: Path) -> int:
    """Make the content of another master the next version of the one at `path`; its number."""
    version = read_manifest(path).version + 1
    manifest, name = read_manifest(other), version_directory(version)
    (other / version_directory(manifest.version)).rename(path / name)

    def moved(file: str) -> str:
        return f"{name}/{Path(file).name}"

    shards = tuple(replace(shard, file=moved(shard.file)) for shard in manifest.shards)
    index = moved(manifest.index_file)
    write_manifest(path, replace(manifest, version=version, shards=shards, index_file=index))
    return version
