"""semistream beside other systems: same products, same stream, same memory, in turns.

Each cell of the grid is one size of micro-batches, one memory, one skew, warm or cold. All systems
are open at the same time and take turns, so that a noisy machine hurts all alike:

1. *Warm-up.* Each is fed for a while: mostly in micro-batches of at least 100,000 rows, so that
   caches are as those of a stream that has run for long, and then in those of the cell.
2. *Rounds.* In each, every system is fed micro-batches for its share of the time, at least one. The
   clock runs only while it joins. The rate of a round is the rows that came out over that time.
   While the others had their turns, the processor's caches forgot a system, and its memory went
   back to the operating system. So the first micro-batch of a turn does not count, if several fit.
3. *Drain.* Rows that still wait come out, outside of the measurement.

*Warm*: the operating system has all files in its cache, of which no system's memory takes account.
They are dropped from it and read in order at first, and once more before a turn if parts are
missing, while no clock runs. Some machines give back what nobody has asked for in a minute; and a
cache that came about page by page is of small pieces, and slower than one that was read in order.
*Cold*: reads are direct, or the system's files are dropped from that cache before every
micro-batch; what the system holds in its own memory stays.

All results, from the first row to the last, are compared with DuckDB's join of the same rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.bench.checksum import Checksum
from semistream.bench.core import Told
from semistream.bench.oracle import JOINED, Expected, ProductOracle
from semistream.bench.peers import OURS, PEERS, Peer
from semistream.bench.peers.base import drop_from_cache, read_into_cache
from semistream.core.budget import parse_bytes
from semistream.core.clock import Clock, SystemClock
from semistream.core.errors import OptionError, SemiStreamError, unknown_name
from semistream.core.stats import JoinStats
from semistream.workloads import product_schema, sales

ROW_BYTES = sum(column.type.byte_width for column in product_schema())
WARM_UP_ROWS = 100_000
WARM_UP_SHARE = 0.7
"""Of the warm-up's time in large micro-batches."""

SHORT = 4
"""Where so many micro-batches fit in a turn, the first one of it does not count."""

MOST_HELD_ROWS = 400_000
"""Results that are set aside before they are checked. More would have to lie in memory that is new
to the process, and what the operating system takes to give it would be measured, the more the
faster a system is; with less, reads that are under way would gain by the pauses."""

CACHES = WARM, COLD = "warm", "cold"
"""States of the operating system's cache."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid. `memory` is kept as it was written."""

    memory: str
    skew: float
    batch_rows: int
    cache: str

    def __str__(self) -> str:
        return (
            f"memory {self.memory}, skew {self.skew:g}, micro-batches of {self.batch_rows:,} rows, "
            f"{self.cache}"
        )


@dataclass(frozen=True)
class PeersOptions:
    """The grid: around the first value of every axis one axis varies at a time.

    Skew and micro-batches vary together for the first two skews: that is where systems differ most.
    """

    rows: int = 10_000_000
    memories: tuple[str, ...] = ("5%", "1%", "10%")
    skews: tuple[float, ...] = (1, 0, 0.5)
    batch_rows: tuple[int, ...] = (100_000, 1_000, 10_000, 1_000_000)
    caches: tuple[str, ...] = CACHES
    systems: tuple[str, ...] = field(default_factory=lambda: tuple(PEERS))
    rounds: int = 3
    seconds: float = 4.0
    stream_rows: int = 4_000_000
    seed: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise OptionError(f"a master of {self.rows} rows is not possible", hint="rows >= 1")
        for name in self.systems:
            if name not in PEERS:
                raise unknown_name("system", name, PEERS)
        for cache in self.caches:
            if cache not in CACHES:
                raise unknown_name("state of the cache", cache, CACHES)
        for memory in self.memories:
            parse_bytes(memory, of=10**12)
        for rows in self.batch_rows:
            if rows < 1:
                raise OptionError(f"a micro-batch of {rows} rows is not possible", hint="rows >= 1")
        if self.rounds < 1 or not 0 < self.seconds < float("inf"):
            raise OptionError(
                f"{self.rounds} rounds in {self.seconds} s are no measurement",
                hint="give at least one round, and the seconds of a system in a cell",
            )
        if not (self.systems and self.memories and self.skews and self.batch_rows and self.caches):
            raise OptionError("the grid is empty", hint="name a system, a memory and a skew")

    @property
    def cells(self) -> list[Cell]:
        """The grid, one state of the operating system's cache after the other."""
        (memory, *memories), (batch, *batches) = self.memories, self.batch_rows
        skew, *skews = self.skews
        points = [(memory, skew, batch)]
        points += [(memory, skew, rows) for rows in batches]
        points += [(other, skew, batch) for other in memories]
        points += [(memory, other, batch) for other in skews]
        points += [(memory, other, rows) for other in skews[:1] for rows in batches]
        # Warm ones first: cold ones throw out of the cache what they need.
        caches = [cache for cache in CACHES if cache in self.caches]
        return [Cell(*point, cache) for cache in caches for point in points]

    def memory_bytes(self, memory: str) -> int:
        """What every system is given: a share is one of the products' bytes."""
        return parse_bytes(memory, of=self.rows * ROW_BYTES)


