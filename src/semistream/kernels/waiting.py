"""Kernels for waiting stream rows: slots, chains of slots, and blocks for byte strings.

A *slot* holds one stream row as a record with its prefix: key64, then the link. Slots that share a
bucket form a chain through their links; free slots form a list through the same links.

Joins with an index have a bucket of four bytes per page and take whole chains at once: there a
chain is a stack, and nothing but its new slot is touched by `hang`.

Joins that scan have a bucket per hash of the key and let rows go in the order in which they came:
there a chain is a ring (`append`, `pop_oldest`), whose end links back to its oldest slot. Its
bucket takes eight bytes: the youngest slot and, above it, a signature of the keys in the ring,
which spares most walks along rings that do not hold the key.

Byte strings of a row lie in *blocks* of 32 bytes, 28 of them content and 4 the next block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)
from semistream.kernels.pages import mix
from semistream.kernels.queue import enqueue
from semistream.kernels.rows import pack_blob, pack_row
from semistream.kernels.struct import struct_type

LINK = 8
"""Offset of the link in a slot; key64 is in front of it."""

BLOCK_BYTES = 32
BLOCK_CONTENT = 28

SIGNED_SLOTS = 6
"""Rings up to this length get a fresh signature when a row leaves."""

SAMPLE = 64
"""Every 64th slot notes when its row came, for the latency histogram."""


BLOCKS = struct_type("data free fresh limit used")
"""A heap of blocks: first free one (-1: none), never used from `fresh` on, how many may be used."""

WAITING = struct_type(
    "rows stride tail buckets arrived scratch blob_at flag_at flag_bit free fresh limit used "
    "queue span oldest newest marks",
    blocks=BLOCKS,
)
"""Waiting rows: slots at `rows`, chains at `tail`. `flag_at` and `flag_bit` say where a row notes
that it has met a partner. Slot 0 is for rows that pass through; it counts as used for ever.
Where there is a `queue`, it lists groups of `span` buckets in the order in which they ceased to be
empty; see `semistream.kernels.queue`. Where there are `marks`, one byte tells of MARKED buckets
whether a slot may hang on any of them."""

MARKED, MARK_BITS = 64, 6


@inlined
def slot_address(waiting: Any, slot: int) -> int:
    """Where a slot lies."""
    return waiting.rows + slot * waiting.stride


@inlined
def slots_left(waiting: Any) -> int:
    """How many more rows can wait."""
    return waiting.limit - waiting.used


@inlined
def take_slot(waiting: Any) -> int:
    """A free slot; the caller knows that there is one."""
    if waiting.used == 1:
        # All are free: in the order of memory they come faster than in that in which they went.
        waiting.free, waiting.fresh = np.int64(-1), np.int64(1)
    waiting.used += 1
    slot = waiting.free
    if slot >= 0:
        following = np.int64(load_i32(slot_address(waiting, slot) + LINK))
        waiting.free = following
        if following >= 0:
            prefetch(slot_address(waiting, following))
        return slot
    slot = waiting.fresh
    waiting.fresh += 1
    return slot


@inlined
def free_slot(waiting: Any, slot: int) -> None:
    """Give a slot back, and its blocks."""
    waiting.used -= 1
    address = slot_address(waiting, slot)
    if waiting.blob_at >= 0:
        free_blob(waiting.blocks, np.int64(load_i32(address + waiting.blob_at)))
    if slot < waiting.limit:
        store_i32(address + LINK, np.int32(waiting.free))
        waiting.free = slot


@inlined
def hang(waiting: Any, bucket: int, slot: int) -> None:
    """Put a slot on top of a bucket's stack."""
    top = waiting.tail + 4 * bucket
    store_i32(slot_address(waiting, slot) + LINK, load_i32(top))
    store_i32(top, np.int32(slot))
    if waiting.queue != 0:
        enqueue(waiting, bucket)
    if waiting.marks != 0:
        store_u8(waiting.marks + (bucket >> MARK_BITS), np.uint8(1))


