"""Kernels for the tuple cache: hot master rows in memory, found by key64.

The table is open-addressed with linear probing, two words a place: the key, and the first entry
(plus one) with the number of hits above it in the high half; 0 means empty. A key's rows are a
chain of entries and always complete: what the cache answers needs no page. Entries hold the leaves
that the join reads (and the key's, where key64 is a hash), in the record format of the layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import at as item
from semistream.kernels.memory import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)
from semistream.kernels.pages import bucket_of, mix
from semistream.kernels.rows import FIELDS, copy_field, copy_wanted, wanted_length
from semistream.kernels.struct import struct_type
from semistream.kernels.waiting import BLOCK_CONTENT, BLOCKS, free_blob, put_blob

_I64 = npt.NDArray[np.int64]

HIT = 1 << 32
"""One hit, in the second word of a place."""

MOST_HITS = 1 << 30
"""Counters stop here, far from the sign bit."""

NO_ROWS = 1 << 31
"""In the place of the first entry: the key is cached, and known to have no rows."""

MOST_RECENT = 255
"""Where the counters of keys that are not cached stop."""

SAMPLED = 6
"""Used places looked at to find one to give up."""


CACHE = struct_type(
    "table places entries entry_bytes link_at scratch free fresh limit used keys random "
    "refused admitted given_up recent recent_lines",
    blocks=BLOCKS,
    page=FIELDS,
    kept=FIELDS,
)
"""The cache: `table` has two words a place, `page` and `kept` read the same leaves from a page and
from an entry, `link_at` is where an entry links to the key's next one. `refused` counts rows that
earned a place and found none. `recent` has counters of keys that were asked for lately and are
not cached, in lines of 64 bytes."""


@inlined
def key_at(cache: Any, place: int) -> int:
    """The key at a place."""
    return load_i64(cache.table + 16 * place)


@inlined
def word_at(cache: Any, place: int) -> int:
    """First entry (plus one) and hits of the key at a place; 0 if it is empty."""
    return load_i64(cache.table + 16 * place + 8)


@inlined
def set_word(cache: Any, place: int, word: int) -> None:
    """Change what `word_at` gives."""
    store_i64(cache.table + 16 * place + 8, word)


@inlined
def find(cache: Any, key: int) -> int:
    """The place of a key, or -1."""
    count = cache.places
    if count == 0:
        return -1
    at = bucket_of(key, count)
    while word_at(cache, at) != 0:
        if key_at(cache, at) == key:
            return at
        at += 1
        if at == count:
            at = 0
    return -1


@kernel
def find_all(
    cache: Any, keys: _I64, valid: npt.NDArray[np.uint8], out: npt.NDArray[np.int32]
) -> None:
    """The place of every key that is not null, -1 where it is not cached."""
    count = cache.places
    for i in range(keys.size):
        ahead = i + 12
        if ahead < keys.size and count > 0:
            prefetch(cache.table + 16 * bucket_of(keys[ahead], count))
        out[i] = np.int32(find(cache, keys[i])) if valid[i] != 0 else np.int32(-1)


@inlined
def first_entry(cache: Any, place: int) -> int:
    """The first entry of the key at a place; -1 if it has no rows."""
    return (word_at(cache, place) & 0x7FFFFFFF) - 1


@inlined
def entry_address(cache: Any, entry: int) -> int:
    """Where an entry lies."""
    return cache.entries + entry * cache.entry_bytes


@inlined
def next_entry(cache: Any, entry: int) -> int:
    """The key's next entry, or -1."""
    return np.int64(load_i32(entry_address(cache, entry) + cache.link_at))


@inlined
def has_more(cache: Any, place: int) -> bool:
    """Whether the key at a place has more than one row."""
    return next_entry(cache, first_entry(cache, place)) >= 0


@inlined
def count_hit(cache: Any, place: int) -> None:
    """Note that the key at a place was asked for."""
    if word_at(cache, place) >> 32 < MOST_HITS:
        set_word(cache, place, word_at(cache, place) + HIT)


@inlined
def _home(cache: Any, place: int) -> int:
    return bucket_of(key_at(cache, place), cache.places)


@inlined
def free_entries(cache: Any, first: int) -> None:
    """Give back an entry and those that it links to."""
    entry = first
    while entry >= 0:
        address = entry_address(cache, entry)
        following = np.int64(load_i32(address + cache.link_at))
        if cache.kept.blob_at >= 0:
            free_blob(cache.blocks, np.int64(load_i32(address + cache.kept.blob_at)))
        store_i32(address + cache.link_at, np.int32(cache.free))
        cache.free = entry
        cache.used -= 1
        entry = following


