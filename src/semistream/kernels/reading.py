"""Reading pages ahead of their use, from inside kernels.

A kernel that joins pages must not go back to Python for every read. It submits *runs* of
neighbouring pages as requests, several ahead, and takes them back in the order in which it
submitted them, from a ring of page buffers. There are three *ways* to have reads under way:

- `ASYNC`: the kernel's asynchronous reads (`io_submit`), for direct reads. Nothing is woken up but
  the joining thread, and that only when it has to wait.
- `ADVISED`: for buffered reads. What the operating system has in its cache is copied at once. What
  it has not, it is told to fetch, and that is copied when its turn comes.
  Where many pages of a stretch are wanted, and the cache has them, copying costs more than all that
  is done with them: such stretches are *looked at* through a window, and nothing is copied. A
  *reach* of the file is mapped, the window is as many of its pages as are brought in at a time, and
  taken out of it again before it is opened at another place.
  Where a processor is idle, a *companion* copies as well: requests stand open, and whoever comes to
  one first, the companion or the joining thread, copies its pages.
- `WORKERS`: threads (each a kernel without the interpreter's lock) that read, for where the others
  cannot be had. Two pipes carry the numbers of requests, to the workers and back; anything that
  can fill a buffer can stand behind them. Waking a thread costs more than many reads do.

A page is checked when it is read for the first time since the master was opened; what was published
never changes, so once is enough.
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
    load_shared,
    load_u8,
    load_u32,
    pause,
    store_i32,
    store_i64,
    store_shared,
    store_u8,
    swap_if,
    sys_call,
    sys_clock_gettime,
    sys_errno,
    sys_fadvise,
    sys_getrusage,
    sys_madvise,
    sys_mmap,
    sys_pread,
    sys_preadv2,
    sys_read,
    sys_write,
    sys_yield,
)
from semistream.kernels.pages import check_page
from semistream.kernels.ranges import RANGES, end_of_range, whole_page
from semistream.kernels.region import HUGE_BYTES
from semistream.kernels.struct import struct_type

_I64 = npt.NDArray[np.int64]

EINTR = 4

REQUESTS = 64
"""Entries of the request table: no more reads than this are ever in flight."""

REQUEST_WORDS = 8
REQ_FIRST, REQ_COUNT, REQ_BUFFER, REQ_HELD, REQ_FILE, REQ_SHARD, REQ_DONE, REQ_STATUS = range(
    0, 64, 8
)
"""Offsets in a request: first page, pages, buffer, pages of the ring held, file, shard, bytes read
so far, status."""

ASYNC, ADVISED, WORKERS = 0, 1, 2
"""How reads are under way; see the module's text."""

IOCB_WORDS, EVENT_WORDS = 8, 4
"""64-bit words of the operating system's records for an asynchronous read and for its end."""

WILL_NEED, NOT_NEEDED = 3, 4
NO_WAIT = 8

READABLE, MAPPED_HERE, IN_PIECES, BRING_IN, TAKE_OUT = 1, 0x11, 14, 22, 4
"""How a reach is mapped: to be read, shared and at this address, and so that what is fetched for it
comes in whole pieces; and what is done with windows. Mapping stops all threads of the process,
bringing in none, taking out those that run."""

PIECE_BYTES = HUGE_BYTES
"""What was read in order the operating system may hold in pieces of so many bytes, and shows such a
piece at the cost of one page, if it lies as in the file. With other pages it brings in their
neighbours. So windows are made of whole pieces, and lie as in the file."""

LIGHT, OPENS, STAYS = 4, 32, 56
"""A window is opened where so many 64ths of a stretch were asked for if its pieces come whole. If
they come page by page, wanted or not, so many must have been asked for, and others follow while it
is so many: those who see pages through windows ask for more in gaps. Taking one out stops other
threads for a moment."""

UNKNOWN, TRY, WHOLE, TRIES = 0, 1, 255, 64
"""What is known of a piece: nothing, that it is to be tried, that it came whole. Other numbers say
that it came page by page, and after how many passes it is tried again."""

DOUBTS = 8
"""Pieces are mended until so many more than it helped came page by page again."""

