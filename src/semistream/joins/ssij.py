"""SSIJ: rows wait for many pages at once, which are then read by the best plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryPlan
from semistream.core.errors import OptionError, SchemaError
from semistream.core.join import Snapshot, Traits
from semistream.joins.cache import TupleCache
from semistream.joins.deadlines import MARGIN, Durations, Gaps
from semistream.joins.indexed import RUNS, IndexedJoin
from semistream.joins.operator import PAGE
from semistream.joins.pairs import Sizes
from semistream.joins.pool import FRAME_BYTES, PagePool
from semistream.joins.spans import SpanProbe, keyless
from semistream.joins.waiting import WaitingRows
from semistream.kernels.jit import read_only
from semistream.kernels.matching import BROKEN, FULL, IDLE
from semistream.kernels.mesh import read_on
from semistream.kernels.pairs import done_with_run, run_at
from semistream.kernels.phases import (
    PHASE,
    count_wanted,
    drop_pages,
    join_kept,
    join_scans,
    settle_pages,
    sort_in,
)
from semistream.kernels.planning import list_wanted, optimal_runs, scan_runs
from semistream.kernels.spans import next_listed
from semistream.kernels.struct import Struct
from semistream.store.file import FileMaster
from semistream.store.keys import Keys
from semistream.store.layout import PackedColumns

SEEK_S, PAGE_S = 1e-4, 6.25e-6
"""A disk of today: a random read costs about as much as 16 pages in sequence."""

MOST_INPUT_ROWS = 250_000
"""The paper's IB_thresh: more gains nothing (Fig. 12)."""

REQUEST_BYTES = 256 * 1024
MOST_BUFFER_BYTES = 4 << 20
LEAST_ROWS = 64
FIRST_CACHE_SHARE = 0.3
BINS = 1024
RANK_BYTES = 16
"""Bytes of a cached page for its use and its place in the order."""

POLICIES = ("utility", "lru")
PATIENCE = 64
"""A join phase begins after so many times the rows that find room, even if they all were hits."""


