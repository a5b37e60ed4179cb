"""Sorting packed rows outside of memory, by DuckDB.

Rows come and go as (shard, key64, row); in frequency order they come with their frequency and go
with their class. DuckDB moves values in blocks of 2048, so long rows would
need much memory: they go to a file of their own, only their places are sorted, and they are fetched
in that order. A row of several kilobytes is worth a read of its own; short rows are not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from semistream.core.budget import format_bytes
from semistream.core.errors import OptionError
from semistream.kernels.pages import CLASSES
from semistream.kernels.rows import fetch_rows

PACKED = pa.schema([("shard", pa.int32()), ("key64", pa.int64()), ("row", pa.large_binary())])
FREQUENCY = pa.field("frequency", pa.float64())
BATCH_BYTES = 16 << 20
"""Rows come back in batches of about this size at most."""
BATCH_ROWS = 65_536
LONG_ROW_BYTES = 4096
LEAST_SORT_BYTES = 100_000_000

_PLACES = pa.schema(
    [("shard", pa.int32()), ("key64", pa.int64()), ("place", pa.int64()), ("length", pa.int64())]
)


LEAST_CLASS_ROWS = 64
"""Rows that the most frequent class has at least, if there are so many."""

_CLASSIFIED = f"""(
    SELECT *, CAST({CLASSES - 1} - least(
        floor(log2(rows / rank)), floor(log2(greatest(rows / {LEAST_CLASS_ROWS}, 1))), {CLASSES - 1}
    ) AS INTEGER) AS class
    FROM (
        SELECT *, rank() OVER (PARTITION BY shard ORDER BY total DESC, key64) AS rank
        FROM (
            SELECT *,
                sum(frequency) OVER (PARTITION BY shard, key64) AS total,
                count(*) OVER (PARTITION BY shard) AS rows
            FROM packed
        )
    )
)"""
"""Rows with their class: by its total frequency a key is in the less frequent half of its shard,
in that of the other half, and so on. All rows of a key have one total, so they stay together."""


def sort_rows(
    batches: Iterator[pa.RecordBatch],
    scratch: Path,
    memory_bytes: int,
    *,
    by_row: bool,
    by_frequency: bool = False,
) -> Generator[pa.RecordBatch, None, None]:
    """Batches of `PACKED` in the order (shard, key64), and then by row if that is asked for.

    With `by_frequency` batches come with that column and go with a column `class`, in the order
    (shard, class, key64). Errors of `batches` come through as they are. `scratch` is a directory
    for what does not fit into memory.
    """
    source = _Watched(batches)
    rows = iter(source)
    more = [FREQUENCY] if by_frequency else []
    try:
        first = next(rows, None)
        if first is None:
            return
        row_bytes = first.nbytes / first.num_rows
        if row_bytes < LONG_ROW_BYTES:
            query = _query(PACKED, "row" if by_row else "", by_frequency)
            batch_rows = rows_within(BATCH_BYTES, BATCH_ROWS, first)
            reader = pa.RecordBatchReader.from_batches(
                pa.schema([*PACKED, *more]), chain([first], rows)
            )
            yield from in_order(reader, query, batch_rows, scratch, memory_bytes)
            return
        with closing(_RowFile(scratch / "rows")) as file:
            reader = pa.RecordBatchReader.from_batches(
                pa.schema([*_PLACES, *more]), file.keep(chain([first], rows))
            )
            query = _query(_PLACES, "place", by_frequency)
            for batch in in_order(reader, query, BATCH_ROWS, scratch, memory_bytes):
                yield from file.fetch(batch)
    except (duckdb.Error, pa.ArrowException) as error:
        if source.error is not None:
            # What the source raised, and not DuckDB's account of it.
            raise source.error from None
        if isinstance(error, duckdb.OutOfMemoryException) and not is_disk_full(error):
            raise OptionError(
                f"{format_bytes(memory_bytes)} are too few to sort this table",
                hint='give the build more, for example memory="2GB"',
            ) from error
        raise


def _query(wanted: pa.Schema, last: str, by_frequency: bool) -> str:
    classes = ["class"] if by_frequency else []
    rows = _CLASSIFIED if by_frequency else "packed"
    order = ["shard", *classes, "key64", *([last] if last else [])]
    return f"SELECT {', '.join([*wanted.names, *classes])} FROM {rows} ORDER BY {', '.join(order)}"


def is_disk_full(error: BaseException) -> bool:
    """Whether there was no room left on a disk, by any of the names that this has."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # DuckDB stops before the disk is full to the last byte, and calls that out of memory.
    signs = ("No space left", "max_temp_directory_size")
    return isinstance(error, duckdb.Error) and any(sign in str(error) for sign in signs)


