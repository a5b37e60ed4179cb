"""Joins that scan the master in a circle: every row that waits meets every page once."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import (
    MemoryBudget,
    MemoryPlan,
    format_bytes,
    parse_bytes,
    type_of_size,
)
from semistream.core.errors import BudgetError, OptionError, SchemaError
from semistream.core.join import Snapshot
from semistream.joins.binding import Binding
from semistream.joins.cache import TupleCache
from semistream.joins.deadlines import FASTEST_BYTES_PER_S, PAGE_S, Deadline
from semistream.joins.operator import MET, Operator
from semistream.joins.ordering import ORDER, HeldResults
from semistream.joins.output import OutputBuffer
from semistream.joins.packets import Packets
from semistream.joins.pairs import PairProbe, Sizes
from semistream.joins.waiting import WaitingRows
from semistream.kernels.jit import read_only
from semistream.kernels.matching import BROKEN, FULL, IDLE, MORE
from semistream.kernels.mesh import (
    P_GIVEN,
    P_PAGE,
    P_SUBMITTED,
    P_WANTED,
    enter,
    expire,
    export_circle,
    forget_met,
    number_of,
    probe_pages,
    read_on,
)
from semistream.kernels.pairs import done_with_run, run_at
from semistream.kernels.rows import longest_blob
from semistream.kernels.struct import Struct
from semistream.kernels.waiting import sign_rings
from semistream.kernels.watching import WATCH
from semistream.store.file import FileMaster

CHUNK_BYTES = 930_000
"""The thesis's default disk buffer (§3.7): within 2 % of the best from 20 to 320 MB."""

RUN_BYTES = 256 * 1024
"""A chunk is read in requests of this size at most, so that several are in flight."""

MOST_BUFFER_BYTES = 4 << 20
"""Beyond this a disk gains nothing: several requests keep it busy."""

ENOUGH_BUFFER_BYTES = 400_000
"""A larger buffer must be a small part of the memory."""

RUNS = 64
"""Requests planned ahead."""

LEAST_BLOCK_ROWS = 256
"""Rows looked at together on their way in, where fewer may enter."""

SCRATCH_BYTES = 4096 + 16 * RUNS

HELD_PART, LEAST_HELD_BYTES = 3, 8192
"""With ordered output, results that are held have a third of what they share with waiting rows."""

START = "\0start"
"""Column of a snapshot: the page before which a row entered."""

_NO_FLAGS = read_only(np.empty(0, np.uint8))