@inlined
def next_wanted(waiting: Any, bucket: int, stop: int) -> int:
    """The first bucket from here on, before `stop`, on which a slot hangs; `stop` if there is none.

    Marks without slots are taken away on the way.
    """
    while bucket < stop:
        mark = waiting.marks + (bucket >> MARK_BITS)
        end = min((bucket | (MARKED - 1)) + 1, stop)
        if load_u8(mark) != 0:
            whole = bucket & (MARKED - 1) == 0 and end - bucket == MARKED
            while bucket < end:
                if load_i32(waiting.tail + 4 * bucket) >= 0:
                    return bucket
                bucket += 1
            if whole:
                store_u8(mark, np.uint8(0))
        bucket = end
    return stop


@inlined
def ring_word(waiting: Any, bucket: int) -> int:
    """The youngest slot of a ring, with the signature of its keys above; -1 if it is empty."""
    return load_i64(waiting.tail + 8 * bucket)


@inlined
def signature(key: int) -> int:
    """One of 31 bits, in the upper half of a ring's word."""
    return np.int64(1) << (np.int64(32) + np.int64(mix(key) & np.uint64(0x7FFFFFFF)) % 31)


@inlined
def append(waiting: Any, bucket: int, slot: int, key: int) -> None:
    """Put a slot at the young end of a bucket's ring."""
    address = slot_address(waiting, slot) + LINK
    word = ring_word(waiting, bucket)
    if word < 0:
        store_i32(address, np.int32(slot))
        word = np.int64(0)
    else:
        tail_address = slot_address(waiting, word & 0xFFFFFFFF) + LINK
        store_i32(address, load_i32(tail_address))
        store_i32(tail_address, np.int32(slot))
    signed = (word & ~np.int64(0xFFFFFFFF)) | signature(key) | slot
    store_i64(waiting.tail + 8 * bucket, signed)


@inlined
def pop_oldest(waiting: Any, bucket: int) -> int:
    """Take the oldest slot off a ring that is not empty."""
    tail = ring_word(waiting, bucket) & 0xFFFFFFFF
    tail_address = slot_address(waiting, tail) + LINK
    first = np.int64(load_i32(tail_address))
    if first == tail:
        store_i64(waiting.tail + 8 * bucket, np.int64(-1))
        return first
    slot = np.int64(load_i32(slot_address(waiting, first) + LINK))
    store_i32(tail_address, np.int32(slot))
    # Sign a short ring anew, else its signature would fill up; long ones wait for `sign_rings`.
    signed = tail
    for _ in range(SIGNED_SLOTS):
        address = slot_address(waiting, slot)
        signed |= signature(load_i64(address))
        if slot == tail:
            store_i64(waiting.tail + 8 * bucket, signed)
            break
        slot = np.int64(load_i32(address + LINK))
    return first


@inlined
def has_met(waiting: Any, address: int) -> bool:
    """Whether the row at `address` has met a partner."""
    flags = load_u8(address + waiting.flag_at)
    return (flags >> waiting.flag_bit) & 1 == 1


@inlined
def mark_met(waiting: Any, address: int) -> None:
    """Note that the row at `address` has met a partner."""
    at = address + waiting.flag_at
    store_u8(at, np.uint8(load_u8(at) | (1 << waiting.flag_bit)))


@inlined
def clear_met(waiting: Any, address: int) -> None:
    """Forget that the row at `address` has met a partner."""
    at = address + waiting.flag_at
    store_u8(at, np.uint8(load_u8(at) & ~(1 << waiting.flag_bit)))


