"""The fewest page reads that a stream can be joined with, whatever the algorithm.

See docs/limits.md for what each bound assumes and why it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.kernels.jit import kernel
from semistream.store.file import FileMaster

_I64 = npt.NDArray[np.int64]

WINDOWS = (0.25, 0.5, 1, 2, 3, 4, 6)
"""Lengths of windows that are tried, in rows that the memory could hold waiting."""


@dataclass(frozen=True)
class Trace:
    """A stream as the keys it asks for and the pages on which they lie."""

    keys: _I64
    pages: _I64

    @classmethod
    def of(cls, master: FileMaster, stream: Iterable[pa.RecordBatch], key: str) -> Trace:
        """The trace of a stream of integer keys that all have a partner."""
        keys = np.concatenate([batch.column(key).to_numpy() for batch in stream]).astype(np.int64)
        pages = np.empty(len(keys), np.int32)
        master.locate(keys, np.full(len(keys), -1, np.int32), pages)
        return cls(keys, pages.astype(np.int64))

    def head(self, rows: int) -> Trace:
        """Its first rows."""
        return Trace(self.keys[:rows], self.pages[:rows])

    def __len__(self) -> int:
        return len(self.keys)


def fewest_faults(asked: _I64, capacity: int) -> int:
    """Belady's MIN: misses of the best cache of `capacity` things that answers at once.

    What is asked for need not be kept (it may be read, used and forgotten), which only helps.
    """
    things, numbers = np.unique(asked, return_inverse=True)
    return int(_faults(numbers, len(things), capacity).sum())


def pages_of_best_row_cache(trace: Trace, batch_rows: int, capacity: int) -> int:
    """Pages read where rows are cached by MIN, and a micro-batch reads each page it needs once."""
    total = 0
    starts = range(0, len(trace), batch_rows)
    distinct = [
        np.unique(trace.keys[start : start + batch_rows], return_index=True) for start in starts
    ]
    keys = np.concatenate([found for found, _ in distinct])
    things, numbers = np.unique(keys, return_inverse=True)
    missed = _faults(numbers, len(things), capacity)
    at = 0
    for start, (found, first) in zip(starts, distinct, strict=True):
        misses = missed[at : at + len(found)].astype(bool)
        total += len(np.unique(trace.pages[start + first[misses]]))
        at += len(found)
    return total


def fewest_reads(
    trace: Trace, memory_bytes: int, *, master_row_bytes: int, stream_row_bytes: int
) -> int:
    """Pages that any join must read which has this memory for master rows and for waiting rows."""
    cached, waiting = memory_bytes // master_row_bytes, memory_bytes // stream_row_bytes
    lengths = {min(max(int(share * waiting), 1), len(trace)) for share in WINDOWS}
    return max(_in_windows(trace, length, cached, waiting) for length in lengths)


def fewest_reads_drained(
    trace: Trace, memory_bytes: int, batch_rows: int, *, master_row_bytes: int
) -> int:
    """The same where no row may wait beyond the end of its micro-batch."""
    cached = memory_bytes // master_row_bytes
    lengths = {batch_rows * 2**step for step in range(16) if batch_rows * 2**step <= 2 * len(trace)}
    return max(_in_windows(trace, length, cached, 0) for length in lengths)


def _in_windows(trace: Trace, length: int, cached: int, waiting: int) -> int:
    total = 0
    for start in range(0, len(trace), length):
        keys, first, counts = np.unique(
            trace.keys[start : start + length], return_index=True, return_counts=True
        )
        pages = trace.pages[start + first]
        # Shares of the memory that keep a key's rows from needing their page in this window: its
        # master row is there at the start, or all of them still wait at the end.
        cost = np.full(len(keys), 1 / max(cached, 1))
        if waiting:
            cost = np.minimum(cost, counts / waiting)
        _, page = np.unique(pages, return_inverse=True)
        of_page = np.sort(np.bincount(page, weights=cost))
        budget = 2.0 if waiting else 1.0
        spared = int(np.searchsorted(np.cumsum(of_page), budget * (1 + 1e-9), side="right"))
        total += len(of_page) - spared
    return total


@kernel
def _faults(asked: Any, things: Any, capacity: Any) -> Any:
    """For each request whether MIN misses it. A heap holds when the cached are asked for next."""
    count = asked.size
    missed = np.zeros(count, np.uint8)
    next_use = np.empty(count, np.int64)
    last = np.full(things, count, np.int64)
    for i in range(count - 1, -1, -1):
        next_use[i] = last[asked[i]]
        last[asked[i]] = i
    cached = np.zeros(things, np.uint8)
    heap = np.empty(count + 1, np.int64)
    size = 0
    held = 0
    for i in range(count):
        thing, later = asked[i], next_use[i]
        if cached[thing]:
            # Its entry is i, the smallest there is from now on: it never comes to the top again.
            if later == count:
                cached[thing] = 0
                held -= 1
                continue
        else:
            missed[i] = 1
            if later == count or capacity == 0:
                continue
            if held == capacity:
                if heap[0] <= later:
                    continue
                cached[asked[heap[0]]] = 0
                size -= 1
                _sink(heap, size, heap[size])
            else:
                held += 1
            cached[thing] = 1
        # Rise from the end.
        at = size
        size += 1
        while at > 0 and heap[(at - 1) // 2] < later:
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = later
    return missed


@kernel
def _sink(heap: Any, size: Any, value: Any) -> None:
    """Put a value at the top of a heap whose top is free, and let it sink to its place."""
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value
