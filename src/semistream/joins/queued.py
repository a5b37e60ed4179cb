"""Parts of joins that serve pages in the order in which rows began to wait for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.core.budget import MemoryPlan
from semistream.joins.cache import TupleCache
from semistream.joins.indexed import IndexedJoin
from semistream.joins.waiting import WaitingRows
from semistream.kernels.planning import group_runs
from semistream.kernels.queue import take_oldest


class QueuedJoin(IndexedJoin):
    """Rows wait for their page; pages are queued in groups of `span` neighbours, oldest first.

    A group enters the queue with its first row, so the group in front is that of the oldest row,
    and no row starves. It takes eight bytes a group where a list of rows would take twelve a row.
    """

    span = 1

    def queue_parts(self, blob_bytes: float) -> dict[str, int]:
        """Memory of index, output, chains and queue."""
        parts = self.common_parts(index=True)
        pages = max(self.master.pages, 1)
        parts["page chains"] = 4 * pages + 8 * -(-pages // self.span)
        parts["scratch"] = self.scratch_bytes + self.row_room(blob_bytes)
        return parts

    def least_waiting(self, blob_bytes: float) -> int:
        """Bytes without which no rows can wait."""
        row = self.binding.layout.record_bytes + (blob_bytes + 64 if blob_bytes else 0)
        return int(64 * row) + 4096

    def plan_waiting(self, parts: dict[str, int], blob_bytes: float) -> MemoryPlan:
        """A plan with all that is left for waiting rows."""
        return self.need(parts, "waiting rows", self.least_waiting(blob_bytes))

    def allocate_waiting(self, blob_bytes: float, size_bytes: int) -> None:
        """Waiting rows with their queue, and no tuple cache."""
        self.waiting = WaitingRows(
            self.binding, self.master.pages, size_bytes, blob_bytes, span=self.span
        )
        self.waiting.set_bytes(size_bytes)
        self.budget.set("waiting rows", self.waiting.size_bytes)
        self.cache = TupleCache(self.binding, 0, 0, seed=self.seed)

    def oldest_groups(self, most: int) -> npt.NDArray[np.int64]:
        """Take up to `most` groups for which rows wait off the front of the queue."""
        groups = np.empty(most, np.int64)
        return groups[: take_oldest(self.waiting.state.kernel, groups)]

    def runs_for(self, groups: npt.NDArray[np.int64], longest: int) -> npt.NDArray[np.int64]:
        """Runs over groups, and while a key goes on, at most `longest` pages each."""
        runs = np.empty((len(groups) * self.runs_per_group, 2), np.int64)
        waiting, index = self.waiting.state.kernel, self.master.index.kernel
        return runs[: group_runs(waiting, index, groups, self.span, longest, runs)]

    @property
    def runs_per_group(self) -> int:
        """Runs that a group can need: one in each shard that it reaches into."""
        return min(self.span, len(self.master.manifest.shards))
