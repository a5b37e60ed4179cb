"""XXH64 over packed keys (the algorithm of the xxHash specification, version 0.1.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import load_i64, load_u8, load_u32

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@inlined
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inlined
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, 31) * _P1


@inlined
def _merge(total: np.uint64, lane: np.uint64) -> np.uint64:
    return (total ^ _round(np.uint64(0), lane)) * _P1 + _P4


@inlined
def xxh64(address: int, length: int, seed: np.uint64) -> np.uint64:
    """XXH64 of `length` bytes at `address`."""
    at, end = address, address + length
    if length >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + 32 <= end:
            a = _round(a, np.uint64(load_i64(at)))
            b = _round(b, np.uint64(load_i64(at + 8)))
            c = _round(c, np.uint64(load_i64(at + 16)))
            d = _round(d, np.uint64(load_i64(at + 24)))
            at += 32
        total = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        total = _merge(_merge(_merge(_merge(total, a), b), c), d)
    else:
        total = seed + _P5
    total += np.uint64(length)
    while at + 8 <= end:
        total = _rotate(total ^ _round(np.uint64(0), np.uint64(load_i64(at))), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        total = _rotate(total ^ (np.uint64(load_u32(at)) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        total = _rotate(total ^ (np.uint64(load_u8(at)) * _P5), 11) * _P1
        at += 1
    total = (total ^ (total >> np.uint64(33))) * _P2
    total = (total ^ (total >> np.uint64(29))) * _P3
    return total ^ (total >> np.uint64(32))


@kernel
def hash_rows(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    bits: int,
    out: npt.NDArray[np.int64],
) -> None:
    """key64 of packed rows: their XXH64 with all but the lowest `bits` bits cut off."""
    base = data.ctypes.data
    for i in range(out.size):
        value = xxh64(base + starts[i], starts[i + 1] - starts[i], np.uint64(0))
        if bits < 64:
            value &= (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
        out[i] = np.int64(value)


@kernel
def checksum(data: npt.NDArray[np.uint8]) -> np.uint64:
    """XXH64 of a buffer."""
    return xxh64(data.ctypes.data, data.size, np.uint64(0))
