"""What the HYBRIDJOIN family shares: the stream-probing and the disk-probing phase."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryPlan
from semistream.core.errors import OptionError
from semistream.joins.cache import TupleCache
from semistream.joins.indexed import RUNS
from semistream.joins.queued import QueuedJoin
from semistream.joins.sizing import best_cache, best_partition
from semistream.kernels.admission import FIXED
from semistream.kernels.frames import FRAMES
from semistream.kernels.loading import load_pages
from semistream.kernels.matching import FULL, IDLE
from semistream.kernels.queue import withdraw
from semistream.kernels.struct import Struct

FEWEST_PARTITIONS = 16
"""With fewer partitions, a load would answer less than its share: rows came too recently."""


class ProbingJoin(QueuedJoin):
    """Two phases in turn.

    *Stream-probing* (`push`): rows are looked up in what the join holds of the master, if anything;
    those that find nothing there wait. It ends when no more rows can wait, when the batch is used
    up, or after as many rows as can wait (h_S): a stream of hits could otherwise go on for ever
    while rows wait.

    *Disk-probing* (`step`): the group of pages that holds the key of the oldest waiting row, the
    partition, is loaded, all its waiting rows are joined and leave. `loads_per_step` partitions are
    loaded in turn, by default as many as hold a hundredth of the master (one, where partitions are
    that large), and as many again are being read ahead. A partition's first and last pages are not
    read where nobody waits for them.
    """

    policy = FIXED
    caches = False
    """Whether a part of the memory is a tuple cache."""

    def __init__(
        self,
        *args: Any,
        partition_pages: int | None = None,
        loads_per_step: int | None = None,
        **options: Any,
    ) -> None:
        if partition_pages is not None and partition_pages < 1:
            raise OptionError(
                f"partition_pages={partition_pages} is not above zero",
                hint="give the pages that are loaded together, or leave it out",
            )
        if loads_per_step is not None and not 1 <= loads_per_step <= RUNS // 2:
            raise OptionError(
                f"loads_per_step={loads_per_step} is not between 1 and {RUNS // 2}",
                hint="1 as in the paper, more for small partitions, or leave it out",
            )
        self.partition_pages = partition_pages
        self.loads_per_step = loads_per_step
        super().__init__(*args, **options)

    # How the memory is divided.

    def divide(self, blob_bytes: float) -> MemoryPlan:
        master, limit = self.master, self.budget.limit_bytes
        self.span = self._span()
        parts = self.queue_parts(blob_bytes)
        buffer = max(2 * self.span, min(32, limit // 16 // master.page_bytes))
        parts["read buffer"] = buffer * master.page_bytes
        parts.update(self.further_parts())
        left = limit - sum(parts.values()) - self.least_waiting(blob_bytes)
        for name, wanted in self.held_part(max(left, 0)).items():
            parts[name] = max(min(wanted, left), 0)
        return self.plan_waiting(parts, blob_bytes)

    def further_parts(self) -> dict[str, int]:
        """Memory of what an algorithm has besides; the cache's scratch, if it has a cache."""
        if not self.caches:
            return {}
        return {"cache scratch": self.master.page_bytes if self._cache_of(0).has_bytes else 0}

    def held_part(self, left_bytes: int) -> dict[str, int]:
        """Memory of what is held of the master, out of what is left to share with waiting rows."""
        return {}

    def _span(self) -> int:
        """Pages of a partition."""
        pages, shards = self.master.pages, len(self.master.manifest.shards)
        if self.partition_pages is None:
            span = best_partition(self.budget.limit_bytes / self.master.page_bytes)
            span = min(span, max(pages // FEWEST_PARTITIONS, 1))
        else:
            span = min(self.partition_pages, max(pages, 1))
        return min(span, RUNS // 4) if shards > RUNS // 4 else span

    def allocate(self, blob_bytes: float) -> None:
        plan, master = self.plan, self.master
        for part in ("index", "page chains", "read buffer", "scratch", *self.further_parts()):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        self.allocate_waiting(blob_bytes, plan["waiting rows"])
        if self.caches:
            self.cache = self._cache_of(plan["cache"])
            self.cache.set_bytes(plan["cache"])
            self.budget.set("cache", self.cache.size_bytes)
        self._buffer_pages = plan["read buffer"] // master.page_bytes
        self._reader = master.reader(self._buffer_pages, measure=self.clock.real)
        self.bind_kernels()
        self.match.policy = self.policy
        self.groups = max(-(-master.pages // self.span), 1)
        self._loads = self.loads_per_step
        if self._loads is None:
            self._loads = max(min(master.pages // 100 // self.span, RUNS // 2), 1)
        self._loads = max(min(self._loads, RUNS // 2 // self.runs_per_group), 1)
        self._under_way: deque[tuple[int, int]] = deque()
        self._probed = 0
        self.hold()

    def _cache_of(self, size_bytes: int) -> TupleCache:
        return TupleCache(self.binding, size_bytes, self.master.page_bytes, seed=self.seed)

    def hold(self) -> None:
        """Load what the join holds of the master from the beginning."""

    # Stream-probing.

    def accept(self, batch: pa.RecordBatch) -> int:
        if self.waiting.rows:
            left = self.waiting.capacity - self._probed
            if left <= 0:
                return 0
            batch = batch.slice(0, left)
        accepted = super().accept(batch)
        self._probed += accepted
        return accepted

    # Disk-probing.

    def work(self) -> None:
        self._probed = 0
        if self.probe_held() == FULL:
            return
        assert self._loads is not None
        for _ in range(self._loads):
            self._plan_ahead()
            status = self.join_one()
            if status == FULL:
                return
            if status == IDLE:
                break
            first, count = self._under_way.popleft()
            withdraw(self.waiting.state.kernel, first, count)
            self.loaded(first, count)

    def probe_held(self) -> int:
        """Join waiting rows with pages that are held in memory; FULL if results find no room."""
        return IDLE

    def loaded(self, first: int, count: int) -> None:
        """Called after a run of pages was loaded and all rows that waited for it have left."""

    def choose(self, most: int) -> npt.NDArray[np.int64]:
        """Take the next partitions to be loaded out of the queue, up to `most`."""
        return self.oldest_groups(most)

    def _plan_ahead(self) -> None:
        """Have the runs of this step and of the next planned; reads of both are under way."""
        assert self._loads is not None
        wanted = 2 * self._loads * self.runs_per_group - len(self._under_way)
        most = wanted // self.runs_per_group
        if most > 0:
            runs = self.runs_for(self.choose(most), max(self._buffer_pages // 2, self.span))
            self.plan_runs(runs)
            self._under_way.extend((int(first), int(count)) for first, count in runs)

    # What is held of the master.

    def hottest_runs(self, pages: int) -> npt.NDArray[np.int64]:
        """Runs over the first pages of every shard, as many as its share of `pages`."""
        runs = []
        for first, end in self.master.shard_ranges():
            share = min(-(-pages * (end - first) // max(self.master.pages, 1)), end - first)
            longest = max(self._buffer_pages // 4, 1)
            for at in range(first, first + share, longest):
                runs.append((at, min(longest, first + share - at)))
        return np.array(runs, np.int64).reshape(-1, 2)

    def load(self, runs: npt.NDArray[np.int64], frames: Struct | None = None) -> None:
        """Read pages to stay in memory: whole in `frames`, else their rows in the cache."""
        assert self._reader is not None
        whole = load_pages(
            self._reader.ring.kernel,
            (frames or Struct(FRAMES)).kernel,
            self.cache.state.kernel,
            self.master.index.kernel,
            runs,
        )
        if not whole:
            raise self._reader.error()


class CachingJoin(ProbingJoin):
    """A probing join with a tuple cache H_R of fixed size in front.

    `cache_share` is its part of the memory that it shares with waiting rows; the default is best
    for keys by Zipf's law with exponent 1, as the thesis tunes it.
    """

    caches = True

    def __init__(self, *args: Any, cache_share: float | None = None, **options: Any) -> None:
        if cache_share is not None and not 0 <= cache_share < 1:
            raise OptionError(
                f"cache_share={cache_share} is not a share",
                hint="give a number from 0 to below 1, or leave it out",
            )
        self.cache_share = cache_share
        super().__init__(*args, **options)

    def held_part(self, left_bytes: int) -> dict[str, int]:
        share = self.cache_share
        if share is None:
            share = best_cache(left_bytes, self.master.rows * self._cache_of(0).row_bytes)
        return {"cache": int(share * left_bytes)}