@dataclass(frozen=True)
class PeerResult:
    """One system in one cell. `rows_per_s` is the median of `rounds`.

    Ratios are this system's rate over semistream's in the same cell, None where that was not run.
    `why_not` says why there is no rate. `hit_share` is that of the look-ups in the rounds which our
    cache answered.
    """

    system: str
    memory: str
    skew: float
    batch_rows: int
    cache: str
    rows_per_s: float
    verified: bool
    rounds: tuple[float, ...]
    memory_bytes: int
    product_rows: int
    where: str = "in process"
    ratio_to_semistream: float | None = None
    ratio_to_waiting: float | None = None
    why_not: str | None = None
    hit_share: float | None = None

    @property
    def spread(self) -> float:
        """The distance of the fastest from the slowest round, as a share of the median."""
        if not self.rounds or not self.rows_per_s:
            return 0.0
        return (max(self.rounds) - min(self.rounds)) / self.rows_per_s

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return {**asdict(self), "spread": self.spread}


def available(systems: Sequence[str], *, tell: Told = lambda line: None) -> tuple[type[Peer], ...]:
    """The systems that can be run here; tells what the others lack."""
    found = []
    for name in systems:
        lack = PEERS[name].missing()
        if lack is None:
            found.append(PEERS[name])
        else:
            tell(f"left out: {lack}")
    return tuple(found)


def run_peers(
    options: PeersOptions,
    workdir: Path,
    *,
    tell: Told = lambda line: None,
    clock: Clock | None = None,
) -> Iterator[PeerResult]:
    """Run the grid, cell by cell; the systems of a cell are yielded when it is done."""
    clock = clock or SystemClock()
    workdir.mkdir(parents=True, exist_ok=True)
    kinds = available(options.systems, tell=tell)
    for kind in kinds:
        tell(f"{kind.name}: its store of {options.rows:,} rows")
        kind(workdir, options.rows).build()
    cells = options.cells
    streams = streams_of(options, workdir, tell)
    if WARM in options.caches:
        tell("all stores into the operating system's cache")
        for kind in kinds:
            drop_from_cache(kind(workdir, options.rows).store)
            read_into_cache(kind(workdir, options.rows).store)
    for number, cell in enumerate(cells, start=1):
        tell(f"[{number:2}/{len(cells)}] {cell}")
        stream, expected = streams[cell.skew]
        turns = [
            Turns(kind(workdir, options.rows), cell, options, stream, expected, clock)
            for kind in kinds
        ]
        yield from with_ratios(_measured(turns, options))


GROWING = (*OURS, "duckdb", "polars", "rocksdb")
"""Systems whose cost is followed as the master grows, unless others are named."""


def growth_options(options: PeersOptions, rows: int, memory_bytes: int) -> PeersOptions:
    """The middle of the grid, warm, on a master of another size with the same memory."""
    return replace(
        options,
        rows=rows,
        memories=(str(memory_bytes),),
        skews=options.skews[:1],
        batch_rows=options.batch_rows[:1],
        caches=(WARM,),
        systems=tuple(name for name in options.systems if name in GROWING),
    )


@dataclass(frozen=True)
class Stream:
    """The sales that are played in a loop, in micro-batches of any size."""

    rows: pa.RecordBatch

    def batch(self, start: int, rows: int) -> pa.RecordBatch:
        """Up to `rows` rows, fewer where the loop ends."""
        return self.rows.slice(start % self.rows.num_rows, rows)


def streams_of(
    options: PeersOptions, workdir: Path, tell: Told
) -> Mapping[float, tuple[Stream, Expected]]:
    tell("the stream, and DuckDB's join of it to compare with")
    streams = {}
    for skew in options.skews:
        table = sales(
            options.stream_rows, products=options.rows, skew=skew, seed=options.seed
        ).read_all()
        (batch,) = table.combine_chunks().to_batches()
        sold = np.unique(batch.column("product_id").to_numpy())
        with ProductOracle(options.rows, only=sold, scratch=workdir) as oracle:
            streams[skew] = Stream(batch), oracle.expected([batch])
    return streams


def _measured(turns: Sequence[Turns], options: PeersOptions) -> list[PeerResult]:
    with ExitStack() as opened:
        for one in turns:
            opened.enter_context(closing(one))
            one.attempt(one.warm_up)
        for _ in range(options.rounds):
            for one in turns:
                one.attempt(one.round)
        for one in turns:
            one.attempt(one.finish)
        return [one.result() for one in turns]