FAULTS, OFTEN = 2, 4
"""A piece that came with more faults came page by page. When so many in a row did, those of which
nothing is known are taken to."""

WARY = 64
"""Requests that the operating system's cache must answer before windows are tried again."""

BY_THREAD, MINOR_FAULTS, MAJOR_FAULTS = 1, 64, 72
"""What the operating system counts for a thread, and where in that stand how often it brought
something in, and how often it had to fetch it."""

SEEN, UNSEEN, NO_WINDOW = 1, 0, -1

SEE, COPY = 1, 2
"""What whoever asks for pages may have decided."""

PENDING, DONE, FAILED, BAD_PAGE, CUT_SHORT = 0, 1, -1, -2, -3
OPEN, TAKEN = 2, 3
"""Whoever comes first copies the pages of a request; one of the two threads copies them."""

COMPANION_WORDS = 24
OPENED, ASLEEP, ENDS = 0, 64, 128
"""What the joining thread and its companion share, each in a cache line of its own: the number
after the last request that was opened, whether the companion sleeps, and whether it is to end."""

WAKES = 24
"""Requests that must be under way before the companion is woken up: that costs as much as some
copies do."""

RESTLESS = 1000
"""How often a thread looks for what the other has to do before it lets go of its processor: some 50
microseconds."""

