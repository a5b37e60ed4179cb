"""Kernels that move rows: Arrow columns into records, records into output columns.

The layout of a record is described in `semistream.store.layout`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import (
    at,
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    sys_errno,
    sys_pread,
)
from semistream.kernels.struct import struct_type

EINTR, EIO = 4, 5

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]


COLUMNS = struct_type(
    "count data starts start_width valid valid_bit offset width skip "
    "nulls_at null_bytes blob_at record_bytes"
)
"""Leaf columns of an Arrow batch; see `RowLayout.columns`. All but the last line are addresses of
arrays with an entry per leaf. `starts` and `start_width` are for byte strings (Arrow's offsets),
`valid` is 0 where a leaf has no null, `skip` marks the leaf that key64 carries."""

FIELDS = struct_type(
    "count offset width strings string_at string_wanted nulls_at null_bytes blob_at record_bytes "
    "blank"
)
"""Leaves that are read from a record. `string_at` and `string_wanted` cover all byte strings of the
record, wanted or not, because each lies behind those before it. `blob_at` is -1 without any.
`blank` is the address of a record of nulls, which stands for no record at all."""

PAIRS = 128
"""Results noted before they are written: their records together fit the processor's first cache."""

STAGED = PAIRS + 1
"""Rows on their way through; one is used again only after everything noted before was written."""

OUTPUT = struct_type(
    "rows written room heap_used heap_room address stream_nulls master_nulls seen_nulls heap "
    "pairs staged stage",
    stream=FIELDS,
)
"""Where results go: one column per leaf, the stream's first, then the master's. Byte strings are
staged in `heap`, row by row, and spread over their columns afterwards.

Results from number `written` to `rows` are only noted, in `pairs`: the addresses of the stream's
row and of the master's record. Both must stay where they are until `write_out`. `staged` has places
for rows that do not wait, taken in turn; `stage` is the next one."""


@inlined
def copy_field(target: int, origin: int, width: int) -> None:
    """Copy one value; the widths that occur most come first."""
    if width == 8:
        store_i64(target, load_i64(origin))
    elif width == 4:
        store_i32(target, load_i32(origin))
    elif width == 1:
        store_u8(target, load_u8(origin))
    elif width == 2:
        store_u16(target, load_u16(origin))
    else:
        done = 0
        while done + 8 <= width:
            store_i64(target + done, load_i64(origin + done))
            done += 8
        while done < width:
            store_u8(target + done, load_u8(origin + done))
            done += 1


@inlined
def pack_row(columns: Any, row: int, target: int) -> int:
    """Write the record of `row` at `target` (but for its prefix); return its blob's length."""
    nulls = target + columns.nulls_at
    for i in range(columns.null_bytes):
        store_u8(nulls + i, np.uint8(0))
    blob = 0
    for leaf in range(columns.count):
        is_null = False
        valid = at(columns.valid, leaf)
        if valid != 0:
            bit = at(columns.valid_bit, leaf) + row
            is_null = (load_u8(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0
            if is_null:
                byte = nulls + (leaf >> 3)
                store_u8(byte, np.uint8(load_u8(byte) | (1 << (leaf & 7))))
        width = at(columns.width, leaf)
        field = target + at(columns.offset, leaf)
        if width > 0:
            if is_null and at(columns.skip, leaf) == 0:
                # What Arrow has under a null is nobody's value: it stays out of files.
                for i in range(width):
                    store_u8(field + i, np.uint8(0))
            elif at(columns.skip, leaf) == 0:
                copy_field(field, at(columns.data, leaf) + row * width, width)
        else:
            length = 0
            if not is_null:
                length = bytes_end(columns, leaf, row) - bytes_start(columns, leaf, row)
            store_u32(field, np.uint32(length))
            blob += length
    return blob


@inlined
def pack_rows(columns: Any, count: int, targets: int, numbers: int) -> None:
    """Write the records of rows without byte strings: where each goes, and which it is.

    Column by column: that takes a fraction of the time of `pack_row`.
    """
    for i in range(columns.null_bytes):
        for k in range(count):
            store_u8(at(targets, k) + columns.nulls_at + i, np.uint8(0))
    for leaf in range(columns.count):
        width, offset = at(columns.width, leaf), at(columns.offset, leaf)
        origin = at(columns.data, leaf)
        valid = at(columns.valid, leaf)
        if valid != 0:
            byte_at = columns.nulls_at + (leaf >> 3)
            for k in range(count):
                bit = at(columns.valid_bit, leaf) + at(numbers, k)
                if (load_u8(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0:
                    byte = at(targets, k) + byte_at
                    store_u8(byte, np.uint8(load_u8(byte) | (1 << (leaf & 7))))
        if at(columns.skip, leaf) != 0:
            continue
        if width == 8:
            for k in range(count):
                store_i64(at(targets, k) + offset, load_i64(origin + 8 * at(numbers, k)))
        elif width == 4:
            for k in range(count):
                store_i32(at(targets, k) + offset, load_i32(origin + 4 * at(numbers, k)))
        else:
            for k in range(count):
                copy_field(at(targets, k) + offset, origin + width * at(numbers, k), width)


@inlined
def prefetch_row(columns: Any, row: int) -> None:
    """Ask for the memory of a row's values."""
    for leaf in range(columns.count):
        prefetch(at(columns.data, leaf) + row * at(columns.width, leaf))


@inlined
def bytes_start(columns: Any, leaf: int, row: int) -> int:
    """Where a byte string begins in its leaf's data."""
    if at(columns.start_width, leaf) == 4:
        return np.int64(load_i32(at(columns.starts, leaf) + 4 * row))
    return load_i64(at(columns.starts, leaf) + 8 * row)


@inlined
def bytes_end(columns: Any, leaf: int, row: int) -> int:
    """Where a byte string ends in its leaf's data."""
    if at(columns.start_width, leaf) == 4:
        return np.int64(load_i32(at(columns.starts, leaf) + 4 * row + 4))
    return load_i64(at(columns.starts, leaf) + 8 * row + 8)


@inlined
def pack_blob(columns: Any, row: int, target: int) -> int:
    """Write the byte strings of `row` one after the other at `target`; return their length."""
    end = target
    for leaf in range(columns.count):
        if at(columns.width, leaf) > 0:
            continue
        valid = at(columns.valid, leaf)
        if valid != 0:
            bit = at(columns.valid_bit, leaf) + row
            if (load_u8(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0:
                continue
        start = bytes_start(columns, leaf, row)
        length = bytes_end(columns, leaf, row) - start
        copy_bytes(end, at(columns.data, leaf) + start, length)
        end += length
    return end - target


@inlined
def blob_length(fields: Any, record: int) -> int:
    """Bytes of all byte strings of a record."""
    total = 0
    for i in range(fields.strings):
        total += np.int64(load_u32(record + at(fields.string_at, i)))
    return total


@inlined
def wanted_length(fields: Any, record: int) -> int:
    """Bytes of the byte strings that are read."""
    total = 0
    for i in range(fields.strings):
        if at(fields.string_wanted, i) != 0:
            total += np.int64(load_u32(record + at(fields.string_at, i)))
    return total


@inlined
def copy_wanted(fields: Any, record: int, blob: int, target: int) -> int:
    """Copy the byte strings that are read from `blob`, dense; return their length."""
    end, source = target, blob
    for i in range(fields.strings):
        length = np.int64(load_u32(record + at(fields.string_at, i)))
        if at(fields.string_wanted, i) != 0:
            copy_bytes(end, source, length)
            end += length
        source += length
    return end - target


@inlined
def emit(out: Any, row: int, row_blob: int, master: Any, record: int, record_blob: int) -> None:
    """Append one result: a stream row with a master record, or with none if `record` is 0.

    The caller has made sure of the room, in rows and in the heap. Byte strings are copied now, the
    rest by `write_out`, which whoever emits calls before a row or a record goes.
    """
    if out.rows - out.written == PAIRS:
        write_out(out, master)
    pair = out.pairs + 16 * (out.rows - out.written)
    store_i64(pair, row)
    store_i64(pair + 8, record if record != 0 else master.blank)
    if out.heap_room > 0:
        start = out.heap + out.heap_used
        end = start
        if out.stream.strings > 0:
            end += copy_wanted(out.stream, row, row_blob, end)
        if master.strings > 0 and record != 0:
            end += copy_wanted(master, record, record_blob, end)
        out.heap_used += end - start
    out.rows += 1


@inlined
def copy_column(target: int, width: int, origins: int, offset: int, count: int) -> None:
    """Copy one value from each of some records (every second address from `origins` on)."""
    if width == 8:
        for k in range(count):
            store_i64(target + 8 * k, load_i64(load_i64(origins + 16 * k) + offset))
    elif width == 4:
        for k in range(count):
            store_i32(target + 4 * k, load_i32(load_i64(origins + 16 * k) + offset))
    elif width > 16:
        for k in range(count):
            copy_bytes(target + width * k, load_i64(origins + 16 * k) + offset, width)
    else:
        for k in range(count):
            copy_field(target + width * k, load_i64(origins + 16 * k) + offset, width)


@inlined
def copy_nulls(target: int, fields: Any, origins: int, count: int, seen: int) -> None:
    """Copy the null bytes of some records; `seen` gathers those of all."""
    size = fields.null_bytes
    for i in range(size):
        union = np.uint8(load_u8(seen + i))
        for k in range(count):
            byte = load_u8(load_i64(origins + 16 * k) + fields.nulls_at + i)
            store_u8(target + size * k + i, byte)
            union = np.uint8(union | byte)
        store_u8(seen + i, union)


@kernel
def write_out(out: Any, master: Any) -> None:
    """Write the results that were noted, column by column; `master` reads their records."""
    start, count, stream = out.written, out.rows - out.written, out.stream
    if count == 0:
        return
    for c in range(stream.count):
        width = at(stream.width, c)
        target = at(out.address, c) + start * width
        copy_column(target, width, out.pairs, at(stream.offset, c), count)
    nulls = out.stream_nulls + start * stream.null_bytes
    copy_nulls(nulls, stream, out.pairs, count, out.seen_nulls)
    if master.count > 0:
        for c in range(master.count):
            width = at(master.width, c)
            target = at(out.address, stream.count + c) + start * width
            copy_column(target, width, out.pairs + 8, at(master.offset, c), count)
        nulls = out.master_nulls + start * master.null_bytes
        copy_nulls(nulls, master, out.pairs + 8, count, out.seen_nulls + stream.null_bytes)
    out.written = out.rows


@inlined
def stage(out: Any) -> int:
    """A place for a row that does not wait; `keep_staged` after something was emitted with it."""
    return out.staged + out.stage * out.stream.record_bytes


@inlined
def keep_staged(out: Any) -> None:
    """What was noted refers to the row staged last: the next one gets another place."""
    out.stage = out.stage + 1 if out.stage + 1 < STAGED else np.int64(0)


@inlined
def has_room(out: Any, rows: int, heap_bytes: int) -> bool:
    """Whether that many rows and bytes can still be appended."""
    return out.rows + rows <= out.room and out.heap_used + heap_bytes <= out.heap_room


@kernel
def longest_blob(columns: Any, rows: int) -> int:
    """The largest total of byte strings in one row of a batch."""
    longest = 0
    for row in range(rows):
        total = 0
        for leaf in range(columns.count):
            if at(columns.width, leaf) == 0:
                total += bytes_end(columns, leaf, row) - bytes_start(columns, leaf, row)
        longest = max(longest, total)
    return longest


@kernel
def pack_records(columns: Any, first: int, rows: int, starts: _I64, target: _U8) -> int:
    """Write whole rows, record and byte strings together, dense; `starts` gets rows + 1 offsets."""
    base = target.ctypes.data
    end = 0
    for row in range(rows):
        starts[row] = end
        pack_row(columns, first + row, base + end)
        if columns.blob_at >= 0:
            store_u32(base + end + columns.blob_at, np.uint32(0))
        end += columns.record_bytes
        if columns.blob_at >= 0:
            end += pack_blob(columns, first + row, base + end)
    starts[rows] = end
    return end


@kernel
def packed_size(columns: Any, first: int, rows: int) -> int:
    """Bytes that `pack_records` will write."""
    size = rows * columns.record_bytes
    for leaf in range(columns.count):
        if at(columns.width, leaf) == 0 and rows > 0:
            size += bytes_end(columns, leaf, first + rows - 1) - bytes_start(columns, leaf, first)
    return size


@kernel
def count_nulls(nulls: _U8, bit: int) -> int:
    """Rows whose null bit is set; `nulls` has a row of null bytes for each."""
    total = 0
    for row in range(nulls.shape[0]):
        total += (nulls[row, bit >> 3] >> (bit & 7)) & 1
    return total


@kernel
def spread_nulls(nulls: _U8, bit: int, valid: _U8) -> None:
    """Write Arrow's validity bitmap of one leaf."""
    valid[:] = 0
    for row in range(nulls.shape[0]):
        if (nulls[row, bit >> 3] >> (bit & 7)) & 1 == 0:
            valid[row >> 3] |= np.uint8(1 << (row & 7))


@kernel
def total_lengths(lengths: _I64, rows: int, totals: _I64) -> None:
    """Sum the lengths of every byte-string column, given the addresses of its lengths."""
    for c in range(lengths.size):
        total = 0
        for row in range(rows):
            total += np.int64(load_u32(lengths[c] + 4 * row))
        totals[c] = total


@kernel
def spread_bytes(heap: _U8, lengths: _I64, rows: int, targets: _I64) -> None:
    """Spread the byte strings that lie row by row over their columns."""
    source = heap.ctypes.data
    ends = targets.copy()
    for row in range(rows):
        for c in range(lengths.size):
            length = np.int64(load_u32(lengths[c] + 4 * row))
            copy_bytes(ends[c], source, length)
            ends[c] += length
            source += length


@kernel
def fetch_rows(file: int, places: _I64, starts: _I64, target: _U8) -> int:
    """Read rows at their places in a file, dense; an error number, 0 if all went well."""
    base = target.ctypes.data
    for i in range(places.size):
        done, length = np.int64(0), starts[i + 1] - starts[i]
        while done < length:
            got = sys_pread(
                np.int32(file), base + starts[i] + done, length - done, places[i] + done
            )
            if got > 0:
                done += got
                continue
            number = np.int64(load_i32(sys_errno())) if got < 0 else np.int64(EIO)
            if number != EINTR:
                return number
    return 0