class Turns:
    """One system in one cell: its place in the stream, its results, its rounds."""

    def __init__(
        self,
        peer: Peer,
        cell: Cell,
        options: PeersOptions,
        stream: Stream,
        expected: Expected,
        clock: Clock,
    ) -> None:
        self._peer, self._cell, self._options = peer, cell, options
        self._stream, self._expected, self._clock = stream, expected, clock
        self._memory_bytes = options.memory_bytes(cell.memory)
        self._fed = 0
        self._produced = Checksum()
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._rounds: list[float] = []
        self._left_s = options.seconds * 2
        self._batch_s = 0.0
        self._is_open = False
        self._before: JoinStats | None = None
        self._hit_share: float | None = None
        self._why_not: str | None = None

    def attempt(self, part: object) -> None:
        """Do a part, unless one failed before; a failure is this system's result."""
        if self._why_not is None:
            assert callable(part)
            try:
                part()
            except SemiStreamError as error:
                self._why_not = error.message

    def warm_up(self) -> None:
        self._peer.open(self._memory_bytes, cold=self._cell.cache == COLD)
        self._is_open = True
        self._keep_warm()
        warm_s = self._options.seconds / 2
        if self._cell.batch_rows < WARM_UP_ROWS:
            # Systems may prepare for micro-batches like the first.
            self._feed(self._cell.batch_rows, 1e-9)
            self._feed(WARM_UP_ROWS, warm_s * WARM_UP_SHARE)
            warm_s *= 1 - WARM_UP_SHARE
        self._feed(self._cell.batch_rows, warm_s)
        self._before = self._peer.stats

    def round(self) -> None:
        """One turn. A system that has had twice its time takes no more, if it has a round."""
        if self._rounds and self._left_s <= 0:
            return
        self._keep_warm()
        share_s = self._options.seconds / 2 / self._options.rounds
        if self._batch_s * SHORT <= share_s:
            self._feed(self._cell.batch_rows, 1e-9)
        rows, seconds = self._feed(self._cell.batch_rows, share_s)
        self._rounds.append(rows / seconds)

    def _keep_warm(self) -> None:
        if self._cell.cache == WARM:
            read_into_cache(self._peer.store)

    def finish(self) -> None:
        stats = self._peer.stats
        if stats is not None and self._before is not None:
            self._hit_share = stats.since(self._before).hit_share
        rest = self._peer.drain()
        if rest is not None:
            self._hold(rest)
        self._check()

    def _feed(self, batch_rows: int, seconds: float) -> tuple[int, float]:
        """Micro-batches for about this time; rows that came out, and the time it took."""
        answered, spent_ns, fed = 0, 0, 0
        while spent_ns < seconds * 1e9:
            batch = self._stream.batch(self._fed, batch_rows)
            if self._cell.cache == COLD:
                self._peer.drop_cache()
            start_ns = self._clock.now_ns()
            results = self._peer.join(batch)
            spent_ns += self._clock.now_ns() - start_ns
            self._fed += batch.num_rows
            answered += results.num_rows
            fed += 1
            self._hold(results)
        self._check()
        self._batch_s = spent_ns / 1e9 / fed
        self._left_s -= spent_ns / 1e9
        return answered, spent_ns / 1e9

    def _hold(self, results: pa.Table) -> None:
        self._held.append(results)
        self._held_rows += results.num_rows
        if self._held_rows >= MOST_HELD_ROWS:
            self._check()

    def _check(self) -> None:
        for table in self._held:
            for batch in table.select(JOINED.names).cast(JOINED).to_batches():
                self._produced.add(batch)
        self._held.clear()
        self._held_rows = 0

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._peer.close()

    def result(self) -> PeerResult:
        """What came of it."""
        failed = self._why_not is not None
        cell = self._cell
        return PeerResult(
            system=self._peer.name,
            memory=cell.memory,
            skew=cell.skew,
            batch_rows=cell.batch_rows,
            cache=cell.cache,
            rows_per_s=0.0 if failed else statistics.median(self._rounds),
            verified=not failed and self._expected.agrees(self._produced, self._fed),
            rounds=tuple(self._rounds),
            memory_bytes=self._memory_bytes,
            product_rows=self._options.rows,
            why_not=self._why_not,
            hit_share=self._hit_share,
        )


def with_ratios(results: Sequence[PeerResult], *, reference: str = OURS[0]) -> Iterator[PeerResult]:
    """The results of a cell with their ratios to ours: drained, and where rows may wait."""
    rates = {one.system: one.rows_per_s for one in results}
    drained = rates.get(reference) or None
    waiting = rates.get(reference.replace("drained", "waiting")) or None
    for one in results:
        yield replace(
            one,
            ratio_to_semistream=one.rows_per_s / drained if drained else None,
            ratio_to_waiting=one.rows_per_s / waiting if waiting else None,
        )
