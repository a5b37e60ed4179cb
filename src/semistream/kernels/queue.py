"""Kernels for the order in which parts of the master are wanted.

Buckets of waiting rows are queued in *groups* of `span` neighbours: the pages of a partition. A
group enters the queue with its first row and leaves it when it is taken to be read, or when its
rows have gone, so the group in front is that of the oldest row. The queue is a doubly linked list,
eight bytes a group: a group in the middle can leave it at once.

Some algorithms also ask which group a row further back in the queue belongs to. The *arrivals* list
the groups of waiting rows as they came, or of every so many-th row; entries of rows that have left
are told by how long the list was when their group was last emptied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import load_i32, store_i32
from semistream.kernels.struct import struct_type

_I64 = npt.NDArray[np.int64]
_I32 = npt.NDArray[np.int32]

ABSENT, UNDER_WAY = -2, -3
"""What a group that is not in the queue has in place of its older neighbour. One that is being read
does not enter it: its rows, also those that come meanwhile, are served by that."""

ARRIVALS = struct_type("groups capacity length every passed emptied")
"""Arrivals: `groups` (32-bit) lists the group of every `every`-th waiting row, `passed` counts the
rows since, `emptied` has, for each group, the list's length when it was last emptied (32-bit)."""


@inlined
def enqueue(waiting: Any, bucket: int) -> None:
    """Put the group of a bucket at the young end, if it is not in the queue."""
    group = bucket // waiting.span if waiting.span > 1 else bucket
    entry = waiting.queue + 8 * group
    if load_i32(entry) != ABSENT:
        return
    newest = waiting.newest
    store_i32(entry, np.int32(newest))
    store_i32(entry + 4, np.int32(-1))
    if newest >= 0:
        store_i32(waiting.queue + 8 * newest + 4, np.int32(group))
    else:
        waiting.oldest = group
    waiting.newest = group


@inlined
def dequeue(waiting: Any, group: int) -> None:
    """Take a group out of the queue, wherever it is."""
    entry = waiting.queue + 8 * group
    older, newer = np.int64(load_i32(entry)), np.int64(load_i32(entry + 4))
    if older < -1:
        return
    if older >= 0:
        store_i32(waiting.queue + 8 * older + 4, np.int32(newer))
    else:
        waiting.oldest = newer
    if newer >= 0:
        store_i32(waiting.queue + 8 * newer, np.int32(older))
    else:
        waiting.newest = older
    store_i32(entry, np.int32(ABSENT))


@inlined
def has_rows(waiting: Any, group: int) -> bool:
    """Whether a row waits in one of a group's buckets."""
    for bucket in range(group * waiting.span, min((group + 1) * waiting.span, waiting.buckets)):
        if load_i32(waiting.tail + 4 * bucket) >= 0:
            return True
    return False


@kernel
def count_rows(waiting: Any, link_at: int, groups: _I64, counts: _I32) -> None:
    """Count the rows that wait in the buckets of each group."""
    for i in range(groups.size):
        group = groups[i]
        total = 0
        for bucket in range(group * waiting.span, min((group + 1) * waiting.span, waiting.buckets)):
            slot = np.int64(load_i32(waiting.tail + 4 * bucket))
            while slot >= 0:
                total += 1
                slot = np.int64(load_i32(waiting.rows + slot * waiting.stride + link_at))
        counts[group] = np.int32(total)


@kernel
def count_chains(waiting: Any, link_at: int, buckets: _I64, counts: _I64) -> None:
    """Count the rows that wait in each of some buckets."""
    for i in range(buckets.size):
        slot = np.int64(load_i32(waiting.tail + 4 * buckets[i]))
        counts[i] = 0
        while slot >= 0:
            counts[i] += 1
            slot = np.int64(load_i32(waiting.rows + slot * waiting.stride + link_at))


@kernel
def take_oldest(waiting: Any, out: _I64) -> int:
    """Take groups off the front of the queue, as many as `out` holds; how many were not empty."""
    count = 0
    while count < out.size and waiting.oldest >= 0:
        group = waiting.oldest
        dequeue(waiting, group)
        if has_rows(waiting, group):
            out[count] = group
            count += 1
    return count


