"""Kernels that load pages into memory to stay, before a join begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.cache import blocks_for, has_place, keep
from semistream.kernels.frames import keep_page
from semistream.kernels.jit import kernel
from semistream.kernels.memory import load_i32, load_i64
from semistream.kernels.pages import PAGE_KEYS, PAGE_ROWS, continues, is_continued
from semistream.kernels.reading import (
    REQ_BUFFER,
    REQ_COUNT,
    REQ_FIRST,
    give_back,
    in_flight,
    oldest,
    submit,
)

_I64 = npt.NDArray[np.int64]


@kernel
def load_pages(ring: Any, frames: Any, cache: Any, index: Any, runs: _I64) -> bool:
    """Read runs of pages and keep the pages in frames or, without any, their rows in the cache.

    False if a read failed (the ring says which).
    """
    submitted = 0
    while True:
        while submitted < runs.shape[0] and submit(ring, runs[submitted, 0], runs[submitted, 1]):
            submitted += 1
        if in_flight(ring) == 0:
            return True
        request = oldest(ring)
        if request == 0:
            return False
        first, buffer = load_i64(request + REQ_FIRST), load_i64(request + REQ_BUFFER)
        for i in range(load_i64(request + REQ_COUNT)):
            page = buffer + i * ring.page_bytes
            if frames.count > 0:
                keep_page(frames, first + i, page)
            else:
                _keep_rows(cache, index, first + i, page)
        give_back(ring)


@kernel
def _keep_rows(cache: Any, index: Any, number: int, page: int) -> None:
    """Cache the keys of a page while there is room; keys that reach over its edge are left out."""
    rows = np.int64(load_i32(page + PAGE_ROWS))
    keys = page + PAGE_KEYS
    stride = cache.page.record_bytes
    records = keys + 8 * rows
    low = np.int64(0)
    while low < rows:
        key = load_i64(keys + 8 * low)
        high = low + 1
        while high < rows and load_i64(keys + 8 * high) == key:
            high += 1
        begun = low == 0 and is_continued(index, number)
        if not begun and not (high == rows and continues(index, number)):
            blocks = blocks_for(cache, records + low * stride, stride, high - low)
            if has_place(cache, high - low, blocks):
                keep(cache, key, page, records + low * stride, stride, high - low, 1)
        low = high
