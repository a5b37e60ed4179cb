"""Parts of joins that serve pages in the order in which rows began to wait for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.core.budget import MemoryPlan
from semistream.joins.cache import TupleCache
from semistream.joins.indexed import IndexedJoin
from semistream.joins.waiting import WaitingRows
from semistream.kernels.waiting import take_oldest


class QueuedJoin(IndexedJoin):
    """Rows wait for their page in a queue of pages; the oldest page comes first.

    A page enters the queue with its first row, so the page in front is that of the oldest row, and
    no row starves. It takes four bytes a page where a list of rows would take twelve a row.
    """

    def queue_parts(self, blob_bytes: float) -> dict[str, int]:
        """Memory of index, output, chains and queue."""
        parts = self.common_parts(index=True)
        parts["page chains"] = 9 * max(self.master.pages, 1)
        parts["scratch"] = self.scratch_bytes + self.row_room(blob_bytes)
        return parts

    def plan_waiting(self, parts: dict[str, int], blob_bytes: float) -> MemoryPlan:
        """A plan with all that is left for waiting rows."""
        row = self.binding.layout.record_bytes + (blob_bytes + 64 if blob_bytes else 0)
        return self.need(parts, "waiting rows", int(64 * row) + 4096)

    def allocate_waiting(self, blob_bytes: float, size_bytes: int) -> None:
        """Waiting rows with their queue, and no tuple cache."""
        self.waiting = WaitingRows(
            self.binding, self.master.pages, size_bytes, blob_bytes, queue=True
        )
        self.waiting.set_bytes(size_bytes)
        self.budget.set("waiting rows", self.waiting.size_bytes)
        self.cache = TupleCache(self.binding, 0, 0, seed=self.seed)

    def oldest_pages(self, most: int) -> npt.NDArray[np.int64]:
        """Take up to `most` pages for which rows wait off the front of the queue."""
        pages = np.empty(most, np.int64)
        return pages[: take_oldest(self.waiting.state.kernel, pages)]
