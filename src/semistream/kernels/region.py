"""Memory whose size follows the budget: reserved once, given back when it shrinks."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

HUGE_BYTES = 2 << 20
"""What the operating system can give in one piece."""


class Region:
    """An anonymous mapping of `capacity_bytes`. Pages of it become real memory when touched.

    Where it is to be of `pieces`, each whole stretch of HUGE_BYTES is one piece of the machine's
    memory, if the operating system has it, and becomes real memory as a whole. A disk writes into
    one piece at once; into scattered pages it writes page by page.
    """

    def __init__(self, capacity_bytes: int, *, pieces: bool = False) -> None:
        # Private: what is shared, even with nobody, stays in memory when it is released.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        size = -(-max(capacity_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size + (HUGE_BYTES if pieces else 0), flags=private)
        everything = np.frombuffer(self._map, np.uint8)
        self._start = -everything.ctypes.data % HUGE_BYTES if pieces else 0
        self.bytes: npt.NDArray[np.uint8] = everything[self._start : self._start + size]
        whole = size // HUGE_BYTES * HUGE_BYTES
        if pieces and whole:
            # Some systems have no such pieces: then it is memory as any other.
            with suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE, self._start, whole)

    def release(self, from_byte: int, to_byte: int | None = None) -> None:
        """Give the memory between two bytes (or to the end) back; it reads as zeros afterwards."""
        start = -(-from_byte // mmap.PAGESIZE) * mmap.PAGESIZE
        end = len(self.bytes) if to_byte is None else to_byte // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            self._map.madvise(mmap.MADV_DONTNEED, self._start + start, end - start)
