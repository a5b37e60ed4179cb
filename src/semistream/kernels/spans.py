"""Kernels for rows that wait for a span of pages in a row, under a condition.

A row without a key has the span where others have key64: its first page in the upper half, its last
one in the lower; -1 if it has none. Rows with a key want the pages of that key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.matching import emit_unmatched, note_latency, row_blob_address
from semistream.kernels.memory import at, load_i32, load_i64, store_i32, store_i64
from semistream.kernels.pages import first_of, is_continued
from semistream.kernels.rows import blob_length, has_room, write_out
from semistream.kernels.waiting import LINK, free_slot, hang, has_met, slot_address

_I64 = npt.NDArray[np.int64]


@inlined
def last_page(index: Any, spans: bool, row: int, page: int) -> int:
    """The last page that a row which waits for `page` wants."""
    word = load_i64(row)
    if spans:
        return word & 0xFFFFFFFF
    last = page
    if index.continued != 0:
        key = word - index.base
        while (
            last + 1 < index.pages
            and is_continued(index, last + 1)
            and first_of(index, last + 1) == key
        ):
            last += 1
    return last


@kernel
def take_lists(waiting: Any, first: int, pages: int, slots: _I64, since: _I64) -> int:
    """Take rows off the lists of some pages, as many as `slots` holds; how many.

    `since` gets the number of the page, counted from the first, from whose list each came.
    """
    count = 0
    for i in range(pages):
        tail = waiting.tail + 4 * (first + i)
        slot = np.int64(load_i32(tail))
        while slot >= 0 and count < slots.size:
            slots[count], since[count] = slot, i
            count += 1
            slot = np.int64(load_i32(slot_address(waiting, slot) + LINK))
        store_i32(tail, np.int32(slot))
    return count


@kernel
def move_on(
    waiting: Any, index: Any, spans: bool, slots: _I64, since: _I64, first: int, end: int
) -> int:
    """Let rows that want pages from `end` on wait for it; the others come first in `slots`."""
    count = 0
    for i in range(slots.size):
        row = slot_address(waiting, slots[i])
        if last_page(index, spans, row, first + since[i]) >= end:
            hang(waiting, end, slots[i])
        else:
            slots[count] = slots[i]
            count += 1
    return count


@kernel
def put_on_lists(waiting: Any, words: _I64, slots: _I64) -> int:
    """Let rows wait for the spans given; those that have none come first in `slots`: how many."""
    count = 0
    for i in range(slots.size):
        if words[i] < 0:
            slots[count] = slots[i]
            count += 1
        else:
            store_i64(slot_address(waiting, slots[i]), words[i])
            hang(waiting, words[i] >> 32, slots[i])
    return count


@kernel
def leave(match: Any, out: Any, waiting: Any, slots: _I64, start: int, now: int) -> int:
    """Rows that have met all their pages leave, from `start` on; how far, when there is no room."""
    done = start
    for i in range(start, slots.size):
        row = slot_address(waiting, slots[i])
        if has_met(waiting, row):
            match.matched += 1
        else:
            length = blob_length(out.stream, row) if waiting.blob_at >= 0 else np.int64(0)
            if not has_room(out, 1, length):
                match.needed = length
                break
            blob = row_blob_address(waiting, out.stream, row)
            emit_unmatched(match, out, match.page, row, blob)
        note_latency(match, waiting, slots[i], now)
        free_slot(waiting, slots[i])
        done += 1
    write_out(out, match.page)
    return done


@kernel
def next_listed(waiting: Any, phase: Any, stop: int) -> int:
    """The next cached page before `stop` for which rows wait; -1 if there is none."""
    while phase.cursor < phase.cached:
        page = at(phase.order, phase.cursor)
        if page >= stop:
            break
        if load_i32(waiting.tail + 4 * page) >= 0:
            return page
        phase.cursor += 1
    return -1
