"""Kernels that count how often keys occur in a master."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import kernel
from semistream.kernels.memory import load_i64, load_u32
from semistream.kernels.pages import PAGE_KEYS, PAGE_ROWS

_I64 = npt.NDArray[np.int64]


@kernel
def count_runs(
    pages: npt.NDArray[np.uint8],
    page_bytes: int,
    least: int,
    run: _I64,
    keys: _I64,
    counts: _I64,
) -> int:
    """List the keys that occur at least `least` times in pages that follow each other.

    `run` is the key that was being counted and its count so far, between calls; a count of 0 means
    none. How many keys were listed.
    """
    base, listed = pages.ctypes.data, 0
    for p in range(pages.size // page_bytes):
        page = base + p * page_bytes
        rows = np.int64(load_u32(page + PAGE_ROWS))
        for i in range(rows):
            key = load_i64(page + PAGE_KEYS + 8 * i)
            if run[1] > 0 and key == run[0]:
                run[1] += 1
                continue
            if run[1] >= least:
                keys[listed], counts[listed] = run[0], run[1]
                listed += 1
            run[0], run[1] = key, 1
    return listed
