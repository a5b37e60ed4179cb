"""Masters that stay in a database: a table of PostgreSQL, read by ranges of its key.

A page is a range of the key that one query reads. The index is made when the table is opened: the
key of every so-many-th row. Rows are packed as they would lie in a page file, so that every join
works as on one, with its reads counted and within the same memory. It is slower, and nothing is
copied.

Everything is read in one transaction, which sees the table as it was when it was opened: that is
the version of this master. When the connection is lost it is opened again, a few times with
growing pauses; from then on the table is seen as it is at that moment, since databases do not keep
the past.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import OptionError, SourceError, StoreError
from semistream.kernels.jit import read_only
from semistream.kernels.pages import INDEX, PAGE_KEYS, fill_pages
from semistream.kernels.reading import (
    DONE,
    FAILED,
    REQ_BUFFER,
    REQ_COUNT,
    REQ_FIRST,
    REQ_STATUS,
    REQUEST_WORDS,
    WORKERS,
)
from semistream.kernels.region import Region
from semistream.kernels.struct import Struct
from semistream.store.file import FileMaster
from semistream.store.inspect import folded_key
from semistream.store.keys import KeySpec
from semistream.store.manifest import Manifest, ShardInfo, schema_to_text
from semistream.store.reader import DEFAULT_DEPTH, PageReader
from semistream.store.writing import BuildPlan, master_layout

ROWS_PER_PAGE = 256
"""Rows that a query of one page reads: more make larger pages, fewer more queries."""

PAUSES_S = (0.1, 0.5, 2.0, 5.0)
"""Pauses before a lost connection is tried again."""

_IO_ERROR = 5


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def read_table(
    uri: str, table: str, *, columns: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """The rows of a table in PostgreSQL, for `build_master`.

    `uri` is `postgresql://user@host/database`, `table` a name, with its schema in front or not.
    """
    connection = _Connection(uri, (), _pause)
    chosen = "*" if columns is None else ", ".join(_quoted(name) for name in columns)
    with _reading(table):
        return connection.stream(f"SELECT {chosen} FROM {_table(table)}")


def open_table(
    uri: str,
    table: str,
    key: str,
    *,
    columns: Sequence[str] | None = None,
    rows_per_page: int = ROWS_PER_PAGE,
    pauses_s: Sequence[float] = PAUSES_S,
    pause: Callable[[float], None] = _pause,
) -> TableMaster:
    """A table in PostgreSQL as the master of joins, without copying it.

    `key` is a column of integers, dates or timestamps, with an index: every page is read by one
    query for a range of it. `columns` leaves others out. Rows with a null key are not seen. Opening
    reads the index of the table once. Lost connections are opened again after each of `pauses_s`.
    """
    if rows_per_page < 1:
        raise OptionError(f"rows_per_page={rows_per_page} is not above zero", hint="leave it out")
    connection = _Connection(uri, tuple(pauses_s), pause)
    try:
        with _reading(table):
            return TableMaster.of(connection, table, key, columns, rows_per_page)
    except BaseException:
        connection.close()
        raise


class TableMaster(FileMaster):
    """A table in a database, to joins what a master in files is. See `open_table`."""

    connection: _Connection
    table: str
    _plan: BuildPlan
    _firsts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        """Everything comes from the database: see `of`."""

    @classmethod
    def of(
        cls,
        connection: _Connection,
        table: str,
        key: str,
        columns: Sequence[str] | None,
        rows_per_page: int,
    ) -> TableMaster:
        """Look at a table: its columns, and where its pages begin."""
        name = _table(table)
        names = [key, *(one for one in columns or () if one != key)]
        chosen = "*" if columns is None else ", ".join(_quoted(one) for one in names)
        schema = connection.table(f"SELECT {chosen} FROM {name} LIMIT 0").schema
        schema = schema.remove_metadata()
        if key not in schema.names:
            raise OptionError(
                f"the table {table!r} has no column {key!r}",
                hint=f"it has {', '.join(schema.names)}",
            )
        spec = KeySpec.of(schema, (key,), hash_bits=64)
        if spec.folded is None:
            raise OptionError(
                f"{key!r} is a column of {schema.field(key).type}, which has no order here",
                hint="a table that stays in its database needs a key of integers, dates or "
                "timestamps; build a master from it for others: build_master(path, read_table(…))",
            )
        layout = master_layout(schema, spec)
        texts = [
            f"coalesce(octet_length({_quoted(field.name)}), 0)"
            for field in schema
            if field.name != key and _has_length(field.type)
        ]
        size = " + ".join(texts) or "0"
        found = connection.table(
            f"""SELECT min(k) AS k, count(*) AS rows, sum(size)::bigint AS size, max(run) AS run
            FROM (SELECT k, size, (rank() OVER (ORDER BY k) - 1) / {rows_per_page} AS page,
                         count(*) OVER (PARTITION BY k) AS run
                  FROM (SELECT {_quoted(key)} AS k, {size} AS size FROM {name}
                        WHERE {_quoted(key)} IS NOT NULL) AS keyed) AS paged
            GROUP BY page ORDER BY page"""
        )
        counts = found["rows"].to_numpy()
        keys = spec.cast([_one(found["k"])], (key,))
        firsts = spec.keys(keys).key64.copy()
        sizes = found["size"].to_numpy() + counts * (8 + layout.record_bytes) + PAGE_KEYS
        largest = int(sizes.max(initial=4096))
        page_bytes = -(-largest // 4096) * 4096
        rows, pages = int(counts.sum()), len(firsts)
        runs = found["run"].to_numpy()
        manifest = Manifest(
            version=1,
            schema_ipc=schema_to_text(schema),
            key=(key,),
            hash_bits=64,
            page_bytes=page_bytes,
            record_bytes=layout.record_bytes,
            fill=1.0,
            shards=(ShardInfo(table, pages, rows),),
            index_file="",
            index_checksum="",
            rows=rows,
            keys=0,
            longest_run=int(runs.max(initial=0)),
            most_rows_per_page=int(counts.max(initial=0)),
            null_keys=0,
            rejected_rows=0,
        )
        master = cls(Path(table), manifest, "direct")
        master.connection, master.table = connection, table
        master.spec, master.layout = spec, layout
        master._plan = BuildPlan(schema, (key,), page_bytes, 1, 1.0, 64)
        master._firsts = firsts
        master._shard_start = np.array([0, pages], np.int64)
        master._continued = master._classes = np.empty(0, np.uint8)
        master._checked = np.zeros((pages + 7) // 8, np.uint8)
        base = int(firsts.min(initial=0)) if pages else 0
        narrow = not pages or int(firsts.max()) - base <= 0xFFFFFFFF
        master.index = Struct(
            INDEX,
            first=(firsts - base).astype(np.uint32) if narrow else firsts.copy(),
            narrow=narrow,
            base=base if narrow else 0,
            continued=0,
            shard_start=master._shard_start,
            shards=1,
            pages=pages,
        )
        return master

    def reader(
        self, buffer_pages: int, *, depth: int = DEFAULT_DEPTH, measure: bool = True
    ) -> PageReader:
        """A reader whose pages are queries."""
        return TableReader(self, buffer_pages, measure=measure)

    def fill(self, first: int, count: int, target: npt.NDArray[np.uint8]) -> None:
        """Query the rows of some pages, and write them as pages."""
        rows = self._rows(first, count)
        packed = [one.rows for batch in rows.to_batches() for one in self._plan.pack(batch)]
        size = self.page_bytes
        keys = np.empty(0, np.int64)
        if packed:
            table = pa.Table.from_batches(packed).combine_chunks()
            keys = _one(table["key64"]).to_numpy()
            row = _one(table["row"])
            starts = np.frombuffer(row.buffers()[1], np.int64, len(row) + 1, row.offset * 8)
            data = np.frombuffer(row.buffers()[2], np.uint8)
        bounds = np.searchsorted(keys, self._firsts[first + 1 : first + count])
        ends = [*bounds.tolist(), len(keys)]
        shape = np.array(
            [self.layout.record_bytes, self.layout.blob_offset, size, size, 1], np.int64
        )
        begin = 0
        for page, end in enumerate(ends):
            whole = target[page * size : (page + 1) * size]
            if begin == end:
                whole[:] = 0
                continue
            carry = np.zeros(3, np.int64)
            done = fill_pages(
                read_only(keys[begin:end]),
                read_only(starts[begin : end + 1]),
                read_only(data),
                shape,
                whole,
                first + page,
                np.empty(1, np.int64),
                np.empty(1, np.uint8),
                carry,
            )
            if done < end - begin:
                raise StoreError(
                    f"more rows came to the table {self.table!r} than a page has room for, since "
                    "it was opened",
                    hint="open it again",
                )
            begin = end

    def _rows(self, first: int, count: int) -> pa.Table:
        key = _quoted(self.manifest.key[0])
        columns = ", ".join(_quoted(name) for name in self.schema.names)
        low = "" if first == 0 else f" AND {key} >= {self._literal(first)}"
        last = first + count
        high = "" if last >= self.pages else f" AND {key} < {self._literal(last)}"
        found = self.connection.table(
            f"SELECT {columns} FROM {_table(self.table)} WHERE {key} IS NOT NULL{low}{high} "
            f"ORDER BY {key}"
        )
        return found.cast(self.schema)

    def _literal(self, page: int) -> str:
        """The first key of a page, as SQL."""
        type_ = self.spec.schema.field(0).type
        value = folded_key(self._firsts[page : page + 1], type_)[0].as_py()
        if isinstance(value, datetime):
            kind = "timestamptz" if value.tzinfo is not None else "timestamp"
            return f"{kind} '{value.isoformat()}'"
        if isinstance(value, date):
            return f"date '{value.isoformat()}'"
        return str(int(value))

    def read_pages(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Pages one after the other."""
        pages = np.zeros(count * self.page_bytes, np.uint8)
        self.fill(first, count, pages)
        return pages

    def newer(self) -> FileMaster | None:
        """A table has no versions; open it again to see it as it is."""
        return None

    def touched_since(self, version: int) -> npt.NDArray[np.int64] | None:
        """Not known."""
        return None

    def close(self) -> None:
        """End the transaction and the connection."""
        self.connection.close()


