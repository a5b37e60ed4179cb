"""Where enriched rows go: tables in PostgreSQL, exactly once, and folders of files, read exactly.

A file sink of Spark notes in `_spark_metadata` which files belong to the result. Others in the same
folder are half-written or were written twice, so only what is noted may be read.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql import DataFrame

from semistream.core.errors import OptionError, SinkError, SourceError, unknown_name
from semistream.spark.schemas import arrow_schema, shaped

# ------------------------------------------------------------------------------------------ files

_LOG = "_spark_metadata"
_LOG_FILE = re.compile(r"(\d+)(\.compact)?")


def read_sink(folder: str | Path) -> pads.Dataset:
    """Exactly the rows that a streaming query has written to a folder of Parquet files.

    Neither files of micro-batches that were not finished nor those of attempts that were repeated
    are among them. A query may be writing meanwhile: what it adds later is not seen.
    """
    files = [str(path) for path in sink_files(folder)]
    if not files:
        raise SourceError(
            f"{str(folder)!r} has no rows yet: no micro-batch with rows was finished",
            hint="wait for the query, or look at its last error",
        )
    return pads.dataset(files, format="parquet")


def finished_batches(folder: str | Path) -> list[int]:
    """The numbers of the micro-batches that a streaming query has written, in order."""
    return sorted(_notes(folder))


def _notes(folder: str | Path) -> dict[int, tuple[bool, Path]]:
    """By micro-batch: whether its note is a compacted one, and where it is."""
    log = Path(folder) / _LOG
    if not log.is_dir():
        raise SourceError(
            f"{str(folder)!r} is not the folder of a streaming query: it has no {_LOG}",
            hint="give the folder that the query's start() got, or read plain files as they are",
        )
    notes: dict[int, tuple[bool, Path]] = {}
    for path in log.iterdir():
        match = _LOG_FILE.fullmatch(path.name)
        if match is not None:
            # A compacted note replaces all before it, and a plain one of the same batch.
            notes[int(match[1])] = max(
                notes.get(int(match[1]), (False, path)), (bool(match[2]), path)
            )
    return notes


def sink_files(folder: str | Path) -> list[Path]:
    """The files that belong to the result of a streaming query, by its own notes."""
    notes = _notes(folder)
    compacted = [batch for batch, (compact, _) in notes.items() if compact]
    first = max(compacted, default=0)
    found: dict[str, None] = {}
    for batch in sorted(notes):
        if batch < first:
            continue
        version, *lines = notes[batch][1].read_text().splitlines()
        if version != "v1":
            raise SourceError(
                f"{str(notes[batch][1])!r} is of version {version!r}, and this release reads v1",
                hint="read the folder with the Spark that wrote it",
            )
        for line in lines:
            note = json.loads(line)
            if note["action"] == "delete":
                found.pop(note["path"], None)
            else:
                found[note["path"]] = None
    return [Path(unquote(urlsplit(path).path)) for path in found]


# ------------------------------------------------------------------------------------- PostgreSQL

PROGRESS_TABLE = "semistream_progress"
_ATTEMPT = "semistream_attempt"
_STAGE = "semistream_stage"
_LAST_COPIES = "5s"
"""How long to wait for the copies of tasks that are ending before their table is left for later."""
_DONE = pa.schema([("attempt", pa.int64()), ("rows", pa.int64())])
_DONE_SPARK = "attempt bigint, rows bigint"


def postgres_sink(
    uri: str, table: str, *, key: str | Sequence[str] | None = None, schema: str = "public"
) -> PostgresSink:
    """What `foreachBatch` needs to write a stream into a table of PostgreSQL, exactly once.

    Without a `key` rows are added. With one they are upserted: a row whose key is there replaces
    its other columns; a micro-batch must not hold two rows of one key. A table that does not exist
    is made, with the key as its primary key; one that does needs a unique index on it.

    The tasks copy their rows into a table of their own, in PostgreSQL's binary format. The driver
    then moves them into the target and notes the micro-batch in `semistream_progress`, in one
    transaction: a micro-batch that is repeated after a crash changes nothing. A query is known by
    the id in its checkpoint; one with a fresh checkpoint begins anew.

    A table of the tasks that a killed driver left behind goes with the next micro-batch of any such
    sink in the same schema: who works on one holds an advisory lock on its name.

    `uri` is PostgreSQL's own (`postgresql://user@host/database`), reachable from the executors.
    """
    columns = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    return PostgresSink(uri, schema, table, columns)


@dataclass(frozen=True)
class PostgresSink:
    """Writes micro-batches; call it with a DataFrame and a batch id. See `postgres_sink`."""

    uri: str
    schema: str
    table: str
    key: tuple[str, ...]

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, unless it is written already."""
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise OptionError(
                "a PostgreSQL sink writes streams, and this DataFrame is not part of one",
                hint="hand it to writeStream.foreachBatch",
            )
        for name in self.key:
            if name not in df.columns:
                raise unknown_name("key column", name, df.columns)
        rows_schema = arrow_schema(df.schema)
        with closing(connect(self.uri)) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._name(PROGRESS_TABLE)} "
                "(query text PRIMARY KEY, batch bigint NOT NULL)"
            )
            connection.commit()
            self._sweep(connection, cursor)
            if self._last_batch(cursor, query) >= batch_id:
                return
            stage = f"{_STAGE}_{query.replace('-', '')}_{secrets.token_hex(4)}"
            cursor.execute(f"SELECT pg_advisory_lock({_lock_of(self.schema, stage)})")
            try:
                self._make_tables(cursor, stage, rows_schema)
                connection.commit()
                copy = _CopyRows(self.uri, self.schema, stage, rows_schema)
                done = df.mapInArrow(copy, _DONE_SPARK).collect()
                self._move(cursor, stage, rows_schema.names, done)
                cursor.execute(
                    f"INSERT INTO {self._name(PROGRESS_TABLE)} VALUES ('{query}', {int(batch_id)}) "
                    "ON CONFLICT (query) DO UPDATE SET batch = excluded.batch"
                )
                cursor.execute(f"DROP TABLE {self._name(stage)}")
                connection.commit()
            except BaseException:
                # Also where the query is stopped in the middle.
                self._drop(connection, cursor, stage)
                raise

    def _name(self, table: str) -> str:
        return f"{quoted(self.schema)}.{quoted(table)}"

    def _last_batch(self, cursor: Any, query: str) -> int:
        cursor.execute(f"SELECT batch FROM {self._name(PROGRESS_TABLE)} WHERE query = '{query}'")
        found = cursor.fetchone()
        return -1 if found is None else int(found[0])

    def _sweep(self, connection: Any, cursor: Any) -> None:
        """Drop tables of tasks whose driver is gone: nobody holds the lock on their names."""
        cursor.execute(
            f"SELECT tablename FROM pg_tables WHERE schemaname = {_text(self.schema)} "
            f"AND starts_with(tablename, '{_STAGE}_')"
        )
        for (left,) in cursor.fetchall():
            lock = _lock_of(self.schema, left)
            cursor.execute(f"SELECT pg_try_advisory_lock({lock})")
            if cursor.fetchone()[0]:
                self._drop(connection, cursor, left)
                cursor.execute(f"SELECT pg_advisory_unlock({lock})")

    def _drop(self, connection: Any, cursor: Any, stage: str) -> None:
        """Drop a table of tasks, unless some of them still copy into it: a later sweep takes it."""
        with suppress(_driver().Error):
            connection.rollback()
            cursor.execute(f"SET LOCAL lock_timeout = '{_LAST_COPIES}'")
            cursor.execute(f"DROP TABLE IF EXISTS {self._name(stage)}")
            connection.commit()
            return
        with suppress(_driver().Error):
            connection.rollback()

    def _make_tables(self, cursor: Any, stage: str, rows: pa.Schema) -> None:
        """The tasks' table, and the target if missing."""
        # Its column types are those that the copies come in.
        cursor.adbc_ingest("semistream_shape", rows.empty_table(), mode="create", temporary=True)
        cursor.execute(
            f"CREATE UNLOGGED TABLE {self._name(stage)} ({_ATTEMPT} bigint, LIKE semistream_shape)"
        )
        keyed = f", PRIMARY KEY ({_listed(self.key)})" if self.key else ""
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._name(self.table)} (LIKE semistream_shape{keyed})"
        )
        cursor.execute("DROP TABLE semistream_shape")

    def _move(self, cursor: Any, stage: str, names: Sequence[str], done: Iterable[Any]) -> None:
        """From the tasks' table into the target: only the rows of attempts that Spark took."""
        attempts = {row.attempt: row.rows for row in done if row.rows}
        if not attempts:
            return
        conflict = ""
        if self.key:
            others = [name for name in names if name not in self.key]
            updates = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
            action = f"UPDATE SET {updates}" if others else "NOTHING"
            conflict = f" ON CONFLICT ({_listed(self.key)}) DO {action}"
        taken = f"{_ATTEMPT} IN ({', '.join(map(str, attempts))})"
        cursor.execute(f"SELECT count(*) FROM {self._name(stage)} WHERE {taken}")
        (count,) = cursor.fetchone()
        copied = sum(attempts.values())
        if count != copied:
            raise SinkError(
                f"the tasks copied {copied} rows and PostgreSQL has {count} of them",
                hint="was the server restarted? The micro-batch is repeated when the query is",
            )
        try:
            cursor.execute(
                f"INSERT INTO {self._name(self.table)} ({_listed(names)}) "
                f"SELECT {_listed(names)} FROM {self._name(stage)} WHERE {taken}{conflict}"
            )
        except _driver().Error as error:
            if "cannot affect row a second time" not in str(error):
                raise
            raise SinkError(
                f"a micro-batch has two rows of one key ({', '.join(self.key)})",
                hint="reduce it to one row per key first, for example by groupBy",
            ) from error


