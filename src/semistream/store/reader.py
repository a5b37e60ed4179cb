"""Worker threads behind a ring of page buffers; see `semistream.kernels.reading`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from semistream.core.errors import CorruptPageError, StoreError
from semistream.kernels.reading import (
    BAD_PAGE,
    CUT_SHORT,
    REQUEST_WORDS,
    REQUESTS,
    RING,
    work,
)
from semistream.kernels.region import Region
from semistream.kernels.struct import Struct

DEFAULT_DEPTH = 16
"""Reads in flight: disks of today gain up to 8 to 16, and lose beyond."""


class PageReader:
    """Reads runs of pages ahead for one join; `ring` is handed to its kernels.

    `buffer_pages` bounds the memory; it must hold the longest run. Close it when the join ends.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[int],
        shard_start: np.ndarray[tuple[int], np.dtype[np.int64]],
        page_bytes: int,
        buffer_pages: int,
        *,
        depth: int = DEFAULT_DEPTH,
        measure: bool = True,
        check: bool = True,
    ) -> None:
        # More requests than pages of the buffer are never in flight.
        depth = min(depth, REQUESTS, buffer_pages)
        self._name = name
        self._region = Region(buffer_pages * page_bytes)
        ask_out, ask_in = os.pipe()
        answer_out, answer_in = os.pipe()
        self.ring = Struct(
            RING,
            buffer=self._region.bytes,
            requests=np.zeros(REQUESTS * REQUEST_WORDS, np.int64),
            files=np.array(files, np.int64),
            shard_start=shard_start,
            message=np.zeros(3 + REQUESTS, np.int64),
            ring_pages=buffer_pages,
            page_bytes=page_bytes,
            depth=depth,
            ask=ask_in,
            answer=answer_out,
            check=check,
            measure=measure,
            next=-1,
        )
        self._threads = []
        for _ in range(depth):
            arguments = (self.ring.kernel, ask_out, answer_in, np.zeros(1, np.int64))
            thread = threading.Thread(target=work, args=arguments, daemon=True)
            thread.start()
            self._threads.append(thread)
        pipes = (ask_in, ask_out, answer_in, answer_out)
        self._end = weakref.finalize(self, _stop, ask_in, self._threads, pipes)

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

    def resize(self, buffer_pages: int) -> None:
        """Use this many pages of the ring from now on, and no more than at first; while idle."""
        assert self.in_flight == 0, "reads are under way"
        assert buffer_pages * self.ring.page_bytes <= len(self._region.bytes)
        self.ring.ring_pages, self.ring.write, self.ring.used = buffer_pages, 0, 0
        self._region.release(self.buffer_bytes)

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
        """Stop the workers and free the pipes."""
        self._end()


def _stop(ask_in: int, threads: list[threading.Thread], pipes: tuple[int, ...]) -> None:
    stop = (-1).to_bytes(8, "little", signed=True)
    for _ in threads:
        os.write(ask_in, stop)
    for thread in threads:
        thread.join()
    for pipe in pipes:
        os.close(pipe)
