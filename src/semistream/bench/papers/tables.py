"""Joins played on the papers' other tables: keys that repeat, TPC-H, cloud reports.

A stream row has as many bytes as in the paper: columns that are not needed are left out, and what
is missing is filled up. Results are checked by sums over all pairs that must come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.masters import kept_master
from semistream.bench.papers.ground import ENDLESS, Ground, Held, Played, play
from semistream.bench.papers.machine import PAGE_BYTES, Machine
from semistream.core.clock import Clock
from semistream.core.errors import BudgetError
from semistream.core.stats import latency_percentile_s
from semistream.joins.operator import Operator
from semistream.joins.registry import make_join
from semistream.joins.ssij import SemiStreamedIndexJoin
from semistream.store.file import FileMaster
from semistream.store.manifest import FORMAT
from semistream.workloads import Workload

SCANS = ("meshjoin", "ssbj")
CHUNKS = 64
"""Into so many a scan cuts R, unless told otherwise."""

LOADED_ROWS = 400_000
"""Rows of a finite stream that are loaded and played in a loop."""


@dataclass(frozen=True)
class Table:
    """A workload as an experiment has it.

    `name` says all that the master depends on; `witness` is a column of whole numbers of the master
    by which results are checked; `row_bytes` are those of a stream row; `columns` what is taken
    from the master (all of them, if the cache shall hold whole rows).
    """

    name: str
    workload: Workload
    witness: str
    row_bytes: int
    columns: tuple[str, ...] | None = None
    fill: float = 1.0

    def master(self, ground: Ground) -> FileMaster:
        """Open the master, building it if need be; it stays open with the ground."""
        store = f"fill{self.fill:g}-format{FORMAT}-{PAGE_BYTES // 1024}k"
        name = f"{self.name}-seed{ground.seed}-{store}.master"
        workload = self.workload
        return ground.kept(
            name,
            lambda: kept_master(
                ground.workdir / name,
                workload.master(),
                workload.master_key,
                workload.master_rows,
                io="buffered",
                fill=self.fill,
                page_size=PAGE_BYTES,
            ),
        )

    def stream(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The stream without end: its key, other columns of fixed width, filled up."""
        workload = self.workload
        endless = not workload.name.startswith("tpch")
        reader = workload.stream(ENDLESS if endless else LOADED_ROWS)
        fixed = [one for one in reader.schema if _width(one.type)]
        if not endless:
            fixed = [one for one in fixed if one.name == workload.stream_key]
        missing = self.row_bytes - sum(_width(one.type) for one in fixed)
        schema = pa.schema(fixed)
        if missing:
            schema = schema.append(pa.field("filled_up", pa.binary(missing), False))
        batches: Iterator[pa.RecordBatch] = (_filled(batch, schema) for batch in reader)
        return schema, batches if endless else itertools.cycle(batches)


def _width(type_: pa.DataType) -> int:
    try:
        return int(type_.byte_width)
    except ValueError:
        return 0


def _filled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for one in schema:
        if one.name in batch.schema.names:
            arrays.append(batch.column(one.name))
        else:
            nothing = pa.py_buffer(bytes(one.type.byte_width * batch.num_rows))
            arrays.append(
                pa.FixedSizeBinaryArray.from_buffers(one.type, batch.num_rows, [None, nothing])
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class DiskClock:
    """The time that a paper's disk would show: it runs while pages are read, by as much as it
    would take there, and stands still otherwise."""

    real = False

    def __init__(self, machine: Machine) -> None:
        self._disk = machine.disk
        self._operator: Operator | None = None
        self._idle_ns = 0

    def follow(self, operator: Operator) -> None:
        """Run by the reads of this join from now on."""
        self._operator = operator

    def now_ns(self) -> int:
        """Nanoseconds of the disk."""
        if self._operator is None:
            return 0
        disk = self._disk
        read_s = self._operator.stats.modelled_disk_s(disk.seek_s, disk.page_s)
        return self._idle_ns + round(read_s * 1e9)

    def idle(self, seconds: float) -> None:
        """Let time go by in which nothing is read."""
        self._idle_ns += round(seconds * 1e9)


@dataclass(frozen=True)
class _Partners:
    """How many rows of the master each key has, and the sum of their witnesses."""

    counts: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]


_PARTNERS: dict[tuple[str, int], _Partners] = {}
"""Of the table that was last played."""


