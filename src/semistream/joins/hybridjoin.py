"""HYBRIDJOIN: the oldest waiting row chooses the page, all rows of that page profit."""

from __future__ import annotations

from typing import Any

from semistream.core.budget import MemoryPlan
from semistream.core.errors import OptionError
from semistream.core.join import Traits
from semistream.joins.indexed import RUNS
from semistream.joins.queued import QueuedJoin
from semistream.kernels.matching import FULL


class HybridJoin(QueuedJoin):
    """HYBRIDJOIN (Naeem, PhD thesis, Auckland 2012, ch. 5).

    Waiting rows fill the hash table H, a queue Q keeps their order. One iteration (`step`): take
    the oldest key in Q, load the partition of R that holds it through the index, join all waiting
    rows of that partition, and take in as many new rows as have left.

    Names: h_S is the capacity of `waiting`, d the rows of `partition_pages` pages.

    Departures. Rows hang on the page that holds their key, so that a loaded page finds its rows
    without probing H with every record; Q is a queue of pages, which is the same order (see
    `QueuedJoin`). Several of the oldest partitions are loaded per step, so that their reads
    overlap: one read at a time leaves a modern disk idle. A row whose page has no record with its
    key is unmatched and leaves; as printed it would stay in front for ever. Slots that a short
    supply left unused stay free; as printed they are lost. Keys that repeat in R are joined
    completely: their rows lie next to each other, and a key that reaches into the next page takes
    its rows with it.
    """

    name = "hybridjoin"
    traits = Traits(
        paper="Naeem, PhD thesis 2012, ch. 5",
        idea="load the page of the oldest row by the index, join all rows that wait for it",
        skew="slight",
    )

    def __init__(
        self, *args: Any, partition_pages: int = 1, loads_per_step: int = RUNS, **options: Any
    ) -> None:
        if partition_pages < 1:
            raise OptionError(f"partition_pages={partition_pages} is not above zero")
        if not 1 <= loads_per_step <= RUNS:
            raise OptionError(f"loads_per_step={loads_per_step} is not between 1 and {RUNS}")
        self.partition_pages = partition_pages
        self.loads_per_step = loads_per_step
        super().__init__(*args, **options)

    def divide(self, blob_bytes: float) -> MemoryPlan:
        parts = self.queue_parts(blob_bytes)
        page = self.master.page_bytes
        pages = max(2 * self.partition_pages, min(32, self.budget.limit_bytes // 16 // page))
        parts["read buffer"] = pages * page
        return self.plan_waiting(parts, blob_bytes)

    def allocate(self, blob_bytes: float) -> None:
        plan = self.plan
        for part in ("index", "page chains", "read buffer", "scratch"):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        self.allocate_waiting(blob_bytes, plan["waiting rows"])
        self._buffer_pages = plan["read buffer"] // self.master.page_bytes
        self._reader = self.master.reader(self._buffer_pages, measure=self.clock.real)
        self.bind_kernels()

    def work(self) -> None:
        for _ in range(8):
            if not self.reads_pending:
                self._load_oldest()
            if self.join_planned() == FULL or not self.waiting.rows:
                return

    def _load_oldest(self) -> None:
        pages = self.oldest_pages(self.loads_per_step)
        self.plan_runs(self.with_continued(pages, self.partition_pages, self._buffer_pages // 2))
