"""The quick benchmark of the core: every join, warm, on one master, with verified results.

A master of products (120-byte rows) is built once and kept. A stream of sales (20-byte rows) with
Zipf-distributed keys, scattered over the master, is preloaded and played in a loop. With the layout
"frequency" the master has the products first that sell most in that stream. Each cell of
the grid is one join with one memory and one skew:

1. *Warm-up.* Rows are fed for a third of the cell's time, and then until the memory has been full
   for one pass over the master, at most for half of the cell's time.
2. *Measured part.* The clock runs while the join works. Results are set aside and checked while it
   stands still; few pauses, so that reads under way gain nothing by them.
3. *Drain.* Nothing is fed any more; the waiting rows are joined outside of the measurement.

All results, from the first row to the last, are verified against DuckDB's join of the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from semistream.bench.checksum import Checksum
from semistream.bench.masters import LAYOUTS, product_master
from semistream.bench.memory import ResidentGrowth
from semistream.bench.oracle import JOINED, PAYLOAD, Expected, ProductOracle
from semistream.core.budget import parse_bytes
from semistream.core.clock import Clock, SystemClock
from semistream.core.errors import BudgetError, OptionError, unknown_name
from semistream.core.progress import Report
from semistream.core.stats import JoinStats, latency_percentile_s
from semistream.cost.calibrate import bytes_to_hold, one_of_best
from semistream.joins.operator import Operator
from semistream.joins.registry import JOINS, make_join
from semistream.store.file import IO_MODES, FileMaster
from semistream.workloads import sale_schema, sales

CORE_JOINS = ("inlj", "meshjoin", "hybridjoin", "sweepjoin")
"""Run unless others are named: two baselines, the best of the papers for any disk, the default."""

BATCH_ROWS = 65_536
MOST_STREAM_ROWS = 4_000_000
LEAST_MEASURED_ROWS = 10_000
DRY_ROWS = 20_000
PARTS = 5
"""Parts of the measured time of which one counts, where whole loops are measured."""

LONGEST_PART = 10
"""Such a part ends without the end of a loop when it has taken so many times its time."""

SEEK_S, PAGE_S = 8e-3, 1e-4
"""The modelled disk: the papers' machines."""

DISKS = ("this", "papers")
"""The disk for which `sweepjoin` plans its reads; the papers' joins plan for theirs anyway."""

RESULT_ROW_BYTES = sum(field.type.byte_width for field in JOINED)

Told = Callable[[str], None]
"""Called with a line on what happens next."""


@dataclass(frozen=True)
class CoreOptions:
    """The grid and how it is run. `memories` and `skews` are kept as they were written."""

    rows: int = 2_000_000
    memories: tuple[str, ...] = ("1%", "5%")
    skews: tuple[float, ...] = (0, 1)
    joins: tuple[str, ...] = CORE_JOINS
    layout: str = "key"
    io: str = "direct"
    disk: str = "this"
    stream_rows: int | None = None
    seconds: float | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise OptionError(f"a master of {self.rows} rows is not possible", hint="rows >= 1")
        if self.stream_rows is not None and self.stream_rows < 1:
            raise OptionError(f"stream_rows={self.stream_rows} is not above zero")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise OptionError(f"seconds={self.seconds} is not a time", hint="give seconds per cell")
        if self.io not in IO_MODES:
            raise OptionError(f"io={self.io!r} is not one of {', '.join(IO_MODES)}")
        if self.disk not in DISKS:
            raise OptionError(f"disk={self.disk!r} is not one of {', '.join(DISKS)}")
        if self.layout not in LAYOUTS:
            raise OptionError(f"layout={self.layout!r} is not one of {', '.join(LAYOUTS)}")
        for name in self.joins:
            if name not in JOINS:
                raise unknown_name("join", name, JOINS)
        for memory in self.memories:
            parse_bytes(memory, of=10**12)
        if not (self.joins and self.memories and self.skews):
            raise OptionError("the grid is empty", hint="name a join, a memory and a skew")

    @property
    def cell_s(self) -> float:
        """Seconds of a cell: a pass over a large master takes its time."""
        return max(4.0, self.rows / 1e6) if self.seconds is None else self.seconds

    @property
    def preloaded_rows(self) -> int:
        """Rows of the stream before it repeats."""
        if self.stream_rows is not None:
            return self.stream_rows
        return max(min(2 * self.rows, MOST_STREAM_ROWS), BATCH_ROWS)

    @property
    def cells(self) -> int:
        """Cells of the grid."""
        return len(self.joins) * len(self.memories) * len(self.skews)

    def of_join(self, join: str) -> dict[str, Any]:
        """Options of a join in this grid."""
        if self.disk == "papers" and join == "sweepjoin":
            return {"gap_pages": round(SEEK_S / PAGE_S)}
        return {}

    @property
    def sold_by(self) -> int | None:
        """Whose demand a master in frequency order follows: that of the grid's own streams."""
        return self.seed if self.layout == "frequency" else None


