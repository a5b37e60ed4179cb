"""Waiting stream rows, in memory that follows the budget."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.joins.binding import Binding
from semistream.kernels.queue import ABSENT
from semistream.kernels.region import Region
from semistream.kernels.struct import Struct
from semistream.kernels.waiting import (
    BLOCK_BYTES,
    BLOCK_CONTENT,
    MARKED,
    SAMPLE,
    WAITING,
    set_block_limit,
    set_slot_limit,
)

LISTED_SLOTS = 4096
"""Slots that are left when the others' memory is lent to a list of rows, which come into them some
at a time."""


class BlockHeap:
    """Blocks for byte strings, of which some may be used; `state` is a field of its owner."""

    def __init__(self, state: Any, capacity: int) -> None:
        self._region = Region(capacity * BLOCK_BYTES)
        self.state = state
        state["data"] = self._region.bytes.ctypes.data
        self.empty()

    @property
    def limit(self) -> int:
        """Blocks that may be used."""
        return int(self.state["limit"])

    @property
    def used(self) -> int:
        """Blocks in use."""
        return int(self.state["used"])

    @property
    def reach(self) -> int:
        """Blocks that were ever used since the last `settle`."""
        return int(self.state["fresh"])

    def set_limit(self, limit: int) -> None:
        """Allow this many blocks."""
        set_block_limit(self.state, limit)

    def settle(self) -> None:
        """Nothing above the limit is in use any more: give that memory back."""
        self.state["fresh"] = min(self.reach, self.limit)
        self._region.release(self.limit * BLOCK_BYTES)

    def empty(self) -> None:
        """Forget everything."""
        self.state["free"], self.state["fresh"], self.state["used"] = -1, 0, 0


class WaitingRows:
    """Slots for waiting rows, and the chains of `buckets` that they hang on.

    Memory is reserved for `capacity_bytes`, and used up to what `set_bytes` allows. One slot is
    kept for rows that pass through without waiting. With a `span` groups of so many buckets are
    queued in the order in which they ceased to be empty. With `rings` chains let their oldest row
    go first, for eight bytes a bucket instead of four. With `marks` the next bucket with rows is
    found fast where there are few of them.
    """

    def __init__(
        self,
        binding: Binding,
        buckets: int,
        capacity_bytes: int,
        blob_bytes: float = 0.0,
        *,
        span: int = 0,
        rings: bool = False,
        marks: bool = False,
    ) -> None:
        layout = binding.layout
        self.stride = layout.record_bytes
        self.blocks_per_row = (
            max(np.ceil(blob_bytes / BLOCK_CONTENT), 1.0) if layout.has_bytes else 0.0
        )
        slots = capacity_bytes // self.stride + 2
        self._region = Region(slots * self.stride)
        self._arrived = np.zeros(slots // SAMPLE + 1, np.int64)
        self._tail = np.full(max(buckets, 1), -1, np.int64 if rings else np.int32)
        self._scratch = np.empty(0, np.uint8)
        self._slots = slots
        self._released = self._lent = 0
        self.state = Struct(
            WAITING,
            rows=self._region.bytes,
            stride=self.stride,
            tail=self._tail,
            buckets=buckets,
            arrived=self._arrived,
            scratch=self._scratch,
            blob_at=layout.blob_offset,
            flag_at=layout.nulls_offset + len(layout.leaves) // 8,
            flag_bit=len(layout.leaves) % 8,
            free=-1,
            fresh=1,
            limit=1,
            used=1,
        )
        if marks:
            self.state.marks = np.zeros(buckets // MARKED + 1, np.uint8)
        if span:
            groups = max(-(-buckets // span), 1)
            self.state.queue = np.full((groups, 2), ABSENT, np.int32)
            self.state.span, self.state.oldest, self.state.newest = span, -1, -1
        self.heap: BlockHeap | None = None
        if layout.has_bytes:
            self.heap = BlockHeap(self.state.blocks, capacity_bytes // BLOCK_BYTES)

    @property
    def row_bytes(self) -> float:
        """Bytes that a waiting row takes, with the blocks of an average row."""
        return self.stride + 8 / SAMPLE + self.blocks_per_row * BLOCK_BYTES

    @property
    def tail(self) -> npt.NDArray[np.int32]:
        """The top of every bucket's chain, -1 where it is empty."""
        return self._tail  # type: ignore[return-value]

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return int(self.state.used) - 1

    @property
    def capacity(self) -> int:
        """Rows that may wait."""
        return int(self.state.limit) - 1

    @property
    def most_slots(self) -> int:
        """Slots for which memory is reserved."""
        return self._slots

    @property
    def size_bytes(self) -> int:
        """Bytes granted to rows and blocks."""
        blocks = self.heap.limit * BLOCK_BYTES if self.heap else 0
        return int(self.state.limit) * self.stride + self._arrived.nbytes + blocks

    @property
    def fixed_bytes(self) -> int:
        """Bytes that do not depend on what `set_bytes` allows."""
        return int(self._arrived.nbytes)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the space in which a row's byte strings are put together."""
        return int(self._scratch.nbytes)

    def set_bytes(self, size_bytes: int) -> None:
        """Allow this much memory. What is in use above it empties first: see `settle`."""
        usable = size_bytes - self._arrived.nbytes
        slots = max(int(usable // (self.stride + self.blocks_per_row * BLOCK_BYTES)), 2)
        slots = min(slots, self._slots)
        set_slot_limit(self.state.kernel, slots)
        if self.heap is not None:
            self.heap.set_limit(max(int(usable - slots * self.stride) // BLOCK_BYTES, 0))

    def lend(self, words: int) -> npt.NDArray[np.int64]:
        """So many words in memory of slots, of which few are left until `take_back`.

        Nothing may wait, and there must be room. What is not lent is given back to the system.
        """
        assert self.rows == 0, "rows wait in what is lent"
        self._lent = int(self.state.limit)
        start = -(-LISTED_SLOTS * self.stride // 8) * 8
        assert start + 8 * words <= self._lent * self.stride, "there are not so many words"
        self._region.release(start + 8 * words)
        set_slot_limit(self.state.kernel, LISTED_SLOTS)
        return self._region.bytes[start : start + 8 * words].view(np.int64)

    def take_back(self) -> None:
        """The words are used no more: their memory is that of slots again."""
        set_slot_limit(self.state.kernel, self._lent)

    def set_circle(self, slots: int) -> None:
        """Allow this many slots, used in a circle; the caller knows that all above are free."""
        self.state.limit = slots
        self._region.release(slots * self.stride)

    def release_before(self, oldest: int) -> None:
        """Rows lie in a circle; those before slot `oldest` have left: give their memory back."""
        start, end = self._released, oldest * self.stride
        # Younger rows may lie right before the oldest of the last time, and in one page with it.
        youngest = int(self.state.fresh) * self.stride
        least = youngest if youngest <= start else 0
        if end < start:
            self._region.release(max(start - mmap.PAGESIZE, least))
            start, least = 0, 0
        self._region.release(max(start - mmap.PAGESIZE, least), end)
        self._released = end

    def settle(self) -> None:
        """All rows that came before the last `set_bytes` have left: give the rest back."""
        self.state.fresh = min(self.state.fresh, self.state.limit)
        self._region.release(self.state.limit * self.stride)
        if self.heap is not None:
            self.heap.settle()

    def clear(self) -> None:
        """Forget all rows."""
        self._tail[:] = -1
        self.state.free, self.state.fresh, self.state.used = -1, 1, 1
        if self.heap is not None:
            self.heap.empty()

    def need_scratch(self, size_bytes: int) -> None:
        """Make room for a row with byte strings of this length."""
        if size_bytes > len(self._scratch):
            self._scratch = np.empty(size_bytes, np.uint8)
            self.state.scratch = self._scratch