@kernel
def begin_reading(waiting: Any, groups: _I64) -> None:
    """Groups that were taken out of the queue are being read from now on."""
    for i in range(groups.size):
        store_i32(waiting.queue + 8 * groups[i], np.int32(UNDER_WAY))


@kernel
def end_reading(waiting: Any, first: int, count: int) -> None:
    """The groups of `count` buckets from `first` on have been read.

    Rows that came too late for it wait on, with their group at the young end of the queue.
    """
    for group in range(first // waiting.span, (first + count - 1) // waiting.span + 1):
        if load_i32(waiting.queue + 8 * group) == UNDER_WAY:
            store_i32(waiting.queue + 8 * group, np.int32(ABSENT))
            if has_rows(waiting, group):
                enqueue(waiting, group * waiting.span)
        elif not has_rows(waiting, group):
            dequeue(waiting, group)


@kernel
def withdraw(waiting: Any, first: int, count: int) -> None:
    """Take groups without rows out of the queue, among those of `count` buckets from `first` on."""
    for group in range(first // waiting.span, (first + count - 1) // waiting.span + 1):
        if not has_rows(waiting, group):
            dequeue(waiting, group)


@kernel
def note_arrivals(
    waiting: Any, arrivals: Any, buckets: _I32, valid: npt.NDArray[np.uint8], rows: int
) -> None:
    """List rows that were just taken in; those that do not wait have no bucket (-1)."""
    for i in range(rows):
        if valid[i] == 0 or buckets[i] < 0:
            continue
        arrivals.passed += 1
        if arrivals.passed < arrivals.every:
            continue
        arrivals.passed = 0
        if arrivals.length == arrivals.capacity:
            _compact(waiting, arrivals)
        group = np.int64(buckets[i]) // waiting.span
        store_i32(arrivals.groups + 4 * arrivals.length, np.int32(group))
        arrivals.length += 1


@inlined
def _is_waiting(arrivals: Any, entry: int) -> bool:
    group = np.int64(load_i32(arrivals.groups + 4 * entry))
    return entry >= np.int64(load_i32(arrivals.emptied + 4 * group))


@kernel
def _compact(waiting: Any, arrivals: Any) -> None:
    """Drop entries of rows that have left, and in any case enough to go on."""
    kept = 0
    start = 0
    for entry in range(arrivals.length):
        if _is_waiting(arrivals, entry):
            kept += 1
    start = max(kept - arrivals.capacity * 3 // 4, 0)
    seen, kept = 0, 0
    for entry in range(arrivals.length):
        if _is_waiting(arrivals, entry):
            seen += 1
            if seen > start:
                group = load_i32(arrivals.groups + 4 * entry)
                store_i32(arrivals.groups + 4 * kept, group)
                kept += 1
    arrivals.length = kept
    for group in range((waiting.buckets + waiting.span - 1) // waiting.span):
        store_i32(arrivals.emptied + 4 * group, np.int32(0))


@kernel
def note_emptied(waiting: Any, arrivals: Any, first: int, count: int) -> None:
    """All rows of the groups of `count` buckets from `first` on have been answered."""
    for group in range(first // waiting.span, (first + count - 1) // waiting.span + 1):
        store_i32(arrivals.emptied + 4 * group, np.int32(arrivals.length))


@kernel
def take_at(waiting: Any, arrivals: Any, fraction: float) -> int:
    """Take the group of the row at a fraction of the queue, from the young end, out of it.

    Where that group is being read already, the next older one that is not; -1 if there is none.
    """
    alive = 0
    for entry in range(arrivals.length):
        if _is_waiting(arrivals, entry):
            alive += 1
    wanted = np.int64(fraction * alive)
    for entry in range(arrivals.length - 1, -1, -1):
        if not _is_waiting(arrivals, entry):
            continue
        group = np.int64(load_i32(arrivals.groups + 4 * entry))
        if wanted <= 0 and load_i32(waiting.queue + 8 * group) >= -1:
            dequeue(waiting, group)
            return group
        wanted -= 1
    return -1
