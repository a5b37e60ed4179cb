"""Kernels for joins that scan the master: rows wait in hash rings and meet every page once.

Slots are used in a circle, from slot 1 on: rows leave in the order in which they came. Rows whose
key is in the cache never wait; a join without a cache hands in an empty one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.admission import promote
from semistream.kernels.cache import count_hit, find
from semistream.kernels.jit import inlined, kernel
from semistream.kernels.matching import (
    BROKEN,
    FULL,
    IDLE,
    MORE,
    emit_unmatched,
    join_cached,
    note_latency,
    row_blob_address,
    same_key,
)
from semistream.kernels.memory import at, load_i32, load_i64, load_u32, prefetch, store_i64
from semistream.kernels.pages import PAGE_KEYS, PAGE_ROWS, bucket_of
from semistream.kernels.reading import (
    REQ_BUFFER,
    REQ_COUNT,
    give_back,
    in_flight,
    oldest,
    request_at,
    submit,
)
from semistream.kernels.rows import (
    blob_length,
    emit,
    has_room,
    keep_staged,
    pack_blob,
    pack_row,
    stage,
    wanted_length,
    write_out,
)
from semistream.kernels.waiting import (
    LINK,
    SAMPLE,
    append,
    clear_met,
    free_blob,
    has_met,
    mark_met,
    pop_oldest,
    ring_word,
    signature,
    slot_address,
    slots_left,
    write_slot,
)
from semistream.kernels.watching import watch_page

_I64 = npt.NDArray[np.int64]

P_SUBMITTED, P_GIVEN, P_PAGE, P_ROW, P_SLOT, P_WANTED = range(6)
"""Progress of a scan: runs submitted, runs given, and where it stopped in the oldest one: the page,
the row in it and the waiting row that comes next (-1: the first of its ring); pages to be probed
yet."""

AHEAD = 8
"""Rows whose memory is asked for before they are reached: the ring's word first, twice as far, then
the slot that it names."""


@inlined
def _following(waiting: Any, slot: int) -> int:
    return slot + 1 if slot + 1 < waiting.limit else np.int64(1)


@inlined
def _ask_for_word(waiting: Any, cache: Any, key: int) -> None:
    """Ask for what says where a key's rows are, cached or waiting."""
    if cache.places > 0:
        prefetch(cache.table + 16 * bucket_of(key, cache.places))
    prefetch(waiting.tail + 8 * bucket_of(key, waiting.buckets))


@inlined
def _ask_for_slot(waiting: Any, key: int) -> None:
    """Ask for the youngest row of a key's ring, which a row that comes or goes changes."""
    word = ring_word(waiting, bucket_of(key, waiting.buckets))
    if word >= 0:
        prefetch(slot_address(waiting, word & 0xFFFFFFFF))


@inlined
def _pass(
    match: Any, out: Any, waiting: Any, cache: Any, columns: Any, key: int, row: int, place: int
) -> bool:
    """Answer a row that need not wait, from the cache or (place -1) as unmatched; False: no room.

    This is the stream-probing phase of the algorithms with a cache.
    """
    passing = stage(out)
    store_i64(passing, key)
    length = pack_row(columns, row, passing)
    if waiting.blob_at >= 0 and length > 0:
        pack_blob(columns, row, waiting.scratch)
    before, met = out.rows, 0
    if place >= 0:
        met = join_cached(match, out, cache, place, passing, waiting.scratch, length)
    if met < 0:
        return False
    if met == 0:
        if not has_room(out, 1, length):
            match.needed = length
            return False
        emit_unmatched(match, out, match.cached, passing, waiting.scratch)
    else:
        match.matched += 1
    if out.rows > before:
        keep_staged(out)
    return True


