"""Read plans against brute force."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semistream.kernels.frames import FRAMES
from semistream.kernels.matching import MATCH
from semistream.kernels.pages import INDEX
from semistream.kernels.planning import (
    greedy_runs,
    group_runs,
    listed_runs,
    optimal_runs,
    scan_runs,
    sort_words,
    sweep_runs,
)
from semistream.kernels.reading import PIECE_BYTES, RING, TRIES, WHOLE
from semistream.kernels.struct import Struct
from semistream.kernels.waiting import MARKED, WAITING
from tests.examples import examples

Runs = list[tuple[int, int]]


def cost(runs: Runs, seek: float, transfer: float) -> float:
    return sum(seek + transfer * count for _, count in runs)


def cheapest(pages: list[int], seek: float, transfer: float, longest: int) -> float:
    """By trying every way to cut the list of pages into runs."""
    best = float("inf")
    for cuts in range(1 << max(len(pages) - 1, 0)):
        runs, first = [], pages[0]
        for i, (a, b) in enumerate(pairwise(pages)):
            if cuts >> i & 1:
                runs.append((first, a - first + 1))
                first = b
        runs.append((first, pages[-1] - first + 1))
        if all(count <= longest for _, count in runs):
            best = min(best, cost(runs, seek, transfer))
    return best


def as_runs(array: npt.NDArray[np.int64], count: int) -> Runs:
    return [(int(first), int(length)) for first, length in array[:count]]


def assert_covers(runs: Runs, pages: list[int], longest: int) -> None:
    """Every page once, runs in order, beginning and ending at wanted pages."""
    for (first, count), (following, _) in pairwise(runs):
        assert first + count <= following
    for first, count in runs:
        assert 1 <= count <= longest
        assert first in pages
        assert first + count - 1 in pages
    read = [page for first, count in runs for page in range(first, first + count)]
    assert set(pages) <= set(read)


page_lists = st.sets(st.integers(0, 60), min_size=1, max_size=11).map(sorted)


@given(
    pages=page_lists,
    seek=st.sampled_from([0.0, 0.5, 1.0, 3.0, 8.0, 100.0]),
    transfer=st.sampled_from([0.3, 1.0, 2.0]),
    longest=st.integers(1, 70),
)
@settings(deadline=None, max_examples=examples(300))
def test_optimal_runs_are_the_cheapest(
    pages: list[int], seek: float, transfer: float, longest: int
) -> None:
    room = np.full((len(pages), 2), -1, np.int64)
    runs = as_runs(room, optimal_runs(np.array(pages, np.int64), seek, transfer, longest, room))
    assert_covers(runs, pages, longest)
    assert cost(runs, seek, transfer) == pytest.approx(cheapest(pages, seek, transfer, longest))


@given(pages=page_lists, gap=st.integers(0, 8), longest=st.integers(1, 70))
@settings(deadline=None, max_examples=examples(300))
def test_greedy_runs_join_what_is_near_and_nothing_else(
    pages: list[int], gap: int, longest: int
) -> None:
    room = np.full((len(pages), 2), -1, np.int64)
    runs = as_runs(room, greedy_runs(np.array(pages, np.int64), gap, longest, room))
    assert_covers(runs, pages, longest)
    for (first, count), (following, _) in pairwise(runs):
        # Two runs are apart because the gap is too wide or the run would be too long.
        assert following - (first + count) > gap or following - first + 1 > longest
    for first, count in runs:
        inside = [page for page in pages if first <= page < first + count]
        assert all(b - a <= gap + 1 for a, b in pairwise(inside))


@given(pages=page_lists, gap=st.integers(0, 8))
@settings(deadline=None)
def test_greedy_is_optimal_without_a_limit(pages: list[int], gap: int) -> None:
    room = np.full((len(pages), 2), -1, np.int64)
    runs = as_runs(room, greedy_runs(np.array(pages, np.int64), gap, 1000, room))
    # A gap of `gap` pages is worth bridging, one more is not.
    seek = gap + 0.5
    assert cost(runs, seek, 1.0) == pytest.approx(cheapest(pages, seek, 1.0, 1000))


PIECE_PAGES = 4


class Pieces:
    """A window's ring for pages of some shards, of which some pieces come whole."""

    def __init__(self, starts: list[int], whole: set[int]) -> None:
        counts = [-(-(end - first) // PIECE_PAGES) for first, end in pairwise(starts)]
        self.starts, self.begins = starts, np.cumsum([0, *counts], dtype=np.int64)
        self.whole = whole
        known = [WHOLE if piece in whole else TRIES for piece in range(int(self.begins[-1]))]
        self.ring = Struct(
            RING,
            window_bytes=PIECE_BYTES,
            page_bytes=PIECE_BYTES // PIECE_PAGES,
            shard_start=np.array(starts, np.int64),
            pieces=np.array([*known, 0], np.uint8),
            piece_start=self.begins,
        )

    def shown(self, page: int) -> bool:
        shard = int(np.searchsorted(self.starts, page, side="right")) - 1
        return int(self.begins[shard]) + (page - self.starts[shard]) // PIECE_PAGES in self.whole

    def widest(self, before: int, after: int, gap: int, seen_gap: int) -> tuple[int, int]:
        """The gap that is read through between two pages in any case, and that may be."""
        shown = [self.shown(page) for page in range(before, after)]
        return (seen_gap if all(shown) else gap), (seen_gap if any(shown) else gap)


class Master:
    """Pages of some shards; `continued` says where keys go on, `waiting` where rows wait."""

    def __init__(self, shards: list[int], continued: set[int], waiting: set[int]) -> None:
        starts = np.cumsum([0, *shards], dtype=np.int64)
        self.starts = starts.tolist()
        self.pages = int(starts[-1])
        # A shard begins with a key of its own.
        self.continued = {p for p in continued if p < self.pages} - set(self.starts)
        self.waiting = {p for p in waiting if p < self.pages}
        flags = np.zeros(max(self.pages, 1), np.uint8)
        flags[list(self.continued)] = 1
        self.tail = np.full(max(self.pages, 1), -1, np.int32)
        self.tail[list(self.waiting)] = 1
        self.index = Struct(
            INDEX,
            continued=flags,
            shard_start=starts,
            shards=len(shards),
            pages=self.pages,
        )
        # The first buckets are marked whether or not rows hang on them.
        marks = np.zeros(self.pages // MARKED + 1, np.uint8)
        marks[[0, *(page // MARKED for page in self.waiting)]] = 1
        self.rows = Struct(WAITING, tail=self.tail, buckets=self.pages, marks=marks)

    def wanted(self) -> set[int]:
        """Pages that rows wait for, and those to which they may have to move on."""
        pages = set(self.waiting)
        for page in range(self.pages):
            if page in self.continued and page - 1 in pages:
                pages.add(page)
        return pages

    def shard(self, page: int) -> int:
        return int(np.searchsorted(self.starts, page, side="right")) - 1


masters = st.builds(
    Master,
    shards=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    continued=st.one_of(st.just(set()), st.sets(st.integers(0, 240), max_size=200)),
    waiting=st.sets(st.integers(0, 240), max_size=30),
)


def swept(master: Master, pieces: Pieces, gaps: tuple[int, int], longest: int, room: int) -> Runs:
    runs: Runs = []
    position = 0
    while True:
        array = np.full((room, 2), -1, np.int64)
        count, position = sweep_runs(
            master.rows.kernel,
            master.index.kernel,
            pieces.ring.kernel,
            position,
            *gaps,
            longest,
            array,
            master.pages,
        )
        assert count <= room
        if count == 0:
            break
        runs += as_runs(array, count)
        assert position >= runs[-1][0] + runs[-1][1]
    assert position == master.pages
    return runs


@given(
    master=masters,
    gap=st.integers(0, 5),
    seen_gap=st.integers(0, 12),
    longest=st.integers(1, 12),
    room=st.integers(1, 5),
    whole=st.sets(st.integers(0, 60)),
)
@example(master=Master([9], {1, 2, 3, 4}, {0}), gap=0, seen_gap=0, longest=2, room=1, whole=set())
@example(
    master=Master([5, 9], {6, 7, 8}, {1, 5, 13}), gap=2, seen_gap=0, longest=1, room=2, whole=set()
)
@example(
    master=Master([40], set(), {0, 10, 21, 30}),
    gap=1,
    seen_gap=11,
    longest=12,
    room=2,
    whole={0, 5},
)
@settings(deadline=None, max_examples=examples(400))
def test_a_sweep_reads_every_page_that_is_wanted(
    master: Master, gap: int, seen_gap: int, longest: int, room: int, whole: set[int]
) -> None:
    """Over as many calls as it takes. Nothing is joined meanwhile: rows have not moved on yet when
    the next runs are planned."""
    pieces = Pieces(master.starts, whole)
    seen_gap = max(gap, min(seen_gap, longest))
    runs = swept(master, pieces, (gap, seen_gap), longest, room)
    again = swept(master, pieces, (gap, seen_gap), longest, room)
    assert again == runs, "what hangs is found again"
    for (first, length), (following, _) in pairwise(runs):
        assert first + length <= following
    read = set()
    wanted = master.wanted()
    for first, length in runs:
        assert 1 <= length <= longest
        assert master.shard(first) == master.shard(first + length - 1), "a run crosses shards"
        pages = range(first, first + length)
        unwanted = [page for page in pages if page not in wanted]
        # What is read for nothing are gaps, none of them longer than allowed.
        for page in unwanted:
            before = max(p for p in wanted if p < page)
            after = min(p for p in wanted if p > page)
            assert after - before - 1 <= pieces.widest(before, after, gap, seen_gap)[1]
        read |= set(pages)
    assert wanted <= read
    for before, after in pairwise(sorted(wanted)):
        if master.shard(before) == master.shard(after):
            least, _ = pieces.widest(before, after, gap, seen_gap)
            if after - before - 1 <= least:
                assert read.issuperset(range(before, after)), "a seek over a small gap"


@given(master=masters, span=st.integers(1, 4), longest=st.integers(4, 9), data=st.data())
@settings(deadline=None)
def test_runs_over_groups_go_from_the_first_to_the_last_wanted_page(
    master: Master, span: int, longest: int, data: st.DataObject
) -> None:
    if master.pages == 0:
        return
    groups = data.draw(st.lists(st.integers(0, (master.pages - 1) // span), max_size=6))
    runs = np.full((span * len(groups) + 1, 2), -1, np.int64)
    waiting, index = master.rows.kernel, master.index.kernel
    count = int(group_runs(waiting, index, np.array(groups, np.int64), span, longest, runs))
    expected: Runs = []
    for group in groups:
        pages = range(group * span, min((group + 1) * span, master.pages))
        for shard in sorted({master.shard(page) for page in pages}):
            wanted = [p for p in pages if p in master.waiting and master.shard(p) == shard]
            if not wanted:
                continue
            end = wanted[-1] + 1
            while (
                end < master.starts[shard + 1]
                and end - wanted[0] < longest
                and end in master.continued
            ):
                end += 1
            expected.append((wanted[0], end - wanted[0]))
    assert as_runs(runs, count) == expected


@given(
    pages=page_lists,
    gap=st.integers(0, 9),
    longest=st.integers(1, 12),
    shards=st.sampled_from([[0, 70], [0, 20, 45, 70], [0, 1, 2, 70]]),
    room=st.integers(1, 7),
)
@settings(deadline=None, max_examples=examples(200))
def test_scans_in_passing_are_the_cheapest(
    pages: list[int], gap: int, longest: int, shards: list[int], room: int
) -> None:
    """Runs that go on where one ended are one scan: together they cost what brute force finds."""
    frame_of = np.full(shards[-1], -1, np.int32)
    frame_of[pages] = -3
    frames = Struct(FRAMES, frame_of=frame_of)
    starts = np.array(shards, np.int64)
    index = Struct(INDEX, pages=shards[-1], shard_start=starts, shards=len(shards) - 1)
    found: Runs = []
    position = 0
    while position < shards[-1]:
        runs = np.zeros((room, 2), np.int64)
        count, position = scan_runs(frames.kernel, index.kernel, position, gap, longest, runs)
        found += as_runs(runs, count)
    assert all(1 <= count <= longest for _, count in found)
    scans: Runs = []
    for first, count in found:
        if scans and sum(scans[-1]) == first and first not in shards:
            scans[-1] = (scans[-1][0], scans[-1][1] + count)
        else:
            scans.append((first, count))
    seek = gap + 0.5
    wanted = 0.0
    for start, end in pairwise(shards):
        inside = [page for page in pages if start <= page < end]
        wanted += cheapest(inside, seek, 1.0, 1000) if inside else 0.0
    assert_covers(scans, pages, 1000)
    assert cost(scans, seek, 1.0) == pytest.approx(wanted)


@given(
    st.integers(1, 2**31 - 1).flatmap(
        lambda pages: st.tuples(
            st.just(pages), st.lists(st.integers(0, pages - 1) | st.integers(0, 3), max_size=300)
        )
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_words_are_sorted_by_page_and_then_by_row(drawn: tuple[int, list[int]]) -> None:
    pages, listed = drawn
    listed = [min(page, pages - 1) for page in listed]
    words = np.array([page << 32 | row for row, page in enumerate(listed)], np.int64)
    expected = np.sort(words)
    different = sort_words(words, np.empty(len(words), np.int64), pages)
    assert words.tolist() == expected.tolist()
    assert different == len(set(listed))


@given(
    st.lists(st.integers(0, 59), min_size=1, max_size=40),
    st.integers(0, 5),
    st.integers(0, 12),
    st.integers(1, 9),
    st.integers(1, 4),
    st.lists(st.booleans(), min_size=60, max_size=60),
    st.sets(st.integers(0, 16)),
)
@settings(max_examples=examples(100), deadline=None)
def test_runs_of_listed_rows_are_those_of_a_sweep(
    listed: list[int],
    gap: int,
    seen_gap: int,
    longest: int,
    room: int,
    continued: list[bool],
    whole: set[int],
) -> None:
    """Page for page, in as many calls as it takes; pages that go on with a key are wanted too."""
    pages, starts = 60, np.array([0, 25, 60], np.int64)
    marks = np.array(continued, np.uint8)
    marks[[0, 25]] = 0
    index = Struct(INDEX, pages=pages, shards=2, shard_start=starts, continued=marks)
    words = np.array(sorted(page << 32 | row for row, page in enumerate(listed)), np.int64)
    match = Struct(MATCH, words=words, listed=len(words))
    gap = min(gap, longest)
    seen_gap = max(gap, min(seen_gap, longest))
    pieces = Pieces(starts.tolist(), whole)
    ring = pieces.ring.kernel
    plan = np.zeros(2, np.int64)
    read: list[int] = []
    while True:
        runs = np.zeros((room, 2), np.int64)
        count = listed_runs(match.kernel, index.kernel, ring, plan, gap, seen_gap, longest, runs)
        if count == 0:
            break
        for first, length in runs[:count].tolist():
            assert 1 <= length <= longest
            assert (first < 25) == (first + length <= 25), "a run lies in one shard"
            read += range(first, first + length)
    assert read == sorted(set(read)), "no page is read twice, and they come in order"
    wanted = set(listed)
    for page in range(1, pages):
        if page - 1 in wanted and marks[page]:
            wanted.add(page)
    assert wanted <= set(read)
    for before, after in pairwise(sorted(wanted)):
        between = [page for page in read if before < page < after]
        assert len(between) in (0, after - before - 1)
        least, most = pieces.widest(before, after, gap, seen_gap)
        assert len(between) <= most
        if after - before - 1 <= least and (before < 25) == (after < 25):
            assert len(between) == after - before - 1, "a seek over a small gap"