def _partners(table: Table, seed: int) -> _Partners:
    if (table.name, seed) not in _PARTNERS:
        keys: list[npt.NDArray[np.int64]] = []
        witnesses: list[npt.NDArray[np.float64]] = []
        for batch in table.workload.master():
            keys.append(batch.column(table.workload.master_key).to_numpy().astype(np.int64))
            witnesses.append(batch.column(table.witness).to_numpy().astype(np.float64))
        every = np.concatenate(keys)
        # Sums of whole numbers, far below 2**53: exact in floating point.
        sums = np.bincount(every, weights=np.concatenate(witnesses)).astype(np.int64)
        _PARTNERS.clear()
        _PARTNERS[table.name, seed] = _Partners(np.bincount(every), sums)
    return _PARTNERS[table.name, seed]


class PairCheck:
    """Every pair of a stream row and a partner once: number, keys and witnesses add up."""

    def __init__(self, table: Table, seed: int) -> None:
        self._table = table
        self._partners = _partners(table, seed)
        self._fed = self._expected(np.empty(0, np.int64))
        self._fed_rows = 0
        self._last: list[npt.NDArray[np.int64]] = []
        self._seen = np.zeros(3, np.uint64)

    def watch(self, stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The stream, of which all rows must have been taken but for some of the last two batches.

        Sums of the others are enough: keys of very many rows would need much memory.
        """
        for batch in stream:
            if len(self._last) == 2:
                done = self._last.pop(0)
                self._fed += self._expected(done)
                self._fed_rows += len(done)
            keys = batch.column(self._table.workload.stream_key).to_numpy()
            self._last.append(keys.astype(np.int64))
            yield batch

    def add(self, batch: pa.RecordBatch) -> None:
        keys = batch.column(self._table.workload.stream_key).to_numpy().astype(np.uint64)
        both = f"{self._table.witness}_master"  # where the stream has a column of that name, too
        name = both if both in batch.schema.names else self._table.witness
        witness = batch.column(name).to_numpy().astype(np.uint64)
        self._seen += _sums(keys, np.ones_like(witness), witness)

    def agrees(self, rows: int) -> bool:
        last, rest = np.concatenate(self._last), rows - self._fed_rows
        if not 0 <= rest <= len(last):
            return False
        return bool((self._seen == self._fed + self._expected(last[:rest])).all())

    def _expected(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """The sums of the pairs that rows with these keys must give."""
        known = keys[keys < len(self._partners.counts)]
        counts = self._partners.counts[known].astype(np.uint64)
        sums = self._partners.sums[known].astype(np.uint64)
        return _sums(known.astype(np.uint64), counts, sums)


def _sums(
    keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64], witness: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Pairs, keys of pairs, keys times witnesses; modulo 2**64."""
    return np.array([counts.sum(), (keys * counts).sum(), (keys * witness).sum()], dtype=np.uint64)


def _maker(
    ground: Ground, join: str, table: Table, clock: Clock | None, options: dict[str, Any]
) -> tuple[Callable[[int], Operator], Iterator[pa.RecordBatch], PairCheck]:
    """What makes the join with a memory, its stream, and the check of its results."""
    master = table.master(ground)
    schema, stream = table.stream()
    check = PairCheck(table, ground.seed)
    workload = table.workload

    def make(memory: int) -> Operator:
        operator = make_join(
            join,
            master,
            on={workload.stream_key: workload.master_key},
            schema=schema,
            memory=memory,
            columns=None if table.columns is None else list(table.columns),
            seed=ground.seed,
            clock=clock,
            **options,
        )
        if isinstance(clock, DiskClock):
            clock.follow(operator)
        return operator

    return make, check.watch(stream), check


def play_table(
    ground: Ground,
    join: str,
    table: Table,
    room_bytes: float = 0.0,
    *,
    held: Held | None = None,
    rounds: tuple[float, float] | None = None,
    settle: bool = False,
    whole: int | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> Played:
    """Join a table's stream with its master, see `play`.

    The join has `room_bytes` for rows that wait and for its cache; what it needs besides (index,
    buffers, output) is not counted, since at a small scale that would be most of the memory. Or it
    has the memory in which it holds what is `held`.
    """
    make, stream, check = _maker(ground, join, table, clock, options)
    if held is not None:
        return play(make, stream, held, check, rounds=rounds, whole=whole)
    if join in SCANS:
        # Of the paper's time only pages count, of ours calls: the less chunks the better.
        master = table.master(ground)
        options.setdefault("chunk", -(-master.pages // CHUNKS) * master.page_bytes)
    # Half of it waits, if the rest is a cache: this says only how long the join is fed.
    waiting = room_bytes / (table.row_bytes + 8) / (2 if join == "ssij" else 1)
    memory = memory_with_room(make, room_bytes)
    return play(
        make,
        stream,
        Held(waiting),
        check,
        rounds=rounds,
        settle=settle,
        whole=whole,
        memory_bytes=memory,
    )


STEPS = 9
"""How often the interval of a rate is halved."""

TICK_S = 0.002
"""Rows that come are offered so often while nothing is read."""


class Overflow(NamedTuple):
    """Whether SSIJ's memory overflowed, how many rows it had taken, whether results are right."""

    happened: bool
    rows: int
    verified: bool


def overflow(
    ground: Ground,
    table: Table,
    room_bytes: float,
    rows: int,
    arrived: Callable[[float], float],
    machine: Machine,
    **options: Any,
) -> Overflow:
    """Let rows come to SSIJ until its memory overflows, or until it has taken in `rows` of them.

    `arrived` says how many rows have come by a moment. Time is that of the machine's disk. Rows
    that come during a join phase are offered after it; memory has overflowed if they find no room,
    and it counts as that if more than one of 100 rows waits longer than an option `max_wait` says.
    """
    clock, wait_s = DiskClock(machine), options.get("max_wait")
    make, stream, check = _maker(ground, "ssij", table, clock, options)
    with make(memory_with_room(make, room_bytes)) as operator:
        assert isinstance(operator, SemiStreamedIndexJoin)
        clock.follow(operator)
        rest, taken, held = next(stream), 0, True
        while taken < rows and held:
            due = min(int(arrived(clock.now_ns() / 1e9)), rows) - taken
            if due <= 0:
                clock.idle(TICK_S)
            while due > 0 and held:
                part = rest.slice(0, due)
                accepted = operator.push(part)
                taken, due, rest = taken + accepted, due - accepted, rest.slice(accepted)
                if rest.num_rows == 0:
                    rest = next(stream)
                elif accepted < part.num_rows:
                    # Results may have to go first; if there are none, memory has overflowed.
                    result = operator.take()
                    held = result is not None
                    _add(check, result)
            _add(check, operator.step() if held else None)
            while operator.is_joining:
                _add(check, operator.step())
        for result in operator.finish():
            check.add(result)
        stats = operator.stats
        if wait_s is not None and latency_percentile_s(stats.latency_histogram, 99) > wait_s:
            held = False
        return Overflow(not held, taken, check.agrees(stats.rows_in))


def held_rate(
    ground: Ground,
    table: Table,
    room_bytes: float,
    rows: int,
    most: float,
    machine: Machine,
    **options: Any,
) -> tuple[float, bool]:
    """The highest constant rate, up to `most`, at which SSIJ takes in `rows` rows."""
    low, high, right = 0.0, most, True
    for _ in range(STEPS):
        rate = (low + high) / 2
        seen = overflow(ground, table, room_bytes, rows, partial(mul, rate), machine, **options)
        right = right and seen.verified
        low, high = (low, rate) if seen.happened else (rate, high)
    return low, right


def _add(check: PairCheck, result: pa.RecordBatch | None) -> None:
    if result is not None:
        check.add(result)


def memory_with_room(make: Callable[[int], Operator], room_bytes: float) -> int:
    """The least memory that leaves so many bytes to waiting rows and cache."""
    low, high = 1, 1 << 16
    while not _has_room(make, high, room_bytes):
        low, high = high, 2 * high
        if high > 1 << 46:
            raise BudgetError(f"no memory leaves room for {room_bytes} bytes")
    while high - low > max(high // 500, 1):
        middle = (low + high) // 2
        if _has_room(make, middle, room_bytes):
            high = middle
        else:
            low = middle
    return high


def _has_room(make: Callable[[int], Operator], memory: int, room_bytes: float) -> bool:
    try:
        operator = make(memory)
    except BudgetError:
        return False
    with operator:
        shares = operator.plan.shares
        found = shares.get("waiting rows", 0) + shares.get("stream and cache", 0)
        return found + shares.get("cache", 0) >= room_bytes