class SemiStreamedIndexJoin(IndexedJoin):
    """SSIJ (Bornea, Deligiannakis, Kotidis, Vassalos: Semi-Streamed Index Join, ICDE 2011).

    *Pending phase*: rows collect in the input buffer IB. *Online phase*, without any read: the
    index gives the page of each row; rows whose page is cached (CR) are joined, the others go to
    the stream buffer SB, on the list of their page in the inverted index II. *Join phase*, once SB
    is full: the pages on which rows wait (P_u) are ranked together with the cached ones by utility,
    the number of rows that wanted them since the last join phase; the best stay or will stay
    (ToKeep), the rest of the cache goes (ToRemove); then P_u is read by the cheapest plan, and each
    page is joined with its list. One `step` is one online phase and, if it is due, the join phase.
    A step to which no rows were offered since the last one counts as a pause of the stream and
    forces the join phase.

    Names: IB_thresh is `ib_rows`, SB_thresh `sb_rows`, maxScan `max_scan`; S and T are `seek_s` and
    `page_s`; |CR| is `frames.used`.

    *Memory* moves between cache and stream. With `sb_rows` given the cache has what IB and SB do
    not need, as in the paper. Without, each page of the cache must earn its place: one that u rows
    want per join phase spares u slots of SB and, where it is not read through anyway, a read; it
    stays while that is more than the slots that its memory would give. `cache_share` fixes the
    share instead, `policy="lru"` ranks by recency: both for comparison (Fig. 10, 11). Rows beyond
    IB_thresh are refused rather than taken in at the cost of the cache, because a caller that can
    wait should; `burst_rows` is how many are taken in nevertheless, for which pages of lowest
    utility go unless the cache's share is fixed.

    *Deadlines* (§IV-F): with `max_wait` seconds each row is answered that long after it came, if
    the disk can and `step` is called often enough, and again while it gives results. A join phase
    begins when 1.2 times its expected duration, and the time between two steps, is left for the
    oldest row, or would take half of `max_wait`, so that rows which come meanwhile are in time as
    well. Its duration is first reckoned with a seek for each page (a whole scan at most), later
    with the longest seen for about as many pages.

    *Updates* (§IV-E): `master_changed` gives a new version of R. Rows in SB, which may have met
    pages already, are answered from the old version first; those in IB and all later ones see the
    new version only.

    Departures. A row is on the list of one page at a time, the next that it has to meet, and takes
    its pages in order; printed is an entry for every page, which costs memory, and the test of the
    live cache in line 13 of Algorithm 1, which gives a pair twice when its page was joined and then
    evicted in the same online phase. Rows are not sorted: the lists group them by page. Pages are
    dropped when the join phase begins, not one by one. Scans have no longest length unless
    `max_scan` is given: pages pass through a ring of buffers, so a long scan pushes nothing out of
    the cache, and then it is best to read through every gap that costs less than a seek; with
    `max_scan` the paper's dynamic programme plans. Several reads are in flight. END forces a join
    phase (missing in print), and so do 64 times as many answered rows as find room: while all rows
    find their page cached, SB would never fill and those in it starve. There is one latency bound
    for all rows, so that deadlines are in the order of arrival.
    """

    name = "ssij"
    traits = Traits(
        paper="Bornea et al., ICDE 2011",
        idea="collect rows, read all their pages by the cheapest plan, keep the most wanted pages",
        skew="page",
    )
    takes_conditions = True

    def __init__(
        self,
        *args: Any,
        ib_rows: int | None = None,
        sb_rows: int | None = None,
        burst_rows: int = 0,
        cache_share: float | None = None,
        policy: str = "utility",
        max_scan: int | None = None,
        seek_s: float = SEEK_S,
        page_s: float = PAGE_S,
        **options: Any,
    ) -> None:
        for name, value in (("ib_rows", ib_rows), ("sb_rows", sb_rows), ("max_scan", max_scan)):
            if value is not None and value < 1:
                raise OptionError(f"{name}={value} is not above zero")
        for name, number in (("seek_s", seek_s), ("page_s", page_s)):
            if not 0 < number < float("inf"):
                raise OptionError(f"{name}={number} is not a time", hint="give seconds")
        if burst_rows < 0:
            raise OptionError(f"burst_rows={burst_rows} is below zero")
        if cache_share is not None and not 0 <= cache_share < 1:
            raise OptionError(f"cache_share={cache_share} is not a share", hint="use 0 to 0.95")
        if policy not in POLICIES:
            raise OptionError(f"policy={policy!r} is not one of {', '.join(POLICIES)}")
        self.ib_option, self.sb_option, self.burst_rows = ib_rows, sb_rows, burst_rows
        self.cache_share, self.policy = cache_share, policy
        self.max_scan, self.seek_s, self.page_s = max_scan, seek_s, page_s
        super().__init__(*args, **options)

    # Memory.

    def divide(self, blob_bytes: float) -> MemoryPlan:
        master, limit = self.master, self.budget.limit_bytes
        parts = self.common_parts(index=True)
        parts["page lists"] = 4 * (master.pages + 1)
        parts["page table"] = PagePool.table_bytes(master)
        buffer = min(limit // 12, MOST_BUFFER_BYTES) // master.page_bytes
        parts["read buffer"] = max(buffer, 2) * master.page_bytes
        if self.max_scan is not None:
            # The dynamic programme: pages, costs, ends, and the runs.
            parts["read plan"] = 40 * (master.pages + 1)
        if self._want_several:
            parts["wanted pages"] = 4 * (master.pages + 1)
        if self.binding.condition is not None:
            sizes = self._sizes(blob_bytes)
            parts["condition"] = sizes.size_bytes + 16 * sizes.stream_rows
        parts["scratch"] = self.scratch_bytes + 8 * BINS + self.row_room(blob_bytes)
        row = self.binding.layout.record_bytes + (blob_bytes + 64 if blob_bytes else 0)
        return self.need(parts, "stream and cache", int(LEAST_ROWS * row) + 4096)

    @property
    def _want_several(self) -> bool:
        """Whether a row may want more than one page."""
        return bool(self.master.index.continued) or self.binding.condition is not None

    def _sizes(self, blob_bytes: float) -> Sizes:
        limit, room = self.budget.limit_bytes, self.row_room(blob_bytes)
        return Sizes.of(self.master, keyless(self.binding), limit, blob_bytes, room)

    def allocate(self, blob_bytes: float) -> None:
        master, plan = self.master, self.plan
        for part in plan.shares:
            if part not in ("output", "stream and cache"):
                self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        self._flexible = plan["stream and cache"]
        self._frame_bytes = master.page_bytes + FRAME_BYTES + RANK_BYTES
        self.waiting = WaitingRows(self.binding, master.pages + 1, self._flexible, blob_bytes)
        self.cache = TupleCache(self.binding, 0, 0, seed=self.seed)
        most = self._most_frames()
        self._pool = PagePool(master, most * (master.page_bytes + FRAME_BYTES))
        self.frames = self._pool.frames
        self._page_in = self.frames.array("page_in")
        self._order, self._uses = np.zeros((2, max(most, 1)), np.int64)
        self.frames.uses = self._uses
        buffer_pages = plan["read buffer"] // master.page_bytes
        self._request = max(min(buffer_pages // 6, REQUEST_BYTES // master.page_bytes), 1)
        self._reader = self.make_reader(buffer_pages)
        self.bind_kernels()
        self._histogram = np.zeros(BINS, np.int64)
        scale = max(int(self._frame_bytes / self.waiting.row_bytes) // (BINS // 4), 1)
        self.phase = Struct(PHASE, order=self._order, scale=scale)
        self._changes = np.zeros(master.pages + 1 if self._want_several else 0, np.int32)
        self.spans: SpanProbe | None = None
        if self.binding.condition is not None:
            self.spans = SpanProbe(
                master,
                self.binding,
                self.match,
                self._out.out,
                self.waiting,
                self._sizes(blob_bytes),
                self.budget,
            )
            self.phase.spans = self.spans.spans
        self._growing_to = 0
        self._in_ib = 0
        self._was_offered = False
        self._draining = False
        self._joining = False
        self._peak_rows = 0
        self._was_full = False
        self._ib_since = self._sb_since = 0
        self._answered = 0
        self._last_scans = (0, 0)
        self._durations = Durations()
        self._gap_ns = 0.0
        wait_ns = self.max_wait_ns
        self._gaps = None if wait_ns is None else Gaps(self.clock, wait_ns)
        share = FIRST_CACHE_SHARE if self.cache_share is None else self.cache_share
        self._share(min(int(self._flexible * share) // self._frame_bytes, most))

    def _most_frames(self) -> int:
        """Pages that may be cached while the least number of rows finds room."""
        least = int((LEAST_ROWS + 2) * self.waiting.row_bytes) + self.waiting.fixed_bytes
        pages = max(self._flexible - least, 0) // self._frame_bytes
        return min(pages, self.master.pages)

    def _share(self, frames: int) -> None:
        """Give the cache room for so many pages and the stream the rest, both at once."""
        self.phase.limit = frames
        self.budget.set("cache", 0)
        self.waiting.set_bytes(self._flexible - frames * self._frame_bytes)
        self.budget.set("stream", self.waiting.size_bytes)
        self.budget.set("cache", frames * self._frame_bytes)
        self._pool.give_back()

    @property
    def ib_rows(self) -> int:
        """IB_thresh: rows that go through the online phase together."""
        chosen = self.ib_option or max(self.waiting.capacity // 16, 1)
        return min(chosen, MOST_INPUT_ROWS, max(self.waiting.capacity // 2, 1))

    @property
    def sb_rows(self) -> int:
        """SB_thresh: rows for which the join phase begins."""
        most = max(self.waiting.capacity - self.ib_rows, 1)
        return min(self.sb_option or most, most)

    @property
    def is_joining(self) -> bool:
        """Whether a join phase is under way: it goes on when its results have been taken."""
        return self._out is not None and self._joining

    @property
    def cached_rows(self) -> int:
        used = int(self.frames.used) if self._out is not None else 0
        return int(used * self.master.rows / max(self.master.pages, 1))

    # Pending phase.

    def keys_of(
        self, batch: pa.RecordBatch, pages: npt.NDArray[np.int32] | None = None
    ) -> tuple[Keys, PackedColumns]:
        keys, packed = super().keys_of(batch, pages)
        if self.phase.spans:
            assert self.spans is not None
            keys = replace(keys, key64=read_only(self.spans.words(batch, pages)))
        return keys, packed

    def look_up(
        self,
        key64: npt.NDArray[np.int64],
        valid: npt.NDArray[np.uint8],
        found: npt.NDArray[np.int32],
        pages: npt.NDArray[np.int32],
    ) -> None:
        """Rows go to IB, the list behind those of the pages; the online phase looks them up."""
        found[:] = -1
        pages[:] = self.master.pages

    def accept(self, batch: pa.RecordBatch) -> int:
        assert self._out is not None
        self._was_offered = True
        room = self.ib_rows + self.burst_rows - self._in_ib
        if room <= 0:
            return 0
        wanted = min(batch.num_rows, room)
        if self.burst_rows and not self._joining:
            self._make_room_for(wanted)
        before = self.waiting.rows
        accepted = super().accept(batch.slice(0, wanted))
        came = self.waiting.rows - before
        if came:
            if self._in_ib == 0:
                self._ib_since = self.clock.now_ns()
            self._in_ib += came
            self._peak_rows = max(self._peak_rows, self.waiting.rows)
        if accepted < wanted and not self._out.pending:
            self._was_full = True
        return accepted

    def _make_room_for(self, rows: int) -> None:
        """Pages of lowest utility go, for rows that find no room else."""
        lacking = rows - (self.waiting.capacity - self.waiting.rows)
        is_fixed = self.cache_share is not None
        if lacking <= 0 or self._growing_to or is_fixed or not self.phase.limit:
            return
        pages = int(-(-lacking * self.waiting.row_bytes // self._frame_bytes))
        self._shrink_cache(max(int(self.phase.limit) - pages, 0))

    def _shrink_cache(self, frames: int) -> None:
        """Leave so many pages in the cache, the best; the stream gets the memory of the others."""
        used = int(self.frames.used)
        if used > frames:
            worst = np.partition(self._uses[:used], used - frames - 1)[used - frames - 1]
            better = int((self._uses[:used] > worst).sum())
            self.frames.array("touched")[:used] = 0
            drop_pages(self.frames.kernel, int(worst), frames - better, 1)
        self._share(frames)

    # Online phase.

    def work(self) -> None:
        paused, self._was_offered = not self._was_offered, False
        self.phase.stamp = self._iterations if self.policy == "lru" else 0
        if self._gaps is not None:
            self._gap_ns = self._gaps.ask()
        self._iterate(paused)
        if self._gaps is not None:
            self._gaps.skip()

    def _iterate(self, paused: bool) -> None:
        if not self._joining:
            if self._is_pending():
                return
            if self._online() and self._join_is_due(paused):
                self._begin_join()
        if self._joining:
            self._join()

    def _is_pending(self) -> bool:
        """Whether rows may wait on: only with deadlines, because else a step is asked for work."""
        if self.max_wait_ns is None or self._draining or self._in_ib >= self.ib_rows:
            return False
        return not self._is_urgent() and self.waiting.rows < self.waiting.capacity

    def _online(self) -> bool:
        """Join what the cached pages answer; False if the output is full."""
        assert self._out is not None
        match, out = self.match.kernel, self._out.out.kernel
        waiting, index = self.waiting.state.kernel, self.master.index.kernel
        now = self.clock.now_ns()
        if self._in_ib:
            if self.waiting.rows == self._in_ib:
                self._sb_since = self._ib_since
            buffer = self.master.pages
            phase = self.phase.kernel
            self._in_ib -= int(sort_in(match, out, waiting, index, phase, buffer, now))
            self._put_in_order()
        answered = self.match.matched + self.match.unmatched
        if self.spans is not None:
            kept = self._join_kept_spans(self.spans, self.master.pages)
        else:
            kept = join_kept(
                match,
                out,
                waiting,
                self.cache.state.kernel,
                index,
                self.frames.kernel,
                self.phase.kernel,
                self.master.pages,
                now,
            )
        hits = self.match.matched + self.match.unmatched - answered
        self.match.hits += hits
        self.match.misses -= hits
        return bool(kept) and self._in_ib == 0

    def _put_in_order(self) -> None:
        """List the cached pages in their order on disk, to be joined from the first on."""
        used = int(self.frames.used)
        self._order[:used] = np.sort(self._page_in[:used])
        self.phase.cached, self.phase.cursor = used, 0

    # Join phase.

    def _join_is_due(self, paused: bool) -> bool:
        waiting = self.waiting.rows
        if waiting == 0:
            return False
        self._was_full = self._was_full or waiting >= self.sb_rows
        answered = self.match.matched + self.match.unmatched - self._answered
        if self._draining or self._was_full or answered > PATIENCE * self.waiting.capacity:
            return True
        return paused if self.max_wait_ns is None else self._is_urgent()

    def _is_urgent(self) -> bool:
        """Whether a row would miss its deadline if the join phase did not begin now."""
        if self.max_wait_ns is None or self.waiting.rows == 0:
            return False
        since = self._ib_since
        if self.waiting.rows > self._in_ib:
            since = self._sb_since
        pages = min(int(self.phase.wanted) + self._in_ib, self.master.pages)
        # It may be that much later that one is asked again.
        needed = MARGIN * (self._expected_ns(pages) + self._gap_ns)
        left = since + self.max_wait_ns - self.clock.now_ns()
        return needed >= left or 2 * needed >= self.max_wait_ns

    def deadline(self, max_wait_ns: int) -> None:
        # Kept by the join phase, as the paper has it, and not by flushes.
        super().deadline(max_wait_ns)

    @property
    def is_due(self) -> bool:
        if self._out is None or self._gaps is None:
            return False
        self._gap_ns = self._gaps.ask()
        return self._joining or self._is_urgent()

    def _expected_ns(self, pages: int) -> float:
        """How long a join phase over so many pages takes."""
        shards = max(len(self.master.shard_ranges()), 1)
        scan_s = shards * self.seek_s + self.master.pages * self.page_s
        reckoned = min(pages * (self.seek_s + self.page_s), scan_s) * 1e9
        return self._durations.expected_ns(pages, reckoned)

    def _begin_join(self) -> None:
        self._joining = True
        self._began_ns = self.clock.now_ns()
        self._pages_wanted = int(
            count_wanted(
                self.waiting.state.kernel,
                self.master.index.kernel,
                self.frames.kernel,
                self.phase.kernel,
                self._changes,
                self._histogram,
            )
        )
        self._decide_what_stays()
        self._put_in_order()
        self._position = 0
        self._plan: npt.NDArray[np.int64] | None = None
        if self.max_scan is not None:
            self._plan = self._cheapest_plan(self.max_scan)
        self.phase.planned = 0
        reader = self._reader
        assert reader is not None
        self._reads = reader.seeks, reader.pages

    def _decide_what_stays(self) -> None:
        """Set ToKeep by its bounds, drop ToRemove, and move the border to the stream."""
        used, phase = int(self.frames.used), self.phase
        scale = int(phase.scale)
        new = self._histogram
        old = np.bincount(np.minimum(self._uses[:used] // scale, BINS - 1), minlength=BINS)
        wanted = self._wanted_frames(new + old)
        room = min(wanted, int(phase.limit))
        if self.policy == "lru":
            self._keep_recent(room)
        else:
            best = np.cumsum((new + old)[::-1])[::-1]
            # The lowest bin of which something may stay; all pages in those above it do.
            low = max(int(np.searchsorted(-best, -room)) - 1, 0)
            above = int(best[low + 1]) if low + 1 < BINS else 0
            old_there = min(int(old[low]), room - above)
            phase.above, phase.equal = low, room - above - old_there
            phase.skip = 0
            drop_pages(self.frames.kernel, low, old_there, scale)
        self._move_border(wanted)

    def _keep_recent(self, room: int) -> None:
        """LRU: what is read now is more recent than what is cached, later pages most of all."""
        used, phase = int(self.frames.used), self.phase
        phase.above, phase.equal = 0, self._pages_wanted
        phase.skip = max(self._pages_wanted - room, 0)
        left = max(room - self._pages_wanted, 0)
        if used > left:
            oldest = np.partition(self._uses[:used], used - left - 1)[used - left - 1]
            newer = int((self._uses[:used] > oldest).sum())
            drop_pages(self.frames.kernel, int(oldest), left - newer, 1)

    def _wanted_frames(self, uses: npt.NDArray[np.int64]) -> int:
        """How many pages the cache should have."""
        most = int(self.frames.count)
        if self.cache_share is not None:
            return min(int(self._flexible * self.cache_share) // self._frame_bytes, most)
        if self.sb_option is not None:
            rows = (self.sb_option + (self.ib_option or self.sb_option // 16) + 1) * 1.02
            left = self._flexible - self.waiting.fixed_bytes - rows * self.waiting.row_bytes
            return min(max(int(left) // self._frame_bytes, 0), most)
        if not self._was_full:
            # Memory is not short: the cache may have what the stream did not use.
            rows = max(1.25 * self._peak_rows, 2 * LEAST_ROWS) + LEAST_ROWS
            left = self._flexible - self.waiting.fixed_bytes - rows * self.waiting.row_bytes
            return min(max(int(left) // self._frame_bytes, 0), most)
        answered = self.match.matched + self.match.unmatched
        rows = answered - self._answered + self.waiting.rows
        scans, pages = self._last_scans
        saved = 0.0
        if pages and self._pages_wanted:
            cost = scans * self.seek_s + pages * self.page_s
            alone = min(scans / self._pages_wanted, 1.0)
            saved = rows * alone * (self.seek_s + self.page_s) / cost
        least = max(self._frame_bytes / self.waiting.row_bytes - saved, 1.0)
        low = min(int(np.ceil(least / int(self.phase.scale))), BINS - 1)
        return min(int(uses[low:].sum()), most)

    def _move_border(self, wanted: int) -> None:
        """Give the cache room for `wanted` pages: less at once, more when SB is empty."""
        now = int(self.phase.limit)
        if wanted < now:
            wanted = max(wanted, int(self.frames.used))
        if abs(wanted - now) * 50 < now and wanted:
            return
        if wanted <= now:
            self._growing_to = 0
            self._share(wanted)
        else:
            self.waiting.set_bytes(self._flexible - wanted * self._frame_bytes)
            self._growing_to = wanted

    def _cheapest_plan(self, longest: int) -> npt.NDArray[np.int64]:
        """The paper's plan for scans of limited length, cut into requests that fit the buffer."""
        pages, plans = np.empty(self.master.pages, np.int64), []
        for first, end in self.master.shard_ranges():
            count = int(list_wanted(self.frames.kernel, first, end, pages))
            runs = np.empty((count, 2), np.int64)
            found = pages[:count]
            plans.append(runs[: optimal_runs(found, self.seek_s, self.page_s, longest, runs)])
        scans = np.concatenate(plans) if plans else np.empty((0, 2), np.int64)
        pieces = -(-scans[:, 1] // self._request)
        which = np.repeat(np.arange(len(scans)), pieces)
        number = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        start = scans[which, 0] + number * self._request
        end = np.minimum(start + self._request, scans[which, 0] + scans[which, 1])
        return np.stack([start, end - start], axis=1)

    def _plan_ahead(self) -> None:
        room = RUNS - self.runs_left
        if self._plan is not None:
            runs, self._plan = self._plan[:room], self._plan[room:]
            self.phase.planned = len(self._plan) == 0
        else:
            runs = np.empty((room, 2), np.int64)
            count, self._position = scan_runs(
                self.frames.kernel,
                self.master.index.kernel,
                self._position,
                max(int(np.ceil(self.seek_s / self.page_s)) - 1, 0),
                self._request,
                runs,
            )
            runs = runs[:count]
            self.phase.planned = self._position >= self.master.pages
        self.plan_runs(runs)

    def _join(self) -> None:
        while True:
            if not self.phase.planned and self.runs_left < RUNS // 4:
                self._plan_ahead()
            if self.spans is not None:
                status = self._join_spans(self.spans)
            else:
                status = self.join_by(join_scans, self.phase.kernel)
            if status == FULL:
                return
            if self.phase.planned and not self.reads_pending:
                break
        if self.waiting.rows > self._in_ib:
            # Spans in other shards, which rows reach one after the other.
            self._begin_join()
            self._join()
        else:
            self._end_join()

    # The same under a condition.

    def _join_kept_spans(self, spans: SpanProbe, stop: int) -> bool:
        """Join the cached pages before `stop`, in order; False if the output is full."""
        waiting, phase = self.waiting.state.kernel, self.phase.kernel
        while True:
            if spans.is_busy and not spans.go_on(self.clock.now_ns()):
                return False
            page = int(next_listed(waiting, phase, stop))
            if page < 0:
                return True
            frame = int(self.frames.array("frame_of")[page])
            if frame < 0:
                self.phase.cursor += 1
                continue
            address = self.frames.data + frame * self.master.page_bytes
            rows = spans.begin(address, page, 1)
            stamp = int(self.phase.stamp)
            self._uses[frame] = stamp or self._uses[frame] + rows

    def _join_spans(self, spans: SpanProbe) -> int:
        """Read runs, join their pages and the cached ones between them in order, keep the best."""
        reader = self._reader
        assert reader is not None
        ring, run = reader.ring.kernel, np.zeros(3, np.int64)
        status = int(read_on(ring, self._runs, self._progress))
        if status == BROKEN:
            raise reader.error()
        if status == IDLE:
            if not self.phase.planned or self._join_kept_spans(spans, self.master.pages):
                return IDLE
            return FULL
        run_at(ring, run)
        done, count = int(self._progress[2]), int(run[1])
        while done < count:
            first = int(run[2]) + done
            address = int(run[0]) + done * self.master.page_bytes
            if not self._join_kept_spans(spans, first):
                return FULL
            pages = min(spans.pages, count - done)
            if spans.begin(address, first, pages):
                continue
            settle_pages(self.frames.kernel, self.phase.kernel, first, pages, address)
            done += pages
            self._progress[2] = done
        self._progress[2] = 0
        done_with_run(ring)
        return IDLE

    def _end_join(self) -> None:
        """SB is empty: rows that are left came meanwhile and are in IB."""
        assert self._reader is not None
        self._joining = False
        self._loops += 1
        self._last_scans = (
            self._reader.seeks - self._reads[0],
            self._reader.pages - self._reads[1],
        )
        if self._growing_to:
            self.waiting.settle()
            self._share(self._growing_to)
            self._growing_to = 0
        if self.policy != "lru":
            self._uses[: int(self.frames.used)] = 0
        self._answered = self.match.matched + self.match.unmatched
        self._peak_rows = self.waiting.rows
        self._was_full = False
        self.phase.wanted = 0
        self._durations.note(self._pages_wanted, self.clock.now_ns() - self._began_ns)

    def finish(self) -> Iterator[pa.RecordBatch]:
        self._check_open()
        self._draining = True
        try:
            yield from super().finish()
        finally:
            self._draining = False

    # Updates of R.

    def master_changed(self, master: FileMaster) -> None:
        """Go on with a new version of the master.

        Rows that have begun to look for their partners are answered from the old version, and their
        results are ready afterwards; all others, also those that wait in the input buffer, see the
        new version only. The caller closes the old one.
        """
        self._check_open()
        if master.schema != self.master.schema or master.spec.names != self.master.spec.names:
            raise SchemaError(
                "the new version of the master has other columns or another key",
                hint="make a new join",
            )
        old, self.master = self.master, master
        try:
            plan = self.divide(self._blob_bytes)
        finally:
            self.master = old
        if self._out is None:
            self.master, self.plan = master, plan
            return
        while self._joining or self.waiting.rows > self._in_ib:
            self._set_aside()
            if not self._joining:
                self._begin_join()
            self._join()
        held, reader = self.snapshot(), self._reader
        assert reader is not None
        reader.close()
        for part in self.budget.in_use():
            self.budget.set(part, 0)
        self.master, self.plan = master, plan
        self._restored = held.pending
        self.allocate(self._blob_bytes)
        fresh = self._reader
        assert fresh is not None
        fresh.go_on_from(reader)
        rows = held.rows
        if rows.num_rows:
            input_buffer = pa.array(np.full(rows.num_rows, master.pages, np.int32))
            place = rows.schema.get_field_index(PAGE)
            self.bring_back(rows.set_column(place, PAGE, input_buffer))

    # What survives a crash.

    def snapshot(self) -> Snapshot:
        self._check_open()
        while self._out is not None and self.spans is not None and self.spans.is_busy:
            # Rows between two lists are on neither.
            self._set_aside()
            self.spans.go_on(self.clock.now_ns())
        return super().snapshot()

    def before_restore(self) -> None:
        # The stream may have had nearly everything; the cache earns its share again.
        self._share(0)

    def restored(self, rows: pa.RecordBatch) -> None:
        pages = rows.column(PAGE).to_numpy()
        self._in_ib = int((pages == self.master.pages).sum())
        self._ib_since = self._sb_since = self.clock.now_ns()
        self.phase.wanted = len(np.unique(pages))
        self._peak_rows = self.waiting.rows
        self._was_full = True
