"""Memory whose size follows the budget: reserved once, given back when it shrinks."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt


class Region:
    """An anonymous mapping of `capacity_bytes`. Pages of it become real memory when touched."""

    def __init__(self, capacity_bytes: int) -> None:
        # Private: what is shared, even with nobody, stays in memory when it is released.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(-1, max(capacity_bytes, mmap.PAGESIZE), flags=private)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def release(self, from_byte: int, to_byte: int | None = None) -> None:
        """Give the memory between two bytes (or to the end) back; it reads as zeros afterwards."""
        start = -(-from_byte // mmap.PAGESIZE) * mmap.PAGESIZE
        end = len(self._map) if to_byte is None else to_byte // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