@dataclass(frozen=True)
class CoreResult:
    """One cell. All figures but peaks and `verified` are of the measured part.

    `rows` are stream rows that were answered (matched or proven to have no partner) in `seconds`.
    `modelled_rows_per_s` is the rate that a disk with a seek of 8 ms and 0.1 ms per page would
    allow; None where no page was read.
    """

    join: str
    memory: str
    skew: float
    rows_per_s: float
    pages_per_row: float
    requests_per_row: float
    hit_share: float
    peak_accounted_bytes: int
    peak_rss_growth_bytes: int
    layout: str
    io: str
    verified: bool
    modelled_rows_per_s: float | None
    rows: int
    seconds: float
    time_io_s: float
    latency_p50_s: float
    latency_p99_s: float
    memory_bytes: int
    loops: int

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


def run_core(
    options: CoreOptions,
    workdir: Path,
    *,
    tell: Told = lambda line: None,
    report: Report | None = None,
    clock: Clock | None = None,
) -> Iterator[CoreResult]:
    """Run the grid, skew by skew and memory by memory; each cell is yielded when it is done."""
    clock = clock or SystemClock()
    with prepared(options, workdir, tell=tell, report=report, check=_check_budgets) as ground:
        for join in options.joins:
            tell(f"{join}: loading its kernels")
            ground.load_kernels(join, options.memories[-1])
        grid = itertools.product(options.skews, options.memories, options.joins)
        for number, (skew, memory, join) in enumerate(grid, start=1):
            tell(f"[{number:2}/{options.cells}] {join}, memory {memory}, skew {skew:g}")
            cell = Cell(
                ground,
                join=join,
                memory=memory,
                skew=skew,
                seconds=options.cell_s,
                seed=options.seed,
                clock=clock,
                **options.of_join(join),
            )
            yield measure(cell)


@dataclass(frozen=True)
class Ground:
    """What a grid is run on: the master and, for every skew, the stream and what it must give."""

    master: FileMaster
    streams: dict[float, list[pa.RecordBatch]]
    expected: dict[float, Expected]

    def load_kernels(self, join: str, memory: str) -> None:
        """Load or compile everything that the join calls: that takes seconds the first time."""
        (first, *_), *_ = self.streams.values()
        with make(join, self.master, memory) as operator:
            feed = _Feed(operator, [first.slice(0, DRY_ROWS)])
            while operator.stats.rows_in < DRY_ROWS:
                feed.advance()
            for _ in operator.finish():
                pass


@contextmanager
def prepared(
    options: CoreOptions,
    workdir: Path,
    *,
    tell: Told = lambda line: None,
    report: Report | None = None,
    check: Callable[[CoreOptions, FileMaster], None] = lambda options, master: None,
) -> Iterator[Ground]:
    """Build the master where it is not there, `check` it, make streams, let DuckDB join them."""
    tell(f"the master of {options.rows:,} rows")
    with product_master(
        workdir, options.rows, sold_by=options.sold_by, io=options.io, report=report
    ) as master:
        check(options, master)
        tell("the stream, and DuckDB's join of it to compare with")
        ground = Ground(master, {}, {})
        with ProductOracle(options.rows, scratch=workdir) as oracle:
            for skew in options.skews:
                ground.streams[skew] = list(stream_of(options, skew))
                ground.expected[skew] = oracle.expected(ground.streams[skew])
        yield ground


def measure(cell: Cell) -> CoreResult:
    """All parts of a cell, one after the other, and its end."""
    with cell:
        for _ in range(cell.parts):
            cell.measure_part()
        return cell.result()


