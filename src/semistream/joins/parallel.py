"""`threads=`: a join in parts that work side by side, each on keys of its own."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from math import inf
from typing import TypeVar

import pyarrow as pa

from semistream.core.budget import MemoryBudget, MemoryPlan, format_bytes, told_in_all
from semistream.core.errors import CallOrderError, OptionError, SchemaError
from semistream.core.join import SemiStreamJoin, Snapshot, Traits
from semistream.core.stats import JoinStats
from semistream.joins.binding import Binding
from semistream.joins.operator import Operator, check_batch
from semistream.store.file import FileMaster
from semistream.store.parts import MasterPart, in_parts

_T = TypeVar("_T")

PartMaker = Callable[[FileMaster, int], Operator]
"""Makes the join of one part of the master, with so many bytes."""

HAND, HAND_SHARE = "rows in hand", 32
"""Rows on their way to the parts take at most this share of the memory."""

LEAST_CUT, MOST_CUT = 256, 65_536
"""Rows that are given to the parts at once."""

NOTED_BYTES = 13
"""What a part notes of a row: its number, its key, whether that is valid."""

LEAST_PUSHED, LEAST_WAITING = 8192, 1024
"""With fewer rows that come, or that wait for pages, the caller does the work of all parts: waking
a thread takes as long."""

LEAST_BYTES, LEAST_BYTES_PER_PAGE = 24_000_000, 32
"""Below this memory for a part, or for a page of the master, one thread is the default: each part
has an output, a read buffer and lists of its own, and pages have longer entries in the index. One
thread with a companion is as fast as two parts there, and faster with less."""

LEAST_MASTER = 16_000_000
"""Below this size of the master one thread is the default."""

LEAST_FIRST = 8192
"""With fewer rows in the first batch one thread is the default: threads would be woken up for each
batch, and results handed out in parts, which takes longer than the work on so few rows."""

LEAST_DRAINED = 49_152
"""The same where batches are drained. One thread has the whole list of a batch then, and sees pages
through one window: to take one away stops all threads that run, so that two of them do not join
more rows together than one until batches are large."""

LEAST_DRAINED_PER_PAGE = 64
"""Below this memory for a page of the master one thread is the default where batches are drained:
of many pages each list wants few, and windows are most of the work."""

MOST_THREADS = 255
DEFAULT_MOST_THREADS = 8


def threads_for(
    threads: int | None, master: FileMaster, memory_bytes: int, prevented: str | None
) -> int:
    """How many threads a join gets; None asks for as many as there are processors.

    `prevented` says what else of the join allows only one. None then is one, and more an error.
    """
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise OptionError(
            f"threads={threads} is not a number of threads",
            hint=f"give 1 to {MOST_THREADS}, or None for as many as there are processors",
        )
    prevented = master.indivisible or prevented
    if prevented is not None:
        if threads is not None and threads > 1:
            raise OptionError(f"{prevented} is joined by one thread", hint="leave threads= out")
        return 1
    if threads is not None:
        return threads
    if master.data_bytes < LEAST_MASTER or memory_bytes < LEAST_BYTES_PER_PAGE * master.pages:
        return 1
    return max(min(default_threads(), memory_bytes // LEAST_BYTES), 1)


def has_companion(threads: int | None, part: FileMaster) -> bool:
    """Whether pages are copied by a second thread for the one that joins a part of a master.

    Not where `threads` were said, nor where the parts have no processors to spare.
    """
    parts = part.parts if isinstance(part, MasterPart) else 1
    spare = 2 * parts <= default_threads()
    return threads is None and spare and part.data_bytes >= LEAST_MASTER


def default_threads() -> int:
    """As many as there are processors that this process may use, within reason."""
    return min(len(os.sched_getaffinity(0)), DEFAULT_MOST_THREADS)


class ParallelJoin(SemiStreamJoin):
    """The same join several times, each on a part of the keys and with its share of the memory.

    The master's keys are cut into ranges that go to the parts in turn, so that pages serve as many
    waiting rows as they would in one join, and each part has its share of what is asked for most.
    Each part looks for its own rows in what comes; kernels run without the interpreter's lock.
    Where the output of a part is full, rows that were accepted stay in hand until results have been
    taken.

    With `may_be_one` the first batch decides: if it is small, there is one part, all of the master.
    """

    name = "parallel"
    traits = Traits(paper="this project", idea="parts of the keys, a thread for each", skew="tuple")

    def __init__(
        self,
        make: PartMaker,
        master: FileMaster,
        binding: Binding,
        budget: MemoryBudget,
        threads: int,
        *,
        may_be_one: bool = False,
    ) -> None:
        self.master = master
        self._make = make
        self._may_be_one = may_be_one
        self.output_schema = binding.output_schema
        self.binding = binding
        self._budget = budget
        hand = budget.limit_bytes // HAND_SHARE
        # Each part makes all keys ready, notes which rows are its own, and may leave them in hand.
        row_bytes = _row_bytes(binding) + threads * (NOTED_BYTES + binding.key_bytes)
        self._cut_rows = min(max(hand // row_bytes, LEAST_CUT), MOST_CUT)
        self._threads = threads
        # Where this is too much already, the parts get next to nothing, and say what they need.
        free_bytes = max(budget.limit_bytes - hand - master.index_bytes, threads)
        budget.set(HAND, hand)
        budget.set("index", min(master.index_bytes, budget.free_bytes))
        self._masters = in_parts(master, threads)
        with self._told_in_all():
            self._parts = [make(part, free_bytes // threads) for part in self._masters]
        self._rests: list[pa.RecordBatch | None] = [None] * threads
        self._ready: deque[pa.RecordBatch] = deque()
        self._pool = ThreadPoolExecutor(threads - 1, "semistream")
        self._closed = False

    @property
    def threads(self) -> int:
        """Parts that work side by side."""
        return self._threads

    @property
    def processors(self) -> int:
        """How many processors all parts keep busy."""
        return sum(part.processors for part in self._parts)

    def _become_one(self) -> None:
        """Give all of the memory to one part."""
        for part in self._parts:
            part.close()
        for name, _ in list(self._budget):
            self._budget.set(name, 0)
        self._masters = [self.master]
        self._parts = [self._make(self._masters[0], self._budget.limit_bytes)]
        self._threads, self._rests = 1, [None]

    @property
    def stats(self) -> JoinStats:
        if self._threads == 1:
            return self._parts[0].stats
        records = [part.stats for part in self._parts]
        held, plans = self._held_rows, [one.plan for one in records if one.plan is not None]
        shares: dict[str, int] = self._budget.in_use()
        for plan in plans:
            for name, size in plan.shares.items():
                shares[name] = shares.get(name, 0) + size
        shares[HAND] += self._budget.limit_bytes - sum(shares.values())
        total = JoinStats.total(records)
        for name, size in self._budget:
            total.bytes_by_component[name] = total.bytes_by_component.get(name, 0) + size
        reason = f"{len(records)} threads, each with a part of the keys; of one: {plans[0].reason}"
        return replace(
            total,
            algorithm="+".join(sorted({one.algorithm for one in records})),
            rows_in=total.rows_in + held,
            rows_waiting=total.rows_waiting + held,
            bytes_in_use=total.bytes_in_use + self._budget.used_bytes,
            bytes_peak=total.bytes_peak + self._budget.peak_bytes,
            bytes_limit=self._budget.limit_bytes,
            plan=MemoryPlan(self._budget.limit_bytes, shares, reason),
        )

    @property
    def _held_rows(self) -> int:
        return sum(rest.num_rows for rest in self._rests if rest is not None)

    def push(self, batch: pa.RecordBatch) -> int:
        self._check_open()
        check_batch(batch)
        self._decide(batch, LEAST_FIRST)
        if self._threads == 1:
            return self._parts[0].push(batch)
        accepted = 0
        while accepted < batch.num_rows and not (self._held_rows or self._ready or self.is_due):
            rows = self._fitting_rows
            if not rows:
                self._ready.extend(self._taken())
                break
            cut = batch.slice(accepted, rows)
            with self._told_in_all():
                # Each divides its memory by all rows, and not by the few that are its own.
                for part in self._parts:
                    part.prepare(cut)
            work = partial(self._push_own, cut)
            accepted += cut.num_rows
            try:
                self._on_all(work, side_by_side=cut.num_rows >= LEAST_PUSHED)
            except BaseException:
                # As in a single join, rows in front of the one that is refused may have gone in.
                self._rests = [None] * self._threads
                raise
        return accepted

    def _decide(self, batch: pa.RecordBatch, least: float) -> None:
        """Let the first batch decide whether there is one part, unless that is settled."""
        if self._may_be_one and batch.num_rows:
            self._may_be_one = False
            if batch.num_rows < least:
                self._become_one()

    @property
    def _fitting_rows(self) -> int:
        """Rows to give to the parts next, so many that no part is likely to stop at a full output
        while the others have room; none where results should be taken first."""
        free, rows = min(part.output_room for part in self._parts)
        if free < rows // 4:
            return 0
        return max(min(free * 7 // 8 * len(self._parts), self._cut_rows), LEAST_CUT)

    def step(self) -> pa.RecordBatch | None:
        self._check_open()
        if not self._ready:
            held = self._held_rows
            rows = held + sum(part.rows_waiting for part in self._parts)
            work = self._step_blocked if held else self._step_part
            results = self._on_all(work, side_by_side=rows >= LEAST_WAITING)
            self._ready.extend(one for one in results if one is not None)
        return self._ready.popleft() if self._ready else None

    def take(self) -> pa.RecordBatch | None:
        self._check_open()
        if not self._ready:
            self._ready.extend(self._taken())
        return self._ready.popleft() if self._ready else None

    def _taken(self) -> list[pa.RecordBatch]:
        results = [part.take() for part in self._parts]
        return [one for one in results if one is not None]

    @property
    def is_due(self) -> bool:
        return any(part.is_due for part in self._parts)

    def finish(self) -> Iterator[pa.RecordBatch]:
        self._check_open()
        while self._is_busy:
            batch = self.step()
            if batch is not None:
                yield batch

    def drains(self, rows: int) -> bool:
        return not self._may_be_one and all(
            part.drains(rows // self._threads) for part in self._parts
        )

    def drained(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As the contract says: every part looks for the rows that are its own."""
        self._check_open()
        check_batch(batch)
        yield from self.finish()
        roomy = self._budget.limit_bytes >= LEAST_DRAINED_PER_PAGE * self.master.pages
        self._decide(batch, LEAST_DRAINED if roomy else inf)
        if self._threads == 1:
            yield from self._parts[0].drained(batch)
            return
        with self._told_in_all():
            for part in self._parts:
                part.prepare(batch)
        results = [part.drained(batch) for part in self._parts]
        going_on = True
        while going_on:
            found = self._on_all(
                lambda number: next(results[number], None),
                side_by_side=batch.num_rows >= LEAST_PUSHED,
            )
            ready = [result for result in found if result is not None]
            going_on = bool(ready)
            yield from ready

    @property
    def _is_busy(self) -> bool:
        """Whether rows or results are anywhere."""
        parts = any(part.rows_waiting or part.pending for part in self._parts)
        return parts or bool(self._ready) or self._held_rows > 0

    def snapshot(self) -> Snapshot:
        self._check_open()
        parts = pa.array([part.snapshot().to_bytes() for part in self._parts], pa.binary())
        rests = [rest for rest in self._rests if rest is not None]
        return Snapshot(
            self.name,
            pa.record_batch({"part": parts}),
            _together(list(self._ready)),
            {"threads": len(self._parts)},
            _together(rests),
        )

    def restore(self, snapshot: Snapshot) -> None:
        self._check_open()
        threads = snapshot.position.get("threads", 1)
        if self._may_be_one and snapshot.algorithm == self.name and threads == 1:
            self._become_one()
        self._may_be_one = False
        if snapshot.algorithm != self.name or threads != len(self._parts):
            raise SchemaError(
                f"the snapshot is of {threads} threads, this join has {len(self._parts)}",
                hint=f"restore it into a join with threads={threads}",
            )
        for part, state in zip(self._parts, snapshot.rows.column("part"), strict=True):
            part.restore(Snapshot.from_bytes(state.as_py()))
        if snapshot.pending is not None:
            self._ready.append(snapshot.pending)
        if snapshot.arrived is not None:
            rests = [part.own_rows(snapshot.arrived) for part in self._parts]
            self._rests = [rest if rest.num_rows else None for rest in rests]

    def move_to(self, master: FileMaster) -> None:
        """Go on with another version of the master, see `Operator.move_to`."""
        self._check_open()
        waiting = self._held_rows + sum(part.rows_waiting for part in self._parts)
        if waiting:
            raise CallOrderError(
                f"{waiting} rows wait in this join for the version it has",
                hint="drain it with finish() before it moves to another one",
            )
        masters = in_parts(master, len(self._parts))
        moved = 0
        try:
            for part, new in zip(self._parts, masters, strict=True):
                part.move_to(new)
                moved += 1
        except BaseException:
            # All parts have one version, always.
            for part, old in zip(self._parts[:moved], self._masters, strict=False):
                part.move_to(old)
            raise
        self.master, self._masters = master, masters
        self._budget.set("index", master.index_bytes)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pool.shutdown()
            for part in self._parts:
                part.close()

    def _told_in_all(self) -> AbstractContextManager[None]:
        """Within it, errors about the memory of a part tell what all of them need."""

        def in_all(part: int) -> int:
            needed = self._threads * part + self.master.index_bytes
            size = needed
            while size - size // HAND_SHARE < needed:
                size += needed - (size - size // HAND_SHARE)
            return size

        limit = format_bytes(self._budget.limit_bytes)
        return told_in_all(in_all, f"one of {self._threads} threads which share {limit}")

    def _push_own(self, cut: pa.RecordBatch, number: int) -> None:
        """Let a part look for its rows in a cut; what it refuses stays in hand."""
        self._rests[number] = self._parts[number].push_own(cut)

    def _push_rest(self, number: int) -> None:
        """Push what a part is still to get, as far as it takes it."""
        rest = self._rests[number]
        if rest is not None:
            rest = rest.slice(self._parts[number].push(rest))
            self._rests[number] = rest if rest.num_rows else None

    def _step_blocked(self, number: int) -> pa.RecordBatch | None:
        """Let a part work if it has rows in hand; the others hand out what is ready.

        Pages that they read before their memory is full would serve few rows.
        """
        part = self._parts[number]
        if self._rests[number] is None and not part.is_due:
            return part.take()
        return self._step_part(number)

    def _step_part(self, number: int) -> pa.RecordBatch | None:
        part = self._parts[number]
        result = part.step() if part.rows_waiting or part.pending else None
        self._push_rest(number)
        return result

    def _on_all(self, work: Callable[[int], _T], *, side_by_side: bool) -> list[_T]:
        """Do something with every part."""
        numbers = range(len(self._parts))
        with self._told_in_all():
            if not side_by_side:
                return [work(number) for number in numbers]
            others = [self._pool.submit(work, number) for number in numbers[1:]]
            try:
                return [work(0), *(other.result() for other in others)]
            finally:
                # Nothing may work on when the caller learns of an error.
                wait(others)

    def _check_open(self) -> None:
        if self._closed:
            raise CallOrderError("this join is closed", hint="make a new join")


def _row_bytes(binding: Binding) -> int:
    return binding.layout.record_bytes + 64 * binding.layout.has_bytes


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    if not batches:
        return None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