@inlined
def give_up(cache: Any, place: int) -> None:
    """Remove the key at a place and free its entries; later places of its cluster move up."""
    free_entries(cache, first_entry(cache, place))
    cache.keys -= 1
    count = cache.places
    hole = place
    at = place
    while True:
        at += 1
        if at == count:
            at = 0
        if word_at(cache, at) == 0:
            break
        home = _home(cache, at)
        stays = (hole < home <= at) if hole <= at else (hole < home or home <= at)
        if not stays:
            store_i64(cache.table + 16 * hole, key_at(cache, at))
            set_word(cache, hole, word_at(cache, at))
            hole = at
    set_word(cache, hole, 0)


@inlined
def place_for(cache: Any, key: int) -> int:
    """An empty place for a key that is not cached."""
    count = cache.places
    at = bucket_of(key, count)
    while word_at(cache, at) != 0:
        at += 1
        if at == count:
            at = 0
    return at


@inlined
def place_drawn(cache: Any, random: int) -> int:
    """The place that a random word stands for."""
    high = np.uint64(random) >> np.uint64(32)
    return np.int64((high * np.uint64(cache.places)) >> np.uint64(32))


@inlined
def least_wanted(cache: Any) -> int:
    """The place with the fewest hits among a few used ones, drawn at random; -1 if none was found.

    Each place is drawn for itself: neighbours of a random place would be taken mostly from the
    edges of clusters, and clusters would grow without end.
    """
    best, fewest, seen = np.int64(-1), np.int64(MOST_HITS) * 2, 0
    drawn = cache.random
    for _ in range(SAMPLED + 2):
        drawn = np.int64(mix(drawn + 0x9E3779B9))
        prefetch(cache.table + 16 * place_drawn(cache, drawn))
    for _ in range(4 * SAMPLED):
        cache.random = np.int64(mix(cache.random + 0x9E3779B9))
        at = place_drawn(cache, cache.random)
        word = word_at(cache, at)
        if word != 0:
            if word >> 32 < fewest:
                fewest = word >> 32
                best = at
            seen += 1
            if seen == SAMPLED:
                break
    return best


@inlined
def asked_lately(cache: Any, key: int, hits: int) -> int:
    """How often a key that is not cached was asked for of late, these hits included.

    The smaller of two counters that the key shares with others, both in one line of memory.
    """
    mixed = mix(key)
    line = cache.recent + 64 * bucket_of(key, cache.recent_lines)
    one = line + np.int64(mixed & np.uint64(63))
    other = line + np.int64((mixed >> np.uint64(6)) & np.uint64(63))
    fewest = min(np.int64(load_u8(one)), np.int64(load_u8(other)))
    asked = fewest + hits
    count = min(asked, MOST_RECENT)
    store_u8(one, np.uint8(max(np.int64(load_u8(one)), count)))
    store_u8(other, np.uint8(max(np.int64(load_u8(other)), count)))
    return asked


@inlined
def blocks_for(cache: Any, records: int, stride: int, rows: int) -> int:
    """Blocks that the byte strings of some page records will take."""
    total = 0
    if cache.kept.blob_at >= 0:
        for i in range(rows):
            length = wanted_length(cache.page, records + i * stride)
            total += (length + BLOCK_CONTENT - 1) // BLOCK_CONTENT
    return total


@inlined
def has_place(cache: Any, rows: int, blocks: int) -> bool:
    """Whether that many entries and blocks are free (and a place: a quarter always stays empty)."""
    return (
        cache.used + rows <= cache.limit
        and cache.blocks.used + blocks <= cache.blocks.limit
        and 4 * (cache.keys + 1) <= 3 * cache.places
    )


@inlined
def add_entry(cache: Any, page: int, record: int, following: int) -> int:
    """Copy a record from a page into a free entry that links to another; the caller made room."""
    entry = cache.free
    if entry >= 0:
        address = entry_address(cache, entry)
        cache.free = np.int64(load_i32(address + cache.link_at))
    else:
        entry = cache.fresh
        cache.fresh += 1
        address = entry_address(cache, entry)
    nulls = record + cache.page.nulls_at
    copy_field(address + cache.kept.nulls_at, nulls, cache.page.null_bytes)
    for c in range(cache.page.count):
        target = address + item(cache.kept.offset, c)
        copy_field(target, record + item(cache.page.offset, c), item(cache.page.width, c))
    if cache.kept.blob_at >= 0:
        blob = page + np.int64(load_u32(record + cache.page.blob_at))
        scratch = cache.scratch
        length = copy_wanted(cache.page, record, blob, scratch)
        first = put_blob(cache.blocks, scratch, length)
        store_i32(address + cache.kept.blob_at, np.int32(first))
    store_i32(address + cache.link_at, np.int32(following))
    cache.used += 1
    return entry