class Cell:
    """One join with one memory on one stream: warm from the beginning, measured in parts, drained.

    `seconds` bounds warm-up and parts together. The warm-up goes on for up to `settle_s` more while
    the share of hits still rises. With `whole_loops` there are several parts, each from the end of
    an iteration of the join's outer loop to that of another, if one ends in time. One of the best
    tells the time, since what disturbs a part makes it slower, never faster; counts are those of
    all. Cells whose parts take turns are disturbed alike.
    """

    def __init__(
        self,
        ground: Ground,
        *,
        join: str,
        memory: str,
        skew: float,
        seconds: float,
        seed: int,
        clock: Clock,
        settle_s: float = 0.0,
        whole_loops: bool = False,
        **options: Any,
    ) -> None:
        self.parts = PARTS if whole_loops else 1
        self._ground, self._join, self._memory, self._skew = ground, join, memory, skew
        self._part_s, self._whole_loops, self._clock = seconds / 2 / self.parts, whole_loops, clock
        self._produced, self._done = Checksum(), list[_Part]()
        with ExitStack() as stack:
            self._growth = stack.enter_context(ResidentGrowth())
            made = make(join, ground.master, memory, seed=seed, clock=clock, **options)
            self._operator = stack.enter_context(made)
            self._feed = _Feed(self._operator, ground.streams[skew])
            pages = ground.master.pages
            _warm_up(self._feed, self._produced, pages, seconds, clock)
            _settle(self._feed, self._produced, pages, settle_s, clock)
            if whole_loops:
                _to_loop_end(self._feed, self._produced, seconds, clock)
            self._growth.pause()
            self._held_bytes = bytes_to_hold(self._operator.stats.bytes_limit)
            self._stack = stack.pop_all()

    def measure_part(self) -> None:
        """Go on where the last part ended."""
        self._done.append(
            _measured(
                self._feed,
                self._produced,
                self._held_bytes,
                self._part_s,
                self._whole_loops,
                self._clock,
            )
        )

    def result(self) -> CoreResult:
        """Drain the join, compare all of its results, and say what was measured."""
        self._growth.resume()
        for batch in self._operator.finish():
            self._produced.add(batch)
        final, master = self._operator.stats, self._ground.master
        before, after = self._done[0].before, self._done[-1].after
        timed = one_of_best(self._done, _Part.seconds_per_row)
        expected = self._ground.expected[self._skew]
        rows = _answered(after) - _answered(before)
        pages, seeks = after.pages_read - before.pages_read, after.seeks - before.seeks
        looked_up = after.hits + after.misses - before.hits - before.misses
        modelled_s = seeks * SEEK_S + pages * PAGE_S
        latencies = after.latency_histogram - before.latency_histogram
        return CoreResult(
            join=self._join,
            memory=self._memory,
            skew=self._skew,
            rows_per_s=timed.rows / timed.seconds,
            pages_per_row=pages / max(rows, 1),
            requests_per_row=(after.requests - before.requests) / max(rows, 1),
            hit_share=(after.hits - before.hits) / max(looked_up, 1),
            peak_accounted_bytes=final.bytes_peak,
            peak_rss_growth_bytes=self._growth.peak_bytes,
            layout="frequency" if master.by_frequency else "key",
            io=master.io,
            verified=expected.agrees(self._produced, final.rows_in) and final.rows_waiting == 0,
            modelled_rows_per_s=rows / modelled_s if modelled_s else None,
            rows=timed.rows,
            seconds=timed.seconds,
            time_io_s=timed.after.time_io_s - timed.before.time_io_s,
            latency_p50_s=latency_percentile_s(latencies, 50),
            latency_p99_s=latency_percentile_s(latencies, 99),
            memory_bytes=final.bytes_limit,
            loops=timed.loops,
        )

    def __enter__(self) -> Cell:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


class _Feed:
    """Offers a stream in a loop to a join, as `semistream.join` does."""

    def __init__(self, operator: Operator, stream: Sequence[pa.RecordBatch]) -> None:
        self.operator = operator
        self.refused = False
        self._batches = itertools.cycle(stream)
        self._rest = next(self._batches)

    def advance(self) -> pa.RecordBatch | None:
        """One push and, if not all was taken, one step."""
        accepted = self.operator.push(self._rest)
        if accepted == self._rest.num_rows:
            self._rest = next(self._batches)
            return self.operator.take()
        self.refused = True
        self._rest = self._rest.slice(accepted)
        return self.operator.step()


def _warm_up(feed: _Feed, produced: Checksum, pages: int, seconds: float, clock: Clock) -> None:
    start_ns = clock.now_ns()
    full_at: int | None = None
    while True:
        result = feed.advance()
        if result is not None:
            produced.add(result)
        elapsed_s = (clock.now_ns() - start_ns) / 1e9
        if feed.refused and full_at is None:
            full_at = feed.operator.stats.pages_read
        if elapsed_s >= seconds / 2:
            return
        if elapsed_s < seconds / 3 or full_at is None:
            continue
        if feed.operator.stats.pages_read - full_at >= pages:
            return


