"""Kernels for pages of the master: the page format, checksums, and finding keys.

A page has a fixed size and carries whole rows in the order of key64:

    0   checksum of everything behind it (8 bytes)
    8   number of rows (4)
    12  number of the page (4)
    16  first key64 (8)
    24  last key64 (8)
    32  key64 of every row (8 each)
        records of the rows, as `semistream.store.layout` packs them; a record's blob reference
        is the offset of its byte strings in the page
        byte strings

Keys come first so that a look-up touches one or two cache lines before it reaches its record.
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
    load_u32,
    prefetch,
    store_i32,
    store_i64,
    store_u32,
)
from semistream.kernels.ranges import RANGES, own_page
from semistream.kernels.struct import struct_type

PAGE_ROWS, PAGE_NUMBER, PAGE_FIRST, PAGE_LAST, PAGE_KEYS = 8, 12, 16, 24, 32

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]


ASKED_AHEAD = 16
"""Keys whose place in the index is asked for before it is looked at."""

CLASS_BITS = 4
CLASSES = 1 << CLASS_BITS
"""Classes of frequency in each shard of a master in frequency order."""

INDEX = struct_type(
    "first narrow base continued shard_start shards pages segment_start class_of class_parts "
    "guides guide_count guide_base guide_shift",
    ranges=RANGES,
)
"""The sparse index: the first key64 of every page, minus `base`, and where shards begin (one entry
more than there are shards). Unsigned 32-bit (`narrow`) where the keys' range allows it, else
64-bit: half the memory for most tables. `continued` has a byte per page that says whether it begins
with the key that the page before ends with; it is 0 where keys are unique.

In a master in frequency order a shard has a segment for each class of frequency, which has its
pages in the order of key64: `segment_start` says where they begin, and `class_of` is the address of
a static function from key64 to class (see `class_of_key`). Both are 0 in a master in key order.

Keys need not be even: `guides` divide the range of the firsts from `guide_base` on into
`guide_count` parts of 2^`guide_shift`, and have for each shard and part the first page that does
not begin before it, and the end. They are 0 where there are none.

A part of a master shares `first`, `guides` and their like with the whole one, where all shards and
pages are those of the whole. `shard_start`, `pages` and `continued` are of its own pages."""


@inlined
def mix(key: int) -> int:
    """A 64-bit finaliser (splitmix64): spreads keys over buckets and shards."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inlined
def bucket_of(key: int, buckets: int) -> int:
    """A bucket in [0, buckets), for any number of buckets below 2^32."""
    return np.int64(((mix(key) >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))


@inlined
def shard_of(key: int, shards: int) -> int:
    """The shard that holds a key; uses other bits of the mix than `bucket_of`."""
    return np.int64(((mix(key) & np.uint64(0xFFFFFFFF)) * np.uint64(shards)) >> np.uint64(32))


@kernel
def shards_of(keys: _I64, shards: int, out: npt.NDArray[np.int32]) -> None:
    """The shard of every key."""
    for i in range(keys.size):
        out[i] = np.int32(shard_of(keys[i], shards))


@kernel
def rows_of_part(
    keys: _I64,
    valid: _U8,
    borders: _I64,
    parts: _U8,
    part: int,
    rows: npt.NDArray[np.int32],
    own_keys: _I64,
    own_valid: _U8,
) -> int:
    """Which rows have keys of a part, with these keys and whether they are valid; how many.

    `parts` has the part of each range between the borders.
    """
    count = 0
    for i in range(keys.size):
        # All borders are compared, several at once: a search would be one surprise after the other.
        key, below = keys[i], 0
        for j in range(borders.size):
            below += np.int64(borders[j] <= key)
        rows[count], own_keys[count], own_valid[count] = np.int32(i), key, valid[i]
        count += np.int64(parts[below] == part)
    return count


@inlined
def page_checksum(page: int, page_bytes: int) -> int:
    """Checksum of a page behind its first 8 bytes.

    Four independent multiply-add lanes, folded at the end: each input word is multiplied by an odd
    constant after its lane was rotated in, so any change of one word changes the sum.
    """
    p = np.uint64(0x9E3779B97F4A7C15)
    a, b = np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344)
    c, d = np.uint64(0xA4093822299F31D0), np.uint64(0x082EFA98EC4E6C89)
    word, end = page + 8, page + page_bytes
    while word + 32 <= end:
        a = (a ^ np.uint64(load_i64(word))) * p
        b = (b ^ np.uint64(load_i64(word + 8))) * p
        c = (c ^ np.uint64(load_i64(word + 16))) * p
        d = (d ^ np.uint64(load_i64(word + 24))) * p
        a ^= a >> np.uint64(29)
        b ^= b >> np.uint64(29)
        c ^= c >> np.uint64(29)
        d ^= d >> np.uint64(29)
        word += 32
    while word < end:
        a = (a ^ np.uint64(load_i64(word))) * p
        a ^= a >> np.uint64(29)
        word += 8
    folded = mix(a) ^ (mix(b) * np.uint64(3)) ^ (mix(c) * np.uint64(5)) ^ (mix(d) * np.uint64(7))
    return np.int64(folded)


