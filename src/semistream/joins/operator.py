"""What all joins share: options, the budget, the output, the clock, the counters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryBudget, MemoryPlan, format_bytes
from semistream.core.clock import Clock
from semistream.core.errors import BudgetError, CallOrderError, SchemaError
from semistream.core.join import SemiStreamJoin, Snapshot
from semistream.core.stats import LATENCY_BUCKETS, JoinStats
from semistream.joins.binding import Binding, no_fields
from semistream.joins.deadlines import (
    LEAST_READ_S,
    MARGIN,
    PAGE_S,
    SEEK_S,
    Deadline,
    Wait,
    parse_wait,
)
from semistream.joins.output import OutputBuffer
from semistream.joins.waiting import WaitingRows
from semistream.kernels.matching import MATCH
from semistream.kernels.rows import packed_size
from semistream.kernels.struct import Struct
from semistream.shed.interval import copied
from semistream.store.file import FileMaster
from semistream.store.parts import MasterPart
from semistream.store.reader import PageReader

MET, PAGE = "\0met", "\0page"
"""Columns of a snapshot besides the stream's: has the row met a partner, which page is next."""

PART_ROWS = 16_384
"""Rows of a batch that are made ready at once."""


def check_batch(batch: object) -> None:
    """Complain of what is no batch of rows."""
    if not isinstance(batch, pa.RecordBatch):
        raise SchemaError(
            f"a {type(batch).__name__} was pushed, not a pyarrow.RecordBatch",
            hint="push the batches of a table: table.to_batches()",
        )


