"""Looking into a master: the heads of its pages, the rows of one page, the rows of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import CorruptPageError
from semistream.kernels.changing import measure_pages, unpack_pages
from semistream.kernels.pages import PAGE_FIRST, PAGE_KEYS, PAGE_LAST, PAGE_ROWS, read_rows
from semistream.store.columns import codec_for
from semistream.store.file import FileMaster
from semistream.store.layout import LeafValues, RowLayout

_U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PageHead:
    """What a page says of itself; `damaged` pages say nothing that can be trusted.

    `fill` is the share of the page's bytes that are used, its head included.
    """

    number: int
    shard: int
    rows: int
    first_key64: int
    last_key64: int
    fill: float
    damaged: bool = False


def page_heads(master: FileMaster, first: int = 0, count: int | None = None) -> Iterator[PageHead]:
    """The heads of `count` pages (all that follow by default), each page read and checked."""
    end = master.pages if count is None else min(first + count, master.pages)
    ends = np.cumsum([shard.pages for shard in master.manifest.shards])
    for number in range(first, end):
        shard = int(np.searchsorted(ends, number, side="right"))
        try:
            page = master.read_page(number)
        except CorruptPageError:
            yield PageHead(number, shard, 0, 0, 0, 0.0, damaged=True)
            continue
        yield PageHead(
            number=number,
            shard=shard,
            rows=_row_count(page),
            first_key64=int(page[PAGE_FIRST : PAGE_FIRST + 8].view(np.int64)[0]),
            last_key64=int(page[PAGE_LAST : PAGE_LAST + 8].view(np.int64)[0]),
            fill=_used_bytes(page, master.layout) / master.page_bytes,
        )


def page_table(master: FileMaster, number: int) -> pa.Table:
    """The rows of a page, in the columns and types of the table that was stored."""
    page = master.read_page(number)
    layout = master.layout
    key64, records = _rows(page, layout)
    strings = _words(records, layout.blob_offset) if layout.has_bytes else key64
    return pa.Table.from_batches([_batch(master, key64, records, page, strings)])


def master_rows(master: FileMaster, *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
    """All rows, in the order of the pages and in the columns and types of the table, checked."""
    for first, count in page_runs(master, batch_bytes):
        yield rows_of_pages(master, first, count)


def page_runs(master: FileMaster, run_bytes: int) -> list[tuple[int, int]]:
    """All pages, in runs of one shard each and of about so many bytes: first page and pages."""
    step = max(run_bytes // master.page_bytes, 1)
    return [
        (first, min(step, end - first))
        for begin, end in master.shard_ranges()
        for first in range(begin, end, step)
    ]


def rows_of_pages(master: FileMaster, first: int, count: int) -> pa.RecordBatch:
    """The rows of some pages of one shard, as `master_rows` gives them."""
    layout, size = master.layout, master.page_bytes
    fields = layout.fields()
    pages, page_rows = master.read_pages(first, count), np.zeros(count, np.int64)
    data = np.empty(int(measure_pages(fields.kernel, pages, size, page_rows)), np.uint8)
    rows = int(page_rows.sum())
    key64, starts = np.empty(rows, np.int64), np.zeros(rows + 1, np.int64)
    unpack_pages(fields.kernel, pages, size, count, key64, starts, data)
    starts = starts[:-1]
    records = data[starts[:, None] + np.arange(layout.record_bytes)]
    return _batch(master, key64, records, data, starts + layout.record_bytes)


def _batch(
    master: FileMaster,
    key64: npt.NDArray[np.int64],
    records: _U8,
    data: _U8,
    strings: npt.NDArray[np.int64],
) -> pa.RecordBatch:
    """Rows from their records; the byte strings of each begin at `strings` in `data`."""
    layout, spec, schema = master.layout, master.spec, master.schema
    columns = dict(zip(layout.schema.names, _decoded(data, layout, records, strings), strict=True))
    if spec.folded is not None:
        columns[spec.folded] = folded_key(key64, spec.schema.field(spec.folded).type)
    arrays = [_as_stored(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row_count(page: _U8) -> int:
    return int(page[PAGE_ROWS : PAGE_ROWS + 4].view(np.uint32)[0])


def _rows(page: _U8, layout: RowLayout) -> tuple[npt.NDArray[np.int64], _U8]:
    count = _row_count(page)
    keys = np.empty(count, np.int64)
    records = np.empty((count, layout.record_bytes), np.uint8)
    read_rows(page, layout.record_bytes, keys, records)
    return keys, records


def _words(records: _U8, offset: int) -> npt.NDArray[np.int64]:
    """The 32-bit words that records carry at an offset."""
    word = np.ascontiguousarray(records[:, offset : offset + 4])
    return word.view(np.uint32).reshape(-1).astype(np.int64)


def _used_bytes(page: _U8, layout: RowLayout) -> int:
    _, records = _rows(page, layout)
    count = len(records)
    if count == 0 or not layout.has_bytes:
        return PAGE_KEYS + count * (8 + layout.record_bytes)
    # Byte strings lie in the order of the rows: the last row's end where the page's content ends.
    last = records[-1:]
    strings = [at for leaf, at in zip(layout.leaves, layout.offsets, strict=True) if leaf.is_bytes]
    return int(_words(last, layout.blob_offset)[0] + sum(_words(last, at)[0] for at in strings))


def _decoded(
    page: _U8, layout: RowLayout, records: _U8, at: npt.NDArray[np.int64]
) -> list[pa.Array]:
    """Columns of records; `at` is where the next byte string of each row begins in the page."""
    count = len(records)
    nulls = np.ascontiguousarray(
        records[:, layout.nulls_offset : layout.nulls_offset + layout.null_bytes]
    )
    seen = np.bitwise_or.reduce(nulls, axis=0) if count else np.zeros(layout.null_bytes, np.uint8)
    values = []
    for bit, (leaf, offset) in enumerate(zip(layout.leaves, layout.offsets, strict=True)):
        width = leaf.width_bytes or 4
        field = pa.py_buffer(np.ascontiguousarray(records[:, offset : offset + width]))
        data = None
        if leaf.is_bytes:
            lengths = _words(records, offset)
            data = pa.py_buffer(_gather(page, at, lengths))
            at = at + lengths
        values.append(LeafValues(leaf, count, field, data, bit))
    return layout.batch(values, nulls, seen)


def _gather(page: _U8, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> _U8:
    """The bytes of all strings, one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return page[np.repeat(starts - (ends - lengths), lengths) + np.arange(total)]


def folded_key(key64: npt.NDArray[np.int64], type_: pa.DataType) -> pa.Array:
    """The key column that is not stored because key64 is its value."""
    if pa.types.is_integer(type_):
        return pa.array(key64).cast(type_)
    # Dates, times and timestamps are counts of their unit.
    return pa.array(key64).cast(pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)


def _as_stored(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """A key column in the table's own type; the store keeps keys in a plain one."""
    if column.type == type_:
        return column
    if pa.types.is_dictionary(type_):
        return codec_for(type_).decode([column], len(column))
    return column.cast(type_)