@inlined
def _share(low: int, high: int, key: int) -> float:
    """How far `key` lies on the way from `low` to `high`, given low < key <= high.

    Subtracted as integers, unsigned because the distance may need all 64 bits: as floats, large
    neighbours such as 2^62 and 2^62 + 1 are equal, and the share would be no number.
    """
    whole = np.float64(np.uint64(high) - np.uint64(low))
    return np.float64(np.uint64(key) - np.uint64(low)) / whole


@inlined
def guess_position(count: int, low: int, high: int, key: int) -> int:
    """Where `key` should lie among `count` sorted keys from `low` to `high`, if they are even.

    Keys of a page are integers in a row or hashes, so the guess is mostly right to a cache line.
    """
    if key <= low or high <= low:
        return 0
    if key >= high:
        return count - 1
    return min(np.int64(_share(low, high, key) * (count - 1)), count - 1)


@inlined
def lower_bound_keys(keys: int, count: int, guess: int, key: int) -> int:
    """First of `count` sorted keys at `keys` that is not below `key`: gallops from a guess."""
    lower, upper = np.int64(-1), count
    if load_i64(keys + 8 * guess) >= key:
        upper = guess
        step = 1
        while upper - step >= 0 and load_i64(keys + 8 * (upper - step)) >= key:
            upper -= step
            step += step
        lower = max(upper - step, -1)
    else:
        lower = guess
        step = 1
        while lower + step < count and load_i64(keys + 8 * (lower + step)) < key:
            lower += step
            step += step
        upper = min(lower + step, count)
    while upper - lower > 1:
        middle = (lower + upper) >> 1
        if load_i64(keys + 8 * middle) >= key:
            upper = middle
        else:
            lower = middle
    return upper


@inlined
def first_of(index: Any, page: int) -> int:
    """The first key64 of a page, minus the index's base."""
    if index.narrow != 0:
        return np.int64(load_u32(index.first + 4 * page))
    return load_i64(index.first + 8 * page)


@inlined
def _lower_bound_index(index: Any, start: int, end: int, key: int) -> int:
    """First page in [start, end) that does not begin below `key`; the same search as above."""
    low, high = first_of(index, start), first_of(index, end - 1)
    if key <= low:
        return start
    if key > high:
        return end
    guess = start + np.int64(_share(low, high, key) * (end - 1 - start))
    guess = min(max(guess, start + 1), end - 1)
    if first_of(index, guess) >= key:
        upper = guess
        step = 1
        while first_of(index, max(upper - step, start)) >= key:
            upper = max(upper - step, start)
            step += step
        lower = max(upper - step, start)
    else:
        lower = guess
        step = 1
        while first_of(index, min(lower + step, end - 1)) < key:
            lower = min(lower + step, end - 1)
            step += step
        upper = min(lower + step, end - 1)
    while upper - lower > 1:
        middle = (lower + upper) >> 1
        if first_of(index, middle) >= key:
            upper = middle
        else:
            lower = middle
    return upper


@inlined
def is_continued(index: Any, page: int) -> bool:
    """Whether a page begins with the last key of the page before."""
    return index.continued != 0 and load_u8(index.continued + page) != 0


