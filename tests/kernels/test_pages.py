"""Pages and the sparse index against NumPy and plain Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.kernels.pages import (
    INDEX,
    bucket_of,
    count_keys,
    fill_pages,
    first_bad_page,
    guess_position,
    locate,
    lower_bound_keys,
    read_rows,
    shard_of,
    shards_of,
)
from semistream.kernels.struct import Struct
from tests.examples import examples

LOW, HIGH = -(2**63), 2**63 - 1
RECORD = 12
PAGE = 4096

int64s = st.one_of(
    st.integers(LOW, HIGH),
    st.integers(-20, 20),
    st.integers(LOW, LOW + 5),
    st.integers(HIGH - 5, HIGH),
    st.integers(2**62, 2**62 + 5),
    st.sampled_from([2**32, 2**32 - 1, -(2**32), 2**31]),
)


# Searching.


@given(keys=st.lists(int64s, min_size=1, max_size=80), wanted=int64s, guess=st.integers(0, 79))
@settings(deadline=None, max_examples=examples(400))
def test_lower_bound_is_searchsorted(keys: list[int], wanted: int, guess: int) -> None:
    ordered = np.sort(np.array(keys, np.int64))
    address, count = ordered.ctypes.data, len(ordered)
    for key in (wanted, keys[0], min(keys[0], HIGH - 1) + 1, max(keys[0], LOW + 1) - 1):
        expected = int(np.searchsorted(ordered, key))
        guesses = {guess % count, 0, count - 1}
        guesses.add(int(guess_position(count, int(ordered[0]), int(ordered[-1]), key)))
        for start in guesses:
            assert 0 <= start < count
            assert int(lower_bound_keys(address, count, start, key)) == expected


def naive_page(
    firsts: list[int], continued: list[int], starts: list[int], shards: int, key: int
) -> int:
    """The first page that can hold a key, by looking at all of them."""
    shard = int(shard_of(key, shards)) if shards > 1 else 0
    pages = range(starts[shard], starts[shard + 1])
    equal = [page for page in pages if firsts[page] == key]
    below = [page for page in pages if firsts[page] < key]
    if equal and not continued[equal[0]]:
        return equal[0]
    return below[-1] if below else -1


def index_of(firsts: list[int], continued: list[int], starts: list[int]) -> Struct:
    """An index as `FileMaster` makes it."""
    first = np.array(firsts, np.int64)
    base = int(first.min()) if firsts else 0
    narrow = not firsts or max(firsts) - base <= 0xFFFFFFFF
    flags = np.array(continued, np.uint8)
    return Struct(
        INDEX,
        first=(first - base).astype(np.uint32) if narrow else first,
        narrow=narrow,
        base=base if narrow else 0,
        continued=flags if any(continued) else 0,
        shard_start=np.array(starts, np.int64),
        shards=len(starts) - 1,
        pages=len(firsts),
    )


def cut(
    keys: list[int], shards: int, sizes: list[int]
) -> tuple[list[list[int]], list[int], list[int], list[int]]:
    """Sorted keys cut into pages of given sizes, shard by shard, with what the index says."""
    by_shard: list[list[int]] = [[] for _ in range(shards)]
    for key in sorted(keys):
        by_shard[int(shard_of(key, shards)) if shards > 1 else 0].append(key)
    pages: list[list[int]] = []
    continued: list[int] = []
    starts = [0]
    for content in by_shard:
        at = 0
        while at < len(content):
            size = sizes[len(pages) % len(sizes)]
            page = content[at : at + size]
            continued.append(int(at > 0 and content[at - 1] == page[0]))
            pages.append(page)
            at += size
        starts.append(len(pages))
    return pages, [page[0] for page in pages], continued, starts


@given(
    keys=st.lists(int64s, max_size=60),
    spread=st.booleans(),
    copies=st.integers(1, 6),
    shards=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    others=st.lists(int64s, max_size=10),
)
@settings(deadline=None, max_examples=examples(400))
def test_located_page_is_the_first_that_can_hold_the_key(
    keys: list[int], spread: bool, copies: int, shards: int, sizes: list[int], others: list[int]
) -> None:
    if not spread:
        keys = [key % 1000 - 500 for key in keys]
    repeated = [key for i, key in enumerate(keys) for _ in range(copies if i % 3 == 0 else 1)]
    pages, firsts, continued, starts = cut(repeated, shards, sizes)
    index = index_of(firsts, continued, starts)
    asked = {*repeated, *others, LOW, HIGH, 0}
    asked |= {min(key, HIGH - 1) + 1 for key in repeated}
    asked |= {max(key, LOW + 1) - 1 for key in repeated}
    wanted = np.array(sorted(asked), np.int64)
    found = np.empty(len(wanted), np.int32)
    locate(index.kernel, wanted, np.full(len(wanted), -1, np.int32), found)
    for key, page in zip(wanted.tolist(), found.tolist(), strict=True):
        assert page == naive_page(firsts, continued, starts, shards, key), key
        # And that is where its rows begin.
        holders = [number for number, content in enumerate(pages) if key in content]
        if holders:
            assert page == holders[0]


def test_known_keys_are_not_located() -> None:
    index = index_of([0, 10, 20], [0, 0, 0], [0, 3])
    out = np.full(3, 99, np.int32)
    locate(index.kernel, np.array([5, 15, 25]), np.array([-1, 0, 7], np.int32), out)
    assert out.tolist() == [0, -1, -1]


@given(keys=st.lists(int64s, min_size=1, max_size=50), count=st.integers(1, 4096))
@settings(deadline=None)
def test_shards_and_buckets_are_in_range(keys: list[int], count: int) -> None:
    out = np.empty(len(keys), np.int32)
    shards_of(np.array(keys, np.int64), count, out)
    for key, shard in zip(keys, out.tolist(), strict=True):
        assert shard == int(shard_of(key, count))
        assert 0 <= shard < count
        assert 0 <= int(bucket_of(key, count)) < count
        assert 0 <= int(bucket_of(key, 2**32 - 1)) < 2**32 - 1


def test_shards_and_buckets_are_even() -> None:
    keys = np.arange(40_000) * 8
    out = np.empty(len(keys), np.int32)
    shards_of(keys, 16, out)
    assert np.bincount(out, minlength=16).min() > 2200
    inner = keys[out == 3]
    buckets = np.array([int(bucket_of(int(key), 8)) for key in inner])
    # The keys of one shard still spread over all buckets.
    assert np.bincount(buckets, minlength=8).min() > len(inner) / 16


# Writing.


def filled(
    keys: npt.NDArray[np.int64], blobs: list[bytes], fill: float = 1.0, final: bool = True
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.uint8], int]:
    rows = []
    for number, blob in enumerate(blobs):
        record = number.to_bytes(4, "little") + bytes(4) + len(blob).to_bytes(4, "little")
        rows.append(record + blob)
    data = np.frombuffer(b"".join(rows) or b"\0", np.uint8)
    starts = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    shape = np.array([RECORD, 4, PAGE, int(PAGE * fill), int(final)], np.int64)
    pages = np.full(64 * PAGE, 0xAA, np.uint8)
    firsts, continued = np.empty(64, np.int64), np.empty(64, np.uint8)
    carry = np.zeros(3, np.int64)
    done = fill_pages(keys, starts, data, shape, pages, 5, firsts, continued, carry)
    count = int(carry[0])
    return pages[: count * PAGE], firsts[:count], continued[:count], int(done)


@given(
    keys=st.lists(st.integers(-50, 50), min_size=1, max_size=300),
    longest=st.sampled_from([0, 10, 900]),
    fill=st.sampled_from([1.0, 0.5, 0.1]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=examples(60))
def test_pages_hold_all_rows_in_order(
    keys: list[int], longest: int, fill: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    ordered = np.sort(np.array(keys, np.int64))
    blobs = [rng.bytes(int(rng.integers(0, longest + 1))) for _ in keys]
    pages, firsts, continued, done = filled(ordered, blobs, fill)
    if done < len(keys):
        # There was room for 64 pages only.
        assert len(firsts) == 64
    assert first_bad_page(pages, PAGE, 5) == -1
    at, last = 0, None
    for number, page in enumerate(pages.reshape(-1, PAGE)):
        room_keys, room = np.empty(PAGE, np.int64), np.empty(PAGE, np.uint8)
        count = int(read_rows(page, RECORD, room_keys, room))
        assert count > 0
        assert room_keys[:count].tolist() == ordered[at : at + count].tolist()
        assert firsts[number] == ordered[at]
        assert bool(continued[number]) == (last == ordered[at])
        used = 32 + count * (8 + RECORD)
        for row in range(count):
            record = room[row * RECORD : (row + 1) * RECORD].tobytes()
            length = int.from_bytes(record[8:], "little")
            start = int.from_bytes(record[4:8], "little")
            assert int.from_bytes(record[:4], "little") == at + row
            assert page[start : start + length].tobytes() == blobs[at + row]
            used += length
        assert used <= PAGE
        assert count == 1 or used <= PAGE * fill
        assert not page[used:].any(), "what is not used is not zero"
        at += count
        last = ordered[at - 1]
    assert at == done


def test_a_page_that_may_go_on_is_not_closed() -> None:
    keys = np.arange(100)
    pages, _, _, done = filled(keys, [b"x" * 50] * 100, final=False)
    closed, _, _, _ = filled(keys, [b"x" * 50] * 100, final=True)
    assert 0 < done < 100
    assert len(pages) == len(closed) - PAGE


@pytest.fixture(scope="module")
def page() -> npt.NDArray[np.uint8]:
    blobs = [bytes([i]) * (i % 30) for i in range(100)]
    return filled(np.arange(100), blobs)[0][:PAGE].copy()


def test_any_flipped_byte_is_found(page: npt.NDArray[np.uint8]) -> None:
    rng = np.random.default_rng(3)
    assert first_bad_page(page, PAGE, 5) == -1
    for at in range(PAGE):
        bit = np.uint8(1 << int(rng.integers(8)))
        page[at] ^= bit
        assert first_bad_page(page, PAGE, 5) == 5, f"byte {at}"
        page[at] ^= bit
    assert first_bad_page(page, PAGE, 5) == -1


@given(changes=st.dictionaries(st.integers(0, PAGE - 1), st.integers(1, 255), min_size=1))
@settings(deadline=None, max_examples=examples(300))
def test_any_few_changed_bytes_are_found(
    changes: dict[int, int], page: npt.NDArray[np.uint8]
) -> None:
    changed = page.copy()
    for at, value in changes.items():
        changed[at] ^= np.uint8(value)
    assert first_bad_page(changed, PAGE, 5) == 5


def test_a_page_in_the_place_of_another_is_found() -> None:
    pages = filled(np.arange(500), [b"y" * 40] * 500)[0].reshape(-1, PAGE)
    assert len(pages) > 3
    swapped = pages.copy()
    swapped[[1, 2]] = swapped[[2, 1]]
    assert first_bad_page(swapped.reshape(-1), PAGE, 5) == 6
    assert first_bad_page(pages.reshape(-1), PAGE, 4) == 4


@given(
    keys=st.lists(st.integers(0, 12), max_size=60), cuts=st.lists(st.integers(0, 60), max_size=4)
)
@settings(deadline=None)
def test_distinct_keys_and_the_longest_run_are_counted_over_batches(
    keys: list[int], cuts: list[int]
) -> None:
    ordered = np.sort(np.array(keys, np.int64))
    carry = np.zeros(5, np.int64)
    for part in np.split(ordered, sorted(min(cut, len(keys)) for cut in cuts)):
        count_keys(part, carry)
    counts = np.unique(ordered, return_counts=True)[1]
    assert carry[0] == len(counts)
    assert carry[1] == (counts.max() if len(counts) else 0)