def _settle(feed: _Feed, produced: Checksum, pages: int, longest_s: float, clock: Clock) -> None:
    """Feed until the hits of a pass over the master are hardly more than those of the one before.

    Passes take at least a fifth of a second, and a tenth of `longest_s`.
    """
    if not longest_s:
        return
    start_ns, last = clock.now_ns(), -1.0
    calm = 0
    while calm < 2 and clock.now_ns() - start_ns < longest_s * 1e9:
        before, begin_ns = feed.operator.stats, clock.now_ns()
        while True:
            result = feed.advance()
            if result is not None:
                produced.add(result)
            spent_s = (clock.now_ns() - begin_ns) / 1e9
            read = feed.operator.stats.pages_read - before.pages_read
            if spent_s > 0.2 and (read >= 3 * pages or spent_s > longest_s / 10):
                break
        share = feed.operator.stats.since(before).hit_share
        if share == 0:
            return
        calm = calm + 1 if share <= last * 1.02 + 0.002 else 0
        last = share


class _Part(NamedTuple):
    """A part of the measured time: what the join had done before it and after it."""

    before: JoinStats
    after: JoinStats
    seconds: float
    loops: int

    @property
    def rows(self) -> int:
        """Stream rows that were answered in it."""
        return _answered(self.after) - _answered(self.before)

    def seconds_per_row(self) -> float:
        """What one of them took."""
        return self.seconds / max(self.rows, 1)


def _to_loop_end(feed: _Feed, produced: Checksum, longest_s: float, clock: Clock) -> None:
    start_ns, loops = clock.now_ns(), feed.operator.loops
    while feed.operator.loops == loops and clock.now_ns() - start_ns < longest_s * 1e9:
        result = feed.advance()
        if result is not None:
            produced.add(result)


def _measured(
    feed: _Feed,
    produced: Checksum,
    held_bytes: int,
    seconds: float,
    whole_loops: bool,
    clock: Clock,
) -> _Part:
    """Feed until time and rows suffice."""
    before, first_loop = feed.operator.stats, feed.operator.loops
    held: list[pa.RecordBatch] = []
    most_held = max(held_bytes // RESULT_ROW_BYTES, 1)
    held_rows = 0
    total_ns, wanted_ns = 0, int(seconds * 1e9)
    start_ns = clock.now_ns()
    while True:
        loops = feed.operator.loops
        result = feed.advance()
        if result is not None:
            held.append(result)
            held_rows += result.num_rows
        spent_ns = clock.now_ns() - start_ns
        enough = total_ns + spent_ns >= wanted_ns
        if enough and whole_loops and total_ns + spent_ns < LONGEST_PART * wanted_ns:
            enough = feed.operator.loops > loops
        if held_rows < most_held and not enough:
            continue
        # The clock stands still from here on.
        total_ns += spent_ns
        for batch in held:
            produced.add(batch)
        held.clear()
        held_rows = 0
        after, loops = feed.operator.stats, feed.operator.loops - first_loop
        part = _Part(before, after, total_ns / 1e9, loops)
        if enough and (part.rows >= LEAST_MEASURED_ROWS or total_ns >= 4 * wanted_ns):
            return part
        start_ns = clock.now_ns()


def _answered(stats: JoinStats) -> int:
    return stats.rows_in - stats.rows_waiting


def make(
    join: str,
    master: FileMaster,
    memory: str,
    *,
    seed: int = 0,
    clock: Clock | None = None,
    **options: Any,
) -> Operator:
    """A join as this benchmark has it."""
    return make_join(
        join,
        master,
        on="product_id",
        schema=sale_schema(),
        memory=memory,
        columns=PAYLOAD,
        seed=seed,
        clock=clock,
        **options,
    )


def stream_of(options: CoreOptions, skew: float) -> pa.RecordBatchReader:
    """The stream that is preloaded."""
    return sales(options.preloaded_rows, products=options.rows, skew=skew, seed=options.seed)


def _check_budgets(options: CoreOptions, master: FileMaster) -> None:
    """All joins are made once before the first is run, so that a grid fails at once or not."""
    for join, memory in itertools.product(options.joins, options.memories):
        try:
            make(join, master, memory).close()
        except BudgetError as error:
            raise BudgetError(
                f"memory {memory}: {error.message}",
                hint=f"give more memory or rows, or leave {join} out with --joins",
            ) from None