@inlined
def cell_of(key: int, seed: int, third: int, cells: int) -> int:
    """One of a key's three cells among the `cells` of its part; `third` is 0, 1 or 2."""
    word = mix(np.uint64(mix(key)) + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15))
    if third > 0:
        turn = np.uint64(21 * third)
        word = (word << turn) | (word >> (np.uint64(64) - turn))
    size = np.uint64(cells // 3)
    return np.int64(size) * third + np.int64(((word >> np.uint64(32)) * size) >> np.uint64(32))


@inlined
def class_of_key(index: Any, key: int) -> int:
    """The class of frequency of a stored key; any class for a key that is not stored.

    There is a word for each of `class_parts` parts of the keys and one more: where the part's cells
    begin, times 256, plus the seed of its hash. Behind them come the cells, two to a byte. The
    class is the exclusive or of three cells of the key's part. Keys are not kept, so this takes 5
    bits a key.
    """
    part = bucket_of(key, index.class_parts)
    word = at(index.class_of, part)
    start, seed = word >> 8, word & 255
    count = (at(index.class_of, part + 1) >> 8) - start
    cells = index.class_of + 8 * (index.class_parts + 1)
    found = np.int64(0)
    for third in range(3):
        place = start + cell_of(key, seed, third, count)
        found ^= np.int64(load_u8(cells + (place >> 1))) >> (CLASS_BITS * (place & 1))
    return found & (CLASSES - 1)


@inlined
def page_of(index: Any, key: int) -> int:
    """The first page that can hold `key`, or -1 if no page can. A part is asked for own keys."""
    shard = 0
    if index.shards > 1:
        shard = shard_of(key, index.shards)
    starts = index.shard_start if index.ranges.count == 0 else index.ranges.shards
    start, end = at(starts, shard), at(starts, shard + 1)
    if index.class_of != 0:
        segment = index.segment_start + 8 * (CLASSES * shard + class_of_key(index, key))
        start, end = load_i64(segment), load_i64(segment + 8)
    if start == end:
        return -1
    wanted = key
    if index.narrow != 0:
        if key < index.base:
            return -1
        # Unsigned, because the distance of two keys may need all 64 bits.
        distance = np.uint64(key) - np.uint64(index.base)
        if distance > np.uint64(0xFFFFFFFF):
            # Beyond 32 bits no page begins: the last page is the only candidate.
            return own_page(index.ranges, shard, end - 1)
        wanted = np.int64(distance)
    page = end
    if index.guides != 0:
        if wanted < index.guide_base:
            return -1
        part = np.uint64(wanted) - np.uint64(index.guide_base)
        part >>= np.uint64(index.guide_shift)
        if part < np.uint64(index.guide_count):
            guide = index.guides + 4 * (shard * (index.guide_count + 1) + np.int64(part))
            page, after = np.int64(load_u32(guide)), np.int64(load_u32(guide + 4))
            if page < after:
                page = _lower_bound_index(index, page, after, wanted)
    else:
        page = _lower_bound_index(index, start, end, wanted)
    if page < end and first_of(index, page) == wanted:
        own = own_page(index.ranges, shard, page)
        if not is_continued(index, own):
            return own
    return own_page(index.ranges, shard, page - 1) if page > start else -1


@inlined
def ask_for_firsts(index: Any, key: int) -> None:
    """Ask for the memory in which `page_of` will look for a key's page, where that is known."""
    if index.guides == 0 or index.shards > 1:
        return
    part = np.uint64(key) - np.uint64(index.base + index.guide_base)
    part >>= np.uint64(index.guide_shift)
    if part < np.uint64(index.guide_count):
        page = np.int64(load_u32(index.guides + 4 * np.int64(part)))
        first = index.first + (4 * page if index.narrow != 0 else 8 * page)
        prefetch(first)
        prefetch(first + 64)


@kernel
def locate(
    index: Any, keys: _I64, known: npt.NDArray[np.int32], out: npt.NDArray[np.int32]
) -> None:
    """The first page of every key, -1 where the index proves that there is none.

    Keys with `known` at or above 0 are skipped and get -1.
    """
    for i in range(min(keys.size, ASKED_AHEAD)):
        if known[i] < 0:
            ask_for_firsts(index, keys[i])
    for i in range(keys.size):
        ahead = i + ASKED_AHEAD
        if ahead < keys.size and known[ahead] < 0:
            ask_for_firsts(index, keys[ahead])
        out[i] = np.int32(-1) if known[i] >= 0 else np.int32(page_of(index, keys[i]))


@inlined
def continues(index: Any, page: int) -> bool:
    """Whether the next page goes on with the last key of `page`."""
    return page + 1 < index.pages and is_continued(index, page + 1)


@inlined
def check_page(page: int, page_bytes: int, number: int) -> bool:
    """Whether the bytes at `page` are what was written as page `number`."""
    return np.int64(load_u32(page + PAGE_NUMBER)) == number and load_i64(page) == page_checksum(
        page, page_bytes
    )


@kernel
def first_bad_page(pages: _U8, page_bytes: int, first: int) -> int:
    """The first page in a buffer of whole pages that does not check; -1 if all do."""
    for i in range(pages.size // page_bytes):
        if not check_page(pages.ctypes.data + i * page_bytes, page_bytes, first + i):
            return first + i
    return -1


@kernel
def fill_pages(
    keys: _I64,
    starts: _I64,
    data: _U8,
    shape: _I64,
    pages: _U8,
    first_number: int,
    page_firsts: _I64,
    page_continued: _U8,
    carry: _I64,
) -> int:
    """Cut sorted rows into pages; return how many rows were consumed.

    `starts` and `data` are packed rows (record, then byte strings). `shape`: record bytes, offset
    of the blob reference or -1, page bytes, bytes of a page to fill, 1 to close the last page too.
    `carry`: pages written (out), last key of the page before (in, out), 1 if there is one.
    """
    record, blob_at, page_bytes = shape[0], shape[1], shape[2]
    fill_bytes, final = shape[3], shape[4]
    source = data.ctypes.data
    rows = keys.size
    done = 0
    count = 0
    room = pages.size // page_bytes
    while done < rows and count < room:
        used = PAGE_KEYS
        end = done
        while end < rows:
            size = 8 + np.int64(starts[end + 1]) - np.int64(starts[end])
            # A page takes at least one row, and may go beyond its fill mark for it.
            if used + size > (fill_bytes if end > done else page_bytes):
                break
            used += size
            end += 1
        if end == rows and final == 0:
            break
        n = end - done
        page = pages.ctypes.data + count * page_bytes
        number = first_number + count
        store_u32(page + PAGE_ROWS, np.uint32(n))
        store_u32(page + PAGE_NUMBER, np.uint32(number))
        store_i64(page + PAGE_FIRST, keys[done])
        store_i64(page + PAGE_LAST, keys[end - 1])
        records = page + PAGE_KEYS + 8 * n
        blob = PAGE_KEYS + (8 + record) * n
        for i in range(n):
            row = done + i
            start = np.int64(starts[row])
            length = np.int64(starts[row + 1]) - start - record
            store_i64(page + PAGE_KEYS + 8 * i, keys[row])
            copy_bytes(records + i * record, source + start, record)
            if blob_at >= 0:
                store_i32(records + i * record + blob_at, np.int32(blob))
                copy_bytes(page + blob, source + start + record, length)
                blob += length
        for i in range(page + blob, page + page_bytes):
            pages[i - pages.ctypes.data] = 0
        store_i64(page, page_checksum(page, page_bytes))
        page_firsts[count] = keys[done]
        page_continued[count] = np.uint8(carry[2] == 1 and carry[1] == keys[done])
        carry[1], carry[2] = keys[end - 1], 1
        done = end
        count += 1
    carry[0] = count
    return done


@kernel
def count_keys(keys: _I64, carry: _I64) -> None:
    """Count distinct key64 and the longest run. `carry`: distinct, longest, run, last, any."""
    for i in range(keys.size):
        if carry[4] == 1 and keys[i] == carry[3]:
            carry[2] += 1
        else:
            carry[0] += 1
            carry[2] = 1
            carry[3], carry[4] = keys[i], 1
        carry[1] = max(carry[1], carry[2])


@kernel
def read_rows(page: _U8, record: int, keys: _I64, records: _U8) -> int:
    """Copy the keys and records of a page out of it; the number of rows."""
    base = page.ctypes.data
    n = np.int64(load_i32(base + PAGE_ROWS))
    copy_bytes(keys.ctypes.data, base + PAGE_KEYS, 8 * n)
    copy_bytes(records.ctypes.data, base + PAGE_KEYS + 8 * n, record * n)
    return n
