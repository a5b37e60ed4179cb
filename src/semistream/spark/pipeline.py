"""Runs what a pipeline file describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semistream.core.durations import parse_milliseconds
from semistream.core.errors import OptionError, QueryError, SourceError
from semistream.etl.duplicates import new_seen
from semistream.etl.pipeline import (
    FILE_FORMATS,
    POSTGRES,
    DeadLetters,
    Master,
    Pipeline,
    Sink,
    Source,
    Step,
    Trigger,
    arrow_type,
)
from semistream.etl.surrogate import new_lookup
from semistream.spark.enrich import enrich
from semistream.spark.maintain import maintain
from semistream.spark.sinks import postgres_sink
from semistream.spark.sources import register
from semistream.spark.transform import duplicates, surrogate_keys
from semistream.store.build import build_master
from semistream.store.sql import Table

_OWN_ERROR = re.compile(r"semistream\.core\.errors\.\w+: (.*?)(?:\. Hint: (.*))?\.?$", re.MULTILINE)
_SPARK_ERROR = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
"""Spark's own errors begin with a name in capitals; the first says most, the rest where it was."""


def ensure_masters(pipeline: Pipeline) -> list[Path]:
    """Build the masters that are to be built and not there; which were."""
    built = []
    for step in pipeline.steps:
        if isinstance(step.master, Table) or step.master.exists():
            continue
        if step.create:
            columns = {name: arrow_type(type_, name) for name, type_ in step.create.items()}
            if step.kind == "duplicates":
                new_seen(step.master, columns, shards=step.shards, fill=step.fill)
            else:
                new_lookup(
                    step.master, columns, key=step.surrogate, shards=step.shards, fill=step.fill
                )
        elif not ensure_master(step.build):
            continue
        built.append(step.master)
    return built


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
        fill=master.fill,
    )
    return True


def start(pipeline: Pipeline, session: SparkSession) -> StreamingQuery:
    """Start the query; its masters must be there. What does not fit is an error now."""
    try:
        rows = _stream(pipeline.source, session)
        names = rows.columns
        for step in pipeline.steps:
            rows = _done(rows, step, pipeline.letters)
        writer = _writer(rows, pipeline, names)
        writer = writer.queryName(pipeline.spark.name).trigger(**_trigger(pipeline.trigger))
        return writer.start()
    except (PySparkException, Py4JJavaError) as error:
        raise explained(error) from error


def start_feeds(pipeline: Pipeline, session: SparkSession) -> list[StreamingQuery]:
    """Start the queries that change masters.

    In a pipeline that ends when everything is joined, all changes that are there are applied first.
    """
    queries = []
    now = pipeline.trigger.available_now
    for number, feed in enumerate(pipeline.feed, 1):
        try:
            query = maintain(
                feed.master,
                _stream(feed.source, session),
                checkpoint=feed.checkpoint_path,
                op=feed.op or None,
                order_by=feed.order_by,
                bad="skip" if feed.skip_bad else "raise",
                name=f"{pipeline.spark.name}-feed-{number}",
                **_trigger(Trigger(feed.every or pipeline.trigger.every, now)),
            )
        except (PySparkException, Py4JJavaError) as error:
            raise explained(error) from error
        queries.append(query)
        if now:
            with suppress(StreamingQueryException):
                query.awaitTermination()
            failed = failure(query)
            if failed is not None:
                raise failed
    return queries


def _done(rows: DataFrame, step: Step, letters: str | None) -> DataFrame:
    """The stream after a step."""
    on = list(step.on) if isinstance(step.on, tuple) else step.on
    options: dict[str, Any] = dict(step.options)
    shared: dict[str, Any] = {
        "memory": step.memory,
        "tasks": step.tasks,
        "algorithm": step.algorithm,
    }
    if step.kind == "surrogate_keys":
        assert isinstance(step.master, Path), "the file was checked"
        return surrogate_keys(
            rows, step.master, on, key=step.surrogate, keep=step.keep_key, unknown=step.unknown,
            **shared,
        )  # fmt: skip
    if step.kind == "duplicates":
        if isinstance(on, dict):
            raise OptionError(
                "duplicates are found by columns of the same name in stream and master",
                hint='write on = "name" or a list',
            )
        assert isinstance(step.master, Path), "the file was checked"
        return duplicates(rows, step.master, on, keep=step.keep, flag=step.flag, **shared)
    return enrich(
        rows,
        step.master,
        on,
        how=step.how,
        missing=step.missing,
        retry_for=step.retry_for,
        columns=step.columns,
        max_wait=step.max_wait,
        dead_letters=letters,
        by_shard=step.by_shard,
        io=step.io,
        **shared,
        **options,
    )


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


def _writer(rows: DataFrame, pipeline: Pipeline, names: list[str]) -> DataStreamWriter:
    sink, letters = pipeline.sink, pipeline.dead_letters
    writer = rows.writeStream.outputMode("append").options(**_texts(sink.options))
    if sink.checkpoint_path is not None:
        writer = writer.option("checkpointLocation", str(sink.checkpoint_path))
    if letters is not None and letters.path is not None:
        assert pipeline.letters is not None
        return writer.foreachBatch(_Divided(sink, letters, pipeline.letters, names))
    if sink.format == POSTGRES:
        return writer.foreachBatch(_into_postgres(sink))
    writer = writer.format(sink.format)
    return writer if sink.path is None else writer.option("path", str(sink.path))


def _into_postgres(sink: Sink) -> Callable[[DataFrame, int], None]:
    assert sink.uri is not None
    assert sink.table is not None
    schema = {} if sink.schema is None else {"schema": sink.schema}
    return postgres_sink(sink.uri, sink.table, key=sink.key or None, **schema)


class _Divided:
    """Writes a micro-batch to the sink, and rows that were given up to the dead letters.

    A micro-batch has a folder of its own at both, so that its replay after a crash takes the place
    of what was written before.
    """

    def __init__(self, sink: Sink, letters: DeadLetters, column: str, names: list[str]) -> None:
        self._sink, self._letters, self._column = sink, letters, column
        self._names = [name for name in names if name != column]
        self._table = _into_postgres(sink) if sink.format == POSTGRES else None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        rows = rows.persist()
        try:
            given_up = F.col(self._column).isNotNull()
            dead = rows.where(given_up).select(*self._names, self._column)
            if not dead.isEmpty():
                folder = str(self._letters.path / f"batch={batch}")  # type: ignore[operator]
                dead.write.format(self._letters.format).mode("overwrite").save(folder)
            alive = rows.where(~given_up).drop(self._column)
            if self._table is not None:
                self._table(alive, batch)
                return
            writer = alive.write.format(self._sink.format).options(**_texts(self._sink.options))
            writer = writer.mode("overwrite" if self._sink.path is not None else "append")
            if self._sink.path is None:
                writer.save()
            else:
                writer.save(str(self._sink.path / f"batch={batch}"))
        finally:
            rows.unpersist()


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