def rows_within(size_bytes: int, most: int, sample: pa.RecordBatch) -> int:
    """How many rows like those of `sample` take this many bytes, up to `most`."""
    row_bytes = sample.nbytes / max(sample.num_rows, 1)
    return int(min(max(size_bytes / max(row_bytes, 1), 1), most))


def in_order(
    reader: pa.RecordBatchReader, query: str, batch_rows: int, scratch: Path, memory_bytes: int
) -> Iterator[pa.RecordBatch]:
    """What a query makes of the reader's rows, which it calls `packed`."""
    config: dict[str, str | bool | int | float | list[str]] = {
        # DuckDB keeps to its limit for sorting but not for what passes through it: leave a share
        # to the batches on their way in and out.
        "memory_limit": f"{max(memory_bytes * 6 // 10, LEAST_SORT_BYTES)}B",
        "temp_directory": str(scratch),
        "preserve_insertion_order": "false",
        "arrow_large_buffer_size": "true",
        "threads": str(min(os.cpu_count() or 1, 4)),
    }
    with duckdb.connect(":memory:", config=config) as connection:
        # Ours is the progress that is shown; DuckDB would draw its own on standard output.
        connection.execute("SET enable_progress_bar = false")
        connection.register("packed", reader)
        yield from connection.sql(query).to_arrow_reader(batch_rows)


class _Watched:
    """Batches on their way into DuckDB, which turns errors into text: the error is kept here."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


class _RowFile:
    """Rows in the order in which they came, fetched in any other."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._end = 0

    def keep(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows; what is left of them is `_PLACES`, and further columns as they are."""
        for batch in batches:
            row = batch.column("row")
            starts = np.frombuffer(row.buffers()[1], np.int64, len(row) + 1, row.offset * 8)
            view = memoryview(row.buffers()[2])[starts[0] : starts[-1]]
            while view:
                view = view[os.write(self._file, view) :]
            places = pa.array(starts[:-1] - starts[0] + self._end)
            self._end += int(starts[-1] - starts[0])
            columns = [batch.column("shard"), batch.column("key64"), places]
            columns += [pa.array(np.diff(starts)), *batch.columns[len(PACKED) :]]
            more = list(batch.schema)[len(PACKED) :]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema([*_PLACES, *more]))

    def fetch(self, places: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows at these places, in batches of about `BATCH_BYTES`."""
        place, length = (places.column(name).to_numpy() for name in ("place", "length"))
        ends = np.cumsum(length)
        done = 0
        while done < len(place):
            before = int(ends[done] - length[done])
            end = max(int(np.searchsorted(ends, before + BATCH_BYTES, side="right")), done + 1)
            starts = np.concatenate([[0], ends[done:end] - before])
            data = np.empty(starts[-1], np.uint8)
            failed = fetch_rows(self._file, place[done:end], starts, data)
            if failed:
                raise OSError(failed, os.strerror(failed))
            buffers = [None, pa.py_buffer(starts), pa.py_buffer(data)]
            row = pa.Array.from_buffers(pa.large_binary(), end - done, buffers)
            part = places.slice(done, end - done)
            columns = [part.column("shard"), part.column("key64"), row]
            columns += part.columns[len(_PLACES) :]
            more = list(part.schema)[len(_PLACES) :]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema([*PACKED, *more]))
            done = end

    def close(self) -> None:
        """Close the file; the directory that it lies in goes as a whole."""
        os.close(self._file)
