"""Kernels that decide which pages are read together.

A read of n neighbouring pages costs a seek and n transfers, so it pays to read through small gaps
between wanted pages. The optimal plan is the dynamic programme of the SSIJ paper (§IV-D).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import at, load_i32
from semistream.kernels.pages import is_continued
from semistream.kernels.reading import shows
from semistream.kernels.waiting import next_wanted

_I64 = npt.NDArray[np.int64]

DIGIT_BITS = 11
"""Words are sorted by so many bits at a time, at most: their counters fit the processor's first
cache."""


@inlined
def widest(ring: Any, shard: int, page: int, gap: int, seen_gap: int) -> int:
    """The longest gap behind a page that is read through."""
    if seen_gap > gap and shows(ring, shard, page):
        return seen_gap
    return gap


@kernel
def sweep_runs(
    waiting: Any,
    index: Any,
    ring: Any,
    position: int,
    gap: int,
    seen_gap: int,
    longest: int,
    runs: _I64,
    stop: int,
) -> tuple[int, int]:
    """Runs over the pages that rows wait for, from `position` on, in order, up to page `stop`.

    Gaps of at most `gap` pages are read through, in several runs where they are longer than one;
    of `seen_gap` pages where the ring's window may show them. A
    run is at most `longest` pages long and stays in one shard. Pages that continue a wanted page's
    last key are wanted too. Returns the number of runs and the position after them.
    """
    count = 0
    page = position
    if page > 0:
        # The call before had no room for all runs of a key: its rows will come here.
        count, page = _runs_of_key(index, page, longest, runs, count, stop)
    shard = 0
    while count < runs.shape[0]:
        last = next_wanted(waiting, page, stop)
        if last >= stop:
            return count, stop
        while at(index.shard_start, shard + 1) <= last:
            shard += 1
        first = last
        if 0 < page and at(index.shard_start, shard) <= page:
            if last - page <= widest(ring, shard, page, gap, seen_gap):
                first = page
        end = min(stop, at(index.shard_start, shard + 1), first + longest)
        probe, through = last + 1, widest(ring, shard, last, gap, seen_gap)
        while probe < end and probe - last <= through + 1:
            carried = last == probe - 1 and is_continued(index, probe)
            if load_i32(waiting.tail + 4 * probe) >= 0 or carried:
                last, through = probe, widest(ring, shard, probe, gap, seen_gap)
            probe += 1
        last = min(last, end - 1)
        runs[count, 0], runs[count, 1] = first, last - first + 1
        count += 1
        page = last + 1
        count, page = _runs_of_key(index, page, longest, runs, count, stop)
    return count, page


@kernel
def sort_words(words: _I64, other: _I64, pages: int) -> int:
    """Sort words by what stands in their upper half, below `pages`; how many different there are.

    Equal ones keep their order. `other` is as long as the words.
    """
    bits = 0
    while pages >> bits > 0:
        bits += 1
    passes = max((bits + DIGIT_BITS - 1) // DIGIT_BITS, 1)
    # Twice, four times: so that the words end where they were.
    passes += passes & 1
    digit = (bits + passes - 1) // passes
    count, mask = words.size, (np.int64(1) << digit) - 1
    starts = np.empty(mask + 1, np.int64)
    origin, target = words, other
    for turn in range(passes):
        shift = 32 + turn * digit
        starts[:] = 0
        for i in range(count):
            starts[(origin[i] >> shift) & mask] += 1
        total = 0
        for i in range(starts.size):
            total, starts[i] = total + starts[i], total
        for i in range(count):
            place = (origin[i] >> shift) & mask
            target[starts[place]] = origin[i]
            starts[place] += 1
        origin, target = target, origin
    different = 0
    for i in range(count):
        different += np.int64(i == 0 or words[i] >> 32 != words[max(i - 1, 0)] >> 32)
    return different


@kernel
def listed_runs(
    match: Any,
    index: Any,
    ring: Any,
    plan: _I64,
    gap: int,
    seen_gap: int,
    longest: int,
    runs: _I64,
) -> int:
    """Runs over the pages of listed rows, which are sorted, as `sweep_runs` makes them; how many.

    `plan` has the next word of the list, and the page after the last run.
    """
    count, word, page = 0, plan[0], plan[1]
    if page > 0:
        count, page = _runs_of_key(index, page, longest, runs, count, index.pages)
    shard = 0
    while count < runs.shape[0]:
        while word < match.listed and at(match.words, word) >> 32 < page:
            word += 1
        if word >= match.listed:
            break
        wanted = at(match.words, word) >> 32
        while at(index.shard_start, shard + 1) <= wanted:
            shard += 1
        first = wanted
        if 0 < page and at(index.shard_start, shard) <= page:
            if wanted - page <= widest(ring, shard, page, gap, seen_gap):
                first = page
        end = min(at(index.shard_start, shard + 1), first + longest)
        last = min(wanted, end - 1)
        while last + 1 < end:
            while word < match.listed and at(match.words, word) >> 32 <= last:
                word += 1
            if is_continued(index, last + 1):
                last += 1
                continue
            if word == match.listed:
                break
            wanted = at(match.words, word) >> 32
            if wanted >= end or wanted - last > widest(ring, shard, last, gap, seen_gap) + 1:
                break
            last = wanted
        runs[count, 0], runs[count, 1] = first, last - first + 1
        count += 1
        page = last + 1
        count, page = _runs_of_key(index, page, longest, runs, count, index.pages)
    plan[0], plan[1] = word, page
    return count


@inlined
def _runs_of_key(
    index: Any, page: int, longest: int, runs: _I64, count: int, stop: int
) -> tuple[int, int]:
    """Runs for a key that goes on at `page`: wanted although nobody waits there yet."""
    while page < stop and is_continued(index, page) and count < runs.shape[0]:
        end = min(stop, page + longest)
        first = page
        page += 1
        while page < end and is_continued(index, page):
            page += 1
        runs[count, 0], runs[count, 1] = first, page - first
        count += 1
    return count, page


@kernel
def optimal_runs(pages: _I64, seek: float, transfer: float, longest: int, runs: _I64) -> int:
    """The cheapest way to read sorted, distinct pages: SSIJ's dynamic programme.

    Runs begin and end at wanted pages and are at most `longest` pages long. O(pages x longest).
    Returns the number of runs.
    """
    n = pages.size
    cost = np.empty(n + 1, np.float64)
    ends = np.empty(n + 1, np.int64)
    cost[n] = 0.0
    farthest = 1 + seek / transfer
    for j in range(n - 1, -1, -1):
        best, best_end = np.inf, j
        i = j
        while i < n and pages[i] - pages[j] < longest:
            if i > j and pages[i] - pages[i - 1] >= farthest:
                break
            price = seek + transfer * (pages[i] - pages[j] + 1) + cost[i + 1]
            if price < best:
                best, best_end = price, i
            i += 1
        cost[j], ends[j] = best, best_end
    count, j = 0, 0
    while j < n:
        runs[count, 0], runs[count, 1] = pages[j], pages[ends[j]] - pages[j] + 1
        count += 1
        j = ends[j] + 1
    return count


@kernel
def greedy_runs(pages: _I64, gap: int, longest: int, runs: _I64) -> int:
    """Read through every gap of at most `gap` pages: linear time, optimal without a length limit.

    With `gap` below seek / transfer each bridged gap is cheaper than the seek it saves.
    """
    n = pages.size
    count, j = 0, 0
    while j < n:
        i = j
        end = pages[j] + longest
        while i + 1 < n and pages[i + 1] - pages[i] <= gap + 1 and pages[i + 1] < end:
            i += 1
        runs[count, 0], runs[count, 1] = pages[j], pages[i] - pages[j] + 1
        count += 1
        j = i + 1
    return count


@kernel
def list_wanted(frames: Any, first: int, end: int, out: _I64) -> int:
    """The pages from `first` to `end` that rows want and that are not cached; how many."""
    count = 0
    for page in range(first, end):
        if load_i32(frames.frame_of + 4 * page) < -1:
            out[count] = page
            count += 1
    return count


@kernel
def scan_runs(
    frames: Any, index: Any, position: int, gap: int, longest: int, runs: _I64
) -> tuple[int, int]:
    """Runs over the wanted pages from `position` on; their number and the position after them.

    What `greedy_runs` plans without a limit, found in passing: gaps of at most `gap` pages are read
    through, within a shard. Each such scan is cut into runs of at most `longest` pages that go on
    where the one before ended, so a disk has to seek for the first of them only.
    """
    count, shard = 0, 0
    page = position
    while count < runs.shape[0]:
        first = page
        while first < index.pages and load_i32(frames.frame_of + 4 * first) >= -1:
            first += 1
        if first >= index.pages:
            return count, index.pages
        while at(index.shard_start, shard + 1) <= first:
            shard += 1
        # The page before `page` was read: go on from there if the next wanted one is near.
        goes_on = page > at(index.shard_start, shard) and first - page <= gap
        start = page if goes_on else first
        stop = at(index.shard_start, shard + 1)
        end = min(start + longest, stop)
        last = first
        probe = first + 1
        while probe < stop and probe - last - 1 <= gap:
            if load_i32(frames.frame_of + 4 * probe) < -1:
                last = probe
                if probe >= end:
                    break
            probe += 1
        runs[count, 0] = start
        runs[count, 1] = min(last + 1, end) - start
        page = min(last + 1, end)
        count += 1
    return count, page


@kernel
def group_runs(waiting: Any, index: Any, groups: _I64, span: int, longest: int, runs: _I64) -> int:
    """Runs over groups of `span` pages, from the first to the last that rows wait for, and on while
    a key goes on; the number of runs.

    A run stays in one shard: a group that lies in several has a run for each. At most `longest`
    pages a run (not below `span`): rows whose key goes on beyond it come back to the queue.
    """
    count = 0
    for i in range(groups.size):
        page, stop = groups[i] * span, min((groups[i] + 1) * span, index.pages)
        shard = 0
        while page < stop:
            while at(index.shard_start, shard + 1) <= page:
                shard += 1
            shard_end = at(index.shard_start, shard + 1)
            first, last = np.int64(-1), np.int64(-1)
            while page < min(stop, shard_end):
                if load_i32(waiting.tail + 4 * page) >= 0:
                    first = page if first < 0 else first
                    last = page
                page += 1
            if first >= 0:
                end = last + 1
                while end < shard_end and end - first < longest and is_continued(index, end):
                    end += 1
                runs[count, 0], runs[count, 1] = first, end - first
                count += 1
    return count
