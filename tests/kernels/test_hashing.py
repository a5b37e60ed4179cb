"""XXH64 in a kernel against the xxhash package."""

from __future__ import annotations

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.kernels.hashing import checksum, hash_rows

RNG = np.random.default_rng(1)


def hashes(rows: list[bytes], bits: int = 64) -> list[int]:
    data = np.frombuffer(b"".join(rows) or b"\0", np.uint8)
    starts = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    out = np.empty(len(rows), np.int64)
    hash_rows(data, starts, bits, out)
    return [int(value) for value in out.view(np.uint64)]


def test_every_length_up_to_a_few_blocks() -> None:
    rows = [RNG.bytes(length) for length in range(140)]
    assert hashes(rows) == [xxhash.xxh64_intdigest(row) for row in rows]


@given(rows=st.lists(st.binary(max_size=200), min_size=1, max_size=8))
@settings(deadline=None)
def test_rows_one_after_the_other(rows: list[bytes]) -> None:
    assert hashes(rows) == [xxhash.xxh64_intdigest(row) for row in rows]


def test_fewer_bits_are_the_lowest_ones() -> None:
    rows = [RNG.bytes(20) for _ in range(50)]
    whole = [xxhash.xxh64_intdigest(row) for row in rows]
    for bits in (1, 3, 32, 63):
        assert hashes(rows, bits) == [value & ((1 << bits) - 1) for value in whole]


@given(data=st.binary(max_size=300), skipped=st.integers(0, 9))
@settings(deadline=None)
def test_checksum_of_a_buffer_at_any_address(data: bytes, skipped: int) -> None:
    buffer = np.frombuffer(bytes(skipped) + data, np.uint8)[skipped:]
    assert int(checksum(buffer)) == xxhash.xxh64_intdigest(data)