class TableReader(PageReader):
    """Reads pages through queries, one at a time, in a thread of its own."""

    def __init__(self, master: TableMaster, buffer_pages: int, *, measure: bool) -> None:
        super().__init__(
            master.table, [-1], master._shard_start, master.page_bytes, buffer_pages,
            measure=measure,
        )  # fmt: skip
        self._failures: list[BaseException] = []
        ask_out, ask_in = os.pipe()
        answer_out, answer_in = os.pipe()
        ring = self.ring
        ring.way, ring.ask, ring.answer = WORKERS, ask_in, answer_out
        requests, buffer = ring.array("requests"), self._region.bytes
        start, failures = int(buffer.ctypes.data), self._failures
        size = master.page_bytes

        def work() -> None:
            while True:
                number = int.from_bytes(os.read(ask_out, 8), "little", signed=True)
                if number < 0:
                    return
                words = requests[number * REQUEST_WORDS : (number + 1) * REQUEST_WORDS]
                first, count = int(words[REQ_FIRST // 8]), int(words[REQ_COUNT // 8])
                at = int(words[REQ_BUFFER // 8]) - start
                status = DONE
                try:
                    master.fill(first, count, buffer[at : at + count * size])
                except Exception as error:  # the join raises it
                    failures.append(error)
                    ring.error_number, ring.error_page = _IO_ERROR, first
                    status = FAILED
                words[REQ_STATUS // 8] = status
                os.write(answer_in, number.to_bytes(8, "little"))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

        def stop() -> None:
            os.write(ask_in, (-1).to_bytes(8, "little", signed=True))
            thread.join()
            for pipe in (ask_in, ask_out, answer_in, answer_out):
                os.close(pipe)

        self._end = weakref.finalize(self, _stop, stop, self._region)

    def error(self) -> StoreError:
        if self._failures and isinstance(self._failures[-1], StoreError):
            return self._failures[-1]
        why = self._failures[-1] if self._failures else "no reason is known"
        return StoreError(f"reading the table {self._name!r} failed: {why}")


def _stop(stop: Callable[[], None], buffer: Region) -> None:
    stop()


class _Connection:
    """One connection with one transaction, opened when it is needed and again when it is lost."""

    def __init__(
        self, uri: str, pauses_s: tuple[float, ...], pause: Callable[[float], None]
    ) -> None:
        if not uri.startswith(("postgresql://", "postgres://")):
            raise OptionError(
                f"{uri!r} is not the address of a PostgreSQL database",
                hint="write postgresql://user@host/database",
            )
        self._uri = uri
        self._pauses_s = pauses_s
        self._pause = pause
        self._open: Any = None
        self._given_up: BaseException | None = None
        self._lock = threading.Lock()

    def table(self, query: str) -> pa.Table:
        """The result of a query; a lost connection is opened again before it is given up."""
        with self._lock:
            if self._given_up is not None:
                # Reads that were planned before fail at once.
                raise self._given_up
            for pause_s in (*self._pauses_s, None):
                try:
                    with self._connected().cursor() as cursor:
                        cursor.execute(query)
                        return cursor.fetch_arrow_table()
                except Exception as error:
                    if not _is_lost(error):
                        raise self._failed(error) from error
                    self.close()
                    if pause_s is None:
                        self._given_up = self._failed(error)
                        raise self._given_up from error
                    self._pause(pause_s)
        raise AssertionError("not reached")

    def stream(self, query: str) -> pa.RecordBatchReader:
        """The result of a query, batch by batch."""
        cursor = self._connected().cursor()
        cursor.execute(query)
        reader = cursor.fetch_record_batch()

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from reader
            except Exception as error:
                raise self._failed(error) from error
            finally:
                cursor.close()
                self.close()

        return pa.RecordBatchReader.from_batches(reader.schema.remove_metadata(), batches())

    def close(self) -> None:
        """End the transaction and the connection."""
        opened, self._open = self._open, None
        if opened is not None:
            with suppress(Exception):
                opened.close()

    def _connected(self) -> Any:
        if self._open is None:
            try:
                import adbc_driver_postgresql.dbapi as driver
            except ImportError as error:
                raise StoreError(
                    "tables in PostgreSQL need the package adbc-driver-postgresql",
                    hint="pip install 'semistream[postgres]'",
                ) from error
            self._open = driver.connect(self._uri)
            with self._open.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return self._open

    def _failed(self, error: BaseException) -> BaseException:
        if isinstance(error, StoreError | OptionError):
            return error
        said = (str(error).splitlines() or [type(error).__name__])[0]
        if _is_lost(error):
            tries = len(self._pauses_s) + 1
            return StoreError(
                f"the database does not answer, after {tries} tries: {said}",
                hint="nothing that was joined is lost; start again when it is back",
            )
        return StoreError(f"the database refused a query: {said}", hint="check the table's name")


def _is_lost(error: BaseException) -> bool:
    """Whether an error says that the connection is gone, and not that the query is wrong."""
    text = str(error).lower()
    signs = ("connect", "terminat", "server closed", "no connection", "socket", "shutting down")
    return any(sign in text for sign in signs)


class _reading:
    """Errors of the driver in here say which table they are about."""

    def __init__(self, table: str) -> None:
        self.table = table

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            raise SourceError(f"table {self.table!r}: {error.message}", hint=error.hint) from error


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else whole.chunk(0)


def _table(name: str) -> str:
    return ".".join(_quoted(part) for part in name.split("."))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _has_length(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_large_string(type_)
        or kinds.is_binary(type_)
        or kinds.is_large_binary(type_)
    )