class Operator(SemiStreamJoin):
    """Base of the joins. A subclass divides the memory, takes rows in and works on them.

    Nothing large is allocated before the first row: rows with byte strings must be seen before
    memory can be divided well.
    """

    takes_conditions: ClassVar[bool] = False
    """Whether partners may be found by other conditions than equal keys."""

    refuses_in_flush: ClassVar[bool] = True
    """Whether rows that come while all others are answered in time would keep that from ending."""

    def __init__(
        self,
        master: FileMaster,
        binding: Binding,
        budget: MemoryBudget,
        *,
        clock: Clock,
        seed: int = 0,
        max_wait: Wait | None = None,
        companion: bool = False,
    ) -> None:
        self.master = master
        self.binding = binding
        self.budget = budget
        self.clock = clock
        self.seed = seed
        self.companion = companion
        self.output_schema = binding.output_schema
        self._latency = np.zeros(LATENCY_BUCKETS, np.int64)
        how, layout = binding.how, binding.master_layout
        self.match = Struct(
            MATCH,
            pairs=how in ("inner", "left"),
            keep_unmatched=how in ("left", "anti"),
            keep_matched=how == "semi",
            latency=self._latency,
            page=layout.fields(binding.columns),
            # Without a cache rows that pass through are noted beside records of pages.
            cached=layout.fields(binding.columns),
            nothing=no_fields(layout),
            row_key=binding.key_fields(binding.layout),
            page_key=binding.key_fields(layout),
            one_in=1,
        )
        self._rows_in = 0
        self._rows_out = 0
        self._iterations = 0
        self._loops = 0
        self._busy_ns = 0
        self._closed = False
        self._half_drained = False
        self._out: OutputBuffer | None = None
        self._restored: pa.RecordBatch | None = None
        self._reader: PageReader | None = None
        self._blob_bytes = 0.0
        self.max_wait_ns = parse_wait(max_wait)
        self._deadline = None if self.max_wait_ns is None else self.deadline(self.max_wait_ns)
        self.plan = self.divide(0.0)

    # What a subclass does.

    @abstractmethod
    def divide(self, blob_bytes: float) -> MemoryPlan:
        """Divide the budget, given the mean length of a row's byte strings; check the minimum."""

    @abstractmethod
    def allocate(self, blob_bytes: float) -> None:
        """Make everything as `plan` says, output and reader first (`allocate_common`)."""

    @abstractmethod
    def accept(self, batch: pa.RecordBatch) -> int:
        """Take rows in; as many as there is room for."""

    @abstractmethod
    def work(self) -> None:
        """One iteration."""

    @property
    @abstractmethod
    def rows_waiting(self) -> int:
        """Rows that wait now."""

    # The contract.

    def push(self, batch: pa.RecordBatch) -> int:
        self._check_open()
        check_batch(batch)
        if batch.num_rows == 0:
            return 0
        if self._deadline is not None and self._deadline.is_flushing and self.refuses_in_flush:
            return 0
        start = self.clock.now_ns()
        self.prepare(batch)
        accepted = self._accept_parts(batch)
        if accepted == 0 and self.rows_waiting == 0 and self.pending == 0:
            self._make_room()
            accepted = self.accept(batch)
            self._rows_in += accepted
            if accepted == 0:
                raise BudgetError(
                    f"{self.name}: one stream row does not fit the memory of "
                    f"{format_bytes(self.budget.limit_bytes)}",
                    hint="raise memory",
                )
        self._busy_ns += self.clock.now_ns() - start
        return accepted

    def _accept_parts(self, batch: pa.RecordBatch) -> int:
        """Take rows in part by part: keys of rows that find no room would be made for nothing."""
        accepted = 0
        while accepted < batch.num_rows:
            part = batch.slice(accepted, PART_ROWS)
            if self._deadline is not None:
                self._deadline.look(self.rows_waiting)
            taken = self.accept(part)
            self._rows_in += taken
            accepted += taken
            if taken < part.num_rows or self.is_due:
                break
        return accepted

    def step(self) -> pa.RecordBatch | None:
        self._check_open()
        if self._out is None:
            return self.take()
        start = self.clock.now_ns()
        self._iterations += 1
        if self._deadline is None:
            self.work()
        else:
            self._work_in_time(self._deadline)
        if self.pending == 0 and self.match.needed > 0:
            self._make_room()
        self._busy_ns += self.clock.now_ns() - start
        return self.take()

    def take(self) -> pa.RecordBatch | None:
        self._check_open()
        if self._restored is not None:
            batch, self._restored = self._restored, None
            self._rows_out += batch.num_rows
            return batch
        if self._out is None:
            return None
        start = self.clock.now_ns()
        batch = self._out.take()
        self._busy_ns += self.clock.now_ns() - start
        if batch is not None:
            self._rows_out += batch.num_rows
        return batch

    def finish(self) -> Iterator[pa.RecordBatch]:
        self._check_open()
        while self.rows_waiting or self.pending:
            batch = self.step()
            if batch is not None:
                yield batch

    def drained(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As the contract says; a join of a part of the master drains rows with keys of its own."""
        if not isinstance(self.master, MasterPart):
            yield from super().drained(batch)
            return
        for start in range(0, batch.num_rows, PART_ROWS):
            yield from self.pushed(self.own_rows(batch.slice(start, PART_ROWS)))
        yield from self.finish()

    def push_own(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Push the rows that have keys of this part of the master; those that it refused."""
        rows = self.own_rows(batch)
        rest = rows.slice(self.push(rows))
        return rest if rest.num_rows else None

    def own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A copy of the rows that have keys of this part of the master."""
        assert isinstance(self.master, MasterPart)
        keys, _ = self.binding.keys(batch)
        rows, *_ = self.master.own(keys.key64, keys.valid)
        return copied(batch, rows)

    @property
    def pending(self) -> int:
        """Results that are ready."""
        restored = self._restored.num_rows if self._restored is not None else 0
        return restored + (self._out.pending if self._out is not None else 0)

    @property
    def output_room(self) -> tuple[int, int]:
        """Results that find room in the output, and those that would if it were empty."""
        return (0, 0) if self._out is None else (self._out.rows - self._out.pending, self._out.rows)

    def peek(self) -> pa.RecordBatch | None:
        """Results that are ready, without taking them."""
        ready = [self._restored, self._out.peek() if self._out is not None else None]
        batches = [batch for batch in ready if batch is not None]
        if len(batches) < 2:
            return batches[0] if batches else None
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]

    def _set_aside(self) -> None:
        """Move the results in the output behind those that were restored, to make room."""
        if self._out is not None and self._out.pending:
            self._restored = self.peek()
            self._out.take()

    def move_to(self, master: FileMaster) -> None:
        """Go on with another version of the master, or with the same in other files.

        Nothing may wait: rows that were pushed have seen the old version (`finish` comes before),
        those pushed from now on see the new one. What is cached of keys that did not change stays,
        where the algorithm has a cache of rows; all else is as in a fresh join. Counters go on.
        """
        self._check_open()
        if self.rows_waiting:
            raise CallOrderError(
                f"{self.rows_waiting} rows wait in this {self.name} for the version it has",
                hint="drain it with finish() before it moves to another one",
            )
        if not master.schema.equals(self.master.schema) or master.spec != self.master.spec:
            raise SchemaError(
                "the other version has other columns or another key", hint="make a new join"
            )
        old, self.master = self.master, master
        try:
            plan = self.divide(self._blob_bytes)
        except BaseException:
            # The memory does not suffice: go on with what was there.
            self.master = old
            self.divide(self._blob_bytes)
            raise
        self.plan = plan
        if self._out is None:
            return
        touched = master.touched_since(old.manifest.version)
        self._set_aside()
        reader = self._reader
        assert reader is not None
        reader.close()
        self._out = self._reader = None
        for component in self.budget.in_use():
            self.budget.set(component, 0)
        self.match.open_page = self.match.open_touched = 0
        self.renew(touched)
        fresh = self._reader
        assert fresh is not None
        fresh.add_counts(reader)

    def renew(self, touched: npt.NDArray[np.int64] | None) -> None:
        """Allocate anew for another version; keys may differ that were `touched` (None: all)."""
        self.allocate(self._blob_bytes)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._reader is not None:
                self._reader.close()

    @property
    def stats(self) -> JoinStats:
        reader = self._reader
        io_s = reader.wait_s if reader else 0.0
        return JoinStats(
            algorithm=self.name,
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            rows_matched=int(self.match.matched),
            rows_unmatched=int(self.match.unmatched),
            rows_waiting=self.rows_waiting,
            rows_null_key=int(self.match.null_keys),
            hits=int(self.match.hits),
            misses=int(self.match.misses),
            cached_rows=self.cached_rows,
            pages_read=reader.pages if reader else 0,
            requests=reader.requests if reader else 0,
            bytes_read=(reader.pages if reader else 0) * self.master.page_bytes,
            seeks=reader.seeks if reader else 0,
            iterations=self._iterations,
            bytes_by_component=self.budget.in_use(),
            bytes_in_use=self.budget.used_bytes,
            bytes_peak=self.budget.peak_bytes,
            bytes_limit=self.budget.limit_bytes,
            time_busy_s=max(self._busy_ns / 1e9 - io_s, 0.0),
            time_io_s=io_s,
            latency_histogram=self._latency.copy(),
            plan=self.plan,
        )

    @property
    def loops(self) -> int:
        """Iterations of the outer loop as cost models count them: chunks, loads, phases, sweeps.

        A `step` may do a part of one, when results find no room, or several.
        """
        return self._loops

    @property
    def cached_rows(self) -> int:
        """Master rows held in memory beyond the current read."""
        return 0

    # Deadlines: see `semistream.joins.deadlines`.

    def deadline(self, max_wait_ns: int) -> Deadline | None:
        """How the bound on waiting is kept; an error if no disk is fast enough for it."""
        deadline = Deadline(max_wait_ns, self.clock, self.name)
        deadline.check(2 * MARGIN * LEAST_READ_S, "a single read, and another before it, take")
        return deadline

    @property
    def flush_pages(self) -> int:
        """Pages that must be read, at most, to answer all rows that wait."""
        return min(self.rows_waiting, self.master.pages)

    @property
    def flush_s(self) -> float:
        """Seconds that a slow disk takes for it, with a seek for each page."""
        return self.flush_pages * (SEEK_S + PAGE_S)

    @property
    def flush_left(self) -> float:
        """What part of a flush is left, where rows are taken in meanwhile."""
        return 1.0

    def begin_flush(self) -> None:
        """From now on `work` answers the rows that wait, until `flush_is_over`."""

    def flush_is_over(self, deadline: Deadline) -> bool:
        """Whether all rows that waited when it began are answered."""
        return self.rows_waiting == 0

    @property
    def is_due(self) -> bool:
        deadline = self._deadline
        if deadline is None or self._out is None:
            return False
        if deadline.is_flushing and self.refuses_in_flush:
            return True
        return self._is_late(deadline)

    def _is_late(self, deadline: Deadline) -> bool:
        """Whether a flush must begin now, or go on."""
        deadline.look(self.rows_waiting)
        return deadline.is_urgent(self.flush_pages, self.flush_s * 1e9, self.flush_left)

    def _work_in_time(self, deadline: Deadline) -> None:
        if self._is_late(deadline) and not deadline.is_flushing:
            deadline.begin_flush(self.flush_pages)
            self.begin_flush()
        self.work()
        deadline.worked()
        if deadline.is_flushing and self.flush_is_over(deadline):
            deadline.end_flush(self.rows_waiting)

    # Help for subclasses.

    def need(self, parts: Mapping[str, int], flexible: str, minimum: int) -> MemoryPlan:
        """A plan of fixed parts with the rest to `flexible`, which needs at least `minimum`.

        Where that is too much, the output is made as small as it can be.
        """
        fixed = sum(parts.values())
        if self.budget.limit_bytes - fixed < minimum and "output" in parts:
            parts = {**parts, "output": min(parts["output"], self._output_bytes(0))}
            fixed = sum(parts.values())
        left = self.budget.limit_bytes - fixed
        if left < minimum:
            listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
            raise BudgetError(
                f"{self.name} needs at least {format_bytes(fixed + minimum)} for this master "
                f"({listed}, {flexible} {format_bytes(minimum)}) and got "
                f"{format_bytes(self.budget.limit_bytes)}",
                hint=f'give memory="{fixed + minimum}" or more',
            )
        return MemoryPlan(self.budget.limit_bytes, {**parts, flexible: left})

    def common_parts(self, *, index: bool, output_share: float = 1 / 16) -> dict[str, int]:
        """Index and output: parts that joins plan alike."""
        parts = {}
        if index:
            parts["index"] = self.master.index_bytes
        parts["output"] = self._output_bytes(int(self.budget.limit_bytes * output_share))
        return parts

    def _output_bytes(self, wanted: int) -> int:
        """Bytes of an output that has about as many for its rows, not counting their strings."""
        row = OutputBuffer.row_bytes(self.binding)
        least = max(self.master.most_rows_per_page, 16)
        size = min(max(wanted // row, least), MOST_OUTPUT_ROWS) * row
        return size + max(size, self._least_heap()) if self._has_strings() else size

    def _least_heap(self) -> int:
        """Room for the byte strings that a stream row makes of one page: a result per pair."""
        pairs = min(self.master.manifest.longest_run, self.master.most_rows_per_page)
        # Not rounded as the room for a row is: were both to grow at once, a byte more of memory
        # would need two more, and could be refused where less was not.
        row = self.row_room(self._blob_bytes, rounding=LONGEST_ROW_SHARE // 2)
        return self.master.page_bytes + max(int(pairs * 4 * self._blob_bytes), row)

    def row_room(self, blob_bytes: float, rounding: int = 0) -> int:
        """Bytes in which the byte strings of one stream row are put together; longer ones ask
        for more memory."""
        if not self.binding.layout.has_bytes:
            return 0
        share = (self.budget.limit_bytes + rounding) // LONGEST_ROW_SHARE
        return max(share, int(16 * blob_bytes), 1024)

    def need_scratch(self, waiting: WaitingRows, size_bytes: int, other_bytes: int) -> None:
        """Make room for a row with byte strings of this length."""
        if size_bytes <= waiting.scratch_bytes:
            return
        wanted = max(other_bytes + size_bytes, self.plan["scratch"])
        if wanted - self.budget.in_use()["scratch"] > self.budget.free_bytes:
            raise BudgetError(
                f"{self.name}: a stream row has {format_bytes(size_bytes)} of byte strings, too "
                f"many for the memory of {format_bytes(self.budget.limit_bytes)}",
                hint=f'give memory="{LONGEST_ROW_SHARE * size_bytes}" or more',
            )
        self.budget.set("scratch", wanted)
        waiting.need_scratch(size_bytes)

    def _has_strings(self) -> bool:
        layout = self.binding.master_layout
        chosen = [i for name in self.binding.columns for i in layout.leaf_range(name)]
        return self.binding.layout.has_bytes or any(layout.leaves[i].is_bytes for i in chosen)

    def allocate_output(self) -> OutputBuffer:
        """The output as the plan says."""
        row = OutputBuffer.row_bytes(self.binding)
        size = self.plan["output"]
        heap = max(size // 2, self._least_heap()) if self._has_strings() else 0
        out = OutputBuffer(self.binding, (size - heap) // row, heap)
        self.budget.set("output", out.size_bytes)
        return out

    @property
    def processors(self) -> int:
        """How many processors it keeps busy, its companion's included."""
        return 2 if self.companion and self.master.io == "buffered" else 1

    def make_reader(self, buffer_pages: int, *, windows: bool = False) -> PageReader:
        """A reader of the master's pages, with a companion if the join has one."""
        return self.master.reader(
            buffer_pages,
            measure=self.clock.real,
            windows=windows,
            companion=self.companion,
        )

    def prepare(self, batch: pa.RecordBatch, blob_bytes: int | None = None) -> None:
        """Divide the memory by what the first batch shows, or as a snapshot says it was divided.

        `push` does it with the batch that it gets; later calls do nothing.
        """
        if self._out is not None:
            return
        if self.binding.layout.has_bytes:
            self._blob_bytes = self._mean_blob(batch) if blob_bytes is None else float(blob_bytes)
        self.plan = self.divide(self._blob_bytes)
        try:
            self.allocate(self._blob_bytes)
        except BaseException:
            # Half of it must not look like the whole.
            self._out = None
            raise

    def _mean_blob(self, batch: pa.RecordBatch) -> float:
        """Mean length of the byte strings of a row, as they will lie in memory."""
        packed = self.binding.keys(batch)[1]
        rows = batch.num_rows
        strings = packed_size(packed.columns.kernel, 0, rows) - rows * packed.columns.record_bytes
        return float(-(-strings // rows))

    def _make_room(self) -> None:
        """A single result needs more room for byte strings than planned: enlarge the output."""
        out = self._out
        needed = int(self.match.needed)
        if out is None or needed <= out.heap_bytes:
            return
        self.budget.set("output", out.size_bytes - out.heap_bytes + needed)
        out.grow_heap(needed)
        self.match.needed = 0

    def _check_open(self) -> None:
        if self._closed:
            raise CallOrderError(f"this {self.name} is closed", hint="make a new join")
        if self._half_drained:
            raise CallOrderError(
                f"this {self.name} is draining a batch, whose results were not all taken",
                hint="go through all that drained() gives, or make a new join",
            )

    def _check_fresh(self, snapshot: Snapshot) -> None:
        self._check_open()
        if self._rows_in:
            raise CallOrderError(
                f"this {self.name} has accepted rows already", hint="restore into a new join"
            )
        if snapshot.arrived is not None:
            raise SchemaError(
                "the snapshot is of a join that sheds, and has rows that have just arrived",
                hint="restore it into a join with the same overload=",
            )
        if snapshot.algorithm != self.name:
            raise SchemaError(
                f"the snapshot is of {snapshot.algorithm}, this join is {self.name}",
                hint="restore it into a join of the same algorithm",
            )


MOST_OUTPUT_ROWS = 65_536
"""Larger batches gain nothing more."""

LONGEST_ROW_SHARE = 64
"""A stream row may take this part of the memory with its byte strings."""
