"""Kernels for a master that lies in memory as a whole: rows are answered at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import kernel
from semistream.kernels.matching import emit_unmatched, same_key
from semistream.kernels.memory import at, load_i32, load_i64, load_u32, prefetch, store_i64
from semistream.kernels.pages import (
    PAGE_FIRST,
    PAGE_KEYS,
    PAGE_LAST,
    PAGE_ROWS,
    continues,
    guess_position,
    lower_bound_keys,
)
from semistream.kernels.rows import (
    PAIRS,
    emit,
    has_room,
    pack_blob,
    pack_row,
    pack_rows,
    wanted_length,
    write_out,
)
from semistream.kernels.waiting import (
    SAMPLE,
    free_slot,
    hang,
    slot_address,
    slots_left,
    take_slot,
    write_slot,
)

_I64 = npt.NDArray[np.int64]


@kernel
def answer(
    match: Any,
    out: Any,
    waiting: Any,
    index: Any,
    frames: Any,
    columns: Any,
    keys: _I64,
    valid: npt.NDArray[np.uint8],
    pages: npt.NDArray[np.int32],
    first: int,
    now: int,
) -> int:
    """Join rows with the pages that hold their keys, all of which are in memory; how many.

    Row i of the arrays is row `first + i` of the columns, and page p lies in frame p. Rows whose
    key goes on in the next page wait for it. Fewer are taken when there is no room for a result or
    for such a row. Some rows at a time go through three passes, so that the cache lines of their
    pages, keys and records arrive while others are worked on.
    """
    strings = waiting.blob_at >= 0
    texts = match.page.blob_at >= 0
    hashed = match.page_key.count > 0
    stride = match.page.record_bytes
    width = out.stream.record_bytes
    done = 0
    while done < keys.size:
        count = min(np.int64(keys.size) - done, np.int64(PAIRS))
        for k in range(count):
            store_i64(match.targets + 8 * k, out.staged + k * width)
            store_i64(match.numbers + 8 * k, first + done + k)
            if pages[done + k] >= 0:
                page = frames.data + np.int64(pages[done + k]) * frames.page_bytes
                prefetch(page)
        for k in range(count):
            if pages[done + k] >= 0:
                page = frames.data + np.int64(pages[done + k]) * frames.page_bytes
                guess = guess_position(
                    np.int64(load_i32(page + PAGE_ROWS)),
                    load_i64(page + PAGE_FIRST),
                    load_i64(page + PAGE_LAST),
                    keys[done + k],
                )
                prefetch(page + PAGE_KEYS + 8 * guess)
                store_i64(match.work + 8 * k, guess)
        for k in range(count):
            if pages[done + k] >= 0:
                page = frames.data + np.int64(pages[done + k]) * frames.page_bytes
                rows = np.int64(load_i32(page + PAGE_ROWS))
                low = lower_bound_keys(page + PAGE_KEYS, rows, at(match.work, k), keys[done + k])
                record = page + PAGE_KEYS + 8 * rows + low * stride
                prefetch(record)
                if stride > 64:
                    prefetch(record + 64)
                store_i64(match.work + 8 * k, low)
        if not strings:
            pack_rows(columns, count, match.targets, match.numbers)
        for k in range(count):
            i = done + k
            row = out.staged + k * width
            stream_bytes = np.int64(0)
            store_i64(row, keys[i])
            if strings:
                stream_bytes = pack_row(columns, first + i, row)
                if stream_bytes > 0:
                    pack_blob(columns, first + i, waiting.scratch)
            page, rows, low, high = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            if valid[i] != 0 and pages[i] >= 0:
                page = frames.data + np.int64(pages[i]) * frames.page_bytes
                rows = np.int64(load_i32(page + PAGE_ROWS))
                low = at(match.work, k)
                high = low
                while high < rows and load_i64(page + PAGE_KEYS + 8 * high) == keys[i]:
                    high += 1
                if high == rows and high > low and continues(index, np.int64(pages[i])):
                    if slots_left(waiting) <= 0:
                        write_out(out, match.page)
                        return i
                    slot = take_slot(waiting)
                    store_i64(slot_address(waiting, slot), keys[i])
                    if not write_slot(waiting, columns, first + i, slot):
                        free_slot(waiting, slot)
                        write_out(out, match.page)
                        return i
                    hang(waiting, np.int64(pages[i]), slot)
                    if slot % SAMPLE == 0:
                        store_i64(waiting.arrived + 8 * (slot // SAMPLE), now)
                    match.misses += 1
                    continue
            records = page + PAGE_KEYS + 8 * rows
            heap = stream_bytes * max(high - low, 1)
            if texts and match.pairs != 0:
                for r in range(low, high):
                    heap += wanted_length(match.page, records + r * stride)
            if not has_room(out, max(high - low, 1), heap):
                match.needed = heap
                write_out(out, match.page)
                return i
            met = False
            for r in range(low, high):
                record = records + r * stride
                blob = np.int64(0)
                if texts:
                    blob = page + np.int64(load_u32(record + match.page.blob_at))
                if hashed and not same_key(
                    match.row_key, row, waiting.scratch, match.page_key, record, blob
                ):
                    continue
                if match.pairs != 0:
                    emit(out, row, waiting.scratch, match.page, record, blob)
                met = True
            if met:
                match.matched += 1
                if match.keep_matched != 0:
                    emit(out, row, waiting.scratch, match.nothing, 0, 0)
            else:
                emit_unmatched(match, out, match.page, row, waiting.scratch)
            if valid[i] != 0:
                match.hits += 1
            else:
                match.null_keys += 1
        # The rows' places are those of the next ones.
        write_out(out, match.page)
        done += count
    return done