@kernel
def enter(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    columns: Any,
    keys: _I64,
    valid: npt.NDArray[np.uint8],
    met: npt.NDArray[np.uint8],
    most: int,
    now: int,
    entered: _I64,
) -> int:
    """Let rows wait, at most `most`; how many were accepted. `entered[0]` counts those that wait.

    Rows without a key have no partner and do not wait, nor do those whose key is cached. `met` has
    a flag per row, or is empty.
    """
    accepted = 0
    for i in range(min(2 * AHEAD, keys.size)):
        _ask_for_word(waiting, cache, keys[i])
    for i in range(keys.size):
        if i + 2 * AHEAD < keys.size:
            _ask_for_word(waiting, cache, keys[i + 2 * AHEAD])
        if i + AHEAD < keys.size:
            _ask_for_slot(waiting, keys[i + AHEAD])
        place = find(cache, keys[i]) if valid[i] != 0 else np.int64(-1)
        if valid[i] == 0 or place >= 0:
            if not _pass(match, out, waiting, cache, columns, keys[i], i, place):
                break
            if place >= 0:
                count_hit(cache, place)
                match.hits += 1
            else:
                match.null_keys += 1
            accepted += 1
            continue
        if entered[0] >= most or slots_left(waiting) <= 0:
            break
        slot = waiting.fresh
        store_i64(slot_address(waiting, slot), keys[i])
        if not write_slot(waiting, columns, i, slot):
            break
        if met.size > 0 and met[i] != 0:
            mark_met(waiting, slot_address(waiting, slot))
        waiting.fresh = _following(waiting, slot)
        waiting.used += 1
        append(waiting, bucket_of(keys[i], waiting.buckets), slot, keys[i])
        if slot % SAMPLE == 0:
            store_i64(waiting.arrived + 8 * (slot // SAMPLE), now)
        match.misses += 1
        entered[0] += 1
        accepted += 1
    write_out(out, match.cached)
    return accepted


@kernel
def expire(match: Any, out: Any, waiting: Any, count: int, now: int) -> int:
    """Let the `count` oldest rows go; fewer when the output is full. How many went."""
    gone = 0
    for _ in range(count):
        # `free` is the oldest slot of the circle here, not the head of a list.
        slot = waiting.free
        row = slot_address(waiting, slot)
        if slot + 2 * AHEAD < waiting.limit:
            key = load_i64(slot_address(waiting, slot + 2 * AHEAD))
            prefetch(waiting.tail + 8 * bucket_of(key, waiting.buckets))
            _ask_for_slot(waiting, load_i64(slot_address(waiting, slot + AHEAD)))
        if has_met(waiting, row):
            match.matched += 1
        else:
            length = blob_length(out.stream, row) if waiting.blob_at >= 0 else np.int64(0)
            if not has_room(out, 1, length):
                match.needed = length
                break
            blob = row_blob_address(waiting, out.stream, row)
            emit_unmatched(match, out, match.page, row, blob)
        note_latency(match, waiting, slot, now)
        pop_oldest(waiting, bucket_of(load_i64(row), waiting.buckets))
        if waiting.blob_at >= 0:
            free_blob(waiting.blocks, np.int64(load_i32(row + waiting.blob_at)))
        waiting.free = _following(waiting, slot)
        waiting.used -= 1
        gone += 1
    write_out(out, match.page)
    return gone


@inlined
def _meet(match: Any, out: Any, waiting: Any, slot: int, key: int, page: int, record: int) -> bool:
    """Join a waiting row with a record of the same bucket; False if there is no room."""
    row = slot_address(waiting, slot)
    if load_i64(row) != key:
        return True
    blob = np.int64(0)
    heap = np.int64(0)
    row_blob = np.int64(0)
    if match.page.blob_at >= 0:
        blob = page + np.int64(load_u32(record + match.page.blob_at))
        if match.pairs != 0:
            heap += wanted_length(match.page, record)
    if waiting.blob_at >= 0:
        row_blob = row_blob_address(waiting, out.stream, row)
        heap += blob_length(out.stream, row)
    if match.page_key.count > 0 and not same_key(
        match.row_key, row, row_blob, match.page_key, record, blob
    ):
        return True
    if match.pairs != 0:
        if not has_room(out, 1, heap):
            match.needed = heap
            return False
        emit(out, row, row_blob, match.page, record, blob)
    elif match.keep_matched != 0 and not has_met(waiting, row):
        if not has_room(out, 1, heap):
            match.needed = heap
            return False
        emit(out, row, row_blob, match.nothing, 0, 0)
    mark_met(waiting, row)
    return True


@inlined
def _offer(
    match: Any, cache: Any, page: int, rows: int, last: int, asked: int, is_unique: bool
) -> None:
    """Offer the key of the record `last`, for which `asked` rows wait, to the cache.

    Only when its last record was probed: all waiting rows have met the key then. Records of a key
    at the edge of a page may go on in another one, and an entry must hold all of them.
    """
    keys = page + PAGE_KEYS
    key = load_i64(keys + 8 * last)
    if last + 1 < rows and load_i64(keys + 8 * (last + 1)) == key:
        return
    low = last
    while low > 0 and load_i64(keys + 8 * (low - 1)) == key:
        low -= 1
    if is_unique or (low > 0 and last + 1 < rows):
        stride = match.page.record_bytes
        records = keys + 8 * rows + low * stride
        promote(match, cache, key, page, records, stride, last + 1 - low, asked)


@inlined
def _probe_page(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    page: int,
    progress: _I64,
    is_unique: bool,
) -> bool:
    """Probe the waiting rows with every row of a page; False if the output is full.

    First the rows whose ring may hold their key are picked and their memory is asked for, then
    they are joined.
    """
    rows = np.int64(load_i32(page + PAGE_ROWS))
    keys = page + PAGE_KEYS
    stride = match.page.record_bytes
    records = keys + 8 * rows
    picked = 0
    for r in range(progress[P_ROW], rows):
        ahead = r + 16
        if ahead < rows:
            bucket = bucket_of(load_i64(keys + 8 * ahead), waiting.buckets)
            prefetch(waiting.tail + 8 * bucket)
        key = load_i64(keys + 8 * r)
        word = ring_word(waiting, bucket_of(key, waiting.buckets))
        if word >= 0 and word & signature(key) != 0:
            prefetch(slot_address(waiting, word & 0xFFFFFFFF))
            prefetch(records + r * stride)
            prefetch(records + r * stride + 64)
            store_i64(match.found + 8 * picked, r)
            picked += 1
    for i in range(picked):
        r = at(match.found, i)
        key = load_i64(keys + 8 * r)
        tail = ring_word(waiting, bucket_of(key, waiting.buckets)) & 0xFFFFFFFF
        slot = progress[P_SLOT]
        if slot < 0:
            slot = np.int64(load_i32(slot_address(waiting, tail) + LINK))
        asked = np.int64(0)
        while True:
            if load_i64(slot_address(waiting, slot)) == key:
                asked += 1
            if not _meet(match, out, waiting, slot, key, page, records + r * stride):
                progress[P_ROW], progress[P_SLOT] = r, slot
                return False
            if slot == tail:
                break
            slot = np.int64(load_i32(slot_address(waiting, slot) + LINK))
        progress[P_SLOT] = -1
        if cache.limit > 0 and asked > 0:
            _offer(match, cache, page, rows, r, asked, is_unique)
    progress[P_ROW] = 0
    return True


@kernel
def read_on(ring: Any, runs: _I64, progress: _I64) -> int:
    """Submit what there is room for and wait for the oldest run: MORE, IDLE without one, BROKEN."""
    while progress[P_SUBMITTED] < progress[P_GIVEN]:
        i = progress[P_SUBMITTED]
        if not submit(ring, runs[i, 0], runs[i, 1]):
            break
        progress[P_SUBMITTED] += 1
    if in_flight(ring) == 0:
        return IDLE
    return MORE if oldest(ring) != 0 else BROKEN


@inlined
def oldest_run(ring: Any) -> int:
    """The request that `read_on` has waited for."""
    return request_at(ring, ring.taken)


@kernel
def probe_pages(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    watch: Any,
    ring: Any,
    runs: _I64,
    progress: _I64,
    is_unique: bool,
) -> int:
    """Read on, and probe the next `progress[P_WANTED]` pages: MORE when they are done.

    Keys that are watched are counted, or collected into the cache.

    FULL: there is no room for a result; IDLE: all of `runs` is done and more is wanted; BROKEN: a
    read failed. `runs` may list more than is wanted: it is read ahead.
    """
    while progress[P_WANTED] > 0:
        status = read_on(ring, runs, progress)
        if status != MORE:
            return status
        request = oldest_run(ring)
        start, count = load_i64(request + REQ_BUFFER), load_i64(request + REQ_COUNT)
        while progress[P_PAGE] < count and progress[P_WANTED] > 0:
            page = start + progress[P_PAGE] * ring.page_bytes
            if not _probe_page(match, out, waiting, cache, page, progress, is_unique):
                write_out(out, match.page)
                return FULL
            if watch.keys > 0:
                watch_page(watch, cache, page, match.page.record_bytes)
            progress[P_PAGE] += 1
            progress[P_WANTED] -= 1
        # The run's records go with its buffer.
        write_out(out, match.page)
        if progress[P_PAGE] == count:
            progress[P_PAGE] = 0
            give_back(ring)
    return MORE


@kernel
def export_circle(match: Any, out: Any, waiting: Any, met: npt.NDArray[np.uint8]) -> int:
    """Write all waiting rows to the output in the order in which they came; see `export_rows`."""
    needed = 0
    for write in range(2):
        if write == 1 and needed > out.heap_room:
            break
        slot = waiting.free
        for n in range(waiting.used - 1):
            row = slot_address(waiting, slot)
            if write == 1:
                emit(out, row, row_blob_address(waiting, out.stream, row), match.nothing, 0, 0)
                met[n] = np.uint8(has_met(waiting, row))
            elif waiting.blob_at >= 0:
                needed += blob_length(out.stream, row)
            slot = _following(waiting, slot)
    write_out(out, match.nothing)
    return needed


@kernel
def number_of(waiting: Any, number_at: int, place: int) -> int:
    """The number that a row carries at this offset; `place` counts rows from the oldest on."""
    slot = waiting.free + place
    if slot >= waiting.limit:
        slot -= waiting.limit - 1
    return load_i64(slot_address(waiting, slot) + number_at)


@kernel
def forget_met(waiting: Any, number_at: int, first: int) -> int:
    """Let rows from the number `first` on have met nobody; how many they are."""
    slot, count = waiting.free, 0
    for _ in range(waiting.used - 1):
        row = slot_address(waiting, slot)
        if load_i64(row + number_at) >= first:
            clear_met(waiting, row)
            count += 1
        slot = _following(waiting, slot)
    return count
