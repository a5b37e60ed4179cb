"""Kernels of the filter for absent keys: a small Bloom filter for every page.

A key that the index sends to a page is looked for in that page's block, up to four bits of it. If
one is not set the page does not hold the key, and nobody has to wait for it to find that out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import load_i64, load_u32, prefetch
from semistream.kernels.pages import PAGE_KEYS, PAGE_ROWS, mix

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]
_U64 = npt.NDArray[np.uint64]


@inlined
def _bits(key: int) -> int:
    """Four times 16 bits, independent of those that choose a shard or a bucket."""
    return mix(np.uint64(key) + np.uint64(0x9E3779B97F4A7C15))


@inlined
def _bit(hashed: int, probe: int, bits: int) -> int:
    word = (np.uint64(hashed) >> np.uint64(16 * probe)) & np.uint64(0xFFFF)
    return (word * np.uint64(bits)) >> np.uint64(16)


@kernel
def note_pages(
    blocks: _U64, words: int, probes: int, numbers: _I64, pages: _U8, page_bytes: int
) -> None:
    """Fill the blocks of some pages from their keys."""
    bits = np.uint64(64 * words)
    for i in range(numbers.size):
        start = numbers[i] * words
        for w in range(words):
            blocks[start + w] = np.uint64(0)
        page = pages.ctypes.data + i * page_bytes
        for k in range(np.int64(load_u32(page + PAGE_ROWS))):
            hashed = _bits(load_i64(page + PAGE_KEYS + 8 * k))
            for probe in range(probes):
                bit = _bit(hashed, probe, bits)
                blocks[start + np.int64(bit >> np.uint64(6))] |= np.uint64(1) << (
                    bit & np.uint64(63)
                )


@kernel
def rule_out(
    blocks: _U64, words: int, probes: int, keys: _I64, pages: npt.NDArray[np.int32]
) -> None:
    """Set the page of every key to -1 that is not on it."""
    bits = np.uint64(64 * words)
    base = blocks.ctypes.data
    for i in range(keys.size):
        ahead = i + 16
        if ahead < keys.size and pages[ahead] >= 0:
            prefetch(base + 8 * words * np.int64(pages[ahead]))
        if pages[i] < 0:
            continue
        start = np.int64(pages[i]) * words
        hashed = _bits(keys[i])
        for probe in range(probes):
            bit = _bit(hashed, probe, bits)
            word = blocks[start + np.int64(bit >> np.uint64(6))]
            if (word >> (bit & np.uint64(63))) & np.uint64(1) == np.uint64(0):
                pages[i] = np.int32(-1)
                break
