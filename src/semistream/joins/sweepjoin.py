"""SWEEPJOIN: a full pool, a sweeping head, a cache that earns its memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryBudget, MemoryPlan
from semistream.core.errors import OptionError
from semistream.core.join import Traits
from semistream.joins.absent import BITS_PER_ROW, AbsentFilter
from semistream.joins.binding import Binding
from semistream.joins.cache import TupleCache
from semistream.joins.indexed import ALL_ROWS, INTAKE_ROWS, IndexedJoin
from semistream.joins.listed import ListedRows
from semistream.joins.operator import check_batch
from semistream.joins.waiting import LISTED_SLOTS, WaitingRows
from semistream.kernels.matching import FULL, LISTED_AHEAD, SEEN_AHEAD, take_in
from semistream.kernels.planning import sweep_runs
from semistream.kernels.region import HUGE_BYTES
from semistream.kernels.waiting import MARKED
from semistream.store.file import FileMaster
from semistream.store.keys import Keys
from semistream.store.layout import PackedColumns
from semistream.store.parts import MasterPart
from semistream.store.reader import WINDOW_SHARE, window_bytes

GAP_BYTES = {"direct": 12_288, "buffered": 4096}
"""Gaps that are read through on today's disks: a separate request costs about as much."""

BUFFER_PART, RUNS_IN_BUFFER = 10, 4
"""The read buffer is this part of the memory, and takes this many runs of the greatest length."""

WINDOW_PART, PIECE_PART = 5, 4
"""With a window it is this part: each window that is taken out stops the other threads for a
moment. It is up to the other part if it has a piece then, into which a disk writes at once, or
which shows pages without copying them."""

LONGEST_RUN_BYTES = 256 * 1024
MOST_BUFFER_BYTES = {"direct": 4 << 20, "buffered": 10 << 20}
"""Beyond these nothing is gained: several requests of this length keep a disk busy, and windows are
large enough."""

SEEN_SHARE = 16
"""Where windows come in pieces, and a sweep has a row for one page in so many, it goes through all
pages between wanted ones."""

OUTPUT_PART = {"direct": 16, "buffered": 8}
MOST_OUTPUT_BYTES = {"direct": 2 << 20, "buffered": 4 << 20}
"""The output is this part of the memory, up to so many bytes. Whenever one is full, threads meet
and Python hands results out; but where the disk binds, a larger pool is worth more than that."""

LEAST_OUTPUT_PART, LEAST_OUTPUT_BYTES = 12, 256_000
"""It has so many bytes at least, if that is not more than this part of the memory."""

MOST_PLANS = 32
"""A step fills the output unless this much reading does not: small batches of results would cost
more than the joining."""

LEAST_RUNS, MOST_RUNS, BYTES_PER_RUN = 64, 1024, 8192
"""Runs planned ahead: one for this much memory. Where each row needs a page of its own, a plan of
few runs is soon read, and Python is asked for the next too often."""

MOST_SEEN = 16
"""Runs planned ahead where pages are seen."""

FIRST_CACHE_SHARE = 0.3

ABSENT_SHARE = 0.5
"""With more of the keys absent, a filter is worth its memory and a reading of all pages."""

PATIENCE = 4
"""Sweeps in which the pool must not have been full before its rest is the cache's, and of which the
fullest counts. The last sweeps of a large batch that is drained are for few rows: judged one by
one, they would move the border between pool and cache to and fro with every batch."""

LEAST_ROWS = 64

LISTED_BYTES = 16
"""What a row of a batch that is drained takes in its list."""

LEAST_LISTED = 4096
"""Batches are listed where there is room for so many rows of them."""

UNEVEN = 1.25
"""A list of one of several parts has room for so many times its share of the rows."""

OFFERED_SETTLED = 16
"""A full cache is offered the rows of one page in so many of a large batch that is drained: to look
for one that gives its place up costs as much as to join several."""

