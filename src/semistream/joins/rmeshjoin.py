"""R-MESHJOIN: MESHJOIN with intake in smaller steps than reads."""

from __future__ import annotations

from typing import Any

from semistream.core.errors import OptionError
from semistream.core.join import Traits
from semistream.joins.scanning import ScanJoin

QUEUE_PARTITIONS = 8576
"""k·l of the thesis's Table 4.4, the same for all sizes of R."""

LEAST_ROWS = 256
"""Where k·l is not given: rows of a batch, below which its own cost outweighs all else."""


def logical_partitions(chunks: int, queue_partitions: int = QUEUE_PARTITIONS) -> int:
    """l for k chunks: as many logical partitions as keep k·l, the length of the queue, constant."""
    return max(1, round(queue_partitions / chunks))


class RMeshJoin(ScanJoin):
    """R-MESHJOIN (Naeem, PhD thesis, Auckland 2012, ch. 4, Alg. 2).

    As MESHJOIN, but the chunk in the disk buffer (b pages) is split into l logical partitions. The
    stream is taken in with each logical partition, the disk is read once per l of them. So the
    size of reads and the number of rows per batch no longer depend on each other, and with
    k·l constant the batches stay the same when R grows.

    One iteration (`step`): at the begin of a chunk have it read; let the rows that were pushed join
    H and Q; probe H with the next logical partition; let the rows go that entered k·l iterations
    ago.

    Names: b is `chunk_pages`, k·l (Q_p in Eq. 4.2) is `queue_partitions`, l is `partitions`,
    w is `rows_to_enter()`.

    Departures: boundaries of logical partitions are ⌊j·b/l⌋, where the printed test needs b/l to be
    a whole number; when k·l cannot be held because R has too many chunks, l is 1 and this is
    MESHJOIN; unless k·l is given, it is smaller than the thesis's where batches would have under
    256 rows; a chunk with fewer pages than l has as many partitions as pages, with as many rows
    more in each. Otherwise as `MeshJoin`.
    """

    name = "rmeshjoin"
    traits = Traits(
        paper="Naeem, PhD thesis 2012, ch. 4",
        idea="as meshjoin, with rows entering several times while one chunk is probed",
        needs_index=False,
    )
    takes_conditions = True

    def __init__(self, *args: Any, queue_partitions: int | None = None, **options: Any) -> None:
        if queue_partitions is not None and queue_partitions < 1:
            raise OptionError(f"queue_partitions={queue_partitions} is not above zero")
        self.queue_partitions = queue_partitions
        super().__init__(*args, **options)

    def most_packets(self, chunk_pages: int) -> int:
        chunks = super().most_packets(chunk_pages)
        return min(chunks * self._partitions(chunk_pages), max(self.master.pages, 1))

    def pages_to_probe(self) -> int:
        chunk = super().pages_to_probe()
        in_chunk = self._page % self.chunk_pages
        pages, parts = in_chunk + chunk, self.partitions
        # The partition that holds this page: the last one to begin at or before it.
        j = ((in_chunk + 1) * parts - 1) // pages
        return (j + 1) * pages // parts - in_chunk

    @property
    def partitions(self) -> int:
        """Logical partitions of a chunk: l."""
        return self._partitions(self.chunk_pages)

    def _partitions(self, chunk_pages: int) -> int:
        chunks = super().most_packets(chunk_pages)
        wanted = self.queue_partitions
        if wanted is None:
            rows = self.budget.limit_bytes // self.binding.layout.record_bytes
            wanted = min(QUEUE_PARTITIONS, rows // LEAST_ROWS)
        return min(logical_partitions(chunks, wanted), chunk_pages)
