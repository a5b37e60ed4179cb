"""What the HYBRIDJOIN family shares: the stream-probing and the disk-probing phase."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

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
from semistream.kernels.queue import begin_reading, end_reading
from semistream.kernels.struct import Struct

FEWEST_PARTITIONS = 16
"""With fewer partitions, a load would answer less than its share: rows came too recently."""


PIECES = 4
"""Pieces of a large partition: while one is joined the others are read."""

SMALL_PIECE = 8
"""Partitions of up to so many pages are read in one piece."""


class _Piece(NamedTuple):
    """Pages that are read by one request, and the load that they are part of."""

    first: int
    pages: int
    run_first: int
    is_last: bool


class ProbingJoin(QueuedJoin):
    """Two phases in turn.

    *Stream-probing* (`push`): rows are looked up in what the join holds of the master, if anything;
    those that find nothing there wait. It ends when no more rows can wait, when the batch is used
    up, or after as many rows as can wait (h_S) since the last load ended: a stream of hits could
    otherwise go on for ever while rows wait, and one of rows for the pages at hand keep them there.

    *Disk-probing* (`step`): the group of pages that holds the key of the oldest waiting row, the
    partition, is loaded, all its waiting rows are joined and leave. `loads_per_step` partitions are
    loaded in turn, by default as many as hold a hundredth of the master (one, where partitions are
    that large), and as many again are planned ahead. The disk buffer has the size of a partition,
    or more where partitions are small. Partitions go through it in pieces, so that one is read
    while another is joined; their first and last pages are not read where nobody waits for them.
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
        buffer = max(self.span, min(32, limit // 16 // master.page_bytes), 2)
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
            memory = self.budget.limit_bytes - self.master.index_bytes
            span = best_partition(memory / self.master.page_bytes)
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
        self._reader = self.make_reader(self._buffer_pages)
        self.bind_kernels()
        self.match.policy = self.policy
        self.groups = max(-(-master.pages // self.span), 1)
        self._piece = max(-(-self.span // PIECES), min(SMALL_PIECE, self._buffer_pages // 2))
        self._longest = max(self.span, self._piece)
        self._pieces = self.runs_per_group * -(-self._longest // self._piece)
        loads = self.loads_per_step or master.pages // 100 // self.span
        self._loads = max(min(loads, RUNS // 2 // self._pieces), 1)
        self._under_way: deque[_Piece] = deque()
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
        if self.probe_held() == FULL:
            return
        loads = 0
        while loads < self._loads:
            self._plan_ahead()
            status = self.join_one()
            if status == FULL:
                return
            if status == IDLE:
                break
            piece = self._under_way.popleft()
            if piece.is_last:
                pages = piece.first + piece.pages - piece.run_first
                end_reading(self.waiting.state.kernel, piece.run_first, pages)
                self.loaded(piece.run_first, pages)
                loads += 1
                self._loops += 1
                self._probed = 0
        if not self._under_way:
            self._probed = 0

    def probe_held(self) -> int:
        """Join waiting rows with pages that are held in memory; FULL if results find no room."""
        return IDLE

    def loaded(self, first: int, count: int) -> None:
        """Called after a run of pages was loaded and all rows that waited for it have left."""

    def choose(self, most: int) -> npt.NDArray[np.int64]:
        """Take the next partitions to be loaded out of the queue, up to `most`."""
        return self.oldest_groups(most)

    def _plan_ahead(self) -> None:
        """Have the loads of this step and of the next planned; the reader takes what it can."""
        most = (2 * self._loads * self._pieces - len(self._under_way)) // self._pieces
        if most < 1:
            return
        groups = self.choose(most)
        begin_reading(self.waiting.state.kernel, groups)
        pieces = [
            _Piece(
                at, min(self._piece, first + count - at), first, at + self._piece >= first + count
            )
            for first, count in self.runs_for(groups, self._longest).tolist()
            for at in range(first, first + count, self._piece)
        ]
        self._under_way.extend(pieces)
        self.plan_runs(np.array([piece[:2] for piece in pieces], np.int64).reshape(-1, 2))

    # What is held of the master.

    def hottest_runs(self, pages: int) -> npt.NDArray[np.int64]:
        """Runs over the first pages of every shard, as many as its share of `pages`; those that
        come first in their shard come first, since what is held last may find no room."""
        longest = max(self._buffer_pages // 4, 1)
        runs: list[tuple[int, int, int]] = []
        for first, end in self.master.shard_ranges():
            share = min(-(-pages * (end - first) // max(self.master.pages, 1)), end - first)
            steps = range(0, share, longest)
            runs += [(at, first + at, min(longest, share - at)) for at in steps]
        return np.array([run[1:] for run in sorted(runs)], np.int64).reshape(-1, 2)

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
    keeps_cache = True

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
