"""Memory whose size follows the budget: reserved once, given back when it shrinks."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt


class Region:
    """An anonymous mapping of `capacity_bytes`. Pages of it become real memory when touched."""

    def __init__(self, capacity_bytes: int) -> None:
        self._map = mmap.mmap(-1, max(capacity_bytes, mmap.PAGESIZE))
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def release(self, from_byte: int) -> None:
        """Give the memory from this byte on back; it reads as zeros afterwards."""
        start = -(-from_byte // mmap.PAGESIZE) * mmap.PAGESIZE
        if start < len(self._map):
            self._map.madvise(mmap.MADV_DONTNEED, start, len(self._map) - start)
