"""The transformations of `semistream.etl` on DataFrames, of batches and of streams."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.budget import parse_bytes, type_of_size
from semistream.core.conditions import Condition
from semistream.core.errors import OptionError
from semistream.etl.difference import CHANGES, OP
from semistream.etl.duplicates import SeenKeys, SimilarRows, remember
from semistream.etl.surrogate import SurrogateKeys
from semistream.etl.unmatched import Dimension
from semistream.joins.binding import On
from semistream.spark.enrich import enrich, own_workers, parallel_tasks
from semistream.spark.packing import gathered
from semistream.spark.schemas import arrow_schema, shaped, spark_schema
from semistream.spark.versions import micro_batch, pinned_version
from semistream.store.file import FileMaster, open_master
from semistream.store.inspect import page_runs, rows_of_pages

RUN_BYTES = 16 << 20
"""Pages of a master that a task reads together."""

_KNOWN = "_semistream_known"

_numbers = itertools.count()


def star(
    df: DataFrame,
    dimensions: Sequence[Dimension],
    *,
    dead_letters: str | None = None,
    **options: Any,
) -> DataFrame:
    """Enrich a DataFrame by several masters in one pass, each with its own memory and rule.

    The columns that one master gave can be the key of the next. `dead_letters` names a column that
    holds, for rows that a master with the rule "dead" or "retry" gave up, the reason; such a row is
    not looked up further. `options` are those of `enrich` that all share.
    """
    if not dimensions:
        raise OptionError("there is no dimension", hint="give at least one Dimension(...)")
    for one in dimensions:
        master = one.master
        if isinstance(master, FileMaster):
            master = master.path
        df = enrich(
            df,
            master,
            one.on,
            missing=one.missing,
            retry_for=one.retry_for,
            dead_letters=dead_letters,
            **{**options, **one.options},
        )
    return df


@dataclass(frozen=True)
class _Task:
    """What a task needs; `name` tells the transformations of one application apart."""

    name: str
    master: str
    on: On
    schema: pa.Schema
    output: pa.Schema
    version: int
    options: dict[str, Any] = field(default_factory=dict)


def surrogate_keys(
    df: DataFrame,
    master: str | Path,
    on: On,
    *,
    memory: type_of_size = "64MB",
    tasks: int | None = None,
    **options: Any,
) -> DataFrame:
    """Replace the key columns `on` by the surrogate keys of a lookup master.

    A key that is seen for the first time gets the next number, which is in the master before any
    row with it leaves the task: a key has one surrogate, for all tasks and after every restart.
    `options` are those of `semistream.etl.SurrogateKeys`. Executors must be able to write in the
    master's directory.
    """
    path = str(Path(master).absolute())
    parallel = parallel_tasks(df, tasks)
    schema = arrow_schema(df.schema)
    with open_master(path) as opened:
        options = {**options, "memory": parse_bytes(memory, of=opened.data_bytes) // parallel}
        keys = SurrogateKeys(schema, opened, on, **options)
        output, version = keys.output_schema, opened.manifest.version
        keys.close()
    as_spark, as_arrow = spark_schema(output)
    name = f"surrogates-{next(_numbers)}"
    task = SurrogateTask(_Task(name, path, on, schema, as_arrow, version, options))
    with own_workers(df):
        return df.coalesce(parallel).mapInArrow(task, as_spark)


def duplicates(
    df: DataFrame,
    seen: str | Path,
    on: Sequence[str] | str,
    *,
    memory: type_of_size = "64MB",
    tasks: int | None = None,
    **options: Any,
) -> DataFrame:
    """Leave out rows whose key came before, or flag them, as `semistream.etl.duplicates` does.

    Rows of one key meet in one task, by a shuffle. All tasks of a micro-batch, and its replay, see
    the keys of earlier micro-batches and their own, so that a crash makes no row a duplicate of
    itself. The rows of a task are held in memory together.
    """
    path = str(Path(seen).absolute())
    parallel = parallel_tasks(df, tasks)
    schema = arrow_schema(df.schema)
    names = [on] if isinstance(on, str) else list(on)
    with open_master(path) as opened:
        options = {**options, "memory": parse_bytes(memory, of=opened.data_bytes) // parallel}
        keys = SeenKeys(schema, opened, names, **options)
        output, version = keys.output_schema, opened.manifest.version
        keys.close()
    as_spark, as_arrow = spark_schema(output)
    name = f"duplicates-{next(_numbers)}"
    task = DuplicateTask(_Task(name, path, names, schema, as_arrow, version, options))
    with own_workers(df):
        return df.repartition(parallel, *names).mapInArrow(task, as_spark)


def similar(
    df: DataFrame,
    seen: str | Path,
    condition: Condition,
    *,
    memory: type_of_size = "64MB",
    **options: Any,
) -> DataFrame:
    """Leave out rows of which an earlier one is the like, as `semistream.etl.similar` does.

    A condition says nothing of where a row's like may be, so all rows of a micro-batch go through
    one task, which holds them in memory together. A micro-batch and its replay see the rows of
    earlier ones and their own, and are remembered once.
    """
    path = str(Path(seen).absolute())
    schema = arrow_schema(df.schema)
    rows = SimilarRows(schema, condition, memory=memory, **options)
    with open_master(path) as opened:
        # Says now what is wrong, and not in a task.
        rows.sift(pa.RecordBatch.from_pylist([], schema=schema), opened)
        version = opened.manifest.version
    as_spark, as_arrow = spark_schema(rows.output_schema)
    name = f"similar-{secrets.token_hex(8)}"
    task = SimilarTask(_Task(name, path, (), schema, as_arrow, version), rows)
    with own_workers(df):
        return df.coalesce(1).mapInArrow(task, as_spark)


_T = TypeVar("_T", SurrogateKeys, SeenKeys)


class _Kept(Generic[_T]):
    """What workers keep from task to task, by the name of the transformation."""

    def __init__(self) -> None:
        self._held: dict[str, _T] = {}

    def take(self, name: str) -> _T | None:
        return self._held.pop(name, None)

    def put(self, name: str, one: _T) -> None:
        self._held[name] = one


_surrogates: _Kept[SurrogateKeys] = _Kept()
_seen: _Kept[SeenKeys] = _Kept()


class SurrogateTask:
    """What `mapInArrow` calls in every task of `surrogate_keys`."""

    def __init__(self, task: _Task) -> None:
        self.task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.task
        keys = _surrogates.take(task.name)
        if keys is None:
            keys = SurrogateKeys(task.schema, task.master, task.on, **task.options)
        # Few large batches: each that has new keys is a version of the master.
        for batch in gathered((shaped(one, task.schema) for one in batches), 65_536):
            for result in keys.assign(batch):
                yield shaped(result, task.output)
        _surrogates.put(task.name, keys)


class DuplicateTask:
    """What `mapInArrow` calls in every task of `duplicates`."""

    def __init__(self, task: _Task) -> None:
        self.task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.task
        rows = [shaped(one, task.schema) for one in batches if one.num_rows]
        if not rows:
            return
        stream = micro_batch()
        version = task.version if stream is None else pinned_version(task.master, *stream)
        keys = _seen.take(task.name)
        if keys is None:
            master = open_master(task.master, version=version)
            keys = SeenKeys(task.schema, master, task.on, **task.options)
        elif keys.operator.master.manifest.version != version:
            keys.operator.move_to(open_master(task.master, version=version))
        number = -1 if stream is None else stream[1]
        yield shaped(keys.sift(pa.concat_batches(rows), number), task.output)
        _seen.put(task.name, keys)


class SimilarTask:
    """What `mapInArrow` calls in the task of `similar`."""

    def __init__(self, task: _Task, rows: SimilarRows) -> None:
        self.task, self.rows = task, rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.task
        came = [shaped(one, task.schema) for one in batches if one.num_rows]
        if not came:
            return
        batch = pa.concat_batches(came)
        stream = micro_batch()
        version = task.version if stream is None else pinned_version(task.master, *stream)
        with open_master(task.master, version=version) as seen:
            result = self.rows.sift(batch, seen)
        feed, number = stream or (task.name, 0)
        remember(task.master, batch, feed=feed, batch=number)
        yield shaped(result, task.output)


def snapshot_difference(
    df: DataFrame,
    master: str | Path,
    *,
    changes: Sequence[str] = CHANGES,
    **options: Any,
) -> DataFrame:
    """Compare a full snapshot, a batch DataFrame, with a master: a feed of changes.

    It has the master's columns and `op`: insert, update or delete; see
    `semistream.etl.snapshot_difference`. A stream has no end, and so no deletes: ask for
    `changes=["insert", "update"]`. `options` are those of `enrich`.
    """
    for change in changes:
        if change not in CHANGES:
            raise OptionError(f"there is no change {change!r}", hint=f"use {', '.join(CHANGES)}")
    if df.isStreaming and "delete" in changes:
        raise OptionError(
            "a stream has no end at which rows that are missing could be deleted",
            hint='give a batch DataFrame, or changes=["insert", "update"]',
        )
    path = Path(master).absolute()
    with open_master(path) as opened:
        names, key = opened.schema.names, list(opened.manifest.key)
    others = [name for name in names if name not in key]
    if not others:
        raise OptionError(
            "the master has no columns but its key: nothing can change in a row",
            hint="use how='anti' for new rows",
        )
    for name in key:
        df = df.where(F.col(name).isNotNull())
    joined = enrich(df.select(*names), path, key, how="left", mark=_KNOWN, **options)
    differs = reduce(
        lambda a, b: a | b, [~F.col(name).eqNullSafe(F.col(f"{name}_master")) for name in others]
    )
    kind = F.when(~F.col(_KNOWN), "insert").when(differs, "update")
    feed = joined.select(*names, kind.alias(OP))
    wanted = [change for change in changes if change != "delete"]
    feed = feed.where(F.col(OP).isin(wanted))
    if "delete" not in changes:
        return feed
    stored = read_master(df.sparkSession, path)
    gone = stored.join(df.select(*key), key, "left_anti").select(*names, F.lit("delete").alias(OP))
    return feed.unionByName(gone)


def read_master(
    session: SparkSession, master: str | Path, *, version: int | None = None
) -> DataFrame:
    """The rows of a master as a DataFrame, read by the executors in parallel."""
    path = str(Path(master).absolute())
    with open_master(path, version=version) as opened:
        runs = page_runs(opened, RUN_BYTES)
        as_spark, as_arrow = spark_schema(opened.schema)
        number = opened.manifest.version
    tasks = max(min(len(runs), 4 * session.sparkContext.defaultParallelism), 1)
    numbers = session.range(0, len(runs), 1, tasks)
    return numbers.mapInArrow(ReadTask(path, number, tuple(runs), as_arrow), as_spark)


class ReadTask:
    """What `mapInArrow` calls in every task of `read_master`: numbers of runs in, rows out."""

    def __init__(
        self, master: str, version: int, runs: tuple[tuple[int, int], ...], schema: pa.Schema
    ) -> None:
        self.master, self.version, self.runs, self.schema = master, version, runs, schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open_master(self.master, version=self.version) as opened:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield shaped(rows_of_pages(opened, *self.runs[number]), self.schema)