MERIT, OFFERED, ASKED = 2, 32, 8
"""A full cache that answers less than so many times what rows drawn at random would is offered the
rows of one page in so many: keys are alike, and to change one for another is work for nothing. Of
the rows of a batch that is drained it is asked for those of one block in so many."""

WAITING_NS = 25
"""What waiting costs a row of the stream, beside a list: rows that wait are put in slots of the
pool, and found there later. But each list has all pages looked through for its rows alone."""

ASKING_NS, CLEAR_SHARE = 50, 0.5
"""What it takes to ask the cache for a row, and to offer it those that it lacks. A cache that saves
less has no merit either. Of one that answers this share there is no doubt, and what it saves is
known by few rows."""


def buffer_bytes(limit_bytes: int, io: str, page_bytes: int) -> int:
    """The read buffer's part of a memory, in whole pages."""
    most = MOST_BUFFER_BYTES[io]
    size = min(limit_bytes // BUFFER_PART, most)
    in_pieces = -(-size // HUGE_BYTES) * HUGE_BYTES
    if io == "buffered":
        # A window, with room for copies beside it.
        window = min(limit_bytes // WINDOW_PART, most)
        in_pieces = max(window, int(HUGE_BYTES / WINDOW_SHARE) + page_bytes)
    if in_pieces <= limit_bytes // PIECE_PART:
        size = in_pieces
    return max(size // page_bytes, 2) * page_bytes


def output_share(limit_bytes: int, io: str) -> float:
    """The output's share of a memory."""
    size = min(limit_bytes / OUTPUT_PART[io], MOST_OUTPUT_BYTES[io])
    return max(size, min(limit_bytes / LEAST_OUTPUT_PART, LEAST_OUTPUT_BYTES)) / limit_bytes


def pages_together(limit_bytes: int, io: str, page_bytes: int) -> int:
    """Pages whose rows are joined together, at most: more where a window shows them."""
    seen = io == "buffered" and window_bytes(buffer_bytes(limit_bytes, io, page_bytes)) > 0
    return SEEN_AHEAD if seen else LISTED_AHEAD


class SweepJoin(IndexedJoin):
    """The default: joins what each of the papers' algorithms does best.

    Waiting rows are grouped by the page that holds their key, and the pool is refilled all the
    time. The disk head sweeps through the pages in order, skips those that nobody waits for, reads
    neighbours in one request, several requests ahead, and each page serves all rows that came since
    the last sweep. Rows whose key is hot never wait: a tuple cache answers them.

    From MESHJOIN it has the sharing of reads, from HYBRIDJOIN the index and the full queue, from
    SSIJ the read plan, from CACHEJOIN and SSBJ the cache. What it drops: MESHJOIN's rows stay a
    whole cycle although they met their page long ago, HYBRIDJOIN reads for its oldest row only,
    SSIJ stops taking rows in while it joins.

    Rows are taken in while pages are joined: when the pool is full, `push` joins a run, takes in as
    many rows as have left, and so on until the output is full. The disk never waits for Python.

    *How the memory is shared.* A row that is asked for t times a sweep fills on average t/2 slots
    of the pool, each s bytes; in the cache it takes r bytes. Caching it pays while t·s/2 > r:
    SSBJ's cache inequality, with the half because a row waits half a sweep. That is right while the
    disk is the bottleneck. Where it is not, a hit also saves the processor the work of joining, so
    the condition becomes t·s/2 > r·w/(w + j), with w the time spent waiting for the disk and j the
    time spent joining pages, per row of the stream, both measured while it runs. When the pool is
    not used up for some sweeps (small batches that are drained each time), its rest is the cache's.

    *Absent keys.* A row whose key is not there waits as long as others and is never cached. When
    more than half of the keys of a sweep are absent, a filter is made of all pages: a byte for
    every row of the master, or half or a quarter of that, if it is at most half of the memory that
    pool and cache share. From then on such rows leave at once.
    """

    name = "sweepjoin"
    traits = Traits(
        paper="this project",
        idea="pages in order, each serving all rows that wait for it, with a cache of hot rows",
        skew="tuple",
    )

    joins_when_fed = True
    keeps_cache = True

    def __init__(
        self,
        master: FileMaster,
        binding: Binding,
        budget: MemoryBudget,
        *,
        gap_pages: int | None = None,
        **common: Any,
    ) -> None:
        """`gap_pages`: what a seek of the disk costs, in pages; gaps up to that are read through.

        With it the memory is shared as for a disk that is the bottleneck; without it as measured.
        """
        if gap_pages is not None and gap_pages < 0:
            raise OptionError(
                f"gap_pages={gap_pages} is below zero",
                hint="leave it out, or give the pages that are read in the time of a seek",
            )
        gap = GAP_BYTES[master.io] // master.page_bytes
        self._gap_pages = gap if gap_pages is None else gap_pages
        self._disk_bound = gap_pages is not None
        self.pages_together = pages_together(budget.limit_bytes, master.io, master.page_bytes)
        self.most_runs = min(max(budget.limit_bytes // BYTES_PER_RUN, LEAST_RUNS), MOST_RUNS)
        super().__init__(master, binding, budget, **common)

    def divide(self, blob_bytes: float) -> MemoryPlan:
        master, limit = self.master, self.budget.limit_bytes
        parts = self.common_parts(index=True, output_share=output_share(limit, master.io))
        parts["page chains"] = 4 * max(master.pages, 1) + master.pages // MARKED + 1
        parts["read buffer"] = buffer_bytes(limit, master.io, master.page_bytes)
        parts["scratch"] = self.scratch_bytes + self.row_room(blob_bytes)
        row = self.binding.layout.record_bytes + (blob_bytes + 64 if blob_bytes else 0)
        return self.need(parts, "pool and cache", int(LEAST_ROWS * row) + 4096)

    def allocate(self, blob_bytes: float) -> None:
        master, plan = self.master, self.plan
        for part in ("index", "page chains", "read buffer", "scratch"):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        self._flexible = plan["pool and cache"]
        if self.absent is not None:
            self.absent = AbsentFilter(master, like=self.absent)
            self._flexible -= self.absent.size_bytes
            self.budget.set("absent filter", self.absent.size_bytes)
        self.waiting = WaitingRows(
            self.binding, master.pages, self._flexible, blob_bytes, marks=True
        )
        self.cache = TupleCache(
            self.binding, self._flexible, master.page_bytes, seed=self.seed, recalls=True
        )
        buffer_pages = plan["read buffer"] // master.page_bytes
        self._reader = self.make_reader(buffer_pages, windows=True)
        longest = min(self._reader.buffer_bytes // RUNS_IN_BUFFER, LONGEST_RUN_BYTES)
        self._longest_run = max(longest // master.page_bytes, 1)
        cache_bytes = int(self._flexible * FIRST_CACHE_SHARE)
        self._share(self._flexible - cache_bytes, cache_bytes)
        self.bind_kernels()
        self.listed = ListedRows(self.match)
        self._position = 0
        self._growing_to = 0
        self._sweeps_since_full = PATIENCE
        self._peak_rows = 0
        self._peaks: deque[int] = deque(maxlen=PATIENCE)
        self._pool_was_full = False
        self._filter_bytes = self._filter_bits = 0
        self._sweep_start = self._marks()
        self._lookups_at_aging = self._unasked = 0
        self._set_worth(1.0)

    def _share(self, pool_bytes: int, cache_bytes: int) -> None:
        """Give pool and cache their memory; the one that shrinks goes first."""
        self.waiting.set_bytes(pool_bytes)
        self.budget.set("pool", min(self.waiting.size_bytes, pool_bytes))
        self.cache.set_bytes(cache_bytes)
        self.budget.set("cache", self.cache.size_bytes)

    def adopt(self, cache: TupleCache) -> None:
        self.cache.set_bytes(0)
        self.budget.set("cache", 0)
        self.cache = cache
        size = min(cache.size_bytes, self._flexible * 19 // 20)
        self._share(self._flexible - size, size)

    def before_restore(self) -> None:
        # The pool may have had nearly everything; the cache earns its share again.
        self.cache.set_bytes(0)
        self.budget.set("cache", self.cache.size_bytes)
        self._share(self._flexible, 0)

    def taken_in(self, rows: int, valid: npt.NDArray[np.uint8]) -> None:
        self._peak_rows = max(self._peak_rows, self.waiting.rows)
        # Where the pool is full, rows leave it while others are taken in: it has some room then.
        if self.waiting.rows >= self.waiting.capacity * 63 // 64:
            self._pool_was_full = True

    def push_own(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """As for any join; rows are not copied for it but where they find no room."""
        if self._deadline is not None:
            return super().push_own(batch)
        self._check_open()
        assert isinstance(self.master, MasterPart)
        start = self.clock.now_ns()
        self.prepare(batch)
        keys, packed = self.made_ready(batch)
        rows, key64, valid = self.master.own(keys.key64, keys.valid)
        accepted = self.accept_rows(packed, key64, valid, rows)
        self._rows_in += accepted
        rest = self.own_rows(batch).slice(accepted) if accepted < len(rows) else None
        self._busy_ns += self.clock.now_ns() - start
        return rest

    def work(self) -> None:
        for _ in range(MOST_PLANS):
            if self.listed.is_blocked:
                self.forget_runs()
                self.listed.pause()
            if self.runs_left < min(self.most_runs, MOST_SEEN) // 4:
                self._plan_ahead()
            if self.join_planned() == FULL or not self.rows_waiting:
                break

    def drains(self, rows: int) -> bool:
        """As the contract says: where so many rows gain less by waiting for each other than it
        takes to look through all pages for them alone."""
        if self._reader is None or self._deadline is not None or not self._reader.in_pieces:
            return False
        if self._list_room < LEAST_LISTED * LISTED_BYTES:
            return False
        return self.master.pages * self._reader.seeing_ns < rows * WAITING_NS

    def drained(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As the contract says: rows that must wait are listed, and copied when pages come."""
        self._check_open()
        check_batch(batch)
        yield from self.finish()
        if batch.num_rows:
            self.prepare(batch)
            self._settle_shares()
        if self._list_room < LEAST_LISTED * LISTED_BYTES or self._deadline is not None:
            yield from super().drained(batch)
            return
        self._half_drained = True
        done = 0
        while done < batch.num_rows:
            some = batch.slice(done, self._list_room // 2 // self.binding.key_bytes)
            yield from self._drain(some)
            done += some.num_rows
        self._half_drained = False

    @property
    def _list_room(self) -> int:
        """Bytes for a list of rows; none before there was a row, or without a page."""
        if self._out is None or not self.master.pages:
            return 0
        return (self.waiting.capacity + 1 - LISTED_SLOTS) * self.waiting.stride

    def _drain(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join a batch whose keys find room."""
        assert self._reader is not None
        keys, packed = self.made_ready(batch)
        done, parts = 0, self.master.parts if isinstance(self.master, MasterPart) else 1
        while done < batch.num_rows:
            start = self.clock.now_ns()
            room = self._list_room - self.binding.key_bytes * batch.num_rows
            rows = int((batch.num_rows - done) / parts * UNEVEN) + 1
            rows = min(rows, batch.num_rows - done, room // LISTED_BYTES)
            self._reader.borrow(room - rows * LISTED_BYTES)
            self.listed.begin(self.waiting.lend(2 * rows), keys, packed, start)
            full = False
            while done < batch.num_rows and not full:
                done = self._list(keys, packed, done)
                full = self.listed.is_full
                if done < batch.num_rows and not full:
                    yield from self._handed_out(start)
                    start = self.clock.now_ns()
            self._pool_was_full = self._pool_was_full or full
            used = self.binding.key_bytes * batch.num_rows + LISTED_BYTES * self.listed.count
            used = LISTED_SLOTS + used // self.waiting.stride
            self._peak_rows = max(self._peak_rows, used)
            self.listed.sort(self.master.pages)
            offered = self.match.one_in
            if self._cache_is_full and self.listed.count >= INTAKE_ROWS:
                self.match.one_in = max(offered, OFFERED_SETTLED)
            while self.rows_waiting:
                self._iterations += 1
                self.work()
                if self.rows_waiting:
                    yield from self._handed_out(start)
                    start = self.clock.now_ns()
            self.match.one_in = offered
            self._reader.undecided()
            self._reader.borrow(0)
            self.listed.end()
            self.waiting.take_back()
            self._end_sweep()
            yield from self._handed_out(start)

    def _list(self, keys: Keys, packed: PackedColumns, start: int) -> int:
        """List rows from one on, and answer those that need not wait; up to which.

        It ends early when the output is full.
        """
        assert self._out is not None
        total = len(keys.key64)
        for begin in range(start, total, INTAKE_ROWS):
            key64 = keys.key64[begin : begin + INTAKE_ROWS]
            valid, rows = keys.valid[begin : begin + INTAKE_ROWS], ALL_ROWS
            if isinstance(self.master, MasterPart):
                rows, key64, valid = self.master.own(key64, valid)
            found, pages = self._found[: len(key64)], self._pages[: len(key64)]
            self._look_up_some(begin // INTAKE_ROWS, key64, valid, found, pages)
            accepted = take_in(
                self.match.kernel,
                self._out.out.kernel,
                self.waiting.state.kernel,
                self.cache.state.kernel,
                self.master.index.kernel,
                packed.columns.kernel,
                key64,
                valid,
                found,
                pages,
                rows,
                0,
                begin,
                self.clock.now_ns(),
            )
            self._rows_in += accepted
            if accepted < len(key64):
                return begin + int(rows[accepted] if len(rows) else accepted)
        return total

    def _look_up_some(
        self,
        block: int,
        key64: npt.NDArray[np.int64],
        valid: npt.NDArray[np.uint8],
        found: npt.NDArray[np.int32],
        pages: npt.NDArray[np.int32],
    ) -> None:
        """Look rows of a block up, in a cache without merit those of one block in some alone."""
        if self.match.one_in < OFFERED or (block + self._loops) % ASKED == 0:
            self.look_up(key64, valid, found, pages)
            return
        found.fill(-1)
        self._unasked += len(found)
        self.locate(key64, found, pages)

    def _handed_out(self, start_ns: int) -> Iterator[pa.RecordBatch]:
        """What is ready of a batch that is drained, after some work on it."""
        assert self._out is not None
        if self.pending == 0 and self.match.needed > 0:
            self._make_room()
        result = self._out.take()
        self._busy_ns += self.clock.now_ns() - start_ns
        if result is not None:
            self._rows_out += result.num_rows
            yield result

    def _settle_shares(self) -> None:
        """Nothing waits: what pool and cache were to get of each other they get now."""
        if self._growing_to:
            self._end_growth_now()
        if self._filter_bytes:
            self._make_filter()

    def plan_more(self) -> bool:
        self._plan_ahead()
        return self.reads_pending

    def _plan_ahead(self) -> None:
        """Plan runs from the head's position on; at the end of the master, a sweep is over."""
        if self.listed.count and self._plan_listed():
            return
        assert self._reader is not None
        seen_gap = self._seen_gap(self._peak_rows)
        for _ in range(2):
            room = np.empty((self.most_runs - self.runs_left, 2), np.int64)
            count, self._position = sweep_runs(
                self.waiting.state.kernel,
                self.master.index.kernel,
                self._reader.ring.kernel,
                self._position,
                self._gap_pages,
                seen_gap,
                self._longest_run,
                room,
                self.master.pages,
            )
            if count:
                self.plan_runs(room[:count])
                return
            if self.reads_pending:
                # Rows of this sweep are still being read; the next one begins after them.
                return
            if not self.listed.count:
                self._reader.swept(self.master.pages)
                self._end_sweep()
            self._position = 0

    def _plan_listed(self) -> bool:
        """Plan runs for listed rows; False if there are none to plan, and others wait for pages."""
        assert self._reader is not None
        if self.listed.is_paused:
            if self.waiting.rows:
                return False
            self.listed.plan_again()
        seen_gap, longest, most = self._gap_pages, self._longest_run, self.most_runs
        if self._reader.decide(self.master.pages, self.listed.pages):
            # Pages between wanted ones cost nothing. Should the cache turn out to lack pages, few
            # are read in vain.
            seen_gap = longest = self.pages_together
            most = MOST_SEEN
        room = np.empty((max(most - self.runs_left, 0), 2), np.int64)
        gaps = self._gap_pages, seen_gap
        count = self.listed.plan(self.master.index, self._reader.ring, gaps, longest, room)
        if count:
            self.plan_runs(room[:count])
        return count > 0 or self.reads_pending

    def _seen_gap(self, rows: int) -> int:
        """How many pages that nobody wants are gone through where the window shows them."""
        assert self._reader is not None
        dense = self.master.pages <= SEEN_SHARE * max(rows, 1)
        if dense and self._reader.looks and not self._disk_bound:
            return self._longest_run
        return self._gap_pages

    # The share between pool and cache.

    def _marks(self) -> tuple[int, int, int, int, int]:
        assert self._reader is not None
        return (
            self.match.hits,
            self.match.misses,
            self.match.unmatched,
            self._reader.ring.wait_ns,
            self._reader.ring.join_ns,
        )

    def _end_sweep(self) -> None:
        self._loops += 1
        self._peaks.append(self._peak_rows)
        self._peak_rows = self.waiting.rows
        hits, misses, unmatched, wait, joining = (
            now - then for now, then in zip(self._marks(), self._sweep_start, strict=True)
        )
        if self._growing_to:
            # All rows that were in the pool's upper part have left it by now.
            self.waiting.settle()
            self.budget.set("pool", self.waiting.size_bytes)
            self.cache.set_bytes(self._growing_to)
            self.budget.set("cache", self.cache.size_bytes)
            self._growing_to = 0
        if self._filter_bytes:
            self._make_filter()
        lookups = hits + misses
        if lookups < 1024:
            return
        self._sweeps_since_full = 0 if self._pool_was_full else self._sweeps_since_full + 1
        if 0 < self._sweeps_since_full < PATIENCE:
            return
        self._sweep_start = self._marks()
        self._offer(hits, lookups, (wait + joining) / max(misses, 1))
        if self.absent is None and unmatched > ABSENT_SHARE * lookups:
            self._plan_filter()
        if self._pool_was_full:
            # A batch that was drained may have left the head at the end: nothing was read then.
            measured = self.clock.real and not self._disk_bound and wait + joining > 0
            self._set_worth(wait / (wait + joining) if measured else 1.0)
        else:
            self._set_worth(0.0)
        refused = self.cache.state.refused
        self.cache.state.refused = 0
        earning = self.cache.rows
        total = self.match.hits + self.match.misses
        if total - self._lookups_at_aging >= max(lookups, 8 * self.cache.rows):
            self._lookups_at_aging = total
            counts = self.cache.age()
            # At the end of a round a counter shows this round and half of those before: 2t.
            least = int(2 * self.match.worth)
            if self._pool_was_full and self.cache.keys:
                earning = int(counts[least:].sum() * self.cache.rows / self.cache.keys)
                if hits < self.match.worth * self.cache.keys:
                    # Where keys are alike, some are asked for twice by chance: that is no merit.
                    earning, refused = 0, 0
        if not self._filter_bytes:
            # One change of the pool at a time: what leaves it must have left before the next.
            self._resize(earning + refused)
        self._pool_was_full = False

    def _offer(self, hits: int, lookups: int, miss_ns: float) -> None:
        """Have the cache look at fewer rows while it has no merit; which ones changes."""
        asked, self._unasked = max(lookups - self._unasked, 1), 0
        share, by_chance = hits / asked, self.cache.rows / max(self.master.rows, 1)
        without_merit = share < MERIT * by_chance
        measured = self.clock.real and not self._disk_bound and not self._pool_was_full
        if measured and share < CLEAR_SHARE:
            without_merit = without_merit or share * miss_ns < ASKING_NS
        self.match.one_in = OFFERED if without_merit and self._cache_is_full else 1
        self.match.turn = self._loops

    @property
    def _cache_is_full(self) -> bool:
        return bool(self.cache.rows * 16 > self.cache.state.limit * 15)

    # The filter for absent keys.

    def _plan_filter(self) -> None:
        """Many keys are absent: take the memory of a filter from whoever has more of it."""
        least = int((LEAST_ROWS + 2) * self.waiting.row_bytes) + self.waiting.fixed_bytes
        sizes = {bits: AbsentFilter.size_for(self.master, bits) for bits in BITS_PER_ROW}
        fitting = [bits for bits in BITS_PER_ROW if sizes[bits] <= self._flexible // 2 - least]
        if not fitting or self._growing_to:
            return
        self._filter_bits = fitting[0]
        size = sizes[fitting[0]]
        cache, pool = self.cache.size_bytes, self.waiting.size_bytes
        self._flexible -= size
        self._filter_bytes = size
        if cache > pool:
            self.cache.set_bytes(max(cache - size, 0))
            self.budget.set("cache", self.cache.size_bytes)
        else:
            self.waiting.set_bytes(self._flexible - cache)
        if self.waiting.rows == 0:
            self.waiting.clear()
            self._make_filter()

    def _make_filter(self) -> None:
        """What was taken is free by now: rows in the pool's upper part have left it."""
        self.waiting.settle()
        self.budget.set("pool", self.waiting.size_bytes)
        self.budget.set("absent filter", self._filter_bytes)
        self._filter_bytes = 0
        self.absent = AbsentFilter(self.master, self._filter_bits)

    def _set_worth(self, share: float) -> None:
        """Hits per sweep that a row must have; `share` is the disk's part in the cost of a miss."""
        ratio = 2 * self.cache.row_bytes / self.waiting.row_bytes
        self.match.worth = max(ratio * share, 1.0)

    def _resize(self, wanted_rows: int) -> None:
        """Move the border between pool and cache towards what was earned.

        Beside a full pool a cache grows at most to twice its size, and shrinks by a quarter: a scan
        of keys that come once earns it nothing, and is over before it has lost much. A pool that
        is not full gives up what it has to spare, and gets nothing.
        """
        now = self.cache.size_bytes
        if self._pool_was_full:
            wanted = int(wanted_rows * 1.05 * self.cache.row_bytes)
            wanted = min(max(wanted, now * 3 // 4, self._flexible // 50), max(2 * now, 4096))
            wanted = min(wanted, self._flexible * 19 // 20)
        else:
            spare = int(max(self._peaks) * 1.25 * self.waiting.row_bytes) + self._flexible // 20
            wanted = max(self._flexible - spare, now)
        if abs(wanted - now) < self._flexible // 50:
            return
        least = int((LEAST_ROWS + 2) * self.waiting.row_bytes)
        wanted = max(min(wanted, self._flexible - least - self.waiting.fixed_bytes), 0)
        if wanted < now:
            self.cache.set_bytes(wanted)
            self.budget.set("cache", self.cache.size_bytes)
            self.waiting.set_bytes(self._flexible - self.cache.size_bytes)
            self.budget.set("pool", self.waiting.size_bytes)
        else:
            self.waiting.set_bytes(self._flexible - wanted)
            self._growing_to = wanted
            if self.waiting.rows == 0:
                self.waiting.clear()
                self._end_growth_now()

    def _end_growth_now(self) -> None:
        """The pool is empty: nothing needs to leave it first."""
        self.waiting.settle()
        self.budget.set("pool", self.waiting.size_bytes)
        self.cache.set_bytes(self._growing_to)
        self.budget.set("cache", self.cache.size_bytes)
        self._growing_to = 0
