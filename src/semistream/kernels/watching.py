"""Kernels that watch some keys during a scan of the master: how many records each has, and which.

The table is open-addressed with linear probing, four words a place: the key, how many rows wait
with it (0: the place is empty), how many records were seen, and the first collected entry plus one:
UNMARKED and DROPPED where none are collected. Records are collected right into entries of the
cache, so that a key that moves there is linked, not copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.cache import (
    add_entry,
    add_key,
    blocks_for,
    find,
    first_entry,
    free_entries,
    give_up,
    has_place,
    next_entry,
    set_word,
    word_at,
)
from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import load_i32, load_i64, prefetch, store_i64
from semistream.kernels.pages import PAGE_KEYS, PAGE_ROWS, bucket_of, shard_of
from semistream.kernels.struct import struct_type
from semistream.kernels.waiting import LINK, ring_word, slot_address

_I64 = npt.NDArray[np.int64]

WATCH = struct_type("table places keys collecting")
"""Keys that are watched; `collecting` says whether records are collected or counted."""

WATCH_BYTES = 32
UNMARKED, DROPPED = -1, -2


@inlined
def _place(watch: Any, key: int) -> int:
    """The address of a key's place, or of the empty place where it belongs.

    By other bits than the rings: keys are watched ring by ring until the table is full, and would
    all crowd its first places.
    """
    at = shard_of(key, watch.places)
    while True:
        address = watch.table + WATCH_BYTES * at
        if load_i64(address + 8) == 0 or load_i64(address) == key:
            return address
        at += 1
        if at == watch.places:
            at = 0


@kernel
def watch_page(watch: Any, cache: Any, page: int, stride: int) -> None:
    """Count or collect the records of watched keys in a page."""
    rows = np.int64(load_i32(page + PAGE_ROWS))
    keys = page + PAGE_KEYS
    records = keys + 8 * rows
    for r in range(rows):
        if r + 16 < rows:
            ahead = shard_of(load_i64(keys + 8 * (r + 16)), watch.places)
            prefetch(watch.table + WATCH_BYTES * ahead)
        place = _place(watch, load_i64(keys + 8 * r))
        if load_i64(place + 8) == 0:
            continue
        if watch.collecting == 0:
            store_i64(place + 16, load_i64(place + 16) + 1)
            continue
        head = load_i64(place + 24)
        if head < 0:
            continue
        record = records + r * stride
        if has_place(cache, 1, blocks_for(cache, record, stride, 1)):
            store_i64(place + 24, add_entry(cache, page, record, head - 1) + 1)
        else:
            # Longer than reckoned: a key is cached with all its records or not at all.
            free_entries(cache, head - 1)
            store_i64(place + 24, DROPPED)


@inlined
def _first_of_ring(waiting: Any, bucket: int) -> int:
    """The oldest slot of a ring that is not empty."""
    tail = ring_word(waiting, bucket) & 0xFFFFFFFF
    return np.int64(load_i32(slot_address(waiting, tail) + LINK))


@inlined
def _occurrences(waiting: Any, bucket: int, start: int, key: int) -> int:
    """How often a key occurs in a ring from slot `start` on."""
    tail = ring_word(waiting, bucket) & 0xFFFFFFFF
    slot, count = start, 0
    while True:
        row = slot_address(waiting, slot)
        if load_i64(row) == key:
            count += 1
        if slot == tail:
            return count
        slot = np.int64(load_i32(row + LINK))


@inlined
def _occurs_before(waiting: Any, bucket: int, stop: int, key: int) -> bool:
    slot = _first_of_ring(waiting, bucket)
    while slot != stop:
        row = slot_address(waiting, slot)
        if load_i64(row) == key:
            return True
        slot = np.int64(load_i32(row + LINK))
    return False


@kernel
def watch_keys(waiting: Any, cache: Any, watch: Any, most: int, histogram: _I64) -> int:
    """Watch the keys with which most rows wait, at least two, and which are not cached.

    At most `most` keys. How many there are.
    """
    histogram[:] = 0
    least = np.int64(histogram.size)
    for write in range(2):
        for bucket in range(waiting.buckets):
            word = ring_word(waiting, bucket)
            if word < 0:
                continue
            tail = word & 0xFFFFFFFF
            slot = _first_of_ring(waiting, bucket)
            while slot != tail:
                row = slot_address(waiting, slot)
                key = load_i64(row)
                if not _occurs_before(waiting, bucket, slot, key):
                    count = _occurrences(waiting, bucket, slot, key)
                    if count > 1 and find(cache, key) < 0:
                        if write == 0:
                            histogram[min(count, histogram.size - 1)] += 1
                        elif min(count, histogram.size - 1) >= least and watch.keys < most:
                            place = _place(watch, key)
                            store_i64(place, key)
                            store_i64(place + 8, count)
                            store_i64(place + 16, 0)
                            store_i64(place + 24, UNMARKED)
                            watch.keys += 1
                slot = np.int64(load_i32(row + LINK))
        total = 0
        while write == 0 and least > 2 and total < most:
            least -= 1
            total += histogram[least]
    return watch.keys


@kernel
def count_waiting(waiting: Any, watch: Any) -> None:
    """Count anew how many rows wait with each watched key; at least one, as 0 is an empty place."""
    for at in range(watch.places):
        place = watch.table + WATCH_BYTES * at
        if load_i64(place + 8) != 0:
            key = load_i64(place)
            bucket = bucket_of(key, waiting.buckets)
            count = 0
            if ring_word(waiting, bucket) >= 0:
                count = _occurrences(waiting, bucket, _first_of_ring(waiting, bucket), key)
            store_i64(place + 8, max(count, 1))


@kernel
def move_keys(cache: Any, watch: Any, cycles: int) -> None:
    """Cache the keys whose records were collected, also those that have none.

    A key's counter begins with what it would have had in `cycles` scans.
    """
    for at in range(watch.places):
        place = watch.table + WATCH_BYTES * at
        head = load_i64(place + 24)
        if load_i64(place + 8) == 0 or head < 0:
            continue
        if not has_place(cache, 0, 0):
            free_entries(cache, head - 1)
            continue
        add_key(cache, load_i64(place), head - 1, load_i64(place + 8) * cycles)


@kernel
def keys_without_rows(cache: Any) -> int:
    """Keys that are cached as having no rows."""
    count = 0
    for place in range(cache.places):
        if word_at(cache, place) != 0 and first_entry(cache, place) < 0:
            count += 1
    return count


@kernel
def evict(cache: Any, hits_per_row: float) -> None:
    """Give up the keys that were asked for at most so often per record; count anew the others.

    A key without records counts like one with a single one.
    """
    at = np.int64(0)
    while at < cache.places:
        word = word_at(cache, at)
        if word != 0:
            rows = 0
            entry = first_entry(cache, at)
            while entry >= 0:
                rows += 1
                entry = next_entry(cache, entry)
            if max(rows, 1) * hits_per_row >= np.float64(word >> 32):
                # A later place may move up to this one: look at it again.
                give_up(cache, at)
                cache.given_up += 1
                continue
        at += 1
    for place in range(cache.places):
        word = word_at(cache, place)
        if word != 0:
            set_word(cache, place, word & 0xFFFFFFFF)