@inlined
def add_key(cache: Any, key: int, first: int, hits: int) -> None:
    """Make entries that begin with `first` (-1: none) the rows of a key that is not cached."""
    place = place_for(cache, key)
    store_i64(cache.table + 16 * place, key)
    set_word(cache, place, (hits * HIT) | (first + 1 if first >= 0 else NO_ROWS))
    cache.keys += 1
    cache.admitted += 1


@inlined
def keep(cache: Any, key: int, page: int, records: int, stride: int, rows: int, hits: int) -> None:
    """Copy the records of a key from a page into the cache; the caller has made room."""
    previous = np.int64(-1)
    for i in range(rows):
        previous = add_entry(cache, page, records + i * stride, previous)
    add_key(cache, key, previous, hits)


@kernel
def age(cache: Any, histogram: _I64) -> None:
    """Halve all counters; `histogram` gets the counters before, the last bin those beyond."""
    histogram[:] = 0
    for at in range(cache.places):
        word = word_at(cache, at)
        if word != 0:
            hits = word >> 32
            histogram[min(hits, histogram.size - 1)] += 1
            set_word(cache, at, ((hits >> 1) * HIT) | (word & 0xFFFFFFFF))


@kernel
def shrink(cache: Any, entries: int, blocks: int) -> None:
    """Give up the least wanted keys until so few entries and blocks are used.

    Of keys that are wanted alike, those that go are spread evenly over the table: taking them from
    one end would leave the rest in one cluster.
    """
    floor = np.int64(0)
    while cache.used > entries or cache.blocks.used > blocks:
        candidates, following = 0, np.int64(MOST_HITS) * 2
        for at in range(cache.places):
            word = word_at(cache, at)
            if word != 0 and word >> 32 <= floor:
                candidates += 1
            elif word != 0:
                following = min(following, word >> 32)
        excess = max(cache.used - entries, 1)
        if cache.blocks.used > blocks:
            excess = candidates
        due, at = 0, np.int64(0)
        while at < cache.places and (cache.used > entries or cache.blocks.used > blocks):
            word = word_at(cache, at)
            if word == 0 or word >> 32 > floor:
                at += 1
                continue
            due += excess
            if due >= candidates:
                # The hole may be filled by a later place: look at this one again.
                due -= candidates
                give_up(cache, at)
                cache.given_up += 1
            else:
                at += 1
        if excess >= candidates:
            floor = following


@kernel
def compact(cache: Any, limit: int) -> None:
    """Move all entries below `limit`, of which at most that many are in use."""
    size, link = cache.entry_bytes, cache.link_at
    free, kept = cache.free, np.int64(-1)
    while free >= 0:
        following = np.int64(load_i32(entry_address(cache, free) + link))
        if free < limit:
            store_i32(entry_address(cache, free) + link, np.int32(kept))
            kept = free
        free = following
    cache.free = kept
    for at in range(cache.places):
        word = word_at(cache, at)
        if word == 0:
            continue
        entry = (word & 0x7FFFFFFF) - 1
        previous = np.int64(-1)
        while entry >= 0:
            following = next_entry(cache, entry)
            if entry >= limit:
                if cache.free >= 0:
                    target = cache.free
                    cache.free = next_entry(cache, target)
                else:
                    target = cache.fresh
                    cache.fresh += 1
                copy_bytes(entry_address(cache, target), entry_address(cache, entry), size)
                if previous < 0:
                    set_word(cache, at, (word >> 32) * HIT | (target + 1))
                else:
                    store_i32(entry_address(cache, previous) + link, np.int32(target))
                entry = target
            previous = entry
            entry = following
    if cache.fresh > limit:
        cache.fresh = limit
    cache.limit = limit


@kernel
def collect(cache: Any, out: _I64) -> int:
    """Copy the used places of the table, dense; their number."""
    n = 0
    for at in range(cache.places):
        if word_at(cache, at) != 0:
            out[2 * n], out[2 * n + 1] = key_at(cache, at), word_at(cache, at)
            n += 1
    return n


@kernel
def refill(cache: Any, used: _I64, count: int) -> None:
    """Put collected places into an empty table."""
    for i in range(count):
        place = place_for(cache, used[2 * i])
        store_i64(cache.table + 16 * place, used[2 * i])
        set_word(cache, place, used[2 * i + 1])
