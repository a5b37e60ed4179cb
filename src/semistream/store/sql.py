"""Masters that stay in a database: a table of PostgreSQL or MariaDB, read by ranges of its key.

A page is a range of the key that one query reads. The index is made when the table is opened: the
key of every so-many-th row. Rows are packed as they would lie in a page file, so that every join
works as on one, with its reads counted and within the same memory. It is slower, and nothing is
copied.

In PostgreSQL everything is read in one transaction, which sees the table as it was when it was
opened: that is the version of this master. When the connection is lost it is opened again, a few
times with growing pauses; from then on the table is seen as it is at that moment, since databases
do not keep the past. In MariaDB every query sees the table as it is then; all rows of a key come by
one query. Keys outside of those that were there when the table was opened are not seen.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.durations import parse_milliseconds
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
from semistream.store.databases import PAUSES_S, Database, database, real_pause
from semistream.store.file import FileMaster, open_master
from semistream.store.inspect import folded_key
from semistream.store.keys import KeySpec
from semistream.store.manifest import Manifest, ShardInfo, schema_to_text
from semistream.store.reader import DEFAULT_DEPTH, PageReader
from semistream.store.writing import BuildPlan, master_layout

ROWS_PER_PAGE = 256
"""Rows that a query of one page reads: more make larger pages, fewer more queries."""

GROWTH = 1.25
"""Room in pages of a table that may change while it is read."""

_IO_ERROR = 5


@dataclass(frozen=True)
class Table:
    """A table in a database, named: what `semistream.spark.enrich` and pipeline files take.

    `uri`, `table`, `key`, `columns` and `rows_per_page` are those of `open_table`. Every task of a
    query opens the table by itself, and opens it anew when it was open for longer than `refresh`.
    """

    uri: str = field(repr=False)  # it may have a password
    table: str
    key: str
    columns: tuple[str, ...] | None = None
    rows_per_page: int = ROWS_PER_PAGE
    refresh: str = "1 minute"

    def __post_init__(self) -> None:
        if self.columns is not None:  # perhaps a list, and this is a key of dictionaries
            object.__setattr__(self, "columns", tuple(self.columns))

    def check(self) -> None:
        """Raise for values that no table makes right."""
        database(self.uri)
        parse_milliseconds(self.refresh, what="refresh")

    @property
    def name(self) -> str:
        """What it is called in plans, statistics and reasons."""
        return self.table

    def __str__(self) -> str:
        return f"table {self.table}"

    def open(self) -> TableMaster:
        """Open it; see `open_table`."""
        return open_table(
            self.uri, self.table, self.key, columns=self.columns, rows_per_page=self.rows_per_page
        )


def open_any(
    master: str | Path | Table,
    *,
    io: str = "buffered",
    version: int | None = None,
    shard: int | None = None,
) -> FileMaster:
    """Open a master in files, as `open_master` does, or a table, which has neither `version` nor
    `shard`."""
    if isinstance(master, Table):
        return master.open()
    return open_master(master, io=io, version=version, shard=shard)


def read_table(
    uri: str, table: str, *, columns: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """The rows of a table in PostgreSQL or MariaDB, for `build_master`.

    `uri` is `postgresql://user@host/database` or `mariadb://…`, `table` a name, with its schema in
    front or not.
    """
    source = database(uri)
    chosen = "*" if columns is None else ", ".join(source.quoted(name) for name in columns)
    with _reading(table):
        return source.stream(f"SELECT {chosen} FROM {_table(source, table)}")


def open_table(
    uri: str,
    table: str,
    key: str,
    *,
    columns: Sequence[str] | None = None,
    rows_per_page: int = ROWS_PER_PAGE,
    pauses_s: Sequence[float] = PAUSES_S,
    pause: Callable[[float], None] = real_pause,
) -> TableMaster:
    """A table in PostgreSQL or MariaDB as the master of joins, without copying it.

    `key` is a column of integers, dates or timestamps, with an index: every page is read by one
    query for a range of it. `columns` leaves others out. Rows with a null key are not seen. Opening
    reads the index of the table once. Lost connections are opened again after each of `pauses_s`.
    """
    if rows_per_page < 1:
        raise OptionError(f"rows_per_page={rows_per_page} is not above zero", hint="leave it out")
    source = database(uri, tuple(pauses_s), pause)
    try:
        with _reading(table):
            return TableMaster.of(source, table, key, columns, rows_per_page)
    except BaseException:
        source.close()
        raise


class TableMaster(FileMaster):
    """A table in a database, to joins what a master in files is. See `open_table`."""

    database: Database
    table: str
    _last: int
    _plan: BuildPlan
    _firsts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        """Everything comes from the database: see `of`."""

    @classmethod
    def of(
        cls,
        database: Database,
        table: str,
        key: str,
        columns: Sequence[str] | None,
        rows_per_page: int,
    ) -> TableMaster:
        """Look at a table: its columns, and where its pages begin."""
        name, quoted = _table(database, table), database.quoted
        names = [key, *(one for one in columns or () if one != key)]
        chosen = "*" if columns is None else ", ".join(quoted(one) for one in names)
        schema = database.table(f"SELECT {chosen} FROM {name} LIMIT 0").schema
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
            f"coalesce(octet_length({quoted(field.name)}), 0)"
            for field in schema
            if field.name != key and _has_length(field.type)
        ]
        size = " + ".join(texts) or "0"
        page = database.divided("rank() OVER (ORDER BY k) - 1", rows_per_page)
        found = database.table(
            f"""SELECT min(k) AS k, max(k) AS last, count(*) AS n,
                       {database.whole("sum(size)")} AS size, max(run) AS run
            FROM (SELECT k, size, {page} AS page, count(*) OVER (PARTITION BY k) AS run
                  FROM (SELECT {quoted(key)} AS k, {size} AS size FROM {name}
                        WHERE {quoted(key)} IS NOT NULL) AS keyed) AS paged
            GROUP BY page ORDER BY page"""
        )
        counts = found["n"].to_numpy()
        firsts, lasts = (
            spec.keys(spec.cast([_one(found[name])], (key,))).key64.copy() for name in ("k", "last")
        )
        sizes = found["size"].to_numpy() + counts * (8 + layout.record_bytes) + PAGE_KEYS
        largest = int(sizes.max(initial=4096) * (1.0 if database.is_snapshot else GROWTH))
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
        master.database, master.table = database, table
        master.spec, master.layout = spec, layout
        master._plan = BuildPlan(schema, (key,), page_bytes, 1, 1.0, 64)
        master._firsts, master._last = firsts, int(lasts.max(initial=0))
        master._shard_start = np.array([0, pages], np.int64)
        master._continued = master._classes = np.empty(0, np.uint8)
        master._checked = np.zeros((pages + 7) // 8, np.uint8)
        master._pieces, master._piece_start = np.empty(0, np.uint8), np.zeros(2, np.int64)
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
        self,
        buffer_pages: int,
        *,
        depth: int = DEFAULT_DEPTH,
        measure: bool = True,
        windows: bool = False,
        companion: bool = False,
        check: bool = True,
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
        quoted, end = self.database.quoted, first + count
        key = quoted(self.manifest.key[0])
        columns = ", ".join(quoted(name) for name in self.schema.names)
        low = f"{key} >= {self._literal(self._firsts[first])}"
        high = (
            f"{key} < {self._literal(self._firsts[end])}"
            if end < self.pages
            else f"{key} <= {self._literal(self._last)}"
        )
        found = self.database.table(
            f"SELECT {columns} FROM {_table(self.database, self.table)} "
            f"WHERE {low} AND {high} ORDER BY {key}"
        )
        return found.cast(self.schema)

    def _literal(self, key64: int) -> str:
        type_ = self.spec.schema.field(0).type
        key = folded_key(np.array([key64], np.int64), type_)[0]
        return self.database.literal(key.as_py())

    def read_pages(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Pages one after the other."""
        pages = np.zeros(count * self.page_bytes, np.uint8)
        self.fill(first, count, pages)
        return pages

    @property
    def indivisible(self) -> str | None:
        """One connection reads all of it."""
        return "a table in a database"

    def newer(self) -> FileMaster | None:
        """A table has no versions; open it again to see it as it is."""
        return None

    def touched_since(self, version: int) -> npt.NDArray[np.int64] | None:
        """Not known."""
        return None

    def close(self) -> None:
        """End the connection, and with it the transaction."""
        self.database.close()


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
                except BaseException as error:  # the join raises it; drivers panic, too
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


def _table(source: Database, name: str) -> str:
    return ".".join(source.quoted(part) for part in name.split("."))


def _has_length(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_large_string(type_)
        or kinds.is_binary(type_)
        or kinds.is_large_binary(type_)
    )
