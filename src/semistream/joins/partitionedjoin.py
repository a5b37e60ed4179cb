"""Partitioned Join: rows wait for a segment of the master until enough others want it too."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryPlan
from semistream.core.errors import OptionError
from semistream.core.join import Traits
from semistream.joins.indexed import RUNS
from semistream.joins.operator import PAGE
from semistream.joins.pool import PagePool
from semistream.joins.queued import QueuedJoin
from semistream.joins.sizing import best_partition
from semistream.kernels.matching import FULL
from semistream.kernels.queue import count_chains, count_rows
from semistream.kernels.waiting import LINK

FEWEST_SEGMENTS = 16
"""With fewer segments a slot says little about which is wanted most."""

BUFFER_SHARE = 0.2
"""Part of the memory that R-buffer and wait buffer share which is the R-buffer's."""

THRESHOLD_FACTOR = 4
"""A slot is worth a load when it has so many times the rows of an average one in a full buffer."""

_I64 = npt.NDArray[np.int64]


class PartitionedJoin(QueuedJoin):
    """Partitioned Join (Chakraborty and Singh), as far as later work describes it: thesis §2.4.3,
    lookup-element paper §2, SSIJ paper §II, SSBJ paper §2.3.

    R is partitioned on the join attribute into segments. The *R-buffer* holds some of them; the
    *wait buffer* has a slot for each of the others. A stream row whose segment is in the R-buffer
    is joined now, else it is put in its segment's slot. A slot that outgrows the threshold has its
    segment loaded, is joined and emptied. When the wait buffer is full (`step`), segments are
    loaded in the order of their slots' sizes, largest first. Pages of a loaded segment stay in the
    R-buffer instead of others that matched fewer rows of late.

    **Rare keys can wait for ever**, as in the original, while others fill the buffer; `max_age`
    bounds that: a slot whose oldest row came that many seconds ago is loaded before all others, at
    the next `push` or `step`. At the end of the stream (`finish`) all slots are served.

    Names: a segment is `segment_pages` neighbouring pages; its slot is their chains of rows, with
    its size in `_sizes`.

    Departures: described in prose only, so thresholds, shares and the replacement are decided here:
    the threshold is four times the average slot of a full buffer, the R-buffer has 0.2 of the
    memory and holds single pages, for a segment is often larger than all of it, and recent matches
    are a count that is halved each time when as many pages were kept as the R-buffer holds. The
    two-level hash table is the chains of pages with the index. Largest first is our reading of the
    order. A segment is as large as HYBRIDJOIN's partitions, and segments that make up a hundredth
    of R are loaded together. Keys that repeat in R are joined completely, over pages too.
    """

    name = "partitionedjoin"
    traits = Traits(
        paper="as described by Naeem 2012 and others",
        idea="load a segment of the master when enough rows wait for it",
        skew="segment",
    )

    def __init__(
        self,
        *args: Any,
        segment_pages: int | None = None,
        threshold: int | None = None,
        max_age: float | None = None,
        buffer_share: float = BUFFER_SHARE,
        **options: Any,
    ) -> None:
        if segment_pages is not None and segment_pages < 1:
            raise OptionError(f"segment_pages={segment_pages} is not above zero")
        if threshold is not None and threshold < 1:
            raise OptionError(f"threshold={threshold} is not above zero")
        if max_age is not None and not max_age >= 0:
            raise OptionError(f"max_age={max_age} is not a time", hint="give seconds")
        if not 0 <= buffer_share < 1:
            raise OptionError(
                f"buffer_share={buffer_share} is not a share", hint="give 0 to below 1"
            )
        self.segment_pages = segment_pages
        self.first_threshold = threshold
        self.max_age = max_age
        self.buffer_share = buffer_share
        super().__init__(*args, **options)

    def divide(self, blob_bytes: float) -> MemoryPlan:
        master, limit = self.master, self.budget.limit_bytes
        self.span = self._span()
        parts = self.queue_parts(blob_bytes)
        pages = max(2 * self.span, min(64, limit // 16 // master.page_bytes))
        parts["read buffer"] = pages * master.page_bytes
        parts["page table"] = PagePool.table_bytes(master)
        parts["slot sizes"] = (4 + 8 * (self.max_age is not None)) * self._segments
        left = limit - sum(parts.values()) - self.least_waiting(blob_bytes)
        parts["R-buffer"] = max(int(self.buffer_share * left), 0)
        return self.plan_waiting(parts, blob_bytes)

    def _span(self) -> int:
        pages, shards = max(self.master.pages, 1), len(self.master.manifest.shards)
        if self.segment_pages is None:
            best = best_partition(self.budget.limit_bytes / self.master.page_bytes)
            span = min(best, max(pages // FEWEST_SEGMENTS, 1))
        else:
            span = min(self.segment_pages, pages)
        return min(span, RUNS // 2) if shards > RUNS // 2 else span

    @property
    def _segments(self) -> int:
        return max(-(-self.master.pages // self.span), 1)

    def allocate(self, blob_bytes: float) -> None:
        plan, master = self.plan, self.master
        for part in (
            "index",
            "page chains",
            "read buffer",
            "scratch",
            "page table",
            "slot sizes",
        ):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        self.allocate_waiting(blob_bytes, plan["waiting rows"])
        # Eight bytes a frame are for its recent matches.
        frames = plan["R-buffer"] // (master.page_bytes + 17)
        self.pool = PagePool(master, plan["R-buffer"] - 8 * frames, chosen=True)
        self.frames = self.pool.frames
        self._matches = np.zeros(self.pool.capacity, np.int64)
        self._kept = 0
        self.budget.set("R-buffer", self.pool.size_bytes + self._matches.nbytes)
        self._buffer_pages = plan["read buffer"] // master.page_bytes
        self._reader = self.make_reader(self._buffer_pages)
        self._sizes = np.zeros(self._segments, np.int32)
        self._since = np.zeros(self._segments if self.max_age is not None else 0, np.int64)
        self._loading = np.empty(0, np.int64)
        self._ready = np.empty(0, np.int64)
        self.bind_kernels()
        self._loads = max(
            min(master.pages // 100 // self.span, RUNS // 2 // self.runs_per_group), 1
        )
        average = self.waiting.capacity / self._segments
        self.threshold = self.first_threshold or max(int(THRESHOLD_FACTOR * average), 16)

    @property
    def cached_rows(self) -> int:
        used = self.pool.pages if self._out is not None else 0
        return int(used * self.master.rows / max(self.master.pages, 1))

    # Rows on their way in.

    def accept(self, batch: pa.RecordBatch) -> int:
        if self._out is not None and (self.reads_pending or len(self._ready)):
            # Rows that came while a segment is being joined would keep it from ever being done.
            return 0
        return super().accept(batch)

    def taken_in(self, rows: int, valid: npt.NDArray[np.uint8]) -> None:
        pages = self._pages[:rows][valid[:rows] != 0].astype(np.int64)
        pages = pages[pages >= 0]
        held = self.pool.frames_of(pages) >= 0
        self._add(pages[~held])
        if held.any():
            wanted, counts = np.unique(pages[held], return_counts=True)
            self._matches[self.pool.frames_of(wanted)] += counts
            self._ready = np.union1d(self._ready, wanted)
        self._serve(forced=False)

    def work(self) -> None:
        # What was begun comes first; only a step that finds nothing begun means a full buffer.
        self._serve(forced=not self.reads_pending and not len(self._ready))

    def _serve(self, *, forced: bool) -> None:
        """Load segments that are too old, join rows of those in memory, then load what else is due.

        If `forced`, at least one is loaded, unless the output is full before that.
        """
        while True:
            if self.reads_pending:
                if self.join_planned() == FULL:
                    return
                self._count(self._loading)
                self._loading = self._loading[:0]
            aged = self._aged()
            if len(aged):
                self._load(aged)
                continue
            if len(self._ready):
                if not self._join_ready():
                    return
                continue
            due = self._due(forced)
            if not len(due):
                return
            self._load(due)
            forced = False

    def _join_ready(self) -> bool:
        """Join rows whose page is in memory; False when the output is full.

        Rows whose key goes on move to the next page. They, and those that found no room and whose
        page went from memory meanwhile, wait in their slots.
        """
        behind = np.setdiff1d(self._ready + 1, self._ready)
        behind = behind[behind < self.master.pages]
        before = self._chains(behind)
        left = self.join_pool(self._ready.copy())
        moved = behind[self._chains(behind) > before]
        waited_for = np.union1d(left, moved)
        held = self.pool.frames_of(waited_for) >= 0
        self._ready = waited_for[held]
        self._count(waited_for[~held] // self.span)
        return not len(left)

    def _aged(self) -> _I64:
        """Segments whose oldest row has waited too long, that with the oldest first."""
        if self.max_age is None:
            return np.empty(0, np.int64)
        before = self.clock.now_ns() - int(self.max_age * 1e9)
        aged = np.flatnonzero((self._sizes > 0) & (self._since <= before))
        return aged[np.argsort(self._since[aged])][: self._loads]

    def _due(self, forced: bool) -> _I64:
        """Segments to be loaded next: those with too many rows or, if forced, the largest slots."""
        largest = np.flatnonzero(self._sizes > self.threshold)
        if not len(largest) and forced:
            largest = np.flatnonzero(self._sizes)
        if len(largest) > self._loads:
            largest = largest[np.argpartition(self._sizes[largest], -self._loads)[-self._loads :]]
        return largest

    def _load(self, segments: _I64) -> None:
        """Have segments read and joined; those that match more than what is held stay in memory."""
        segments = np.sort(segments)
        self._keep(segments)
        runs = self.runs_for(segments, max(self._buffer_pages // 2, self.span))
        self.plan_runs(runs)
        self._loops += 1
        # Rows whose key goes on behind a run wait for the page behind it.
        self._loading = np.concatenate([np.arange(at, at + n + 1) for at, n in runs]) // self.span

    def _keep(self, segments: _I64) -> None:
        """Set frames aside for those pages of segments that beat what the R-buffer holds."""
        if self.pool.capacity == 0:
            return
        pages = np.minimum(
            (segments[:, None] * self.span + np.arange(self.span)).ravel(), self.master.pages - 1
        )
        pages = np.unique(pages)
        matches = self._chains(pages)
        order = np.argsort(-matches)[: self.pool.capacity]
        weakest = np.argpartition(self._matches, min(len(order), self.pool.capacity) - 1)
        weakest = weakest[: len(order)][np.argsort(self._matches[weakest[: len(order)]])]
        for page, count, frame in zip(
            pages[order].tolist(), matches[order].tolist(), weakest.tolist(), strict=True
        ):
            if count <= self._matches[frame]:
                break
            if self.pool.frames_of(np.array([page]))[0] != -1:
                continue
            self.pool.choose(page, frame)
            self._matches[frame] = count
            self._kept += 1
        if self._kept >= self.pool.capacity:
            self._kept = 0
            self._matches >>= 1

    # What is in the slots. Rows whose page is in memory are in none.

    def _add(self, pages: _I64) -> None:
        """Rows came that wait for these pages."""
        counts = np.bincount(pages // self.span, minlength=self._segments).astype(np.int32)
        self._note_since(np.flatnonzero((self._sizes == 0) & (counts > 0)), self.clock.now_ns())
        self._sizes += counts

    def _chains(self, pages: _I64) -> _I64:
        """How many rows wait for each page."""
        counts = np.empty(len(pages), np.int64)
        count_chains(self.waiting.state.kernel, LINK, pages, counts)
        return counts

    def _count(self, segments: _I64) -> None:
        """Count the rows of slots that were served, and of those to which their rows moved."""
        segments = np.unique(np.minimum(segments, self._segments - 1))
        if not len(segments):
            return
        empty = self._sizes[segments] == 0
        if self.max_age is not None and not empty.all():
            # Rows that move bring their age along.
            self._since[segments[empty]] = self._since[segments[~empty]].min()
        count_rows(self.waiting.state.kernel, LINK, segments, self._sizes)

    def _note_since(self, segments: _I64, now: int) -> None:
        if self.max_age is not None:
            self._since[segments] = now

    def restored(self, rows: pa.RecordBatch) -> None:
        segments = np.unique(rows.column(PAGE).to_numpy().astype(np.int64) // self.span)
        self._note_since(segments, self.clock.now_ns())
        count_rows(self.waiting.state.kernel, LINK, segments, self._sizes)
