"""Kernels that join: rows on their way in, pages on their way through.

These serve every join that finds pages by an index. Waiting rows hang on the chain of the first
page that can hold their key. When that page is at hand, the whole chain is joined with it at once;
rows whose key goes on in the next page move to its chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.admission import EARNED, keep_tally, promote, reopen_tally
from semistream.kernels.cache import (
    HIT,
    asked_lately,
    blocks_for,
    count_hit,
    entry_address,
    find,
    first_entry,
    give_up,
    has_more,
    has_place,
    keep,
    key_at,
    least_wanted,
    next_entry,
    set_word,
    word_at,
)
from semistream.kernels.frames import frame_address, keep_page
from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import (
    at,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    prefetch,
    store_i32,
    store_i64,
)
from semistream.kernels.pages import (
    PAGE_FIRST,
    PAGE_KEYS,
    PAGE_LAST,
    PAGE_ROWS,
    bucket_of,
    continues,
    guess_position,
    is_continued,
    lower_bound_keys,
    page_of,
)
from semistream.kernels.reading import (
    REQ_BUFFER,
    REQ_COUNT,
    REQ_FIRST,
    count_seen,
    give_back,
    in_flight,
    now_ns,
    oldest,
    submit,
)
from semistream.kernels.rows import (
    COLUMNS,
    FIELDS,
    PAIRS,
    blob_length,
    emit,
    has_room,
    keep_staged,
    pack_blob,
    pack_row,
    pack_rows,
    prefetch_row,
    stage,
    wanted_length,
    write_out,
)
from semistream.kernels.struct import struct_type
from semistream.kernels.waiting import (
    LINK,
    SAMPLE,
    free_slot,
    get_blob,
    hang,
    has_met,
    mark_met,
    next_wanted,
    slot_address,
    slots_left,
    store_blob,
    take_slot,
    write_slot,
)

_I64 = npt.NDArray[np.int64]

LATENCY_BUCKETS = 256

WORK_ROWS = 2048
"""Rows collected before they are joined."""

PAGES_AHEAD = 64
"""Pages whose rows are collected together at most."""

LISTED_AHEAD, SEEN_AHEAD = 256, 2048
"""Pages whose listed rows are taken together at most: there is no stack to be walked for each. More
of them where pages are seen: of many pages few may be wanted, and rows must be some dozens for
their memory to be on its way in time."""

NO_PAGE = np.int64(1) << np.int64(40)

ROWS_AHEAD = 32
"""Listed rows whose memory is asked for before they are taken."""

BLOCKED, PAUSED = 1, 2
"""Rows that wait for the next pages have taken all slots: no pages are asked for any more, and then
those for which they wait alone."""

MORE, FULL, IDLE, BROKEN = 2, 1, 0, -1
"""How a kernel ended: with more to do, no room in the output, nothing left to do, a read failed."""

MATCH = struct_type(
    # What is emitted: a result per pair; rows without a partner; rows with one, once.
    "pairs keep_unmatched keep_matched "
    # Counters; `needed` are heap bytes that one result takes, where the output has too few at all.
    "matched unmatched hits misses null_keys needed "
    # Pages for which rows waited when they came.
    "wanted "
    # Addresses: how often a page's rows were asked for and which ones were (32-bit words), the
    # latency histogram, the work list (two words a row: slot, and where its key lies or should
    # lie), in which rows are grouped by page: the page of each group, counted from the first at
    # hand, and where the groups end; rows as they are found, the stacks that are being walked, and
    # where rows that come in are to be packed, and which (in the memory of `found`).
    "tally asked latency work pages_of ends found active targets numbers "
    # Which of `admission`'s policies the cache follows, its threshold, and where its hand is; the
    # page (plus one) whose tally is kept for more rows to come, and rows asked for so far.
    "policy threshold hand floor open_page open_touched "
    # Pages whose listed rows are taken together, at most.
    "pages_together "
    # The cache is offered the rows of one page in `one_in`; `turn` says of which.
    "one_in turn "
    # Rows of a batch that is drained are listed and not packed before their pages are at hand: a
    # word for each, its page above its number in the batch. Where the list lies (0: there is none),
    # how many it holds at most, how many there are, how many of them were brought in; key64 of the
    # batch's rows, and when they came. Whether it is in the way that rows of the last page read
    # found no room.
    "words most_listed listed brought list_keys list_time blocked",
    # Hits that a row must have to be cached.
    worth=np.float64,
    # How to read the output's leaves from a page and from a cache entry, and none of them.
    page=FIELDS,
    cached=FIELDS,
    nothing=FIELDS,
    # The key's leaves, to verify matches of hashes; empty where key64 is the key.
    row_key=FIELDS,
    page_key=FIELDS,
    cached_key=FIELDS,
    # The batch that is drained.
    columns=COLUMNS,
)
"""What joining a row with master records takes, besides the places where both lie."""


@inlined
def same_key(
    row_key: Any, row: int, row_blob: int, key: Any, record: int, record_blob: int
) -> bool:
    """Whether the key columns of a row and a record are equal, byte by byte."""
    for c in range(key.count):
        a, b = row + at(row_key.offset, c), record + at(key.offset, c)
        for i in range(at(key.width, c)):
            if load_u8(a + i) != load_u8(b + i):
                return False
    # Lengths were compared above; key columns come first, so their bytes do as well.
    start = 0
    for i in range(key.strings):
        if at(key.string_wanted, i) == 0:
            break
        length = np.int64(load_u32(record + at(key.string_at, i)))
        for k in range(start, start + length):
            if load_u8(row_blob + k) != load_u8(record_blob + k):
                return False
        start += length
    return True


@inlined
def row_blob_address(waiting: Any, stream: Any, row: int) -> int:
    """The byte strings of a waiting row in one piece, in scratch memory."""
    if waiting.blob_at < 0:
        return 0
    scratch = waiting.scratch
    first = np.int64(load_i32(row + waiting.blob_at))
    get_blob(waiting.blocks, first, blob_length(stream, row), scratch)
    return scratch


@inlined
def note_latency(match: Any, waiting: Any, slot: int, now: int) -> None:
    """Count how long the row in a sampled slot has waited."""
    if slot % SAMPLE == 0:
        micros = max((now - at(waiting.arrived, slot // SAMPLE)) // 1000, 1)
        exponent = 0
        while micros >> (exponent + 1) > 0:
            exponent += 1
        eighth = ((micros << 3) >> exponent) & 7
        bucket = match.latency + 8 * min(8 * exponent + eighth, LATENCY_BUCKETS - 1)
        store_i64(bucket, load_i64(bucket) + 1)


@inlined
def emit_unmatched(match: Any, out: Any, master: Any, row: int, row_blob: int) -> None:
    """A stream row is proven to have no partner; `master` reads the records noted beside it."""
    match.unmatched += 1
    if match.keep_unmatched != 0:
        emit(out, row, row_blob, master, 0, 0)


@inlined
def heap_for(match: Any, stream_bytes: int, fields: Any, record: int) -> int:
    """Bytes that a result with this record adds to the heap."""
    if match.pairs != 0 and fields.strings > 0 and record != 0:
        return stream_bytes + wanted_length(fields, record)
    return stream_bytes


@inlined
def join_cached(
    match: Any, out: Any, cache: Any, place: int, row: int, row_blob: int, stream_bytes: int
) -> int:
    """Join a row with a cached key: 1 matched, 0 not (hashes only), -1 no room, nothing done."""
    strings = cache.kept.blob_at >= 0
    hashed = match.cached_key.count > 0
    rows, heap = 0, 0
    entry = first_entry(cache, place)
    while entry >= 0:
        rows += 1
        heap += heap_for(match, stream_bytes, match.cached, entry_address(cache, entry))
        entry = next_entry(cache, entry)
    if not has_room(out, rows, heap):
        match.needed = heap
        return -1
    met = 0
    entry = first_entry(cache, place)
    while entry >= 0:
        record = entry_address(cache, entry)
        blob = 0
        if strings:
            blob = cache.scratch
            first = np.int64(load_i32(record + cache.kept.blob_at))
            get_blob(cache.blocks, first, blob_length(cache.kept, record), blob)
        if not hashed or same_key(match.row_key, row, row_blob, match.cached_key, record, blob):
            met = 1
            if match.pairs != 0:
                emit(out, row, row_blob, match.cached, record, blob)
            else:
                break
        entry = next_entry(cache, entry)
    if met == 1 and match.keep_matched != 0:
        emit(out, row, row_blob, match.cached, 0, 0)
    return met


@inlined
def note_target(match: Any, k: int, address: int, number: int) -> None:
    """Note for `pack_rows` where a row is to be written."""
    store_i64(match.targets + 8 * k, address)
    store_i64(match.numbers + 8 * k, number)


@kernel
def take_in(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    columns: Any,
    keys: _I64,
    valid: npt.NDArray[np.uint8],
    found: npt.NDArray[np.int32],
    pages: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    start: int,
    first: int,
    now: int,
) -> int:
    """Accept stream rows in order, from row `start` on; up to which, when there is no more room.

    Row i of the arrays is row `first + i` of the columns or, if `rows` are given, `first +
    rows[i]`. `found` is the place in the cache or -1, `pages` the first page that can hold the key
    or -1. Places may have changed since they were looked up, so each is looked at again.
    Where there is a list, rows that must wait are listed.
    """
    strings = waiting.blob_at >= 0
    scratch = waiting.scratch
    noted, done = 0, start
    for i in range(start, keys.size):
        ahead = i + 12
        if ahead < keys.size:
            if found[ahead] >= 0 and word_at(cache, np.int64(found[ahead])) != 0:
                entry = entry_address(cache, first_entry(cache, np.int64(found[ahead])))
                prefetch(entry)
                prefetch(entry + 64)
            elif pages[ahead] >= 0:
                prefetch(waiting.tail + 4 * np.int64(pages[ahead]))
        place = np.int64(found[i])
        if place >= 0 and (word_at(cache, place) == 0 or key_at(cache, place) != keys[i]):
            # A key was cached or given up meanwhile.
            place = find(cache, keys[i])
            if place < 0:
                pages[i] = np.int32(page_of(index, keys[i]))
        hit = place >= 0
        waits = not hit and valid[i] != 0 and pages[i] >= 0
        number = first + (np.int64(rows[i]) if rows.size > 0 else np.int64(i))
        slot, row, stream_bytes = np.int64(0), stage(out), np.int64(0)
        if waits and match.words != 0:
            if match.listed == match.most_listed:
                break
            store_i64(match.words + 8 * match.listed, (np.int64(pages[i]) << 32) | number)
            match.listed += 1
            match.misses += 1
            done += 1
            continue
        if waits:
            if slots_left(waiting) <= 0:
                break
            slot = take_slot(waiting)
            row = slot_address(waiting, slot)
        store_i64(row, keys[i])
        if strings:
            stream_bytes = pack_row(columns, number, row)
            if stream_bytes > 0:
                pack_blob(columns, number, scratch)
        else:
            # Rows are packed together, before anything reads them.
            note_target(match, noted, row, number)
            noted += 1
            writes = not waits and out.rows - out.written == PAIRS
            if noted == WORK_ROWS or writes or (hit and has_more(cache, place)):
                pack_rows(columns, noted, match.targets, match.numbers)
                noted = 0
        if waits:
            if strings and not store_blob(waiting, row, stream_bytes):
                free_slot(waiting, slot)
                break
            hang(waiting, np.int64(pages[i]), slot)
            if slot % SAMPLE == 0:
                store_i64(waiting.arrived + 8 * (slot // SAMPLE), now)
            match.misses += 1
            done += 1
            continue
        before = out.rows
        met = 0
        if hit:
            met = join_cached(match, out, cache, place, row, scratch, stream_bytes)
        if met < 0 or (met == 0 and not has_room(out, 1, stream_bytes)):
            noted = max(noted - 1, 0)
            break
        if met == 1:
            match.matched += 1
        else:
            emit_unmatched(match, out, match.cached, row, scratch)
        if out.rows > before:
            keep_staged(out)
        else:
            # Its place is the next row's: packed there as well, it would leave its nulls to that.
            noted = max(noted - 1, 0)
        if hit:
            count_hit(cache, place)
            match.hits += 1
        elif valid[i] != 0:
            match.misses += 1
        else:
            match.null_keys += 1
        done += 1
    pack_rows(columns, noted, match.targets, match.numbers)
    write_out(out, match.cached)
    return done


@inlined
def admit(
    match: Any, cache: Any, key: int, page: int, records: int, stride: int, rows: int, hits: int
) -> None:
    """Cache a key that was asked for `hits` times since its page was last read, if it earns it.

    Room that is free anyway is given to whatever was asked for more than once. Without free room a
    key must be worth it, and have been asked for more often lately than one that gives its place
    up; none, and this one stays out. A key that comes for the first time displaces nobody.
    """
    if np.float64(hits) < min(match.worth, 2.0) * rows:
        return
    place = find(cache, key)
    if place >= 0:
        set_word(cache, place, word_at(cache, place) + hits * HIT)
        return
    blocks = blocks_for(cache, records, stride, rows)
    tries = 0
    asked = np.int64(hits)
    while not has_place(cache, rows, blocks):
        if np.float64(hits) < match.worth * rows:
            return
        if tries == 0:
            asked = asked_lately(cache, key, hits)
        victim = np.int64(-1)
        if asked > 1:
            victim = least_wanted(cache)
        tries += 1
        if victim < 0 or tries > rows + 4 or (word_at(cache, victim) >> 32) >= asked:
            cache.refused += rows
            return
        give_up(cache, victim)
        cache.given_up += 1
    keep(cache, key, page, records, stride, rows, asked)


@inlined
def is_listing(match: Any) -> bool:
    """Whether listed rows come in with the pages that are read."""
    return match.words != 0 and match.blocked == 0


@inlined
def next_listed(match: Any) -> int:
    """The page of the next listed row that is to be brought in; beyond all pages without one."""
    if not is_listing(match) or match.brought == match.listed:
        return NO_PAGE
    return at(match.words, match.brought) >> 32


@inlined
def is_offered(match: Any, cache: Any, page: int) -> bool:
    """Whether the cache is offered the rows of a page."""
    return cache.limit > 0 and (page + match.turn) % match.one_in == 0


@inlined
def ask_for_keys(cache: Any, page: int, key: int, offered: bool) -> int:
    """Where a key should lie in its page; asks for the memory of what will be looked at."""
    guess = guess_position(
        np.int64(load_i32(page + PAGE_ROWS)),
        load_i64(page + PAGE_FIRST),
        load_i64(page + PAGE_LAST),
        key,
    )
    if offered and cache.places > 0:
        prefetch(cache.table + 16 * bucket_of(key, cache.places))
    if offered and cache.recent_lines > 0:
        prefetch(cache.recent + 64 * bucket_of(key, cache.recent_lines))
    prefetch(page + PAGE_KEYS + 8 * guess)
    return guess


@inlined
def ask_for_listed(match: Any, listed: int, buffer: int, first: int, page_bytes: int) -> None:
    """Ask for the memory of a listed row, and for the begin of its page."""
    word = at(match.words, listed)
    prefetch(match.list_keys + 8 * (word & 0xFFFFFFFF))
    prefetch_row(match.columns, word & 0xFFFFFFFF)
    prefetch(buffer + max((word >> 32) - first, 0) * page_bytes)


@kernel
def bring_in(
    match: Any, waiting: Any, cache: Any, buffer: int, page_bytes: int, first: int, count: int
) -> int:
    """Take listed rows of some pages into the work list, grouped by page; how many groups.

    They are packed only now, when their pages are at hand, into slots that others have just left:
    nothing of that leaves the processor's caches. Rows for which there is no room stay listed.
    """
    strings = waiting.blob_at >= 0
    begin, rows = match.brought, np.int64(0)
    most = min(slots_left(waiting), np.int64(WORK_ROWS), match.listed - begin)
    while rows < most and at(match.words, begin + rows) >> 32 < first + count:
        rows += 1
    for k in range(min(rows, np.int64(ROWS_AHEAD))):
        ask_for_listed(match, begin + k, buffer, first, page_bytes)
    page, groups = np.int64(-1), 0
    for k in range(rows):
        word = at(match.words, begin + k)
        number = word & 0xFFFFFFFF
        if k + ROWS_AHEAD < rows:
            ask_for_listed(match, begin + k + ROWS_AHEAD, buffer, first, page_bytes)
        slot = take_slot(waiting)
        row, key = slot_address(waiting, slot), at(match.list_keys, number)
        store_i64(row, key)
        if strings:
            size = pack_row(match.columns, number, row)
            if size > 0:
                pack_blob(match.columns, number, waiting.scratch)
            if not store_blob(waiting, row, size):
                free_slot(waiting, slot)
                rows = np.int64(k)
                break
        else:
            note_target(match, k, row, number)
        if slot % SAMPLE == 0:
            store_i64(waiting.arrived + 8 * (slot // SAMPLE), match.list_time)
        if (word >> 32) - first != page:
            page = (word >> 32) - first
            store_i64(match.pages_of + 8 * groups, page)
            store_i64(match.ends + 8 * groups, k)
            groups += 1
        store_i64(match.work + 16 * k, slot)
        offered = is_offered(match, cache, first + page)
        guess = ask_for_keys(cache, buffer + page * page_bytes, key, offered)
        store_i64(match.work + 16 * k + 8, guess)
    store_i64(match.ends + 8 * groups, rows)
    if not strings:
        pack_rows(match.columns, rows, match.targets, match.numbers)
    match.brought = begin + rows
    match.wanted += groups
    return groups


@kernel
def collect_rows(
    match: Any, waiting: Any, cache: Any, buffer: int, page_bytes: int, first: int, count: int
) -> int:
    """Take the rows that wait for some pages into the work list, grouped by page; how many groups.

    All stacks are walked side by side, one row of each in turn: a row's memory is asked for one
    round before it is used, so the processor waits for many of them at once instead of for each.
    Rows beyond the list's end stay on their stacks.
    """
    groups = 0
    for i in range(count):
        slot = np.int64(load_i32(waiting.tail + 4 * (first + i)))
        if slot >= 0:
            prefetch(slot_address(waiting, slot))
            prefetch(buffer + i * page_bytes)
            store_i64(match.active + 8 * groups, (slot << 8) | groups)
            store_i64(match.pages_of + 8 * groups, i)
            store_i64(match.ends + 8 * (groups + 1), 0)
            store_i32(waiting.tail + 4 * (first + i), np.int32(-1))
            groups += 1
    match.wanted += groups
    store_i64(match.ends, 0)
    active = groups
    rows = 0
    while active > 0:
        still = 0
        for k in range(active):
            word = at(match.active, k)
            slot, group = word >> 8, word & 255
            if rows == WORK_ROWS:
                page = first + at(match.pages_of, group)
                store_i32(waiting.tail + 4 * page, np.int32(slot))
                continue
            store_i64(match.found + 8 * rows, word)
            rows += 1
            end = match.ends + 8 * (group + 1)
            store_i64(end, load_i64(end) + 1)
            following = np.int64(load_i32(slot_address(waiting, slot) + LINK))
            if following >= 0:
                prefetch(slot_address(waiting, following))
                store_i64(match.active + 8 * still, (following << 8) | group)
                still += 1
        active = still
    # Group by page: `ends` holds the counts, then where each group begins, then where it ends.
    total = np.int64(0)
    for group in range(groups):
        end = match.ends + 8 * (group + 1)
        size = load_i64(end)
        store_i64(end, total)
        total += size
    for row in range(rows):
        word = at(match.found, row)
        slot, group = word >> 8, word & 255
        end = match.ends + 8 * (group + 1)
        place = load_i64(end)
        store_i64(end, place + 1)
        key, page = load_i64(slot_address(waiting, slot)), at(match.pages_of, group)
        offered = is_offered(match, cache, first + page)
        guess = ask_for_keys(cache, buffer + page * page_bytes, key, offered)
        store_i64(match.work + 16 * place, slot)
        store_i64(match.work + 16 * place + 8, guess)
    return groups


@inlined
def find_rows(match: Any, waiting: Any, page: int, start: int, end: int) -> None:
    """Find the keys of collected rows in their page, and ask for the memory of their records."""
    rows = np.int64(load_i32(page + PAGE_ROWS))
    keys = page + PAGE_KEYS
    stride = match.page.record_bytes
    records = keys + 8 * rows
    for i in range(start, end):
        key = load_i64(slot_address(waiting, at(match.work, 2 * i)))
        guess = at(match.work, 2 * i + 1)
        low = lower_bound_keys(keys, rows, guess, key) if rows > 0 else np.int64(0)
        record = records + low * stride
        prefetch(record)
        if stride > 64:
            prefetch(record + 64)
        if stride > 128:
            prefetch(record + 128)
        store_i64(match.work + 16 * i + 8, low)


@kernel
def join_rows(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    page: int,
    number: int,
    start: int,
    end: int,
    now: int,
) -> int:
    """Join collected rows with their page; the first that found no room, else `end`."""
    rows = np.int64(load_i32(page + PAGE_ROWS))
    keys = page + PAGE_KEYS
    stride = match.page.record_bytes
    records = keys + 8 * rows
    strings = match.page.blob_at >= 0
    hashed = match.page_key.count > 0
    caching = is_offered(match, cache, number)
    goes_on = continues(index, number)
    touched = np.int64(0)
    if match.policy != EARNED:
        touched = reopen_tally(match, number)
    done = start
    while done < end:
        slot = at(match.work, 2 * done)
        low = at(match.work, 2 * done + 1)
        row = slot_address(waiting, slot)
        key = load_i64(row)
        high = low
        while high < rows and load_i64(keys + 8 * high) == key:
            high += 1
        row_blob, stream_bytes = np.int64(0), np.int64(0)
        if waiting.blob_at >= 0:
            stream_bytes = blob_length(out.stream, row)
            row_blob = row_blob_address(waiting, out.stream, row)
        heap = stream_bytes * max(high - low, 1)
        if strings and match.pairs != 0:
            for r in range(low, high):
                heap += wanted_length(match.page, records + r * stride)
        if not has_room(out, max(high - low, 1), heap):
            match.needed = heap
            break
        met = False
        for r in range(low, high):
            record = records + r * stride
            blob = np.int64(0)
            if strings:
                blob = page + np.int64(load_u32(record + match.page.blob_at))
            if hashed and not same_key(match.row_key, row, row_blob, match.page_key, record, blob):
                continue
            if match.pairs != 0:
                emit(out, row, row_blob, match.page, record, blob)
            met = True
        if caching and high > low:
            asked = load_i32(match.tally + 4 * low)
            if asked == 0:
                store_i32(match.asked + 4 * touched, np.int32(low))
                touched += 1
            store_i32(match.tally + 4 * low, np.int32(asked + 1))
        before = has_met(waiting, row)
        if met and not before:
            mark_met(waiting, row)
            if match.keep_matched != 0:
                emit(out, row, row_blob, match.nothing, 0, 0)
        if high == rows and high > low and goes_on:
            hang(waiting, number + 1, slot)
        else:
            if met or before:
                match.matched += 1
            else:
                emit_unmatched(match, out, match.page, row, row_blob)
            note_latency(match, waiting, slot, now)
            free_slot(waiting, slot)
        done += 1
    if caching and match.policy != EARNED:
        more = done < end or load_i32(waiting.tail + 4 * number) >= 0
        caching = not (more and keep_tally(match, number, touched))
    if caching:
        begun = is_continued(index, number)
        _settle(match, cache, keys, records, stride, page, rows, touched, goes_on, begun)
    return done


@inlined
def hang_back(match: Any, waiting: Any, first: int, group: int, groups: int, reached: int) -> None:
    """Rows from place `reached` of the work list on, of a group and those behind it, wait again."""
    start = reached
    for i in range(group, groups):
        page = first + at(match.pages_of, i)
        for k in range(start, at(match.ends, i + 1)):
            hang(waiting, page, at(match.work, 2 * k))
        start = at(match.ends, i + 1)


@kernel
def take_moved(match: Any, waiting: Any, page: int, number: int, room: int) -> int:
    """Take rows whose key goes on in a page into the begin of the work list, which has `room` for
    so many; how many, or 0 with all of them still waiting."""
    count, slot = 0, np.int64(load_i32(waiting.tail + 4 * number))
    rows, first = np.int64(load_i32(page + PAGE_ROWS)), load_i64(page + PAGE_FIRST)
    last = load_i64(page + PAGE_LAST)
    while slot >= 0:
        if count == room:
            return 0
        address = slot_address(waiting, slot)
        store_i64(match.work + 16 * count, slot)
        store_i64(match.work + 16 * count + 8, guess_position(rows, first, last, load_i64(address)))
        count += 1
        slot = np.int64(load_i32(address + LINK))
    store_i32(waiting.tail + 4 * number, np.int32(-1))
    return count


@kernel
def join_pages(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    buffer: int,
    page_bytes: int,
    first: int,
    count: int,
    now: int,
) -> int:
    """Join the rows that wait for some neighbouring pages; how many pages are done.

    Rows of several pages are collected, found, and joined in three passes, so that their cache
    lines arrive while others are worked on. Nothing is lost when the output is full: the rows that
    were not reached keep waiting.
    """
    done, ahead = 0, PAGES_AHEAD
    while done < count:
        base, begin = buffer + done * page_bytes, first + done
        pages = min(count - done, ahead)
        if is_listing(match) and load_i32(waiting.tail + 4 * begin) < 0:
            pages = min(count - done, match.pages_together)
            if waiting.used > 1:
                pages = next_wanted(waiting, begin, begin + pages) - begin
            # What was noted refers to slots that others come into now.
            write_out(out, match.page)
            groups = bring_in(match, waiting, cache, base, page_bytes, begin, pages)
            if groups == 0 and next_listed(match) < begin + pages:
                match.blocked = BLOCKED
        else:
            groups = collect_rows(match, waiting, cache, base, page_bytes, begin, pages)
        for group in range(groups):
            address = base + at(match.pages_of, group) * page_bytes
            find_rows(match, waiting, address, at(match.ends, group), at(match.ends, group + 1))
        group, page, finished = 0, np.int64(-1), np.int64(pages)
        while True:
            if page >= 0 and load_i32(waiting.tail + 4 * (begin + page)) >= 0:
                # Rows beyond the work list, or more than its begin takes: once more from here.
                finished = page
                break
            following = np.int64(pages)
            if (
                page >= 0
                and page + 1 < pages
                and load_i32(waiting.tail + 4 * (begin + page + 1)) >= 0
            ):
                # Rows whose key goes on in the next page.
                following = page + 1
            elif group < groups:
                following = at(match.pages_of, group)
            if next_listed(match) - begin < following:
                # Listed rows for which there was no room, or which are not looked at with others.
                finished = next_listed(match) - begin
                break
            if following == pages:
                break
            page = following
            number, address = begin + page, base + page * page_bytes
            start = end = at(match.ends, group)
            if group < groups and at(match.pages_of, group) == page:
                end = at(match.ends, group + 1)
            if start < end:
                reached = join_rows(
                    match, out, waiting, cache, index, address, number, start, end, now
                )
                if reached < end:
                    hang_back(match, waiting, begin, group, groups, reached)
                    write_out(out, match.page)
                    return done + page
                group += 1
            if load_i32(waiting.tail + 4 * number) >= 0:
                # Rows whose key goes on here: the list's begin is free by now.
                moved = take_moved(match, waiting, address, number, end)
                reached = moved
                if moved > 0:
                    find_rows(match, waiting, address, 0, moved)
                    reached = join_rows(
                        match, out, waiting, cache, index, address, number, 0, moved, now
                    )
                if reached < moved:
                    for k in range(reached, moved):
                        hang(waiting, number, at(match.work, 2 * k))
                    hang_back(match, waiting, begin, group, groups, end)
                    write_out(out, match.page)
                    return done + page
        hang_back(match, waiting, begin, group, groups, at(match.ends, group))
        if group < groups and at(match.ends, groups) == WORK_ROWS:
            # Rows of fewer pages fit the list; those of the others were collected in vain.
            ahead = max(ahead // 2, 1)
        done += finished
    write_out(out, match.page)
    return done


@kernel
def _settle(
    match: Any,
    cache: Any,
    keys: int,
    records: int,
    stride: int,
    page: int,
    rows: int,
    touched: int,
    goes_on: bool,
    begun: bool,
) -> None:
    """After a page: offer the keys that were asked for to the cache, and clear the tally.

    Keys that reach over a page's edge are not cached: an entry must hold all rows of its key.
    """
    for i in range(touched):
        low = np.int64(load_i32(match.asked + 4 * i))
        hits = np.int64(load_i32(match.tally + 4 * low))
        store_i32(match.tally + 4 * low, np.int32(0))
        key = load_i64(keys + 8 * low)
        high = low + 1
        while high < rows and load_i64(keys + 8 * high) == key:
            high += 1
        if (high == rows and goes_on) or (low == 0 and begun):
            continue
        if match.policy == EARNED:
            admit(match, cache, key, page, records + low * stride, stride, high - low, hits)
        else:
            promote(match, cache, key, page, records + low * stride, stride, high - low, hits)


@kernel
def join_framed(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    frames: Any,
    pages: _I64,
    count: int,
    now: int,
) -> int:
    """Join the pages that are in the buffer pool; those that are not stay in `pages`, their number.

    Pages that found no room in the output stay as well.
    """
    left = 0
    full = False
    for i in range(count):
        address = frame_address(frames, pages[i])
        if address != 0 and not full:
            before = match.matched + match.unmatched
            done = join_pages(
                match, out, waiting, cache, index, address, frames.page_bytes, pages[i], 1, now
            )
            joined = match.matched + match.unmatched - before
            match.hits += joined
            match.misses -= joined
            full = done == 0
            if not full:
                continue
        pages[left] = pages[i]
        left += 1
    return left


@kernel
def join_next(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    ring: Any,
    frames: Any,
    runs: _I64,
    progress: _I64,
    now: int,
) -> int:
    """Submit what there is room for and join the oldest run: MORE when it is done."""
    size = ring.page_bytes
    while progress[0] < progress[1] and match.blocked != BLOCKED:
        if not submit(ring, runs[progress[0], 0], runs[progress[0], 1]):
            break
        progress[0] += 1
    if in_flight(ring) == 0:
        return IDLE
    request = oldest(ring)
    if request == 0:
        return BROKEN
    begin = now_ns(ring.message + 8) if ring.measure != 0 else np.int64(0)
    first, count = load_i64(request + REQ_FIRST), load_i64(request + REQ_COUNT)
    start = load_i64(request + REQ_BUFFER)
    done, wanted = progress[2], match.wanted
    done += join_pages(
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
    count_seen(ring, request, match.wanted - wanted)
    if ring.measure != 0:
        ring.join_ns += now_ns(ring.message + 8) - begin
    if done < count:
        progress[2] = done
        return FULL
    progress[2] = 0
    for i in range(count if frames.count > 0 else 0):
        keep_page(frames, first + i, start + i * size)
    give_back(ring)
    return MORE


@kernel
def join_runs(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    index: Any,
    ring: Any,
    frames: Any,
    runs: _I64,
    progress: _I64,
    now: int,
) -> int:
    """Read runs of pages, several ahead, and join each page in turn.

    `runs` has the first page and the number of pages of each; `progress`: runs submitted, runs
    given, pages of the oldest run done. FULL: call again with an emptied output; IDLE: all runs
    are done; BROKEN: a read failed (the ring says which). Pages are kept in the buffer pool, if
    `frames` has any.
    """
    status = MORE
    while status == MORE:
        status = join_next(match, out, waiting, cache, index, ring, frames, runs, progress, now)
    return status


@kernel
def feed(
    match: Any,
    out: Any,
    waiting: Any,
    cache: Any,
    columns: Any,
    keys: _I64,
    valid: npt.NDArray[np.uint8],
    found: npt.NDArray[np.int32],
    pages: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    first: int,
    index: Any,
    ring: Any,
    frames: Any,
    runs: _I64,
    progress: _I64,
    now: int,
) -> int:
    """Take rows in and, whenever no more can wait, join a run to make room; how many were taken.

    So the disk is kept busy while rows come in. `progress[3]` says why it stopped early: FULL, IDLE
    when there are no more runs, or BROKEN.
    """
    done = np.int64(0)
    while True:
        done = take_in(
            match,
            out,
            waiting,
            cache,
            index,
            columns,
            keys,
            valid,
            found,
            pages,
            rows,
            done,
            first,
            now,
        )
        if done == keys.size:
            return done
        if slots_left(waiting) > 0:
            progress[3] = FULL
            return done
        status = join_next(match, out, waiting, cache, index, ring, frames, runs, progress, now)
        if status != MORE:
            progress[3] = status
            return done


@kernel
def export_rows(
    match: Any, out: Any, waiting: Any, pages: npt.NDArray[np.int32], met: npt.NDArray[np.uint8]
) -> int:
    """Write all waiting rows to the output; the bytes that their byte strings need.

    Nothing is written when the output's heap has fewer bytes than that.
    """
    needed = 0
    for write in range(2):
        n = 0
        if write == 1 and needed > out.heap_room:
            break
        for bucket in range(waiting.buckets):
            top = np.int64(load_i32(waiting.tail + 4 * bucket))
            slot = top
            while slot >= 0:
                row = slot_address(waiting, slot)
                if write == 1:
                    blob = row_blob_address(waiting, out.stream, row)
                    emit(out, row, blob, match.nothing, 0, 0)
                    pages[n] = np.int32(bucket)
                    met[n] = np.uint8(has_met(waiting, row))
                elif waiting.blob_at >= 0:
                    needed += blob_length(out.stream, row)
                n += 1
                slot = np.int64(load_i32(row + LINK))
    write_out(out, match.nothing)
    return needed


@kernel
def import_rows(
    waiting: Any,
    columns: Any,
    keys: _I64,
    pages: npt.NDArray[np.int32],
    met: npt.NDArray[np.uint8],
    now: int,
) -> int:
    """Let rows wait for the pages given; how many found room."""
    for i in range(keys.size):
        if slots_left(waiting) <= 0:
            return i
        slot = take_slot(waiting)
        address = slot_address(waiting, slot)
        store_i64(address, keys[i])
        if not write_slot(waiting, columns, i, slot):
            free_slot(waiting, slot)
            return i
        if met[i] != 0:
            mark_met(waiting, address)
        hang(waiting, np.int64(pages[i]), slot)
        if slot % SAMPLE == 0:
            store_i64(waiting.arrived + 8 * (slot // SAMPLE), now)
    return keys.size
