"""Kernels that change a master: rows out of pages, changes into them, rows into pages again.

Rows are handled packed, as `semistream.store.layout` packs them: record, then byte strings, with
the record's blob reference 0. Rows of a page and changes come sorted by key64. A key64 that is a
hash may stand for several keys, which are told apart by the key's own columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.cache import find, give_up
from semistream.kernels.jit import inlined, kernel
from semistream.kernels.matching import same_key
from semistream.kernels.memory import copy_bytes, load_i64, load_u32, store_u32
from semistream.kernels.pages import (
    CLASSES,
    PAGE_KEYS,
    PAGE_ROWS,
    check_page,
    class_of_key,
    fill_pages,
    is_continued,
    page_of,
    shard_of,
)
from semistream.kernels.rows import blob_length

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]


@kernel
def first_wrong_page(pages: _U8, page_bytes: int, places: npt.NDArray[np.uint32]) -> int:
    """The first of some pages that is not what was written at its place; -1 if all are."""
    for i in range(places.size):
        if not check_page(pages.ctypes.data + i * page_bytes, page_bytes, np.int64(places[i])):
            return i
    return -1


@kernel
def measure_pages(fields: Any, pages: _U8, page_bytes: int, rows: _I64) -> int:
    """Count the rows of every page; the bytes that all of them take when packed."""
    total = 0
    for i in range(rows.size):
        page = pages.ctypes.data + i * page_bytes
        count = np.int64(load_u32(page + PAGE_ROWS))
        rows[i] = count
        total += count * fields.record_bytes
        records = page + PAGE_KEYS + 8 * count
        for k in range(count):
            total += blob_length(fields, records + k * fields.record_bytes)
    return total


@kernel
def unpack_pages(
    fields: Any, pages: _U8, page_bytes: int, count: int, keys: _I64, starts: _I64, data: _U8
) -> None:
    """The rows of pages, packed: their key64, where each begins, and their bytes."""
    row, end = 0, 0
    size = fields.record_bytes
    for i in range(count):
        page = pages.ctypes.data + i * page_bytes
        rows = np.int64(load_u32(page + PAGE_ROWS))
        for k in range(rows):
            record = page + PAGE_KEYS + 8 * rows + k * size
            keys[row] = load_i64(page + PAGE_KEYS + 8 * k)
            starts[row] = end
            target = data.ctypes.data + end
            copy_bytes(target, record, size)
            end += size
            if fields.blob_at >= 0:
                length = blob_length(fields, record)
                blob = page + np.int64(load_u32(record + fields.blob_at))
                store_u32(target + fields.blob_at, np.uint32(0))
                copy_bytes(target + size, blob, length)
                end += length
            row += 1
    starts[row] = end


@inlined
def _same(key: Any, data: _U8, start: int, other: _U8, other_start: int) -> bool:
    """Whether two packed rows of one key64 have the same key."""
    a, b = data.ctypes.data + start, other.ctypes.data + other_start
    return same_key(key, a, a + key.record_bytes, key, b, b + key.record_bytes)


@kernel
def settle(
    key: Any,
    keys: _I64,
    starts: _I64,
    data: _U8,
    resets: npt.NDArray[np.bool_],
    stays: npt.NDArray[np.bool_],
    last: npt.NDArray[np.bool_],
    closed: _I64,
) -> None:
    """Which changes matter. They come by key64, those of one key in the order of their time.

    A change that resets its key makes all earlier ones of the key void: `last` tells of each key
    the latest that resets it, `stays` what is not void. `closed` is room for a number per change.
    """
    end = keys.size
    while end > 0:
        begin = end - 1
        while begin > 0 and keys[begin - 1] == keys[end - 1]:
            begin -= 1
        count = 0
        for i in range(end - 1, begin - 1, -1):
            void = False
            for k in range(count):
                if _same(key, data, starts[i], data, starts[closed[k]]):
                    void = True
                    break
            stays[i] = not void
            last[i] = not void and resets[i]
            if last[i]:
                closed[count] = i
                count += 1
        end = begin


@kernel
def segments_of(index: Any, keys: _I64, out: _I64) -> None:
    """The part of the pages, in key order, to which every key belongs: a shard or a class of it."""
    for i in range(keys.size):
        shard = np.int64(0)
        if index.shards > 1:
            shard = shard_of(keys[i], index.shards)
        out[i] = shard * CLASSES + class_of_key(index, keys[i]) if index.class_of != 0 else shard


@kernel
def group_changes(
    index: Any, keys: _I64, segments: _I64, segment_start: _I64, firsts: _I64, groups: _I64
) -> int:
    """Gather changes, which come by segment and key64, into groups that share pages; how many.

    A row of `groups`: the first page, the page after the last, the first change, the segment. A
    group without pages is for keys of a segment that has none.
    """
    count = 0
    for i in range(keys.size):
        segment = segments[i]
        if i > 0 and segments[i - 1] == segment and keys[i - 1] == keys[i]:
            continue
        begin, stop = segment_start[segment], segment_start[segment + 1]
        first = max(page_of(index, keys[i]), begin)
        end = min(first + 1, stop)
        while end < stop and is_continued(index, end) and firsts[end] == keys[i]:
            end += 1
        if count > 0 and groups[count - 1, 3] == segment:
            before = groups[count - 1]
            if first < before[1] or before[0] == before[1]:
                before[1] = max(before[1], end)
                continue
        groups[count, 0], groups[count, 1] = first, end
        groups[count, 2], groups[count, 3] = i, segment
        count += 1
    return count


@inlined
def _copy_row(
    keys: _I64, starts: _I64, data: _U8, row: int, to: _I64, to_starts: _I64, to_data: _U8, n: int
) -> None:
    length = starts[row + 1] - starts[row]
    to[n] = keys[row]
    copy_bytes(to_data.ctypes.data + to_starts[n], data.ctypes.data + starts[row], length)
    to_starts[n + 1] = to_starts[n] + length


@kernel
def merge_changes(
    key: Any,
    old_ends: _I64,
    old: _I64,
    old_starts: _I64,
    old_data: _U8,
    change_ends: _I64,
    changes: _I64,
    change_starts: _I64,
    change_data: _U8,
    adds: npt.NDArray[np.bool_],
    last: npt.NDArray[np.bool_],
    out_ends: _I64,
    out: _I64,
    out_starts: _I64,
    out_data: _U8,
    tally: _I64,
) -> None:
    """The rows of every group of pages after its changes. `tally`: rows that went and that came,
    keys (key64) before and after, and of these the longest run."""
    out_starts[0] = 0
    n, i, j = 0, 0, 0
    for group in range(old_ends.size):
        old_end, change_end, begin = old_ends[group], change_ends[group], n
        for k in range(i, old_end):
            if k == i or old[k] != old[k - 1]:
                tally[2] += 1
        while i < old_end or j < change_end:
            if j == change_end or (i < old_end and old[i] < changes[j]):
                _copy_row(old, old_starts, old_data, i, out, out_starts, out_data, n)
                i, n = i + 1, n + 1
                continue
            end = j + 1
            while end < change_end and changes[end] == changes[j]:
                end += 1
            while i < old_end and old[i] == changes[j]:
                gone = False
                for c in range(j, end):
                    if last[c] and _same(
                        key, change_data, change_starts[c], old_data, old_starts[i]
                    ):
                        gone = True
                        break
                if gone:
                    tally[0] += 1
                else:
                    _copy_row(old, old_starts, old_data, i, out, out_starts, out_data, n)
                    n += 1
                i += 1
            for c in range(j, end):
                if adds[c]:
                    _copy_row(changes, change_starts, change_data, c, out, out_starts, out_data, n)
                    n += 1
                    tally[1] += 1
            j = end
        run = 0
        for k in range(begin, n):
            if k > begin and out[k] == out[k - 1]:
                run += 1
            else:
                tally[3] += 1
                run = 1
            tally[4] = max(tally[4], run)
        out_ends[group] = n


@kernel
def refill_pages(
    ends: _I64,
    keys: _I64,
    starts: _I64,
    data: _U8,
    shape: _I64,
    continued: _U8,
    number: int,
    pages: _U8,
    page_firsts: _I64,
    page_continued: _U8,
    page_ends: _I64,
) -> int:
    """Cut the rows of every group into pages of its own, numbered from `number` on; how many.

    A group that fits one page fills it as far as it goes, others leave room in each of theirs, as
    `shape` (see `fill_pages`) says. `continued` tells of groups that begin in the middle of a key.
    `pages` must be large enough.
    """
    size = shape[2]
    carry = np.zeros(3, np.int64)
    filled, begin = 0, 0
    own = shape.copy()
    for group in range(ends.size):
        end = ends[group]
        if end > begin:
            whole = PAGE_KEYS + 8 * (end - begin) + starts[end] - starts[begin]
            own[3] = size if whole <= size else shape[3]
            carry[1], carry[2] = keys[begin], continued[group]
            fill_pages(
                keys[begin:end],
                starts[begin : end + 1],
                data,
                own,
                pages[filled * size :],
                number + filled,
                page_firsts[filled:],
                page_continued[filled:],
                carry,
            )
            filled += carry[0]
        page_ends[group] = filled
        begin = end
    return filled


@kernel
def forget(cache: Any, keys: _I64) -> int:
    """Drop keys from a tuple cache, also those remembered to have no rows; how many were there."""
    count = 0
    for i in range(keys.size):
        place = find(cache, keys[i])
        if place >= 0:
            give_up(cache, place)
            count += 1
    return count
