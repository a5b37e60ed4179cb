"""INLJ: the index nested loop join, with a buffer pool."""

from __future__ import annotations

import numpy as np

from semistream.core.budget import MemoryPlan
from semistream.core.join import Traits
from semistream.joins.indexed import RUNS
from semistream.joins.pool import PagePool
from semistream.joins.queued import QueuedJoin

BATCH_ROWS = 1024
"""Stream rows looked up together."""

READ_PAGES = 32


class IndexNestedLoopJoin(QueuedJoin):
    """Index nested loop join, the baseline of the papers (MESHJOIN paper §5.1, thesis ch. 5).

    Each stream row descends the index and fetches its page through a buffer pool of the size of the
    memory; nothing waits for others. One iteration (`step`): the rows at hand (at most 1024) are
    joined with their pages.

    Departures: rows are looked up in small batches, so that rows of one page share its read and
    several reads are in flight; the sparse index is in memory; pages are replaced by the clock
    algorithm, as databases do, where the papers leave it to the database.
    """

    name = "inlj"
    traits = Traits(
        paper="baseline of Polyzotis et al., TKDE 2008",
        idea="look each row up by the index, through a pool of pages in memory",
        skew="page",
    )

    def divide(self, blob_bytes: float) -> MemoryPlan:
        parts = self.queue_parts(blob_bytes)
        page = self.master.page_bytes
        read_pages = max(min(READ_PAGES, self.budget.limit_bytes // 16 // page), 2)
        parts["read buffer"] = read_pages * page
        row = self.binding.layout.record_bytes + (blob_bytes + 64 if blob_bytes else 0)
        rows = max(min(BATCH_ROWS, int(self.budget.limit_bytes // 16 // row)), 64)
        parts["waiting rows"] = int(rows * row) + 4096
        parts["page table"] = PagePool.table_bytes(self.master)
        return self.need(parts, "buffer pool", page + 16)

    def allocate(self, blob_bytes: float) -> None:
        plan, master = self.plan, self.master
        for part in ("index", "page chains", "read buffer", "scratch", "page table"):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        self.allocate_waiting(blob_bytes, plan["waiting rows"])
        self.pool = PagePool(master, plan["buffer pool"])
        self.frames = self.pool.frames
        self.budget.set("buffer pool", self.pool.size_bytes)
        self._buffer_pages = plan["read buffer"] // master.page_bytes
        self._reader = self.make_reader(self._buffer_pages)
        self._absent = np.empty(0, np.int64)
        self.bind_kernels()

    @property
    def cached_rows(self) -> int:
        used = self.pool.pages if self._out is not None else 0
        return int(used * self.master.rows / max(self.master.pages, 1))

    def work(self) -> None:
        if not self.reads_pending and not len(self._absent):
            self._absent = np.sort(self.join_pool(self.oldest_groups(BATCH_ROWS)))
            self._loops += 1
        while True:
            if len(self._absent) and not self.runs_left:
                some, self._absent = self._absent[: RUNS // 2], self._absent[RUNS // 2 :]
                self.plan_runs(self.runs_for(some, max(self._buffer_pages // 2, 1)))
            if self.join_planned() or not len(self._absent):
                return
