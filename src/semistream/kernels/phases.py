"""Kernels for joins that work in phases, with whole pages of the master in memory (SSIJ).

Rows first wait on one list, the input buffer. The online phase moves each to the list of its page;
rows of cached pages are joined at once, the others wait for the join phase, in which all wanted
pages are read in order. A row stands on one list at a time, that of the next page it has to meet,
and pages are always met in order: no pair can come twice, whatever is cached or given up between.

How many rows want a page that is not cached is kept where its frame would be: -1 - n instead of a
frame's number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.frames import add_page, drop_page
from semistream.kernels.jit import inlined, kernel
from semistream.kernels.matching import (
    BROKEN,
    FULL,
    IDLE,
    emit_unmatched,
    join_pages,
    note_latency,
    row_blob_address,
)
from semistream.kernels.memory import (
    at,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)
from semistream.kernels.pages import page_of
from semistream.kernels.reading import (
    REQ_BUFFER,
    REQ_COUNT,
    REQ_FIRST,
    give_back,
    in_flight,
    oldest,
    request_at,
    submit,
)
from semistream.kernels.rows import blob_length, has_room, write_out
from semistream.kernels.spans import last_page
from semistream.kernels.struct import struct_type
from semistream.kernels.waiting import LINK, free_slot, hang, slot_address

_I64 = npt.NDArray[np.int64]
_I32 = npt.NDArray[np.int32]

ABREAST = 64
"""Lists that are walked side by side."""

PHASE = struct_type(
    # Cached pages in order, how many, and which is next; whether all runs have been planned.
    "order cached cursor planned "
    # Which of the pages that are read stay: those in bins beyond `above` (`scale` rows a bin), and
    # `equal` of those in it; the first `skip` wanted ones do not. `limit` frames in all.
    "above equal scale skip limit "
    # Lists that ceased to be empty in online phases: at least the pages to be read. The number of
    # the moment, if pages are ranked by the last time of their use instead of by its amount.
    "wanted stamp "
    # Whether rows have a span of pages instead of a key (see `semistream.kernels.spans`).
    "spans"
)


@inlined
def _wanted_by(frames: Any, page: int) -> int:
    """How many rows want a page; 0 where it is cached."""
    return max(-1 - np.int64(load_i32(frames.frame_of + 4 * page)), 0)


@inlined
def _length(waiting: Any, bucket: int) -> int:
    """Rows on a list."""
    count = 0
    slot = np.int64(load_i32(waiting.tail + 4 * bucket))
    while slot >= 0:
        count += 1
        slot = np.int64(load_i32(slot_address(waiting, slot) + LINK))
    return count


@kernel
def sort_in(
    match: Any, out: Any, waiting: Any, index: Any, phase: Any, buffer: int, now: int
) -> int:
    """Move rows from the list `buffer` to those of their pages; how many. Fewer: no more room.

    A row that no page can hold is unmatched.
    """
    moved = 0
    slot = np.int64(load_i32(waiting.tail + 4 * buffer))
    while slot >= 0:
        row = slot_address(waiting, slot)
        following = np.int64(load_i32(row + LINK))
        prefetch(slot_address(waiting, max(following, 0)))
        word = load_i64(row)
        page = page_of(index, word) if phase.spans == 0 else word >> 32
        if page >= 0:
            if phase.spans != 0:
                phase.wanted += last_page(index, True, row, page) - page + 1
            elif load_i32(waiting.tail + 4 * page) < 0:
                phase.wanted += 1
            hang(waiting, page, slot)
        else:
            length = blob_length(out.stream, row) if waiting.blob_at >= 0 else np.int64(0)
            if not has_room(out, 1, length):
                match.needed = length
                break
            blob = row_blob_address(waiting, out.stream, row)
            emit_unmatched(match, out, match.page, row, blob)
            note_latency(match, waiting, slot, now)
            free_slot(waiting, slot)
        moved += 1
        slot = following
    store_i32(waiting.tail + 4 * buffer, np.int32(slot))
    write_out(out, match.page)
    return moved


@kernel
def join_kept(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    frames: Any,
    phase: Any,
    stop: int,
    now: int,
) -> bool:
    """Join the cached pages before page `stop`, in order; False if the output is full."""
    while phase.cursor < phase.cached:
        page = at(phase.order, phase.cursor)
        if page >= stop:
            break
        frame = np.int64(load_i32(frames.frame_of + 4 * page))
        if frame >= 0 and load_i32(waiting.tail + 4 * page) >= 0:
            rows = _length(waiting, page)
            address = frames.data + frame * frames.page_bytes
            done = join_pages(
                match, out, waiting, cache, index, address, frames.page_bytes, page, 1, now
            )
            rows -= _length(waiting, page)
            uses = at(frames.uses, frame) + rows if phase.stamp == 0 else phase.stamp
            store_i64(frames.uses + 8 * frame, uses)
            if done == 0:
                return False
        phase.cursor += 1
    return True


@kernel
def count_wanted(
    waiting: Any, index: Any, frames: Any, phase: Any, changes: _I32, histogram: _I64
) -> int:
    """Count how many rows want each page that is not cached; how many pages are wanted.

    `histogram` gets the counts, `phase.scale` of them in a bin, the last bin those beyond. Cached
    pages that are wanted are marked as touched. `changes` has an entry more than there are pages,
    where rows may want several, and is empty otherwise.
    """
    for frame in range(frames.used):
        store_u8(frames.touched + frame, np.uint8(0))
    several = changes.size > 0
    changes[:] = 0
    # Lists of neighbours are walked side by side: the memory of many rows is on its way at once.
    walked = np.empty(ABREAST, np.int64)
    slots = np.empty(ABREAST, np.int64)
    counts = np.empty(ABREAST, np.int64)
    for first in range(0, index.pages, ABREAST):
        beside = min(ABREAST, index.pages - first)
        active = 0
        for i in range(beside):
            counts[i] = 0
            slot = np.int64(load_i32(waiting.tail + 4 * (first + i)))
            if slot >= 0:
                prefetch(slot_address(waiting, slot))
                walked[active], slots[active] = i, slot
                active += 1
        while active > 0:
            still = 0
            for k in range(active):
                i, row = walked[k], slot_address(waiting, slots[k])
                counts[i] += 1
                if several:
                    changes[last_page(index, phase.spans != 0, row, first + i) + 1] -= 1
                following = np.int64(load_i32(row + LINK))
                if following >= 0:
                    prefetch(slot_address(waiting, following))
                    walked[still], slots[still] = i, following
                    still += 1
            active = still
        for i in range(beside):
            if several:
                changes[first + i] += counts[i]
            else:
                _want(frames, first + i, counts[i])
    histogram[:] = 0
    pages, here = 0, np.int64(0)
    for page in range(index.pages):
        if several:
            here += changes[page]
            _want(frames, page, here)
        rows = _wanted_by(frames, page)
        if rows > 0:
            histogram[min(rows // phase.scale, histogram.size - 1)] += 1
            pages += 1
    return pages


@inlined
def _want(frames: Any, page: int, rows: int) -> None:
    if rows > 0:
        frame = np.int64(load_i32(frames.frame_of + 4 * page))
        if frame < 0:
            store_i32(frames.frame_of + 4 * page, np.int32(-1 - rows))
        else:
            store_u8(frames.touched + frame, np.uint8(1))


@kernel
def drop_pages(frames: Any, below: int, equal: int, scale: int) -> int:
    """Drop cached pages of less use than `below`, and all but `equal` of those with that much.

    Those that rows of the coming join phase need stay. How many pages are left.
    """
    frame = np.int64(0)
    while frame < frames.used:
        use = at(frames.uses, frame) // scale
        stays = use > below
        if use == below and equal > 0:
            equal -= 1
            stays = True
        if stays or load_u8(frames.touched + frame) != 0:
            frame += 1
        else:
            drop_page(frames, frame)
    return frames.used


@inlined
def _settle_page(frames: Any, phase: Any, page: int, origin: int) -> None:
    """After a page was joined: keep it if it is among the best, and forget who wanted it."""
    rows = _wanted_by(frames, page)
    if rows == 0:
        return
    store_i32(frames.frame_of + 4 * page, np.int32(-1))
    if phase.skip > 0:
        phase.skip -= 1
        return
    use = rows // phase.scale
    if use < phase.above or frames.used >= phase.limit:
        return
    if use == phase.above:
        if phase.equal <= 0:
            return
        phase.equal -= 1
    add_page(frames, page, origin, rows if phase.stamp == 0 else phase.stamp)


@kernel
def settle_pages(frames: Any, phase: Any, first: int, pages: int, address: int) -> None:
    """After pages that lie in memory one after the other were joined: keep the best of them."""
    for i in range(pages):
        _settle_page(frames, phase, first + i, address + i * frames.page_bytes)


@kernel
def join_scans(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    ring: Any,
    frames: Any,
    phase: Any,
    runs: _I64,
    progress: _I64,
    now: int,
) -> int:
    """Read runs, join their pages and the cached ones between them in order, keep the best.

    `progress` as in `join_runs`. IDLE: more runs are to be planned, or, when all are, the phase is
    over; FULL: call again with an emptied output; BROKEN: a read failed.
    """
    size = ring.page_bytes
    while True:
        while progress[0] < progress[1]:
            if not submit(ring, runs[progress[0], 0], runs[progress[0], 1]):
                break
            progress[0] += 1
        reading = in_flight(ring) > 0
        if not reading and phase.planned == 0:
            return IDLE
        stop = index.pages
        if reading:
            stop = load_i64(request_at(ring, ring.taken) + REQ_FIRST)
        if not join_kept(match, out, waiting, cache, index, frames, phase, stop, now):
            return FULL
        if not reading:
            return IDLE
        request = oldest(ring)
        if request == 0:
            return BROKEN
        first, count = load_i64(request + REQ_FIRST), load_i64(request + REQ_COUNT)
        start = load_i64(request + REQ_BUFFER)
        done = progress[2]
        joined = join_pages(
            match,
            out,
            waiting,
            cache,
            index,
            start + done * size,
            size,
            first + done,
            count - done,
            now,
        )
        settle_pages(frames, phase, first + done, joined, start + done * size)
        progress[2] = done + joined
        if progress[2] < count:
            return FULL
        progress[2] = 0
        give_back(ring)