def chunk_bytes(option: type_of_size | None, memory_bytes: int) -> int:
    """Bytes of a chunk: as given, or the thesis's, where that is no large part of the memory."""
    if option is None:
        return min(CHUNK_BYTES, memory_bytes // 10)
    return parse_bytes(option, what="chunk")


def buffer_bytes(memory_bytes: int) -> int:
    """The read buffer at most: a twentieth of little memory, a fiftieth of much.

    What it takes no rows can wait in: on the modelled disk of the papers' time that costs MESHJOIN
    less than 2 % of the best rate from 20 to 320 MB.
    """
    wanted = min(memory_bytes // 20, max(memory_bytes // 50, ENOUGH_BUFFER_BYTES))
    return min(wanted, MOST_BUFFER_BYTES)


class ScanJoin(Operator):
    """A circular scan of R that rows join at any page and leave when they are there again.

    Rows that enter together are a packet, with the page that comes next as its start. An iteration
    lets the rows that were pushed enter, and probes the waiting rows with some pages. After each
    page that comes before the start of the oldest packet, that packet has met all of R and leaves.
    A subclass decides how many pages an iteration has and how many rows enter before it.
    """

    waiting: WaitingRows
    cache: TupleCache
    watch: Struct
    refuses_in_flush = False  # a row that comes later leaves later

    def __init__(
        self,
        master: FileMaster,
        binding: Binding,
        budget: MemoryBudget,
        *,
        chunk: type_of_size | None = None,
        ordered: bool = False,
        **options: Any,
    ) -> None:
        self.chunk_option = chunk
        self._held = HeldResults() if ordered else None
        if ordered and options.get("max_wait") is not None:
            raise OptionError(
                "ordered results wait for those of older rows, for which max_wait is no bound",
                hint="leave out ordered or max_wait",
            )
        self._next = 0
        self.watch = Struct(WATCH)  # no keys, unless the algorithm watches some
        numbered = binding.numbered(ORDER) if ordered else binding
        super().__init__(master, numbered, budget, **options)
        self.output_schema = binding.output_schema

    # What a subclass may change.

    def most_packets(self, chunk_pages: int) -> int:
        """Packets that wait at most."""
        return max(-(-self.master.pages // chunk_pages), 1)

    def rows_to_enter(self) -> int:
        """Rows that may enter before the next iteration: w."""
        return self.portion(self.waiting.capacity)

    def portion(self, rows: int) -> int:
        """The part of some rows that is due with the next iteration, as its pages are of all.

        In a whole circle just these rows are due. Cutting off the fraction of a row at each
        iteration would leave much of a small memory empty.
        """
        pages = self.master.pages
        if pages == 0:
            return rows
        end = self._page + self.pages_to_probe()
        return max(end * rows // pages - self._page * rows // pages, 1)

    def pages_to_probe(self) -> int:
        """Pages of the next iteration, at most to the end of the master."""
        return min(self.chunk_pages - self._page % self.chunk_pages, self.master.pages - self._page)

    def reserve_waiting(self, size_bytes: int) -> int:
        """Bytes that waiting rows may ever get, when they begin with `size_bytes`."""
        return size_bytes

    def must_agree(self) -> dict[str, int]:
        """What must be here as it was where a snapshot was made."""
        return {"version": self.master.manifest.version, "chunk_pages": self.chunk_pages}

    def before_restore(self) -> None:
        """Called before the rows of a snapshot come: they may be as many as ever fit."""

    def more_parts(self) -> dict[str, int]:
        """Memory for parts of the subclass's own."""
        return {}

    # Memory.

    def divide(self, blob_bytes: float) -> MemoryPlan:
        page, limit = self.master.page_bytes, self.budget.limit_bytes
        parts = self.common_parts(index=False)
        self.chunk_pages = chunk = self._chunk()
        buffer = min(2 * chunk, max(buffer_bytes(limit) // page, 2))
        parts["read buffer"] = buffer * page
        parts["queue"] = Packets.ENTRY_BYTES * (self.most_packets(chunk) + 1)
        parts["scratch"] = SCRATCH_BYTES + self.row_room(blob_bytes)
        parts |= self.more_parts()
        if self.binding.condition is not None:
            parts["condition"] = self._sizes(blob_bytes).size_bytes
        least = self.least_waiting(blob_bytes)
        if self._held is None:
            return self.need(parts, "waiting rows", least)
        plan = self.need(parts, "waiting rows", least + LEAST_HELD_BYTES)
        left = plan["waiting rows"] - least
        held = LEAST_HELD_BYTES + (left - LEAST_HELD_BYTES) // HELD_PART
        shares = {"held results": held, "waiting rows": plan["waiting rows"] - held}
        return MemoryPlan(plan.total_bytes, {**plan.shares, **shares})

    def _chunk(self) -> int:
        """Pages of a chunk."""
        wanted = chunk_bytes(self.chunk_option, self.budget.limit_bytes)
        return min(max(wanted // self.master.page_bytes, 1), max(self.master.pages, 1))

    def least_waiting(self, blob_bytes: float) -> int:
        """Bytes without which no rows can wait."""
        row = self.binding.layout.record_bytes + 8 + (blob_bytes + 64 if blob_bytes else 0)
        return int(64 * row) + 4096

    def allocate(self, blob_bytes: float) -> None:
        master, plan = self.master, self.plan
        for part in ("read buffer", "queue", "scratch"):
            self.budget.set(part, plan[part])
        self._out = self.allocate_output()
        self.allocate_waiting(blob_bytes, plan["waiting rows"])
        self.buffer_pages = plan["read buffer"] // master.page_bytes
        self._run_pages = max(min(RUN_BYTES // master.page_bytes, self.buffer_pages // 4), 1)
        self._reader = self.make_reader(self.buffer_pages)
        self._packets = Packets(plan["queue"] // Packets.ENTRY_BYTES)
        self._entered = np.zeros(1, np.int64)
        self.match.found = np.zeros(master.most_rows_per_page + 1, np.int64)
        self._progress = np.array([0, 0, 0, 0, -1, 0], np.int64)
        self._runs = np.zeros((RUNS, 2), np.int64)
        self._shard_ends = [end for _, end in master.shard_ranges()]
        self._page = 0
        self._read_page = 0
        self._left = 0
        self._flush_left = 0
        self._expiring = 0
        self._pairs: PairProbe | None = None
        if self.binding.condition is not None:
            self.budget.set("condition", plan["condition"])
            self._pairs = PairProbe(
                self.binding,
                self.match,
                self._out.out,
                self.waiting,
                self._sizes(blob_bytes),
                master.page_bytes,
                self.budget,
            )
        self.allocate_more(blob_bytes)

    def _sizes(self, blob_bytes: float) -> Sizes:
        return Sizes.of(
            self.master,
            self.binding,
            self.budget.limit_bytes,
            blob_bytes,
            self.row_room(blob_bytes),
        )

    def allocate_waiting(self, blob_bytes: float, size_bytes: int) -> None:
        """Waiting rows in a circle of slots, with rings to find them by."""
        row = self.binding.layout.record_bytes + 4
        if self.binding.layout.has_bytes:
            row += 32 * max(int(np.ceil(blob_bytes / 28)), 1)
        # Two rows a bucket: four bytes a row, as a pointer per row would take.
        buckets = max(size_bytes // row // 2, 32)
        self._ring_bytes = 8 * buckets
        granted = size_bytes - self._ring_bytes
        reserved = self.reserve_waiting(granted)
        self.waiting = WaitingRows(self.binding, buckets, reserved, blob_bytes, rings=True)
        self.waiting.set_bytes(granted)
        # Slots are used in a circle: `free` is the oldest one.
        self.waiting.state.free = 1
        self.budget.set("waiting rows", self.waiting.size_bytes + self._ring_bytes)

    def allocate_more(self, blob_bytes: float) -> None:
        """Make the subclass's own parts; here a cache without room."""
        self.cache = TupleCache(self.binding, 0, 0, seed=self.seed)

    @property
    def rows_waiting(self) -> int:
        return self.waiting.rows if self._out is not None else 0

    # Rows on their way in.

    def accept(self, batch: pa.RecordBatch) -> int:
        if self._left or self._expiring or self._packets.is_full:
            # A row must meet whole pages, from its packet's start on: none enters on the way.
            return 0
        if self._held is not None and 2 * self._held.size_bytes > self.plan["held results"]:
            return 0
        most, done = self.rows_to_enter(), 0
        while done < batch.num_rows:
            # Looking at many more rows than may enter would be work thrown away, again and again.
            block = batch.slice(done, max(most - int(self._entered[0]), LEAST_BLOCK_ROWS))
            accepted = self._enter(block, _NO_FLAGS, most)
            done += accepted
            if accepted < block.num_rows or self._entered[0] >= most:
                break
        return done

    def _enter(self, batch: pa.RecordBatch, met: npt.NDArray[np.uint8], most: int) -> int:
        assert self._out is not None
        keys, packed = self.binding.keys(batch)
        if self.binding.layout.has_bytes:
            size = int(longest_blob(packed.columns.kernel, batch.num_rows))
            self.need_scratch(self.waiting, size, SCRATCH_BYTES)
        return int(
            enter(
                self.match.kernel,
                self._out.out.kernel,
                self.waiting.state.kernel,
                self.cache.state.kernel,
                packed.columns.kernel,
                keys.key64,
                keys.valid,
                met,
                most,
                self.clock.now_ns(),
                self._entered,
            )
        )

    # The iteration.

    def work(self) -> None:
        """Let the rows that entered meet the next pages, and those go that have met them all."""
        if not self._left and not self._expiring:
            if self.waiting.rows == 0:
                return
            self._begin()
        while self._left or self._expiring:
            if self._expiring:
                self._expire()
                if self._expiring:
                    return
                continue
            if not self._probe():
                return
            if len(self._packets) and self._packets.oldest_start == self._page:
                self._expiring = self._leaving()

    def _begin(self) -> None:
        self._enter_again()
        if self.master.pages == 0:
            self._expiring, self._entered[0] = self.waiting.rows, 0
            return
        if self._entered[0]:
            self._packets.append(int(self._entered[0]), self._page)
            self._entered[0] = 0
        self._left = self.pages_to_probe()
        self._loops += 1

    def _probe(self) -> bool:
        """Probe to the end of the iteration or of the oldest packet; False if the output is full.

        What is done of it is kept in `_left` and `_page` in any case.
        """
        wanted = self._left
        if len(self._packets):
            until_oldest = (self._packets.oldest_start - self._page - 1) % self.master.pages + 1
            wanted = min(wanted, until_oldest)
        self._progress[P_WANTED] = wanted
        status = self.probe_wanted()
        done = wanted - self.pages_wanted
        self._left -= done
        self._flush_left -= done
        self._page += done
        if self._page >= self.master.pages:
            self._page -= self.master.pages
            sign_rings(self.waiting.state.kernel)
        return status == MORE

    def probe_wanted(self) -> int:
        """Probe as many pages as `progress` wants; MORE when it is done, FULL when it is not."""
        assert self._reader is not None
        assert self._out is not None
        if self._pairs is not None:
            return self._probe_pairs(self._pairs)
        while True:
            status = probe_pages(
                self.match.kernel,
                self._out.out.kernel,
                self.waiting.state.kernel,
                self.cache.state.kernel,
                self.watch.kernel,
                self._reader.ring.kernel,
                self._runs,
                self._progress,
                self.master.manifest.is_unique,
            )
            if status != IDLE:
                break
            self.plan_runs()
        if status == BROKEN:
            raise self._reader.error()
        return int(status)

    def _probe_pairs(self, pairs: PairProbe) -> int:
        """The same under a condition: some pages at a time, as many as a block holds."""
        assert self._reader is not None
        ring, run = self._reader.ring.kernel, np.zeros(3, np.int64)
        while self.pages_wanted:
            status = read_on(ring, self._runs, self._progress)
            if status == BROKEN:
                raise self._reader.error()
            if status == IDLE:
                self.plan_runs()
                continue
            run_at(ring, run)
            at = int(self._progress[P_PAGE])
            pages = min(pairs.sizes.pages, int(run[1]) - at, self.pages_wanted)
            if not pairs.is_busy:
                pairs.begin(int(run[0]) + at * self.master.page_bytes, pages)
            if not pairs.go_on():
                return FULL
            self._progress[P_WANTED] -= pages
            self._progress[P_PAGE] = at + pages
            if at + pages == run[1]:
                self._progress[P_PAGE] = 0
                done_with_run(ring)
        return MORE

    @property
    def pages_wanted(self) -> int:
        """Pages of the current probe that are not done yet."""
        return int(self._progress[P_WANTED])

    def plan_runs(self) -> None:
        """List the next requests of the circle; none of them crosses a shard."""
        submitted, given = int(self._progress[P_SUBMITTED]), int(self._progress[P_GIVEN])
        left = given - submitted
        self._runs[:left] = self._runs[submitted:given].copy()
        page = self._read_page
        pages, planned = self.master.pages, []
        for _ in range(left, RUNS):
            shard_end = self._shard_ends[bisect_right(self._shard_ends, page)]
            count = min(self._run_pages, shard_end - page)
            planned.append((page, count))
            page = (page + count) % pages
        self._runs[left:] = np.array(planned, np.int64).reshape(-1, 2)
        self._read_page = page
        self._progress[P_SUBMITTED], self._progress[P_GIVEN] = 0, RUNS

    def _expire(self) -> None:
        assert self._out is not None
        self._expiring -= int(
            expire(
                self.match.kernel,
                self._out.out.kernel,
                self.waiting.state.kernel,
                self._expiring,
                self.clock.now_ns(),
            )
        )

    # Deadlines: a row waits for a pass over the master, from wherever it entered.

    def deadline(self, max_wait_ns: int) -> Deadline:
        deadline = Deadline(max_wait_ns, self.clock, self.name, rolling=True)
        least_s = self.master.data_bytes / FASTEST_BYTES_PER_S
        deadline.check(least_s, "a row waits for a pass over the master, which takes at least")
        return deadline

    @property
    def flush_pages(self) -> int:
        return self.master.pages

    @property
    def flush_s(self) -> float:
        return self.master.pages * PAGE_S

    @property
    def flush_left(self) -> float:
        if self._flush_left <= 0 or self.master.pages == 0:
            return 1.0
        return self._flush_left / self.master.pages

    def begin_flush(self) -> None:
        self._flush_left = self.master.pages

    def flush_is_over(self, deadline: Deadline) -> bool:
        deadline.check_pass(1 - max(self._flush_left, 0) / max(self.master.pages, 1))
        return self.rows_waiting == 0 or (self._flush_left <= 0 and not self._expiring)

    # Ordered output (paper §3.4): results are held until their row has left.

    def push(self, batch: pa.RecordBatch) -> int:
        if self._held is None or not isinstance(batch, pa.RecordBatch):
            return super().push(batch)
        self._hold(final=False)
        numbers = pa.array(np.arange(self._next, self._next + batch.num_rows))
        accepted = super().push(batch.append_column(pa.field(ORDER, pa.int64()), numbers))
        self._next += accepted
        # What is there now are rows that did not wait.
        self._hold(final=True)
        self._settle_held()
        return accepted

    def take(self) -> pa.RecordBatch | None:
        if self._held is None:
            return super().take()
        self._check_open()
        self._hold(final=False)
        batch = self._held.release(self._oldest())
        self._settle_held()
        if batch is not None:
            self._rows_out += batch.num_rows
        return batch

    def peek(self) -> pa.RecordBatch | None:
        if self._held is None:
            return super().peek()
        self._hold(final=False)
        return self._held.all()

    def _set_aside(self) -> None:
        if self._held is None:
            super()._set_aside()
        else:
            self._hold(final=False)

    @property
    def pending(self) -> int:
        if self._held is None:
            return super().pending
        return self._held.rows_before(self._oldest()) + (self._out.pending if self._out else 0)

    def _oldest(self) -> int:
        """The number of the oldest row that waits; results of all before it may leave."""
        if self.rows_waiting == 0:
            return self._next
        return self._number(0)

    def _number(self, place: int) -> int:
        """The number of a row that waits; `place` counts from the oldest on."""
        return int(number_of(self.waiting.state.kernel, self._number_at, place))

    @property
    def _number_at(self) -> int:
        layout = self.binding.layout
        return layout.offsets[layout.leaf_range(ORDER)[0]]

    def _hold(self, *, final: bool) -> None:
        """Move results from the output to those that are held."""
        batch = self._out.take() if self._out is not None else None
        if self._held is not None and batch is not None:
            self._held.add(batch, final=final)

    def _settle_held(self) -> None:
        """Drop results of the youngest rows where all are too many, and account for the rest."""
        held = self._held
        if held is None or self._out is None:
            return
        room = self.plan["held results"]
        if held.size_bytes > room and self.rows_waiting:
            # Rows that are leaving do not meet their partners again.
            held.drop(room, self._number(max(self._expiring - 1, 0)))
        size = held.size_bytes
        if size > room:
            raise BudgetError(
                f"{self.name}: the results of one stream row take {format_bytes(size)}, and "
                f"ordered output has {format_bytes(room)} for results",
                hint=f'give memory="{8 * size}" or more, or leave ordered=True out',
            )
        self.budget.set("held results", size)

    def _leaving(self) -> int:
        """Rows of the oldest packet, which has met all of R; those that must begin anew stay."""
        rows = self._packets.pop_oldest()
        if self._held is None or self._held.dropped_from is None:
            return rows
        again = forget_met(self.waiting.state.kernel, self._number_at, self._held.dropped_from)
        stay = max(rows - (self.waiting.rows - int(again)), 0)
        self._entered[0] += stay
        return rows - stay

    def _enter_again(self) -> None:
        """Rows whose results were dropped begin anew: they meet all of R again from here on."""
        if self._held is None or self._held.dropped_from is None:
            return
        state, first = self.waiting.state.kernel, self._held.dropped_from
        self._held.dropped_from = None
        rows = int(forget_met(state, self._number_at, first)) - int(self._entered[0])
        self._entered[0] += max(rows, 0)
        while rows > 0:
            rows -= self._packets.pop_youngest(rows)

    # What survives a crash.

    def snapshot(self) -> Snapshot:
        self._check_open()
        if self._out is None:
            return Snapshot(self.name, self._no_rows(), self.peek(), {})
        # Between iterations the state of a row is one number: the page at which it entered.
        while self._left or self._expiring:
            self._set_aside()
            self.work()
        self._enter_again()
        count = self.rows_waiting
        room = OutputBuffer(self.binding.stream_only(), max(count, 1), 0)
        met = np.empty(count, np.uint8)
        state = self.waiting.state.kernel
        heap = int(export_circle(self.match.kernel, room.out.kernel, state, met)) if count else 0
        if heap > room.heap_bytes:
            room = OutputBuffer(self.binding.stream_only(), count, heap)
            export_circle(self.match.kernel, room.out.kernel, state, met)
        start = np.append(self._packets.starts(), np.full(int(self._entered[0]), -1))
        batch = room.peek() or self._no_rows()
        for name, values in ((MET, met), (START, start)):
            batch = batch.append_column(name, pa.array(values))
        return Snapshot(self.name, batch, self.peek(), self.position())

    def position(self) -> dict[str, int]:
        """Where the scan is; what `restore` needs to go on there."""
        return {
            "version": self.master.manifest.version,
            "next": self._next,
            "page": self._page,
            "chunk_pages": self.chunk_pages,
            "blob_bytes": int(self._blob_bytes),
        }

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.binding.stream_schema)

    def restore(self, snapshot: Snapshot) -> None:
        self._check_fresh(snapshot)
        if self._held is None:
            self._restored = snapshot.pending
        elif snapshot.pending is not None:
            self._held.put_back(snapshot.pending)
        self._next = snapshot.position.get("next", 0)
        rows = snapshot.rows
        if rows.num_rows == 0:
            return
        stream = rows.select(self.binding.stream_schema.names)
        self.prepare(stream, snapshot.position["blob_bytes"])
        for name, value in self.must_agree().items():
            if snapshot.position[name] != value:
                raise SchemaError(
                    f"the snapshot was made with {name}={snapshot.position[name]}, here it is "
                    f"{value}",
                    hint="restore with the same master and the same memory",
                )
        self.before_restore()
        met = read_only(rows.column(MET).to_numpy())
        if self._enter(stream, met, rows.num_rows) < rows.num_rows:
            raise SchemaError("the snapshot does not fit the memory", hint="restore with as much")
        self._rows_in += rows.num_rows
        self._page = self._read_page = snapshot.position["page"]
        self._entered[0] = 0
        starts = rows.column(START).to_numpy()
        firsts = np.flatnonzero(np.diff(starts, prepend=starts[0] - 1))
        sizes = np.diff(firsts, append=len(starts))
        for start, size in zip(starts[firsts].tolist(), sizes.tolist(), strict=True):
            if start < 0:
                self._entered[0] = size
            else:
                self._packets.append(size, start)