RING = struct_type(
    # Addresses of arrays: the buffers, the request table, file descriptors, where shards begin,
    # words for messages and the time, records of asynchronous reads, a bit per page that was
    # checked (0: none is to be checked), where in its file each page of the whole master lies (0:
    # in their order), a byte per piece of the files, and where those of each shard begin.
    "buffer requests files shard_start message iocbs checked places pieces piece_start "
    # Pages of the ring, bytes of a page, most requests in flight.
    "ring_pages page_bytes depth "
    # Requests ever submitted and given back; where the next buffer begins; pages in use.
    "submitted taken write used "
    # Which way, and what it takes: the context and the numbers of the system calls, or the pipes to
    # and from the workers. Whether waiting is timed.
    "way context call_submit call_events ask answer measure "
    # What is shared with the companion (0: there is none); `ask` is the pipe that wakes it up.
    "companion "
    # Pages ever read or looked at, requests that did not go on where the one before ended, the page
    # after the last requested, time spent asking and waiting, time spent joining what was read.
    "pages_read seeks next wait_ns join_ns "
    # What failed: status, page, errno.
    "error error_page error_number "
    # The reach: where it lies, its bytes, its file, and from which byte of the file on.
    "reach_at reach_bytes reach_file reach_from "
    # The window: its bytes (0: there is none). Where the pieces lie that are brought in (0:
    # nowhere), their bytes, where the first page of the view lies, which pages are in it, and the
    # last request that looks at it. Requests to go before one is opened again, and pieces in a row
    # that came page by page. The stretch that is being read: its first page, its end, and how many
    # pages were asked for. Pages of the run at hand that were submitted.
    "window_bytes pieces_at pieces_bytes view_at view_start view_end last_in_view wary pagewise "
    "stretch stretch_end asked begun "
    # The piece that may be mended next, those that were, and those for which it was in vain.
    "mending mended unmended "
    # What whoever asks has decided: to see pages, to copy them, or (0) nothing. Pages that came
    # with windows and pages that were copied, and the time that either took.
    "told opened opening_ns copied copying_ns",
    # Which pages of the whole master these are.
    ranges=RANGES,
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
def place_of(ring: Any, shard: int, page: int) -> int:
    """Where in its file a page lies, in pages."""
    if ring.places != 0:
        return np.int64(load_u32(ring.places + 4 * whole_page(ring.ranges, shard, page)))
    if ring.ranges.count != 0:
        return whole_page(ring.ranges, shard, page) - at(ring.ranges.shards, shard)
    return page - at(ring.shard_start, shard)


@inlined
def place_at(ring: Any, request: int, page: int) -> int:
    """Where in its file the page at a position of a request lies, in pages."""
    return place_of(ring, load_i64(request + REQ_SHARD), load_i64(request + REQ_FIRST) + page)


@inlined
def follow(ring: Any, shard: int, first: int, end: int) -> int:
    """The page after those that follow each other in the file from one on, before `end`."""
    end = end_of_range(ring.ranges, shard, first, end)
    if ring.places == 0:
        return end
    place = ring.places + 4 * (whole_page(ring.ranges, shard, first) - first)
    page = first + 1
    while page < end and load_u32(place + 4 * page) == load_u32(place + 4 * (page - 1)) + 1:
        page += 1
    return page


@inlined
def stretch_end(ring: Any, request: int, page: int) -> int:
    """The position after the pages that follow each other in the file from one of a request on."""
    first, count = load_i64(request + REQ_FIRST), load_i64(request + REQ_COUNT)
    return follow(ring, load_i64(request + REQ_SHARD), first + page, first + count) - first


@inlined
def checked_pages(ring: Any, request: int) -> int:
    """Check those pages of a request that were never read before: DONE or BAD_PAGE."""
    if ring.checked == 0:
        return DONE
    first, target = load_i64(request + REQ_FIRST), load_i64(request + REQ_BUFFER)
    for i in range(load_i64(request + REQ_COUNT)):
        marks, bit = ring.checked + ((first + i) >> 3), np.uint8(1 << ((first + i) & 7))
        if load_u8(marks) & bit != 0:
            continue
        page = target + i * ring.page_bytes
        if not check_page(page, ring.page_bytes, place_at(ring, request, i)):
            ring.error_page = first + i
            return BAD_PAGE
        # Another reader may set a bit beside it at the same time, and one be lost: then that page
        # is checked once more.
        store_u8(marks, np.uint8(load_u8(marks) | bit))
    return DONE


@kernel
def read_rest(ring: Any, request: int) -> None:
    """Read what a request still lacks, check its pages, and note how that went."""
    page_bytes = ring.page_bytes
    file, target = np.int32(load_i64(request + REQ_FILE)), load_i64(request + REQ_BUFFER)
    count = load_i64(request + REQ_COUNT)
    wanted, done = count * page_bytes, load_i64(request + REQ_DONE)
    status = np.int64(DONE)
    while done < wanted:
        page = done // page_bytes
        offset = place_at(ring, request, page) * page_bytes + done - page * page_bytes
        end = stretch_end(ring, request, page) * page_bytes
        got = sys_pread(file, target + done, end - done, offset)
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
    if status == DONE:
        status = checked_pages(ring, request)
    store_shared(request + REQ_STATUS, status)


@kernel
def copy_cached(ring: Any, request: int, box: int) -> None:
    """Copy a request's pages that the operating system has cached; have it fetch the others.

    Those are read when the request's turn comes. `box` are two words for messages.
    """
    file, size = np.int32(load_i64(request + REQ_FILE)), ring.page_bytes
    count, page, lacking = load_i64(request + REQ_COUNT), np.int64(0), False
    begin = now_ns(box) if ring.measure != 0 else np.int64(0)
    while page < count:
        end, offset = stretch_end(ring, request, page), place_at(ring, request, page) * size
        wanted, got = (end - page) * size, np.int64(0)
        if not lacking:
            store_i64(box, load_i64(request + REQ_BUFFER) + page * size)
            store_i64(box + 8, wanted)
            got = sys_preadv2(file, box, np.int32(1), offset, np.int32(NO_WAIT))
            got = max(got, 0)
            store_i64(request + REQ_DONE, page * size + got)
        if got < wanted:
            lacking = True
            sys_fadvise(file, offset + got, wanted - got, np.int32(WILL_NEED))
        page = end
    if lacking:
        ring.wary = WARY
        store_shared(request + REQ_STATUS, PENDING)
    else:
        ring.wary = max(ring.wary - 1, 0)
        if ring.measure != 0:
            # The companion copies too, and a sum may be lost: these are for an estimate.
            ring.copied, ring.copying_ns = (
                ring.copied + count,
                ring.copying_ns + now_ns(box) - begin,
            )
        read_rest(ring, request)


@inlined
def shares_copying(ring: Any) -> bool:
    """Whether the companion copies as well: not where the cache lacks pages, and the disk binds."""
    return ring.companion != 0 and ring.wary == 0


@inlined
def open_to_both(ring: Any, request: int) -> None:
    """Let a request be copied by whoever comes first; wake the companion if there are many."""
    store_shared(request + REQ_STATUS, OPEN)
    store_shared(ring.companion + OPENED, ring.submitted + 1)
    if in_flight(ring) >= WAKES and swap_if(ring.companion + ASLEEP, 1, 0):
        sys_write(np.int32(ring.ask), ring.message, 8)


@inlined
def copied_by_me(ring: Any, request: int, box: int) -> bool:
    """Copy a request's pages, unless the other thread did or does."""
    if not swap_if(request + REQ_STATUS, OPEN, TAKEN):
        return False
    copy_cached(ring, request, box)
    return True


@inlined
def copy_ahead(ring: Any) -> bool:
    """Copy the next request that is open, while the companion is busy with the oldest."""
    for number in range(ring.taken + 1, ring.submitted):
        if copied_by_me(ring, request_at(ring, number), ring.message):
            return True
    return False


@kernel
def accompany(ring: Any, message: _I64) -> None:
    """Body of the companion: copy the pages of open requests until it is to end."""
    shared, box = ring.companion, message.ctypes.data
    number, idle = np.int64(0), 0
    while load_shared(shared + ENDS) == 0:
        opened = load_shared(shared + OPENED)
        number = max(number, opened - REQUESTS)
        if number < opened:
            idle = 0
            copied_by_me(ring, request_at(ring, number), box)
            number += 1
            continue
        pause()
        idle += 1
        if idle < RESTLESS:
            continue
        idle = 0
        store_shared(shared + ASLEEP, 1)
        # What was opened before it was seen asleep woke nobody: it stays awake, unless somebody
        # has begun to wake it.
        awake = load_shared(shared + OPENED) > number or load_shared(shared + ENDS) != 0
        if not (awake and swap_if(shared + ASLEEP, 1, 0)):
            sys_read(np.int32(ring.answer), box, 8)


@inlined
def start_reading(ring: Any, request: int, number: int) -> None:
    """Have a request's pages read, without waiting for them."""
    file, size = np.int32(load_i64(request + REQ_FILE)), ring.page_bytes
    if ring.way == ADVISED and shares_copying(ring):
        open_to_both(ring, request)
    elif ring.way == ADVISED:
        copy_cached(ring, request, ring.message)
    elif ring.way == ASYNC:
        # Pages that do not follow those in the file are read when their turn comes.
        wanted = stretch_end(ring, request, 0) * size
        offset = place_at(ring, request, 0) * size
        iocb = ring.iocbs + 8 * IOCB_WORDS * number
        store_i64(iocb, number)
        store_i32(iocb + 20, file)
        store_i64(iocb + 24, load_i64(request + REQ_BUFFER))
        store_i64(iocb + 32, wanted)
        store_i64(iocb + 40, offset)
        store_i64(ring.message, iocb)
        if sys_call(ring.call_submit, ring.context, 1, ring.message, 0, 0) != 1:
            # It may be refused for lack of resources; then this one is read the plain way.
            read_rest(ring, request)
    else:
        store_i64(ring.message, number)
        sys_write(np.int32(ring.ask), ring.message, 8)


@inlined
def await_reading(ring: Any, request: int) -> None:
    """Wait until something has been read, if not yet the request's pages."""
    if ring.way == ADVISED:
        read_rest(ring, request)
    elif ring.way == ASYNC:
        events = ring.message + 24
        count = sys_call(ring.call_events, ring.context, 1, REQUESTS, events, 0)
        for i in range(max(count, 0)):
            event = events + 8 * EVENT_WORDS * i
            finished = ring.requests + 8 * REQUEST_WORDS * load_i64(event)
            # Whatever did not arrive, also after an error, is read the plain way, which tells why.
            store_i64(finished + REQ_DONE, max(load_i64(event + 16), 0))
            read_rest(ring, finished)
    else:
        sys_read(np.int32(ring.answer), ring.message + 24, 8 * REQUESTS)


@inlined
def map_reach(ring: Any, file: int, start: int) -> bool:
    """Map what follows a byte of a file; the window is closed."""
    mapped = sys_mmap(
        ring.reach_at,
        ring.reach_bytes,
        np.int32(READABLE),
        np.int32(MAPPED_HERE),
        np.int32(file),
        start,
    )
    if mapped != ring.reach_at:
        # What lies there now is not known: it must not be mapped over.
        ring.window_bytes = np.int64(0)
        return False
    # Where the operating system knows no pieces it refuses, and nothing is lost.
    sys_madvise(ring.reach_at, ring.reach_bytes, np.int32(IN_PIECES))
    ring.reach_file, ring.reach_from = file, start
    return True


@kernel
def close_window(ring: Any) -> None:
    """Take what the window shows out of memory."""
    if ring.pieces_at != 0:
        sys_madvise(ring.pieces_at, ring.pieces_bytes, np.int32(TAKE_OUT))
    ring.pieces_at = ring.view_start = ring.view_end = np.int64(0)


@inlined
def comes_small(known: int) -> bool:
    """Whether what is known of a piece says that it comes page by page."""
    return known > TRY and known < WHOLE


@inlined
def is_small(ring: Any, piece: int) -> bool:
    """Whether a piece is taken to come page by page."""
    known = np.int64(load_u8(ring.pieces + piece))
    return comes_small(known) or (known == UNKNOWN and ring.pagewise >= OFTEN)


@inlined
def is_whole(ring: Any, piece: int) -> bool:
    """Whether a piece came whole when it was last seen."""
    return np.int64(load_u8(ring.pieces + piece)) == WHOLE


@inlined
def note_piece(ring: Any, piece: int, known: int) -> None:
    """Note what is known of a piece, for all readers of the master."""
    store_u8(ring.pieces + piece, np.uint8(known))


@inlined
def pass_by(ring: Any, piece: int) -> None:
    """No window is opened at a piece: one that is small is tried again some time."""
    known = np.int64(load_u8(ring.pieces + piece))
    if known == UNKNOWN and is_small(ring, piece):
        # Not all of them at once.
        note_piece(ring, piece, piece % TRIES + TRY + 1)
    elif comes_small(known):
        note_piece(ring, piece, known - 1)


@inlined
def piece_at(ring: Any, request: int, shard: int) -> int:
    """The piece in which a request begins."""
    return at(ring.piece_start, shard) + place_at(ring, request, 0) * ring.page_bytes // PIECE_BYTES


@inlined
def shows(ring: Any, shard: int, page: int) -> bool:
    """Whether a window may show a page at next to no cost, as its piece comes whole."""
    if ring.window_bytes == 0:
        return False
    place = place_of(ring, shard, page)
    return not is_small(ring, at(ring.piece_start, shard) + place * ring.page_bytes // PIECE_BYTES)


@inlined
def pages_alike(ring: Any, request: int, shard: int) -> int:
    """Pages from a request's first on, as many as a window shows, in pieces that come alike."""
    begin, zero = piece_at(ring, request, shard), at(ring.piece_start, shard)
    small, end = is_small(ring, begin), begin + 1
    most = min(begin + ring.window_bytes // PIECE_BYTES, at(ring.piece_start, shard + 1))
    while end < most and is_small(ring, end) == small:
        end += 1
    return (end - zero) * PIECE_BYTES // ring.page_bytes - place_at(ring, request, 0)


@inlined
def bring_in_pieces(ring: Any, view: int, view_bytes: int, piece: int) -> bool:
    """Bring in the pages of a view, and note of each of its pieces, from this one on, how it came;
    False if there are pages that cannot be had.

    Pieces that came whole before are brought in together, and looked at one by one the next time
    if they did not all come so.
    """
    counts = ring.message + 24
    sys_getrusage(np.int32(BY_THREAD), counts)
    brought, fetched = load_i64(counts + MINOR_FAULTS), load_i64(counts + MAJOR_FAULTS)
    begin, end, view_end = view, ring.pieces_at, view + view_bytes
    while begin < view_end:
        end, several = min(end + PIECE_BYTES, view_end), 1
        while end < view_end and is_whole(ring, piece) and is_whole(ring, piece + several):
            end, several = min(end + PIECE_BYTES, view_end), several + 1
        if sys_madvise(begin, end - begin, np.int32(BRING_IN)) != 0:
            return False
        sys_getrusage(np.int32(BY_THREAD), counts)
        faults = load_i64(counts + MINOR_FAULTS) - brought
        if faults > FAULTS * several:
            ring.pagewise += 1
            for i in range(several):
                note_piece(ring, piece + i, TRIES if several == 1 else TRY)
        elif end - begin >= PIECE_BYTES // 2:
            # A few pages come with few faults anyway.
            ring.pagewise = np.int64(0)
            if several == 1:
                note_piece(ring, piece, WHOLE)
        brought += faults
        begin = end
        piece += several
    if load_i64(counts + MAJOR_FAULTS) > fetched:
        ring.wary = WARY
    return True


@inlined
def open_window(ring: Any, request: int, shard: int) -> bool:
    """Bring in the pages from a request's first on that one window may show."""
    first, size = load_i64(request + REQ_FIRST), ring.page_bytes
    place, file = place_at(ring, request, 0), load_i64(request + REQ_FILE)
    start = place * size // PIECE_BYTES * PIECE_BYTES
    most = min(pages_alike(ring, request, shard), at(ring.shard_start, shard + 1) - first)
    if most < 1:
        return False
    pages = follow(ring, shard, first, first + most) - first
    begin = now_ns(ring.message + 8) if ring.measure != 0 else np.int64(0)
    close_window(ring)
    end = ((place + pages) * size + PIECE_BYTES - 1) // PIECE_BYTES * PIECE_BYTES
    reached = ring.reach_from + ring.reach_bytes
    if file != ring.reach_file or start < ring.reach_from or end > reached:
        if not map_reach(ring, file, start):
            return False
    pieces = ring.reach_at + start - ring.reach_from
    view = pieces + place * size - start
    ring.pieces_at, ring.pieces_bytes = pieces, end - start
    if not bring_in_pieces(ring, view, pages * size, piece_at(ring, request, shard)):
        # Pages that cannot be had, or a system that cannot do it: reading tells what is wrong.
        close_window(ring)
        ring.wary = WARY
        return False
    if ring.measure != 0 and ring.wary == 0:
        ring.opened += pages
        ring.opening_ns += now_ns(ring.message + 8) - begin
    ring.view_at, ring.view_start, ring.view_end = view, first, first + pages
    return True


@inlined
def fetch_anew(ring: Any, file: int, start: int, piece: int) -> None:
    """Have the operating system forget a piece of a file, and fetch it as one."""
    if file != ring.reach_file or not 0 <= start - ring.reach_from < ring.reach_bytes:
        if not map_reach(ring, file, start):
            return
    counts, view = ring.message + 24, ring.reach_at + start - ring.reach_from
    sys_fadvise(np.int32(file), start, PIECE_BYTES, np.int32(NOT_NEEDED))
    sys_getrusage(np.int32(BY_THREAD), counts)
    brought = load_i64(counts + MINOR_FAULTS)
    failed = sys_madvise(view, PIECE_BYTES, np.int32(BRING_IN)) != 0
    sys_getrusage(np.int32(BY_THREAD), counts)
    sys_madvise(view, PIECE_BYTES, np.int32(TAKE_OUT))
    ring.pages_read += PIECE_BYTES // ring.page_bytes
    if failed or load_i64(counts + MINOR_FAULTS) - brought > FAULTS:
        ring.unmended += 1
        note_piece(ring, piece, TRIES)
    else:
        ring.mended += 1
        note_piece(ring, piece, WHOLE)


@kernel
def mend(ring: Any, shards: int, most_ns: int) -> int:
    """Fetch pieces anew that come page by page, for about this time; how long it took. While idle.

    What the operating system fetched page by page stays so in its cache for ever, and costs tens of
    times as much to show.
    """
    close_window(ring)
    clock, pieces = ring.message + 8, at(ring.piece_start, shards)
    begin, shard = now_ns(clock), 0
    for _ in range(pieces):
        if ring.window_bytes == 0:
            # There is no window any more: what lies in the reach is not known.
            break
        piece = ring.mending
        if at(ring.piece_start, shard) > piece:
            shard = 0
        while at(ring.piece_start, shard + 1) <= piece:
            shard += 1
        ring.mending = (piece + 1) % pieces
        if not comes_small(np.int64(load_u8(ring.pieces + piece))):
            continue
        start = (piece - at(ring.piece_start, shard)) * PIECE_BYTES
        fetch_anew(ring, at(ring.files, shard), start, piece)
        if now_ns(clock) - begin > most_ns or ring.unmended >= ring.mended + DOUBTS:
            break
    spent = now_ns(clock) - begin
    ring.wait_ns += spent
    return spent


@inlined
def looks(ring: Any) -> bool:
    """Whether the stretch that is being read is seen through the window."""
    return ring.view_end > 0 and ring.view_start == ring.stretch


@inlined
def look_at(ring: Any, request: int, shard: int) -> int:
    """Let a request's pages be seen through the window: SEEN, UNSEEN or, for now, NO_WINDOW.

    A window is opened where the stretch before it was dense, for that says best how the next one
    will be, and where the last requests were all in the operating system's cache. A request that
    reaches over its end is made shorter.
    """
    first, count = load_i64(request + REQ_FIRST), load_i64(request + REQ_COUNT)
    window = ring.window_bytes // ring.page_bytes
    if not ring.view_start <= first < ring.view_end:
        small = is_small(ring, piece_at(ring, request, shard))
        decided = ring.told == SEE and not small
        inside = ring.stretch <= first and first + count <= ring.stretch_end and ring.asked > 0
        if ring.told == COPY or (inside and not decided):
            return UNSEEN
        share = LIGHT
        if small:
            share = STAYS if looks(ring) else OPENS
        opens = 64 * count >= share * window
        if ring.asked > 0 and ring.stretch <= first < ring.stretch_end + window:
            # What reaches over a stretch's end was asked for in it as well.
            asked = ring.asked + max(ring.stretch_end - first, 0)
            opens = opens or 64 * asked >= share * (ring.stretch_end - ring.stretch)
        opens = (opens or decided) and ring.wary == 0
        if opens and ring.last_in_view >= ring.taken:
            return NO_WINDOW
        alike = pages_alike(ring, request, shard)
        ring.stretch, ring.stretch_end, ring.asked = first, first + alike, np.int64(0)
        if not opens or not open_window(ring, request, shard):
            pass_by(ring, piece_at(ring, request, shard))
            if ring.told == SEE:
                # What comes next may be seen.
                store_i64(request + REQ_COUNT, min(count, alike))
            return UNSEEN
        ring.stretch_end = ring.view_end
    store_i64(request + REQ_COUNT, min(count, ring.view_end - first))
    view = ring.view_at + (first - ring.view_start) * ring.page_bytes
    store_i64(request + REQ_BUFFER, view)
    store_i64(request + REQ_HELD, 0)
    store_i64(request + REQ_STATUS, checked_pages(ring, request))
    ring.last_in_view = ring.submitted
    return SEEN


@inlined
def read_into_ring(ring: Any, request: int) -> bool:
    """Have a request's pages read into the ring; False while it has no room for them."""
    count = load_i64(request + REQ_COUNT)
    if ring.used == 0:
        # Nothing is held. A run of more than half of the ring may find room from its begin alone.
        ring.write = np.int64(0)
    start, padding = ring.write, np.int64(0)
    if start + count > ring.ring_pages:
        # A run lies in one piece: leave the end of the ring unused and begin again.
        padding = ring.ring_pages - start
        start = np.int64(0)
    if ring.used + padding + count > ring.ring_pages:
        return False
    store_i64(request + REQ_BUFFER, ring.buffer + start * ring.page_bytes)
    store_i64(request + REQ_HELD, padding + count)
    store_i64(request + REQ_DONE, 0)
    store_i64(request + REQ_STATUS, PENDING)
    start_reading(ring, request, ring.submitted % REQUESTS)
    ring.write = start + count
    ring.used += padding + count
    return True


@inlined
def submit(ring: Any, first: int, count: int) -> bool:
    """Ask for a run of pages of one shard; False while there is no room for it.

    It may go out as several requests, some of them earlier than others: whoever is told that there
    is no room asks for the same run again.
    """
    while ring.begun < count:
        pages = submit_part(ring, first + ring.begun, count - ring.begun)
        if pages == 0:
            return False
        ring.begun += pages
    ring.begun = np.int64(0)
    return True


@inlined
def submit_part(ring: Any, first: int, count: int) -> int:
    """Ask for a run's pages, or those that the window shows; how many, 0 while there is no room."""
    if in_flight(ring) >= (REQUESTS if shares_copying(ring) else ring.depth):
        return 0
    shard = 0
    while at(ring.shard_start, shard + 1) <= first:
        shard += 1
    request = request_at(ring, ring.submitted)
    store_i64(request + REQ_FIRST, first)
    store_i64(request + REQ_COUNT, count)
    store_i64(request + REQ_FILE, at(ring.files, shard))
    store_i64(request + REQ_SHARD, shard)
    clock = ring.message + 8
    begin = now_ns(clock) if ring.measure != 0 else np.int64(0)
    looked = UNSEEN
    if ring.window_bytes > 0:
        looked = look_at(ring, request, shard)
    if looked == UNSEEN:
        # A run may be as long as a window is.
        store_i64(request + REQ_COUNT, min(load_i64(request + REQ_COUNT), ring.ring_pages))
    if looked == NO_WINDOW or (looked == UNSEEN and not read_into_ring(ring, request)):
        return 0
    if ring.measure != 0:
        ring.wait_ns += now_ns(clock) - begin
    count = load_i64(request + REQ_COUNT)
    ring.asked += count
    ring.submitted += 1
    if looked == UNSEEN:
        ring.pages_read += count
    if ring.next != first:
        ring.seeks += 1
    page = stretch_end(ring, request, 0)
    while page < count:
        ring.seeks += 1
        page = stretch_end(ring, request, page)
    ring.next = first + count
    return count


@inlined
def oldest(ring: Any) -> int:
    """Wait for the oldest request in flight; its address, or 0 if it failed."""
    request = request_at(ring, ring.taken)
    status = load_shared(request + REQ_STATUS)
    if status == PENDING or status >= OPEN:
        clock = ring.message + 8
        start = now_ns(clock) if ring.measure != 0 else np.int64(0)
        idle = 0
        while status == PENDING or status >= OPEN:
            if status == PENDING:
                await_reading(ring, request)
            elif not copied_by_me(ring, request, ring.message) and not copy_ahead(ring):
                # A copy takes no time, unless the companion lost its processor in the middle of it.
                idle += 1
                if idle < RESTLESS:
                    pause()
                else:
                    sys_yield()
            status = load_shared(request + REQ_STATUS)
        if ring.measure != 0:
            ring.wait_ns += now_ns(clock) - start
    if status != DONE:
        ring.error = status
        return 0
    return request


@inlined
def count_seen(ring: Any, request: int, pages: int) -> None:
    """Count so many pages as read if the request shows them: of others those that it read count."""
    if load_i64(request + REQ_HELD) == 0:
        ring.pages_read += pages


@inlined
def give_back(ring: Any) -> None:
    """The oldest request has been used: its buffer is free."""
    ring.used -= load_i64(request_at(ring, ring.taken) + REQ_HELD)
    ring.taken += 1


@kernel
def work(ring: Any, ask: int, answer: int, message: _I64) -> None:
    """Body of a worker thread: serve requests until the number -1 comes."""
    box = message.ctypes.data
    while True:
        if sys_read(np.int32(ask), box, 8) != 8:
            continue
        if message[0] < 0:
            return
        read_rest(ring, ring.requests + 8 * REQUEST_WORDS * message[0])
        sys_write(np.int32(answer), box, 8)
