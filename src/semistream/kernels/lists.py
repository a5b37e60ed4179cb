"""Kernels that pack lists into byte strings and back.

A list becomes one byte string, column by column, so that a list of many numbers is a few copies:

    number of items (4 bytes)
    for each leaf of the items
        a bit per item, set where it is null (rounded up to whole bytes)
        fixed-width leaves: the values; byte strings: the length of each (4 bytes), then the bytes

A null list is a null byte string of length 0, which tells it from an empty list.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import (
    at,
    copy_bytes,
    load_u8,
    load_u32,
    store_i64,
    store_u8,
    store_u32,
)
from semistream.kernels.rows import bytes_end, bytes_start

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]


@inlined
def _bit(bits: int, position: int) -> bool:
    return (load_u8(bits + (position >> 3)) >> (position & 7)) & 1 != 0


@inlined
def _is_null(columns: Any, leaf: int, item: int) -> bool:
    valid = at(columns.valid, leaf)
    return valid != 0 and not _bit(valid, at(columns.valid_bit, leaf) + item)


@inlined
def _bytes_of(columns: Any, leaf: int, first: int, count: int) -> int:
    """Bytes of the byte strings of `count` items; a null may stand on bytes of its own."""
    if count == 0:
        return 0
    if at(columns.valid, leaf) == 0:
        return bytes_end(columns, leaf, first + count - 1) - bytes_start(columns, leaf, first)
    total = 0
    for item in range(first, first + count):
        if not _is_null(columns, leaf, item):
            total += bytes_end(columns, leaf, item) - bytes_start(columns, leaf, item)
    return total


@kernel
def measure_packed(columns: Any, present: _U8, firsts: _I64, counts: _I64, offsets: _I64) -> int:
    """Where each list will lie once packed; `offsets` gets an entry more than there are lists."""
    end = 0
    offsets[0] = 0
    for row in range(counts.size):
        if present[row] != 0:
            first, count = firsts[row], counts[row]
            end += 4
            for leaf in range(columns.count):
                width = at(columns.width, leaf)
                end += (count + 7) >> 3
                if width > 0:
                    end += width * count
                else:
                    end += 4 * count + _bytes_of(columns, leaf, first, count)
        offsets[row + 1] = end
    return end


@kernel
def pack_lists(
    columns: Any, present: _U8, firsts: _I64, counts: _I64, offsets: _I64, target: _U8
) -> None:
    """Write the lists to where `measure_packed` put them."""
    base = target.ctypes.data
    for row in range(counts.size):
        if present[row] == 0:
            continue
        to = base + offsets[row]
        first, count = firsts[row], counts[row]
        store_u32(to, np.uint32(count))
        to += 4
        for leaf in range(columns.count):
            width = at(columns.width, leaf)
            nulls = to
            to += (count + 7) >> 3
            for i in range((count + 7) >> 3):
                store_u8(nulls + i, np.uint8(0))
            if width > 0:
                copy_bytes(to, at(columns.data, leaf) + width * first, width * count)
            if at(columns.valid, leaf) != 0:
                for i in range(count):
                    if _is_null(columns, leaf, first + i):
                        byte = nulls + (i >> 3)
                        store_u8(byte, np.uint8(load_u8(byte) | (1 << (i & 7))))
                        for j in range(width):
                            store_u8(to + width * i + j, np.uint8(0))
            if width > 0:
                to += width * count
                continue
            text = to + 4 * count
            for i in range(count):
                length = 0
                if not _is_null(columns, leaf, first + i):
                    start = bytes_start(columns, leaf, first + i)
                    length = bytes_end(columns, leaf, first + i) - start
                    copy_bytes(text, at(columns.data, leaf) + start, length)
                store_u32(to + 4 * i, np.uint32(length))
                text += length
            to = text


@kernel
def measure_unpacked(
    data: _U8, starts: _I64, widths: _I64, padding: int, offsets: _I64, any_null: _U8, totals: _I64
) -> int:
    """Where the items of each list will lie: `offsets`, an entry more than there are lists.

    `widths` has the width of each leaf, 0 for byte strings, whose bytes are counted in `totals`.
    `any_null` tells which leaves have nulls. A null list gets `padding` items: Arrow wants those
    for lists of a fixed size.
    """
    base = data.ctypes.data
    offsets[0] = 0
    for row in range(starts.size - 1):
        if starts[row + 1] == starts[row]:
            offsets[row + 1] = offsets[row] + padding
            continue
        source = base + starts[row]
        count = np.int64(load_u32(source))
        source += 4
        offsets[row + 1] = offsets[row] + count
        for leaf in range(widths.size):
            for i in range((count + 7) >> 3):
                if load_u8(source + i) != 0:
                    any_null[leaf] = 1
            source += (count + 7) >> 3
            if widths[leaf] > 0:
                source += widths[leaf] * count
            else:
                total = 0
                for i in range(count):
                    total += np.int64(load_u32(source + 4 * i))
                totals[leaf] += total
                source += 4 * count + total
    return offsets[starts.size - 1]


@kernel
def unpack_lists(
    data: _U8,
    starts: _I64,
    widths: _I64,
    offsets: _I64,
    values: _I64,
    texts: _I64,
    valid: _I64,
) -> None:
    """Write the items' leaves one list after the other.

    `values`, `texts` and `valid` hold addresses, one per leaf: of the values (for byte strings, of
    Arrow's 64-bit offsets), of the strings' bytes, and of the validity bitmap, all bits of which
    are set before (0 where the leaf has no null). Items that pad a null list are zeros.
    """
    base = data.ctypes.data
    ends = np.zeros(widths.size, np.int64)
    for leaf in range(widths.size):
        if widths[leaf] == 0:
            store_i64(values[leaf], 0)
    for row in range(starts.size - 1):
        item, count = offsets[row], offsets[row + 1] - offsets[row]
        if starts[row + 1] == starts[row]:
            for leaf in range(widths.size):
                width = widths[leaf]
                for i in range(width * count):
                    store_u8(values[leaf] + width * item + i, np.uint8(0))
                if width == 0:
                    for i in range(count):
                        store_i64(values[leaf] + 8 * (item + i + 1), ends[leaf])
            continue
        source = base + starts[row] + 4
        for leaf in range(widths.size):
            if valid[leaf] != 0:
                for i in range(count):
                    if _bit(source, i):
                        position = item + i
                        byte = valid[leaf] + (position >> 3)
                        store_u8(byte, np.uint8(load_u8(byte) & ~(1 << (position & 7))))
            source += (count + 7) >> 3
            width = widths[leaf]
            if width > 0:
                copy_bytes(values[leaf] + width * item, source, width * count)
                source += width * count
                continue
            end = ends[leaf]
            for i in range(count):
                end += np.int64(load_u32(source + 4 * i))
                store_i64(values[leaf] + 8 * (item + i + 1), end)
            source += 4 * count
            copy_bytes(texts[leaf] + ends[leaf], source, end - ends[leaf])
            source += end - ends[leaf]
            ends[leaf] = end
