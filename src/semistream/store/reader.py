"""A ring of page buffers and what fills it; see `semistream.kernels.reading`."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf

import numpy as np
import numpy.typing as npt

from semistream.core.errors import CorruptPageError, StoreError
from semistream.kernels.ranges import RANGES
from semistream.kernels.reading import (
    ADVISED,
    ASYNC,
    BAD_PAGE,
    COMPANION_WORDS,
    COPY,
    CUT_SHORT,
    DOUBTS,
    ENDS,
    EVENT_WORDS,
    IOCB_WORDS,
    PIECE_BYTES,
    REQUEST_WORDS,
    REQUESTS,
    RING,
    SEE,
    TRY,
    WHOLE,
    WORKERS,
    accompany,
    close_window,
    mend,
    work,
)
from semistream.kernels.region import Region
from semistream.kernels.struct import Struct

DEFAULT_DEPTH = 32
"""Reads in flight: where each is of one page, disks of today gain up to 32."""

WINDOW_SHARE, MOST_WINDOW_BYTES = 0.8, 4 * PIECE_BYTES
"""The window has up to this share of the buffer's memory, in whole pieces, or there is none. Each
window that is taken out stops other threads for a moment, so that large ones are better than small
ones; beyond the most little is gained."""

REACH_BYTES = 64 << 20
"""The part of a file in which windows are opened; not memory, but for the operating system's notes
about it, an eighth of a kilobyte for every 64."""

OPENING_NS, COPYING_NS = 5, 800
"""What a page takes that comes with a window, and one that is copied, before either was timed."""

SHOWING_NS, MENDING_NS, MENDING_SHARE = 10, 2_000_000, 4
"""What a page takes that comes with a whole piece, and a piece that is fetched anew, where the disk
is fast. Of the time that is lost because pieces come page by page, this part is spent on that."""

TRIED_AGAIN = 16
"""Decisions in a row to copy pages after which windows get another chance."""

REMEMBERED_PAGES = 1 << 20
"""Pages after which older times count half."""

LINE_BYTES = 64
"""Of a cache line."""

IO_SETUP, IO_DESTROY, IO_SUBMIT, IO_EVENTS = range(4)
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
"""Numbers of the system calls for asynchronous reads, by kind of processor."""


class PageReader:
    """Reads runs of pages ahead for one join; `ring` is handed to its kernels.

    `buffer_pages` bounds the memory; it must hold the longest run. `direct` says that the files
    were opened for direct reads: those are done asynchronously by the operating system, or by
    threads where it does not let us. `checked` has a bit per page, set once it was checked; without
    it no page is. `places` says where in its file every page of the whole master lies; without it
    they lie in their order. `ranges` says which of them a part of the master has.
    With `pieces` pages that the operating system has cached may be seen where they are, instead of
    being copied, where many neighbours are wanted, through a window that is part of the buffer's
    memory: a byte for every piece of the files, for what is found out about it, and where those of
    each file begin.
    With a `companion` a second thread copies pages that the operating system has cached.
    Close it when the join ends.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[int],
        shard_start: np.ndarray[tuple[int], np.dtype[np.int64]],
        page_bytes: int,
        buffer_pages: int,
        *,
        direct: bool = False,
        depth: int = DEFAULT_DEPTH,
        measure: bool = True,
        checked: npt.NDArray[np.uint8] | None = None,
        places: npt.NDArray[np.uint32] | None = None,
        ranges: Struct | None = None,
        pieces: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None = None,
        companion: bool = False,
    ) -> None:
        window = window_bytes(buffer_pages * page_bytes) if pieces is not None else 0
        buffer_pages -= -(-window // page_bytes)
        # More requests than pages of the buffer are never in flight.
        depth = min(depth, REQUESTS, buffer_pages)
        self._name = name
        self._reach = Region(REACH_BYTES + PIECE_BYTES if window else 0)
        self._region = Region(buffer_pages * page_bytes, pieces=direct)
        self.ring = Struct(
            RING,
            buffer=self._region.bytes,
            requests=np.zeros(REQUESTS * REQUEST_WORDS, np.int64),
            files=np.array(files, np.int64),
            shard_start=shard_start,
            message=np.zeros(3 + REQUESTS * EVENT_WORDS, np.int64),
            ring_pages=buffer_pages,
            page_bytes=page_bytes,
            depth=depth,
            way=ADVISED,
            checked=checked if checked is not None else 0,
            places=places if places is not None else 0,
            ranges=ranges or Struct(RANGES),
            measure=measure,
            next=-1,
            reach_at=self._reach.bytes[-self._reach.bytes.ctypes.data % PIECE_BYTES :],
            reach_bytes=REACH_BYTES,
            reach_file=-1,
            window_bytes=window,
            last_in_view=-1,
        )
        self._pieces = np.empty(0, np.uint8)
        if pieces is not None:
            self._pieces, self.ring.piece_start = pieces
            self.ring.pieces = self._pieces
        self._own_window = window
        self._refused = 0
        self._lost_ns, self._took_ns, self._shards = 0.0, 0, len(shard_start) - 1
        stop: Callable[[], None] = _nothing
        if direct:
            stop = _read_asynchronously(self.ring) or _start_workers(self.ring, depth)
        elif companion:
            stop = _start_companion(self.ring)
        # What is being read goes into the buffer: it must not go before reading has stopped.
        self._end = weakref.finalize(self, _stop, stop, self._region)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the ring."""
        return int(self.ring.ring_pages * self.ring.page_bytes)

    @property
    def requests(self) -> int:
        """Read requests so far."""
        return int(self.ring.submitted)

    @property
    def pages(self) -> int:
        """Pages read so far, those read through gaps included."""
        return int(self.ring.pages_read)

    @property
    def seeks(self) -> int:
        """Requests that did not begin where the one before ended."""
        return int(self.ring.seeks)

    @property
    def looks(self) -> bool:
        """Whether pages are seen through the window just now."""
        return bool(self.ring.view_end > 0 and self.ring.view_start == self.ring.stretch)

    @property
    def small_share(self) -> float:
        """The share of pieces that are known to come page by page."""
        if not len(self._pieces):
            return 0.0
        return np.count_nonzero((self._pieces > TRY) & (self._pieces < WHOLE)) / len(self._pieces)

    @property
    def in_pieces(self) -> bool:
        """Whether most pieces come whole, so that pages between wanted ones cost nothing."""
        return self.small_share <= 0.5

    @property
    def seeing_ns(self) -> float:
        """What a page took of late that came with a window; infinite where none is opened."""
        ring = self.ring
        if not ring.window_bytes or ring.wary:
            return inf
        return float((ring.opening_ns + OPENING_NS) / (ring.opened + 1))

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet used."""
        return int(self.ring.submitted - self.ring.taken)

    @property
    def wait_s(self) -> float:
        """Seconds that the join waited for reads."""
        return float(self.ring.wait_ns) / 1e9

    def go_on_from(self, other: PageReader) -> None:
        """Count on from where another reader ended."""
        for name in ("submitted", "pages_read", "seeks", "wait_ns", "join_ns"):
            setattr(self.ring, name, getattr(other.ring, name))
        self.ring.taken = self.ring.submitted

    def add_counts(self, other: PageReader) -> None:
        """Count what another reader did as well."""
        assert self.in_flight == 0, "reads are under way"
        for name in ("submitted", "taken", "pages_read", "seeks", "wait_ns", "join_ns"):
            setattr(self.ring, name, getattr(self.ring, name) + getattr(other.ring, name))
        self.ring.taken = self.ring.submitted

    def resize(self, buffer_pages: int) -> None:
        """Use this many pages of the ring from now on, and no more than at first; while idle."""
        assert self.in_flight == 0, "reads are under way"
        assert buffer_pages * self.ring.page_bytes <= len(self._region.bytes)
        self.ring.ring_pages, self.ring.write, self.ring.used = buffer_pages, 0, 0
        self._region.release(self.buffer_bytes)

    def decide(self, pages: int, wanted: int) -> bool:
        """Whether so many pages, of which some are wanted, are seen from now on, or copied.

        What pays is known by what both took lately, as far as the clock tells. See `undecided`.
        """
        ring = self.ring
        if ring.told == SEE and ring.wary:
            ring.told = COPY
        if not ring.told:
            see_ns = pages * self.seeing_ns
            copy_ns = wanted * (ring.copying_ns + COPYING_NS) / (ring.copied + 1)
            copy_ns /= 1 + bool(ring.companion)
            sees = see_ns < copy_ns
            self._lost_ns += max(self.small_share * (copy_ns - pages * SHOWING_NS), 0)
            ring.told = SEE if sees else COPY
            # A window may have come late once: after a while what it took is forgotten.
            self._refused = 0 if sees else self._refused + 1
            if self._refused % TRIED_AGAIN == TRIED_AGAIN - 1:
                ring.opened = ring.opening_ns = 0
            for count, spent in (("opened", "opening_ns"), ("copied", "copying_ns")):
                if getattr(ring, count) > REMEMBERED_PAGES:
                    setattr(ring, count, getattr(ring, count) >> 1)
                    setattr(ring, spent, getattr(ring, spent) >> 1)
        return bool(ring.told == SEE)

    def undecided(self) -> None:
        """Whether pages are seen or copied is up to the reader again; while idle.

        Where much was lost to pieces of the files that come page by page, some are fetched anew.
        """
        self.ring.told = 0
        self._mend()

    def swept(self, pages: int) -> None:
        """All of so many pages were gone through, and those that rows waited for seen or copied as
        the reader found best; while idle. Pieces that cost time thereby are fetched anew, too."""
        took_ns = int(self.ring.opening_ns + self.ring.copying_ns)
        spent_ns, self._took_ns = took_ns - self._took_ns, took_ns
        self._lost_ns += max(self.small_share * (spent_ns - pages * SHOWING_NS), 0)
        self._mend()

    def _mend(self) -> None:
        """Have pieces that come page by page fetched anew, in a part of the time that was lost."""
        assert self.in_flight == 0, "reads are under way"
        ring = self.ring
        earned_ns = int(self._lost_ns / MENDING_SHARE)
        if earned_ns >= MENDING_NS and not ring.wary and ring.unmended < ring.mended + DOUBTS:
            self._lost_ns -= MENDING_SHARE * int(mend(ring.kernel, self._shards, earned_ns))

    def borrow(self, size_bytes: int) -> None:
        """Let the window have so many bytes more than its own, as far as it can use them.

        With fewer than it had borrowed it gives back what it shows; while idle.
        """
        assert self.in_flight == 0, "reads are under way"
        most = min(self._own_window + size_bytes, max(self._own_window, MOST_WINDOW_BYTES))
        window = most // PIECE_BYTES * PIECE_BYTES if self._own_window else 0
        if window < self.ring.window_bytes:
            close_window(self.ring.kernel)
        if self.ring.window_bytes:
            self.ring.window_bytes = window

    def error(self) -> StoreError:
        """What went wrong, after a kernel said that a read is broken."""
        ring = self.ring
        page = int(ring.error_page)
        if ring.error == BAD_PAGE:
            return CorruptPageError(
                f"page {page} of {self._name!r} is damaged: its checksum does not fit its content",
                hint=f"run `semistream master check {self._name}`, then build the master again",
            )
        if ring.error == CUT_SHORT:
            return CorruptPageError(
                f"{self._name!r} is cut short: page {page} is missing from its file",
                hint="restore the file or build the master again",
            )
        reason = os.strerror(int(ring.error_number))
        return StoreError(
            f"reading page {page} of {self._name!r} failed: {reason}",
            hint='check the disk and its file system; with io="direct" try "buffered"',
        )

    def close(self) -> None:
        """Stop reading."""
        self._end()


def window_bytes(buffer_bytes: int) -> int:
    """How much of a buffer's memory is a window: whole pieces, or nothing."""
    window = min(int(buffer_bytes * WINDOW_SHARE), MOST_WINDOW_BYTES)
    return window // PIECE_BYTES * PIECE_BYTES


def read_places(
    file: int, places: npt.NDArray[np.uint32], page_bytes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The pages at some places of a file, and which of them it has; for one who has no ring."""
    # Mapped memory is aligned as direct reads want it.
    data = Region(len(places) * page_bytes).bytes[: len(places) * page_bytes]
    there = np.ones(len(places), bool)
    breaks = np.flatnonzero(np.diff(places.astype(np.int64)) != 1) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(places)]):
        if begin == end:
            continue
        at, stop = begin * page_bytes, end * page_bytes
        offset = int(places[begin]) * page_bytes - at
        while at < stop:
            got = os.preadv(file, [data[at:stop].data], offset + at)
            if got == 0:
                there[at // page_bytes : end] = False
                break
            at += got
    return data, there


def _nothing() -> None:
    """Advised reads need no end."""


def _stop(stop: Callable[[], None], buffer: Region) -> None:
    stop()


def _read_asynchronously(ring: Struct) -> Callable[[], None] | None:
    """Set the ring up for asynchronous reads; how to end them, None if there are none here."""
    calls = _CALLS.get(platform.machine())
    if calls is None or platform.system() != "Linux":
        return None
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    context = ctypes.c_ulong(0)
    if system_call(calls[IO_SETUP], REQUESTS, ctypes.byref(context)) != 0:
        return None
    ring.way, ring.context = ASYNC, context.value
    ring.call_submit, ring.call_events = calls[IO_SUBMIT], calls[IO_EVENTS]
    ring.iocbs = np.zeros(REQUESTS * IOCB_WORDS, np.int64)
    return lambda: system_call(calls[IO_DESTROY], context)


def _start_companion(ring: Struct) -> Callable[[], None]:
    """Start the thread that copies pages as well; how to end it."""
    shared = np.zeros(COMPANION_WORDS + LINE_BYTES // 8, np.int64)
    shared = shared[-shared.ctypes.data % LINE_BYTES // 8 :]
    wakes, woken = os.pipe()
    ring.companion, ring.ask, ring.answer = shared, woken, wakes
    arguments = (ring.kernel, np.zeros(2, np.int64))
    thread = threading.Thread(target=accompany, args=arguments, daemon=True)
    thread.start()

    def stop() -> None:
        shared[ENDS // 8] = 1
        os.write(woken, bytes(8))
        thread.join()
        os.close(wakes)
        os.close(woken)

    return stop


def _start_workers(ring: Struct, count: int) -> Callable[[], None]:
    """Start threads that read; how to end them."""
    ask_out, ask_in = os.pipe()
    answer_out, answer_in = os.pipe()
    ring.way, ring.ask, ring.answer = WORKERS, ask_in, answer_out
    threads = []
    for _ in range(count):
        arguments = (ring.kernel, ask_out, answer_in, np.zeros(1, np.int64))
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        threads.append(thread)

    def stop() -> None:
        for _ in threads:
            os.write(ask_in, (-1).to_bytes(8, "little", signed=True))
        for thread in threads:
            thread.join()
        for pipe in (ask_in, ask_out, answer_in, answer_out):
            os.close(pipe)

    return stop
