"""Reading pages ahead of their use, from inside kernels.

A kernel that joins pages must not go back to Python for every read. It submits *runs* of
neighbouring pages as requests; worker threads (each a kernel without the interpreter's lock) read
them into a ring of page buffers and check them; the joining kernel takes the runs back in the order
in which it submitted them. Two pipes carry the numbers of requests, to the workers and back: they
block without spinning, and anything that can fill a buffer can stand behind them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import (
    at,
    load_i32,
    load_i64,
    store_i64,
    sys_clock_gettime,
    sys_errno,
    sys_pread,
    sys_read,
    sys_write,
)
from semistream.kernels.pages import check_page
from semistream.kernels.struct import struct_type

_I64 = npt.NDArray[np.int64]

EINTR = 4

REQUESTS = 64
"""Entries of the request table: no more reads than this are ever in flight."""

REQUEST_WORDS = 8
REQ_FIRST, REQ_COUNT, REQ_BUFFER, REQ_HELD, REQ_FILE, REQ_LOCAL, REQ_STATUS = range(0, 56, 8)
"""Offsets in a request: first page, pages, buffer, pages of the ring held, file, page in the file,
status."""

PENDING, DONE, FAILED, BAD_PAGE, CUT_SHORT = 0, 1, -1, -2, -3

RING = struct_type(
    # Addresses of arrays: the buffers, the request table, file descriptors, where shards begin,
    # and words for messages and the time.
    "buffer requests files shard_start message "
    # Pages of the ring, bytes of a page, most requests in flight.
    "ring_pages page_bytes depth "
    # Requests ever submitted and given back; where the next buffer begins; pages in use.
    "submitted taken write used "
    # Pipes to and from the workers; whether they check pages, whether waiting is timed.
    "ask answer check measure "
    # Pages ever requested, requests that did not go on where the one before ended, the page after
    # the last requested, time spent waiting, time spent joining what was read.
    "pages_read seeks next wait_ns join_ns "
    # What failed: status, page, errno.
    "error error_page error_number"
)
"""The state of reading; shared by the joining kernel and the workers."""


@inlined
def now_ns(box: int) -> int:
    """The monotonic clock, read into two words at an address."""
    sys_clock_gettime(np.int32(1), box)
    return load_i64(box) * 1_000_000_000 + load_i64(box + 8)


@inlined
def request_at(ring: Any, number: int) -> int:
    """The address of a request, by the number of its submission."""
    return ring.requests + 8 * REQUEST_WORDS * (number % REQUESTS)


@inlined
def in_flight(ring: Any) -> int:
    """Requests submitted and not yet taken back."""
    return ring.submitted - ring.taken


@inlined
def submit(ring: Any, first: int, count: int) -> bool:
    """Ask for a run of pages of one shard; False while there is no room for it."""
    if in_flight(ring) >= ring.depth:
        return False
    start, padding = ring.write, np.int64(0)
    if start + count > ring.ring_pages:
        # A run lies in one piece: leave the end of the ring unused and begin again.
        padding = ring.ring_pages - start
        start = np.int64(0)
    if ring.used + padding + count > ring.ring_pages:
        return False
    shard = 0
    while at(ring.shard_start, shard + 1) <= first:
        shard += 1
    request = request_at(ring, ring.submitted)
    local = first - at(ring.shard_start, shard)
    store_i64(request + REQ_FIRST, first)
    store_i64(request + REQ_COUNT, count)
    store_i64(request + REQ_BUFFER, ring.buffer + start * ring.page_bytes)
    store_i64(request + REQ_HELD, padding + count)
    store_i64(request + REQ_FILE, at(ring.files, shard))
    store_i64(request + REQ_LOCAL, local)
    store_i64(request + REQ_STATUS, PENDING)
    store_i64(ring.message, ring.submitted % REQUESTS)
    ring.write = start + count
    ring.used += padding + count
    ring.submitted += 1
    ring.pages_read += count
    if ring.next != first:
        ring.seeks += 1
    ring.next = first + count
    sys_write(np.int32(ring.ask), ring.message, 8)
    return True


@inlined
def oldest(ring: Any) -> int:
    """Wait for the oldest request in flight; its address, or 0 if it failed."""
    request = request_at(ring, ring.taken)
    if load_i64(request + REQ_STATUS) == PENDING:
        clock = ring.message + 8
        start = now_ns(clock) if ring.measure != 0 else np.int64(0)
        while load_i64(request + REQ_STATUS) == PENDING:
            sys_read(np.int32(ring.answer), ring.message + 24, 8 * REQUESTS)
        if ring.measure != 0:
            ring.wait_ns += now_ns(clock) - start
    status = load_i64(request + REQ_STATUS)
    if status != DONE:
        ring.error = status
        return 0
    return request


@inlined
def give_back(ring: Any) -> None:
    """The oldest request has been used: its buffer is free."""
    ring.used -= load_i64(request_at(ring, ring.taken) + REQ_HELD)
    ring.taken += 1


@kernel
def work(ring: Any, ask: int, answer: int, message: _I64) -> None:
    """Body of a worker thread: serve requests until the number -1 comes."""
    page_bytes = ring.page_bytes
    box = message.ctypes.data
    while True:
        if sys_read(np.int32(ask), box, 8) != 8:
            continue
        number = message[0]
        if number < 0:
            return
        request = request_at(ring, number)
        target = load_i64(request + REQ_BUFFER)
        count, local = load_i64(request + REQ_COUNT), load_i64(request + REQ_LOCAL)
        wanted = count * page_bytes
        status, done = np.int64(DONE), np.int64(0)
        while done < wanted:
            got = sys_pread(
                np.int32(load_i64(request + REQ_FILE)),
                target + done,
                wanted - done,
                local * page_bytes + done,
            )
            if got < 0:
                error = np.int64(load_i32(sys_errno()))
                if error == EINTR:
                    continue
                ring.error_number = error
                ring.error_page = load_i64(request + REQ_FIRST)
                status = np.int64(FAILED)
                break
            if got == 0:
                ring.error_page = load_i64(request + REQ_FIRST) + done // page_bytes
                status = np.int64(CUT_SHORT)
                break
            done += got
        if status == DONE and ring.check != 0:
            for i in range(count):
                if not check_page(target + i * page_bytes, page_bytes, local + i):
                    ring.error_page = load_i64(request + REQ_FIRST) + i
                    status = np.int64(BAD_PAGE)
                    break
        store_i64(request + REQ_STATUS, status)
        sys_write(np.int32(answer), box, 8)
