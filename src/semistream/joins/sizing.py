"""How large the parts of the HYBRIDJOIN family are, where nobody says: the thesis's tuning.

The thesis finds sizes by measuring, or by a cost model with its machine's constants. Here the model
is reduced to what decides on a disk: a load of b pages costs a seek and b transfers, and it answers
rows in proportion to b and to the rows that wait, whatever the skew.
"""

from __future__ import annotations

from math import log, sqrt

SEEK_PAGES = 80
"""Pages that are read in the time of a seek: 8 ms to 0.1 ms on the papers' disks."""


def best_partition(memory_pages: float, seek_pages: float = SEEK_PAGES) -> int:
    """Pages of a partition for a memory of so many pages, of which one partition is the buffer.

    Rows answered per second are proportional to b · (m - b) / (s + b), with m the memory and s the
    seek, all in pages; this is where its derivative is zero.
    """
    best = sqrt(seek_pages**2 + seek_pages * max(memory_pages, 0.0)) - seek_pages
    return max(int(best), 1)


def best_cache(memory_bytes: float, master_bytes: float) -> float:
    """The share of a memory for the most frequent rows of a master, the rest being waiting rows'.

    `master_bytes` is what all rows would take in the cache. With keys by Zipf's law, exponent 1,
    the cache answers p = H(h)/H(n) of the stream (H are harmonic numbers), and a load answers rows
    in proportion to the rows that wait divided by 1 - p. That is greatest where 1/x - 1 = ln(n/h),
    x being the share, h the rows that it holds and n those of the master.
    """
    if memory_bytes <= 0:
        return 0.0
    ratio = master_bytes / memory_bytes
    if ratio <= 1:
        return ratio
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if 1 / middle - 1 > log(ratio / middle):
            low = middle
        else:
            high = middle
    return low