@inlined
def put_blob(blocks: Any, origin: int, length: int) -> int:
    """Store bytes in blocks; the first block, -1 for no bytes, -2 if there is no room."""
    if length == 0:
        return -1
    wanted = (length + BLOCK_CONTENT - 1) // BLOCK_CONTENT
    if blocks.used + wanted > blocks.limit:
        return -2
    if blocks.used == 0:
        blocks.free, blocks.fresh = np.int64(-1), np.int64(0)
    base = blocks.data
    first, previous, done = np.int64(-1), np.int64(-1), 0
    while done < length:
        block = blocks.free
        if block >= 0:
            blocks.free = np.int64(load_i32(base + block * BLOCK_BYTES))
        else:
            block = blocks.fresh
            blocks.fresh += 1
        if previous < 0:
            first = block
        else:
            store_i32(base + previous * BLOCK_BYTES, np.int32(block))
        part = min(length - done, BLOCK_CONTENT)
        copy_bytes(base + block * BLOCK_BYTES + 4, origin + done, part)
        done += part
        previous = block
    store_i32(base + previous * BLOCK_BYTES, np.int32(-1))
    blocks.used += wanted
    return first


@inlined
def get_blob(blocks: Any, first: int, length: int, target: int) -> None:
    """Copy bytes out of blocks."""
    base = blocks.data
    block, done = first, 0
    while done < length:
        part = min(length - done, BLOCK_CONTENT)
        copy_bytes(target + done, base + block * BLOCK_BYTES + 4, part)
        done += part
        block = np.int64(load_i32(base + block * BLOCK_BYTES))


@inlined
def free_blob(blocks: Any, first: int) -> None:
    """Give the blocks of a blob back."""
    base = blocks.data
    block = first
    while block >= 0:
        following = np.int64(load_i32(base + block * BLOCK_BYTES))
        if block < blocks.limit:
            store_i32(base + block * BLOCK_BYTES, np.int32(blocks.free))
            blocks.free = block
        blocks.used -= 1
        block = following


@inlined
def store_blob(waiting: Any, row: int, length: int) -> bool:
    """Keep a row's byte strings, which lie in scratch memory; False if there is no room."""
    first = put_blob(waiting.blocks, waiting.scratch, length)
    store_i32(row + waiting.blob_at, np.int32(max(first, -1)))
    return first != -2


@inlined
def write_slot(waiting: Any, columns: Any, row: int, slot: int) -> bool:
    """Write a stream row into a slot; False if its byte strings find no room."""
    address = slot_address(waiting, slot)
    length = pack_row(columns, row, address)
    if waiting.blob_at < 0:
        return True
    if length > 0:
        pack_blob(columns, row, waiting.scratch)
    return store_blob(waiting, address, length)


@kernel
def sign_rings(waiting: Any) -> None:
    """Sign all rings anew: long ones are not signed when a row leaves, and would fill up."""
    for bucket in range(waiting.buckets):
        word = ring_word(waiting, bucket)
        if word < 0:
            continue
        tail = word & 0xFFFFFFFF
        signed, slot = tail, tail
        while True:
            address = slot_address(waiting, slot)
            signed |= signature(load_i64(address))
            slot = np.int64(load_i32(address + LINK))
            if slot == tail:
                break
        store_i64(waiting.tail + 8 * bucket, signed)


@kernel
def set_block_limit(blocks: Any, limit: int) -> None:
    """Allow `limit` blocks from now on; free blocks above it are forgotten."""
    blocks.limit = limit
    base = blocks.data
    block, kept = blocks.free, np.int64(-1)
    while block >= 0:
        following = np.int64(load_i32(base + block * BLOCK_BYTES))
        if block < limit:
            store_i32(base + block * BLOCK_BYTES, np.int32(kept))
            kept = block
        block = following
    blocks.free = kept


@kernel
def set_slot_limit(waiting: Any, limit: int) -> None:
    """Allow `limit` slots from now on; free slots above it are forgotten."""
    waiting.limit = limit
    slot, kept = waiting.free, np.int64(-1)
    while slot >= 0:
        address = slot_address(waiting, slot) + LINK
        following = np.int64(load_i32(address))
        if slot < limit:
            store_i32(address, np.int32(kept))
            kept = slot
        slot = following
    waiting.free = kept
