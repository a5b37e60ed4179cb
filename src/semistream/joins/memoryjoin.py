"""The in-memory join: the master is read once and stays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.core.budget import MemoryPlan
from semistream.core.join import Traits
from semistream.joins.cache import TupleCache
from semistream.joins.indexed import INTAKE_ROWS, IndexedJoin
from semistream.joins.waiting import WaitingRows
from semistream.kernels.frames import FRAMES
from semistream.kernels.loading import load_pages
from semistream.kernels.region import Region
from semistream.kernels.resident import answer
from semistream.kernels.rows import longest_blob
from semistream.kernels.struct import Struct

FRAME_BYTES = 13
"""Bytes of a frame besides its page: four for where each page is, nine for what it holds."""

MOST_OUTPUT_BYTES = 2_000_000
MOST_BUFFER_BYTES = 1 << 20
WAITING_PART = 256
"""Rows whose key goes on in another page get this part of the memory to wait in."""


class MemoryJoin(IndexedJoin):
    """The plain join in memory, for masters that fit the budget: what `auto` is then.

    With the first row all pages are read and stay. Each stream row finds its page by the index, its
    key in that page by a search that begins where the key should be, and is answered at once. So
    the sorted pages are the hash table: they take no memory beside themselves.

    One iteration (`step`) joins the rows whose key goes on in another page; no other row waits.
    SSBJ's Theorem 3 says when this is the best of all: when the stream is so fast that every row of
    the master is worth its place in memory.
    """

    name = "memoryjoin"
    traits = Traits(
        paper="textbook",
        idea="read the whole master once and answer every row from memory",
        skew="none",
    )

    def divide(self, blob_bytes: float) -> MemoryPlan:
        master, limit = self.master, self.budget.limit_bytes
        output = min(limit / 16, MOST_OUTPUT_BYTES)
        parts = self.common_parts(index=True, output_share=output / limit)
        parts["page chains"] = 4 * max(master.pages, 1)
        buffer = min(limit // 64, MOST_BUFFER_BYTES) // master.page_bytes
        parts["read buffer"] = max(buffer, 2) * master.page_bytes
        parts["scratch"] = self.scratch_bytes + self.row_room(blob_bytes)
        row = self.binding.layout.record_bytes + (blob_bytes + 64 if blob_bytes else 0)
        parts["waiting rows"] = max(limit // WAITING_PART, int(64 * row) + 4096)
        return self.need(parts, "pages", master.pages * (master.page_bytes + FRAME_BYTES))

    def allocate(self, blob_bytes: float) -> None:
        plan, master = self.plan, self.master
        for part in ("index", "page chains", "read buffer", "scratch"):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        size = plan["waiting rows"]
        self.waiting = WaitingRows(self.binding, master.pages, size, blob_bytes)
        self.waiting.set_bytes(size)
        self.budget.set("waiting rows", self.waiting.size_bytes)
        self.cache = TupleCache(self.binding, 0, 0, seed=self.seed)
        self._buffer_pages = plan["read buffer"] // master.page_bytes
        self._reader = self.make_reader(self._buffer_pages)
        self.budget.set("pages", master.pages * (master.page_bytes + FRAME_BYTES))
        self._pages_held = Region(max(master.pages, 1) * master.page_bytes)
        self.frames = Struct(
            FRAMES,
            data=self._pages_held.bytes,
            page_bytes=master.page_bytes,
            count=master.pages,
            frame_of=np.full(max(master.pages, 1), -1, np.int32),
            page_in=np.full(max(master.pages, 1), -1, np.int64),
            touched=np.zeros(max(master.pages, 1), np.uint8),
        )
        self.bind_kernels()
        self._found[:] = -1
        self._load()

    def _load(self) -> None:
        """Read all pages in order; the frames are empty, so that page p comes into frame p."""
        assert self._reader is not None
        longest = max(self._buffer_pages // 4, 1)
        runs = [
            (at, min(longest, end - at))
            for first, end in self.master.shard_ranges()
            for at in range(first, end, longest)
        ]
        whole = load_pages(
            self._reader.ring.kernel,
            self.frames.kernel,
            self.cache.state.kernel,
            self.master.index.kernel,
            np.array(runs, np.int64).reshape(-1, 2),
        )
        if not whole:
            raise self._reader.error()

    @property
    def cached_rows(self) -> int:
        return self.master.rows if self._out is not None else 0

    def accept(self, batch: pa.RecordBatch) -> int:
        assert self._out is not None
        keys, packed = self.keys_of(batch)
        if self.binding.layout.has_bytes:
            self._need_scratch(longest_blob(packed.columns.kernel, batch.num_rows))
        done = 0
        while done < batch.num_rows:
            room = int(self._out.out.room - self._out.out.rows)
            end = min(done + INTAKE_ROWS, done + room + 1, batch.num_rows)
            key64, valid = keys.key64[done:end], keys.valid[done:end]
            pages = self._pages[: end - done]
            self.master.locate(key64, self._found[: end - done], pages)
            accepted = answer(
                self.match.kernel,
                self._out.out.kernel,
                self.waiting.state.kernel,
                self.master.index.kernel,
                self.frames.kernel,
                packed.columns.kernel,
                key64,
                valid,
                pages,
                done,
                self.clock.now_ns(),
            )
            done += int(accepted)
            self._loops += 1
            if accepted < end - (done - accepted):
                break
        return done

    def work(self) -> None:
        if self.waiting.rows:
            wanted = np.flatnonzero(self.waiting.tail >= 0).astype(np.int64)
            self.join_pool(wanted)
