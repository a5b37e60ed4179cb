"""Joins that scan the master in a circle: every row that waits meets every page once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryPlan
from semistream.core.errors import OptionError, SchemaError
from semistream.core.join import Snapshot
from semistream.joins.operator import MET, Operator
from semistream.joins.output import OutputBuffer
from semistream.joins.waiting import WaitingRows
from semistream.kernels.matching import BROKEN, FULL
from semistream.kernels.mesh import enter, expire, export_circle, probe_runs
from semistream.kernels.rows import longest_blob
from semistream.kernels.waiting import sign_rings

CHUNK_BYTES = 930_000
"""The thesis's default disk buffer (§3.7): within 2 % of the best from 20 to 320 MB."""

RUN_BYTES = 256 * 1024
"""A chunk is read in requests of this size, so that several are in flight."""

SCRATCH_BYTES = 4096

CHUNKS_LEFT = "\0chunks left"
"""Column of a snapshot: how many chunks a row has yet to meet."""


class ScanJoin(Operator):
    """A scan of R in chunks, with the waiting rows in batches, one batch per iteration.

    Chunk boundaries are fixed; a batch that entered at iteration i meets the chunks of iterations
    i to i + k - 1 and leaves after the last of them, k being the number of chunks.
    """

    waiting: WaitingRows
    chunk_bytes: int = CHUNK_BYTES

    def divide(self, blob_bytes: float) -> MemoryPlan:
        page = self.master.page_bytes
        parts = self.common_parts(index=False)
        pages = max(self.master.pages, 1)
        wanted = min(self.chunk_bytes, self.budget.limit_bytes // 10)
        chunk = min(max(wanted // page, 1), pages)
        parts["read buffer"] = 2 * chunk * page
        parts["batches"] = 8 * (-(-pages // chunk) + 1)
        parts["scratch"] = 4096 + self.row_room(blob_bytes)
        row = self.binding.layout.record_bytes + 8 + (blob_bytes + 64 if blob_bytes else 0)
        return self.need(parts, "waiting rows", int(64 * row) + 4096)

    def allocate(self, blob_bytes: float) -> None:
        master, plan = self.master, self.plan
        for part in ("read buffer", "batches", "scratch"):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        size = plan["waiting rows"]
        row = self.binding.layout.record_bytes + 4
        if self.binding.layout.has_bytes:
            row += 32 * max(int(np.ceil(blob_bytes / 28)), 1)
        # Two rows a bucket: four bytes a row, as a pointer per row would take.
        buckets = max(size // row // 2, 32)
        granted = size - 8 * buckets
        self.waiting = WaitingRows(self.binding, buckets, granted, blob_bytes, rings=True)
        self.waiting.set_bytes(granted)
        # Slots are used in a circle: `free` is the oldest one.
        self.waiting.state.free = 1
        self.budget.set("waiting rows", self.waiting.size_bytes + 8 * buckets)
        buffer_pages = plan["read buffer"] // master.page_bytes
        self.chunk_pages = buffer_pages // 2
        self.chunks = -(-master.pages // self.chunk_pages) if master.pages else 1
        self._run_pages = max(min(RUN_BYTES // master.page_bytes, self.chunk_pages), 1)
        self._runs_per_chunk = -(-self.chunk_pages // self._run_pages)
        self._reader = master.reader(buffer_pages, measure=self.clock.real)
        self.rows_per_batch = max(self.waiting.capacity // self.chunks, 1)
        self._batches = np.zeros(self.chunks, np.int64)
        self._newest = 0
        self._chunk = 0
        self._entered = np.zeros(1, np.int64)
        self.match.found = np.zeros(master.most_rows_per_page + 1, np.int64)
        self._progress = np.array([0, 0, 0, 0, -1, 0], np.int64)
        self._runs = np.zeros((4 * self._runs_per_chunk, 2), np.int64)
        self._ahead: list[int] = []
        self._planned = 0
        self._left = 0
        self._in_chunk = False
        self._expiring = 0

    @property
    def rows_waiting(self) -> int:
        return self.waiting.rows if self._out is not None else 0

    def accept(self, batch: pa.RecordBatch) -> int:
        if self._in_chunk or self._expiring:
            # A row must meet whole chunks: none enters in the middle of one.
            return 0
        return self._enter(batch, np.empty(0, np.uint8), self.rows_per_batch)

    def _enter(self, batch: pa.RecordBatch, met: npt.NDArray[np.uint8], most: int) -> int:
        assert self._out is not None
        keys, packed = self.binding.keys(batch)
        if self.binding.layout.has_bytes:
            size = int(longest_blob(packed.columns.kernel, batch.num_rows))
            self.need_scratch(self.waiting, size, 4096)
        return int(
            enter(
                self.match.kernel,
                self._out.out.kernel,
                self.waiting.state.kernel,
                packed.columns.kernel,
                keys.key64,
                keys.valid,
                met,
                0,
                most,
                self.clock.now_ns(),
                self._entered,
            )
        )

    def work(self) -> None:
        """Meet one chunk with all waiting rows, then let the batch go that has met them all."""
        if not self._in_chunk and not self._expiring:
            if self.waiting.rows == 0:
                return
            self._begin_chunk()
        if self._in_chunk:
            if self._left:
                self._probe()
            if self._left:
                return
            self._end_chunk()
        self._expire()

    def _begin_chunk(self) -> None:
        self._batches[self._newest] = self._entered[0]
        self._entered[0] = 0
        self._plan_ahead()
        self._left = self._ahead.pop(0)
        self._in_chunk = True

    def _plan_ahead(self) -> None:
        """Have the current chunk and the next one planned."""
        if not self._ahead:
            self._planned = self._chunk
        while len(self._ahead) < 2:
            first = self._planned * self.chunk_pages
            end = min(first + self.chunk_pages, self.master.pages)
            runs = self._cut(first, end)
            submitted, given = int(self._progress[0]), int(self._progress[1])
            left = given - submitted
            self._runs[:left] = self._runs[submitted:given].copy()
            if runs:
                self._runs[left : left + len(runs)] = runs
            self._progress[0], self._progress[1] = 0, left + len(runs)
            self._ahead.append(len(runs))
            self._planned = (self._planned + 1) % self.chunks
            if self.chunks == 1:
                break

    def _cut(self, first: int, end: int) -> list[tuple[int, int]]:
        """Requests for the pages of a chunk; none of them crosses a shard."""
        runs = []
        for shard_first, shard_end in self.master.shard_ranges():
            at, stop = max(first, shard_first), min(end, shard_end)
            while at < stop:
                count = min(self._run_pages, stop - at)
                runs.append((at, count))
                at += count
        if len(runs) > 2 * self._runs_per_chunk:
            self._runs = np.vstack([self._runs, np.zeros((4 * len(runs), 2), np.int64)])
            self._runs_per_chunk = len(runs)
        return runs

    def _probe(self) -> None:
        assert self._reader is not None
        assert self._out is not None
        status = probe_runs(
            self.match.kernel,
            self._out.out.kernel,
            self.waiting.state.kernel,
            self._reader.ring.kernel,
            self._runs,
            self._progress,
            self._left,
        )
        if status == BROKEN:
            raise self._reader.error()
        self._left = int(self._progress[5])
        if status != FULL and self._left:
            raise OptionError(f"{self.name}: {self._left} requests of a chunk were never read")

    def _end_chunk(self) -> None:
        self._in_chunk = False
        self._chunk = (self._chunk + 1) % self.chunks
        if self._chunk == 0:
            sign_rings(self.waiting.state.kernel)
        self._newest = (self._newest + 1) % self.chunks
        # The entry that the next batch will take is the batch that has now met all chunks.
        self._expiring = int(self._batches[self._newest])
        self._batches[self._newest] = 0

    def _expire(self) -> None:
        assert self._out is not None
        if self._expiring:
            self._expiring -= int(
                expire(
                    self.match.kernel,
                    self._out.out.kernel,
                    self.waiting.state.kernel,
                    self._expiring,
                    self.clock.now_ns(),
                )
            )

    # What survives a crash.

    def snapshot(self) -> Snapshot:
        self._check_open()
        if self._out is None:
            return Snapshot(self.name, self._no_rows(), self.peek(), {})
        # Between chunks the state of a row is one number: how many chunks it has yet to meet.
        while self._in_chunk or self._expiring:
            self._set_aside()
            self.work()
        count = self.rows_waiting
        room = OutputBuffer(self.binding.stream_only(), max(count, 1), 0)
        met = np.empty(count, np.uint8)
        state = self.waiting.state.kernel
        heap = int(export_circle(self.match.kernel, room.out.kernel, state, met)) if count else 0
        if heap > room.heap_bytes:
            room = OutputBuffer(self.binding.stream_only(), count, heap)
            export_circle(self.match.kernel, room.out.kernel, state, met)
        k = self.chunks
        counts = [int(self._batches[(self._newest + r) % k]) for r in range(1, k)]
        left = np.repeat(np.arange(1, k + 1), [*counts, int(self._entered[0])])
        batch = room.peek() or self._no_rows()
        for name, values in ((MET, met), (CHUNKS_LEFT, left)):
            batch = batch.append_column(name, pa.array(values))
        position = {
            "version": self.master.manifest.version,
            "chunk": self._chunk,
            "chunks": k,
            "chunk_pages": self.chunk_pages,
            "blob_bytes": int(self._blob_bytes),
        }
        return Snapshot(self.name, batch, self.peek(), position)

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.binding.stream_schema)

    def restore(self, snapshot: Snapshot) -> None:
        self._check_fresh(snapshot)
        self._restored = snapshot.pending
        rows = snapshot.rows
        if rows.num_rows == 0:
            return
        stream = rows.select(self.binding.stream_schema.names)
        self._prepare(stream, snapshot.position["blob_bytes"])
        here = {
            "version": self.master.manifest.version,
            "chunks": self.chunks,
            "chunk_pages": self.chunk_pages,
        }
        for name, value in here.items():
            if snapshot.position[name] != value:
                raise SchemaError(
                    f"the snapshot was made with {name}={snapshot.position[name]}, here it is "
                    f"{value}",
                    hint="restore with the same master and the same memory",
                )
        if self._enter(stream, rows.column(MET).to_numpy(), rows.num_rows) < rows.num_rows:
            raise SchemaError("the snapshot does not fit the memory", hint="restore with as much")
        self._rows_in += rows.num_rows
        self._chunk = snapshot.position["chunk"]
        counts = np.bincount(rows.column(CHUNKS_LEFT).to_numpy(), minlength=self.chunks + 1)
        self._entered[0] = counts[self.chunks]
        for r in range(1, self.chunks):
            self._batches[(self._newest + r) % self.chunks] = counts[r]
