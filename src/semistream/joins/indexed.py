"""Joins that find pages by the index: rows wait in chains, one per page of the master."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import SchemaError
from semistream.core.join import Snapshot
from semistream.joins.absent import AbsentFilter
from semistream.joins.cache import TupleCache
from semistream.joins.operator import MET, PAGE, Operator
from semistream.joins.output import OutputBuffer
from semistream.joins.waiting import WaitingRows
from semistream.kernels.cache import find_all
from semistream.kernels.changing import forget
from semistream.kernels.frames import FRAMES
from semistream.kernels.matching import (
    BROKEN,
    IDLE,
    PAGES_AHEAD,
    WORK_ROWS,
    export_rows,
    feed,
    import_rows,
    join_framed,
    join_next,
    join_runs,
    take_in,
)
from semistream.kernels.rows import longest_blob
from semistream.kernels.struct import Handle, Struct
from semistream.store.keys import Keys
from semistream.store.layout import PackedColumns

INTAKE_ROWS = 8192
"""Rows looked up together on their way in, at most."""

SPARE_ROWS = 256
"""Rows looked up beyond those for which there seems to be room."""

RUNS = 64
"""Runs planned ahead, unless a join wants more."""


ALL_ROWS = np.empty(0, np.int32)
"""Rows as they come: none is left out."""


class IndexedJoin(Operator):
    """Rows wait for their page; a subclass decides which pages are read next, and when.

    A subclass allocates `waiting`, `cache` (possibly of size 0) and the reader, then calls
    `bind_kernels`.
    """

    waiting: WaitingRows
    cache: TupleCache
    frames: Struct
    joins_when_fed = False
    """Whether `push` joins pages to make room for more rows, as long as the output has any."""
    absent: AbsentFilter | None = None
    """Rules out keys that are not there, for joins that make one."""
    most_runs = RUNS
    """Runs planned ahead, at most."""
    pages_together = PAGES_AHEAD
    """Pages whose rows are joined together, at most."""
    keeps_cache = False
    """Whether cached rows stay when the join moves to another version of the master."""

    def renew(self, touched: npt.NDArray[np.int64] | None) -> None:
        cache = self.cache
        del self.waiting, self.cache
        super().renew(touched)
        if self.keeps_cache and touched is not None:
            forget(cache.state.kernel, touched)
            self.adopt(cache)
            self.bind_kernels()

    def adopt(self, cache: TupleCache) -> None:
        """Use a cache that was filled before, instead of the one just allocated."""
        self.budget.set("cache", 0)
        cache.set_bytes(self.plan["cache"])
        self.cache = cache
        self.budget.set("cache", cache.size_bytes)

    def bind_kernels(self) -> None:
        """Make the records that kernels share, after everything is allocated."""
        rows = self.master.most_rows_per_page + 1
        self.match.tally, self.match.asked = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        self.match.work = np.zeros(2 * WORK_ROWS, np.int64)
        self.match.pages_together = self.pages_together
        self.match.ends = np.zeros(self.pages_together + 1, np.int64)
        self.match.pages_of = np.zeros(self.pages_together, np.int64)
        self.match.found = self.match.numbers = np.zeros(WORK_ROWS, np.int64)
        self.match.active = np.zeros(PAGES_AHEAD, np.int64)
        self.match.targets = np.zeros(WORK_ROWS, np.int64)
        self.match.cached = self.cache.to_output
        self.match.cached_key = self.cache.to_verify
        if not hasattr(self, "frames"):
            self.frames = Struct(FRAMES)
        self._found = np.empty(INTAKE_ROWS, np.int32)
        self._pages = np.empty(INTAKE_ROWS, np.int32)
        self._runs = np.zeros((self.most_runs, 2), np.int64)
        self._progress = np.zeros(4, np.int64)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the arrays that `bind_kernels` makes."""
        lists = 8 * INTAKE_ROWS + 16 * self.most_runs + 32 * WORK_ROWS + 16 * self.pages_together
        return lists + 8 * self.master.most_rows_per_page + 4096

    @property
    def rows_waiting(self) -> int:
        listed = int(self.match.listed - self.match.brought)
        return listed + (self.waiting.rows if self._out is not None else 0)

    @property
    def cached_rows(self) -> int:
        return self.cache.rows if self._out is not None else 0

    def keys_of(
        self, batch: pa.RecordBatch, pages: npt.NDArray[np.int32] | None = None
    ) -> tuple[Keys, PackedColumns]:
        """By what rows are looked up, and their columns; those of a snapshot wait for `pages`."""
        return self.binding.keys(batch)

    def accept(self, batch: pa.RecordBatch) -> int:
        keys, packed = self.made_ready(batch)
        return self.accept_rows(packed, keys.key64, keys.valid, ALL_ROWS)

    def made_ready(
        self, batch: pa.RecordBatch, pages: npt.NDArray[np.int32] | None = None
    ) -> tuple[Keys, PackedColumns]:
        """What `keys_of` gives of rows, with room for their byte strings."""
        keys, packed = self.keys_of(batch, pages)
        if self.binding.layout.has_bytes:
            self._need_scratch(longest_blob(packed.columns.kernel, batch.num_rows))
        return keys, packed

    def accept_rows(
        self,
        packed: PackedColumns,
        key64: npt.NDArray[np.int64],
        valid: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.int32],
    ) -> int:
        """Take in rows of the columns, all or those said, of which these are the keys; how many."""
        done, total = 0, len(key64)
        while done < total:
            # Looking up many more rows than there is room for would be work thrown away.
            end = min(done + self._block_rows(), total)
            some = rows[done:end] if len(rows) else rows
            first = 0 if len(rows) else done
            accepted = self._feed(packed, key64[done:end], valid[done:end], some, first)
            self.taken_in(accepted, valid[done:end])
            if accepted < end - done and not self._make_way():
                return done + accepted
            done += accepted
        return done

    def _block_rows(self) -> int:
        assert self._out is not None
        free = max(self.waiting.capacity - self.waiting.rows, 0)
        if self.joins_when_fed:
            # Rows leave as others come: for each there is a result, and so room in the output.
            return min(
                INTAKE_ROWS, SPARE_ROWS + free + int(self._out.out.room - self._out.out.rows)
            )
        # Those that the cache answers take no room.
        return min(INTAKE_ROWS, SPARE_ROWS + 3 * free)

    def _feed(
        self,
        packed: PackedColumns,
        key64: npt.NDArray[np.int64],
        valid: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.int32],
        first: int,
    ) -> int:
        """Take in rows of the columns from `first` on, or those said, joining pages to make room
        where the algorithm does so."""
        assert self._out is not None
        reader = self._reader
        assert reader is not None
        found, pages = self._found[: len(key64)], self._pages[: len(key64)]
        self.look_up(key64, valid, found, pages)
        now = self.clock.now_ns()
        if not self.joins_when_fed:
            accepted = take_in(
                self.match.kernel,
                self._out.out.kernel,
                self.waiting.state.kernel,
                self.cache.state.kernel,
                self.master.index.kernel,
                packed.columns.kernel,
                key64,
                valid,
                found,
                pages,
                rows,
                0,
                first,
                now,
            )
            return int(accepted)
        accepted = feed(
            self.match.kernel,
            self._out.out.kernel,
            self.waiting.state.kernel,
            self.cache.state.kernel,
            packed.columns.kernel,
            key64,
            valid,
            found,
            pages,
            rows,
            first,
            self.master.index.kernel,
            reader.ring.kernel,
            self.frames.kernel,
            self._runs,
            self._progress,
            now,
        )
        return int(accepted)

    def look_up(
        self,
        key64: npt.NDArray[np.int64],
        valid: npt.NDArray[np.uint8],
        found: npt.NDArray[np.int32],
        pages: npt.NDArray[np.int32],
    ) -> None:
        """Where each key is cached (-1: nowhere), and the list on which its row will wait."""
        find_all(self.cache.state.kernel, key64, valid, found)
        self.locate(key64, found, pages)

    def locate(
        self,
        key64: npt.NDArray[np.int64],
        found: npt.NDArray[np.int32],
        pages: npt.NDArray[np.int32],
    ) -> None:
        """The list on which each row will wait that was not `found`; -1 where its key is absent."""
        self.master.locate(key64, found, pages)
        if self.absent is not None:
            self.absent.rule_out(key64, pages)

    def _make_way(self) -> bool:
        """After `_feed` took fewer rows than given: whether it is worth another try."""
        if not self.joins_when_fed:
            return False
        status = int(self._progress[3])
        if status == BROKEN:
            assert self._reader is not None
            raise self._reader.error()
        return status == IDLE and self.plan_more()

    def plan_more(self) -> bool:
        """Plan further runs, for joins that join while they are fed; False if there are none."""
        return False

    def taken_in(self, rows: int, valid: npt.NDArray[np.uint8]) -> None:
        """Called after so many rows were taken in; `_pages` has the pages they wait for."""

    def join_planned(self) -> int:
        """Read and join the planned runs until all are done or the output is full."""
        return self.join_by(join_runs)

    def join_one(self) -> int:
        """Read ahead, and join the oldest of the planned runs: MORE when all of it is joined."""
        return self.join_by(join_next)

    def join_by(self, kernel: Callable[..., int], *more: Handle) -> int:
        """Call a kernel that reads and joins the planned runs; how it ended, but for failed reads.

        `more` are structs of the algorithm's own, which such a kernel takes behind the frames.
        """
        reader = self._reader
        assert reader is not None
        assert self._out is not None
        status = kernel(
            self.match.kernel,
            self._out.out.kernel,
            self.waiting.state.kernel,
            self.cache.state.kernel,
            self.master.index.kernel,
            reader.ring.kernel,
            self.frames.kernel,
            *more,
            self._runs,
            self._progress,
            self.clock.now_ns(),
        )
        if status == BROKEN:
            raise reader.error()
        return int(status)

    def join_pool(
        self, pages: npt.NDArray[np.int64], frames: Struct | None = None
    ) -> npt.NDArray[np.int64]:
        """Join waiting rows with pages in memory; the pages that are not done by that.

        They are those of the buffer pool, or of other `frames`.
        """
        assert self._out is not None
        left = join_framed(
            self.match.kernel,
            self._out.out.kernel,
            self.waiting.state.kernel,
            self.cache.state.kernel,
            self.master.index.kernel,
            (frames or self.frames).kernel,
            pages,
            len(pages),
            self.clock.now_ns(),
        )
        return pages[:left]

    def plan_runs(self, runs: npt.NDArray[np.int64]) -> None:
        """Append runs to those not yet submitted; there must be room (see `runs_left`)."""
        submitted, given = int(self._progress[0]), int(self._progress[1])
        left = given - submitted
        self._runs[:left] = self._runs[submitted:given]
        self._runs[left : left + len(runs)] = runs
        self._progress[0], self._progress[1] = 0, left + len(runs)

    def forget_runs(self) -> None:
        """Drop the runs that were not submitted, or not wholly."""
        assert self._reader is not None
        self._progress[0] = self._progress[1]
        self._reader.ring.begun = 0

    @property
    def runs_left(self) -> int:
        """Runs planned and not yet submitted."""
        return int(self._progress[1] - self._progress[0])

    @property
    def reads_pending(self) -> bool:
        """Whether runs are planned or under way."""
        assert self._reader is not None
        return self.runs_left > 0 or self._reader.in_flight > 0

    def _need_scratch(self, size_bytes: int) -> None:
        self.need_scratch(self.waiting, size_bytes, self.scratch_bytes)

    # What survives a crash.

    def snapshot(self) -> Snapshot:
        self._check_open()
        pending = self.peek()
        count = self.rows_waiting
        room = OutputBuffer(self.binding.stream_only(), max(count, 1), 0)
        pages, met = np.empty(count, np.int32), np.empty(count, np.uint8)
        if count:
            heap = 0
            while True:
                waiting, match = self.waiting.state.kernel, self.match.kernel
                heap = int(export_rows(match, room.out.kernel, waiting, pages, met))
                if heap <= room.heap_bytes:
                    break
                room = OutputBuffer(self.binding.stream_only(), count, heap)
        batch = room.peek()
        if batch is None:
            batch = pa.RecordBatch.from_pylist([], schema=self.binding.stream_schema)
        batch = batch.append_column(PAGE, pa.array(pages)).append_column(MET, pa.array(met))
        position = {
            "version": self.master.manifest.version,
            "blob_bytes": int(self._blob_bytes),
        }
        return Snapshot(self.name, batch, pending, position)

    def restore(self, snapshot: Snapshot) -> None:
        self._check_fresh(snapshot)
        self._restored = snapshot.pending
        rows = snapshot.rows
        if rows.num_rows == 0:
            return
        if snapshot.position["version"] != self.master.manifest.version:
            raise SchemaError("the snapshot was made with another version of the master")
        self.bring_back(rows, snapshot.position["blob_bytes"])
        self._rows_in += rows.num_rows
        self.match.misses += rows.num_rows

    def bring_back(self, rows: pa.RecordBatch, blob_bytes: int | None = None) -> None:
        """Let the rows of a snapshot wait again."""
        stream = rows.select(self.binding.stream_schema.names)
        self.prepare(stream, blob_bytes)
        self.before_restore()
        pages = rows.column(PAGE).to_numpy()
        keys, packed = self.made_ready(stream, pages)
        done = import_rows(
            self.waiting.state.kernel,
            packed.columns.kernel,
            keys.key64,
            pages,
            rows.column(MET).to_numpy(),
            self.clock.now_ns(),
        )
        if done < rows.num_rows:
            raise SchemaError("the snapshot does not fit the memory", hint="restore with as much")
        self.restored(rows)

    def before_restore(self) -> None:
        """Called before the rows of a snapshot come: they may be as many as ever fit."""

    def restored(self, rows: pa.RecordBatch) -> None:
        """Called with the rows of a snapshot after they wait again."""
