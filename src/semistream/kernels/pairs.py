"""Kernels for joins under a condition: candidates are listed as pairs, checked, then emitted.

Records of some pages are copied into a *block*, each with its key64 in front and the number of its
page in place of the link, so that a record of the master is read like a waiting row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.matching import row_blob_address, same_key
from semistream.kernels.memory import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u32,
    store_i32,
    store_i64,
)
from semistream.kernels.mesh import oldest_run
from semistream.kernels.pages import PAGE_KEYS, PAGE_ROWS, bucket_of
from semistream.kernels.reading import REQ_BUFFER, REQ_COUNT, REQ_FIRST, give_back
from semistream.kernels.rows import blob_length, emit, has_room, wanted_length, write_out
from semistream.kernels.struct import struct_type
from semistream.kernels.waiting import (
    LINK,
    has_met,
    mark_met,
    ring_word,
    signature,
    slot_address,
)

_I64 = npt.NDArray[np.int64]

PREFIX = 12
"""key64 and the page's number in front of a record."""

BLOCK = struct_type("records stride count pages page_bytes")
"""Records of `pages`, the address of the first page; `count` of them are there."""


@kernel
def run_at(ring: Any, out: _I64) -> None:
    """Where the run lies that has arrived, how many pages it has, and which is the first."""
    request = oldest_run(ring)
    out[0], out[1] = load_i64(request + REQ_BUFFER), load_i64(request + REQ_COUNT)
    out[2] = load_i64(request + REQ_FIRST)


@kernel
def done_with_run(ring: Any) -> None:
    """The run that arrived has been used."""
    give_back(ring)


@kernel
def fill_block(block: Any, address: int, pages: int) -> None:
    """Copy all rows of some pages that lie one after the other."""
    block.pages, block.count = address, 0
    size = block.stride - PREFIX
    for number in range(pages):
        page = address + number * block.page_bytes
        rows = np.int64(load_i32(page + PAGE_ROWS))
        keys = page + PAGE_KEYS
        records = keys + 8 * rows
        for r in range(rows):
            target = block.records + (block.count + r) * block.stride
            store_i64(target, load_i64(keys + 8 * r))
            store_i32(target + LINK, np.int32(number))
            copy_bytes(target + PREFIX, records + r * size, size)
        block.count += rows


@kernel
def pages_of(block: Any, out: _I64) -> None:
    """The number of the page, counted from the first, of every record of a block."""
    for i in range(block.count):
        out[i] = np.int64(load_i32(block.records + i * block.stride + LINK))


@inlined
def _record(block: Any, number: int) -> int:
    return block.records + number * block.stride


@inlined
def _blob(block: Any, fields: Any, record: int) -> int:
    """Where the byte strings of a block's record lie: still in its page."""
    if fields.blob_at < 0:
        return 0
    page = block.pages + np.int64(load_i32(record + LINK)) * block.page_bytes
    return page + np.int64(load_u32(record + fields.blob_at))


@kernel
def copy_block(out: Any, nothing: Any, block: Any) -> int:
    """Columns of all records of a block; bytes that byte strings need, if they find no room."""
    needed = np.int64(0)
    for i in range(block.count):
        needed += wanted_length(out.stream, _record(block, i))
    if needed > out.heap_room:
        return needed
    for i in range(block.count):
        record = _record(block, i)
        emit(out, record, _blob(block, out.stream, record), nothing, 0, 0)
    write_out(out, nothing)
    return 0


@kernel
def copy_slots(out: Any, nothing: Any, waiting: Any, slots: _I64) -> int:
    """Columns of waiting rows, as many as find room; how many."""
    done = 0
    for i in range(slots.size):
        row = slot_address(waiting, slots[i])
        length = np.int64(0)
        if out.stream.strings > 0:
            length = wanted_length(out.stream, row)
        if not has_room(out, 1, length):
            break
        emit(out, row, row_blob_address(waiting, out.stream, row), nothing, 0, 0)
        done += 1
    write_out(out, nothing)
    return done


@kernel
def unanswered(match: Any, waiting: Any, first: int, count: int, out: _I64) -> int:
    """Slots of `count` waiting rows, from the one `first` behind the oldest on; how many.

    Where a row is emitted once at most, those that have met a partner are left out.
    """
    n = 0
    for i in range(first, first + count):
        slot = waiting.free + i
        if slot >= waiting.limit:
            slot -= waiting.limit - 1
        if match.pairs != 0 or not has_met(waiting, slot_address(waiting, slot)):
            out[n] = slot
            n += 1
    return n


@kernel
def equal_pairs(
    match: Any, out: Any, waiting: Any, block: Any, place: _I64, slots: _I64, records: _I64
) -> int:
    """Waiting rows and records of a block with the same key, as many as the lists hold; how many.

    `place` says where to go on: the record, and the slot of its ring or -1 for the first.
    """
    n = 0
    hashed = match.page_key.count > 0
    for number in range(place[0], block.count):
        record = _record(block, number)
        key = load_i64(record)
        word = ring_word(waiting, bucket_of(key, waiting.buckets))
        if word < 0 or word & signature(key) == 0:
            continue
        tail = word & 0xFFFFFFFF
        slot = place[1]
        if slot < 0:
            slot = np.int64(load_i32(slot_address(waiting, tail) + LINK))
        place[1] = -1
        while True:
            row = slot_address(waiting, slot)
            if load_i64(row) == key:
                equal = True
                if hashed:
                    row_blob = row_blob_address(waiting, out.stream, row)
                    blob = _blob(block, match.page, record)
                    equal = same_key(match.row_key, row, row_blob, match.page_key, record, blob)
                if equal:
                    if n == slots.size:
                        place[0], place[1] = number, slot
                        return n
                    slots[n], records[n] = slot, number
                    n += 1
            if slot == tail:
                break
            slot = np.int64(load_i32(row + LINK))
    place[0] = block.count
    return n


@kernel
def emit_pairs(
    match: Any, out: Any, waiting: Any, block: Any, slots: _I64, records: _I64, start: int
) -> int:
    """Emit what a list of partners gives, from `start` on; how far it came, when there is no room.

    Each row notes that it has met a partner.
    """
    done = start
    for i in range(start, slots.size):
        row = slot_address(waiting, slots[i])
        if match.pairs == 0 and (match.keep_matched == 0 or has_met(waiting, row)):
            mark_met(waiting, row)
            done += 1
            continue
        record = _record(block, records[i])
        heap, row_blob = np.int64(0), np.int64(0)
        if waiting.blob_at >= 0:
            heap += blob_length(out.stream, row)
            row_blob = row_blob_address(waiting, out.stream, row)
        if match.pairs != 0 and match.page.blob_at >= 0:
            heap += wanted_length(match.page, record)
        if not has_room(out, 1, heap):
            match.needed = heap
            break
        if match.pairs != 0:
            emit(out, row, row_blob, match.page, record, _blob(block, match.page, record))
        else:
            emit(out, row, row_blob, match.nothing, 0, 0)
        mark_met(waiting, row)
        done += 1
    write_out(out, match.page)
    return done
