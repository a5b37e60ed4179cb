"""Runs what a pipeline file describes."""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semistream.core.durations import parse_milliseconds
from semistream.core.errors import QueryError, SourceError
from semistream.etl.pipeline import FILE_FORMATS, POSTGRES, Master, Pipeline, Sink, Source, Trigger
from semistream.spark.enrich import enrich
from semistream.spark.sinks import postgres_sink
from semistream.spark.sources import register
from semistream.store.build import build_master

_OWN_ERROR = re.compile(r"semistream\.core\.errors\.\w+: (.*?)(?:\. Hint: (.*))?\.?$", re.MULTILINE)
_SPARK_ERROR = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
"""Spark's own errors begin with a name in capitals; the first says most, the rest where it was."""


def ensure_master(master: Master) -> bool:
    """Build the master where it is to be built and not there; whether it was."""
    if master.source is None or master.path.exists():
        return False
    build_master(
        master.path,
        str(master.source),
        list(master.key),
        shards=master.shards,
        page_size=master.page_size,
    )
    return True


def start(pipeline: Pipeline, session: SparkSession) -> StreamingQuery:
    """Start the query; its master must be there. What does not fit is an error now."""
    join = pipeline.join
    try:
        enriched = enrich(
            _stream(pipeline.source, session),
            pipeline.master.path,
            list(join.on) if isinstance(join.on, tuple) else join.on,
            how=join.how,
            algorithm=join.algorithm,
            memory=join.memory,
            columns=join.columns,
            max_wait=join.max_wait,
            dead_letters=join.dead_letters,
            tasks=join.tasks,
            by_shard=join.by_shard,
            io=join.io,
            **join.options,
        )
        writer = _writer(enriched, pipeline.sink)
        writer = writer.queryName(pipeline.spark.name).trigger(**_trigger(pipeline.trigger))
        return writer.start()
    except (PySparkException, Py4JJavaError) as error:
        raise explained(error) from error


def failure(query: StreamingQuery) -> QueryError | None:
    """Why a query ended, if it failed."""
    error: StreamingQueryException | None = query.exception()
    return None if error is None else explained(error)


def explained(error: Exception) -> QueryError:
    """An error of Spark in a few words; one of this package that comes from a task as it was."""
    text = str(error)
    own = _OWN_ERROR.search(text)
    if own is not None:
        return QueryError(own[1], hint=own[2] or "")
    spark = _SPARK_ERROR.search(text)
    said = spark[0] if spark is not None else text.strip().split("\n", 1)[0]
    return QueryError(f"Spark: {said}", hint="Spark's log has the rest")


def _stream(source: Source, session: SparkSession) -> DataFrame:
    register(session)
    reader = session.readStream.format(source.format).options(**_texts(source.options))
    if source.format in FILE_FORMATS:
        schema: Any = source.schema
        if schema is None:
            try:
                batch = session.read.format(source.format).options(**_texts(source.options))
                schema = batch.load(str(source.path)).schema
            except PySparkException as error:
                raise SourceError(
                    f"there are no {source.format} files in {str(source.path)!r} to take the "
                    "schema from",
                    hint='add schema = "order_id long, …" to [source], or a first file',
                ) from error
        reader = reader.schema(schema)
    elif source.schema is not None:
        reader = reader.schema(source.schema)
    return reader.load() if source.path is None else reader.load(str(source.path))


def _writer(rows: DataFrame, sink: Sink) -> DataStreamWriter:
    writer = rows.writeStream.outputMode("append").options(**_texts(sink.options))
    if sink.checkpoint_path is not None:
        writer = writer.option("checkpointLocation", str(sink.checkpoint_path))
    if sink.format == POSTGRES:
        assert sink.uri is not None
        assert sink.table is not None
        schema = {} if sink.schema is None else {"schema": sink.schema}
        return writer.foreachBatch(
            postgres_sink(sink.uri, sink.table, key=sink.key or None, **schema)
        )
    writer = writer.format(sink.format)
    return writer if sink.path is None else writer.option("path", str(sink.path))


def _trigger(trigger: Trigger) -> dict[str, Any]:
    if trigger.available_now:
        return {"availableNow": True}
    every_ms = 0 if trigger.every is None else parse_milliseconds(trigger.every, what="every")
    return {"processingTime": f"{every_ms} milliseconds"}


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark takes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