@dataclass(frozen=True)
class _CopyRows:
    """In a task: copies its rows, under a number of this attempt, and says how many."""

    uri: str
    schema: str
    stage: str
    rows: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = secrets.randbits(62)
        first = next(batches, None)
        if first is None:
            return
        count = 0
        staged = pa.schema([pa.field(_ATTEMPT, pa.int64()), *self.rows])

        def numbered() -> Iterator[pa.RecordBatch]:
            nonlocal count
            batch: pa.RecordBatch | None = first
            while batch is not None:
                count += batch.num_rows
                number = pa.array(np.full(batch.num_rows, attempt))
                columns = [number, *shaped(batch, self.rows).columns]
                yield pa.RecordBatch.from_arrays(columns, schema=staged)
                batch = next(batches, None)

        with closing(connect(self.uri)) as connection, connection.cursor() as cursor:
            reader = pa.RecordBatchReader.from_batches(staged, numbered())
            cursor.adbc_ingest(self.stage, reader, mode="append", db_schema_name=self.schema)
            connection.commit()
        yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [count]}, schema=_DONE)


def connect(uri: str) -> Any:
    """A connection to PostgreSQL that speaks Arrow."""
    driver = _driver()
    try:
        return driver.connect(uri)
    except driver.Error as error:
        raise SinkError(
            f"PostgreSQL at {_without_password(uri)} does not answer: {error}",
            hint="check the address and that the server takes connections from this machine",
        ) from error


def _driver() -> ModuleType:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError as error:  # pragma: no cover
        raise SinkError(
            "the PostgreSQL sink needs a driver that is not installed",
            hint="pip install 'semistream[postgres]', on the executors too",
        ) from error
    return dbapi  # type: ignore[no-any-return]


def _without_password(uri: str) -> str:
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:…@", uri)


def quoted(name: str) -> str:
    """A name as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _lock_of(schema: str, stage: str) -> str:
    """The number, in SQL, of the advisory lock on a table of tasks."""
    return f"hashtextextended({_text(f'{schema}.{stage}')}, 0)"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
