"""What this machine allows at most, and how far from it the joins are.

The machine: direct and buffered reads in several patterns, random reads of memory, copies of Arrow
data. The stream: the fewest pages that must be read (see `semistream.bench.bounds`). Together they
bound the rate in every cell; the lowest of these bounds is the limit that binds. docs/limits.md
explains each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.bounds import (
    Trace,
    fewest_faults,
    fewest_reads,
    fewest_reads_drained,
    pages_of_best_row_cache,
)
from semistream.bench.core import RESULT_ROW_BYTES, Told
from semistream.bench.masters import product_master
from semistream.bench.peers.base import KEY, RECORD, drop_from_cache, read_into_cache
from semistream.bench.peers.ours import Drained, Waiting
from semistream.bench.side_by_side import COLD, Cell, PeersOptions, Turns, streams_of
from semistream.core.clock import Clock, SystemClock
from semistream.joins.parallel import default_threads
from semistream.kernels.jit import kernel
from semistream.kernels.reading import COPY, SEE
from semistream.kernels.timing import read_only_runs
from semistream.store.file import FileMaster
from semistream.workloads import product_rows, sale_schema, sales

STREAM_ROW_BYTES: int = sum(column.type.byte_width for column in sale_schema())
DEPTHS = (1, 4, 16, 64)
DENSITIES = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the pages, in order, of which reads are timed: neighbours in one read."""

GAPS = (0, 3)
"""Gaps between wanted pages, in pages, that direct reads go through: what is faster counts."""

LONGEST_RUN = 64
READ_BUFFER_PAGES = 2048
READ_S = 0.6
TABLE_BYTES = 512 << 20
"""Memory that is probed: far more than processors cache."""

PROBES = 4_000_000
LINE_BYTES = 64
LINES_PER_ROW = 1 + 1 + (RECORD.itemsize - 1) / LINE_BYTES
"""Lines of memory that a row cannot do without: one to find its key, those of its partner."""

TRACE_ROWS = 2_000_000
MOST_TRACE_ROWS = 24_000_000
WAITING_WINDOWS = 6
"""Rows of the stream for the bound with waiting rows, in rows that fit the memory: shorter ones fit
altogether, and prove nothing."""


@dataclass(frozen=True)
class Processors:
    """Rates of so many threads together, each on a processor of its own."""

    threads: int
    sorted_buffered: dict[float, float]
    lines_per_s: float
    copied_bytes_per_s: float


@dataclass(frozen=True)
class MachineLimits:
    """Rates of one machine. Reads are in pages of `page_bytes` per second."""

    page_bytes: int
    random_direct: dict[int, float]
    random_buffered: float
    sequential_direct: dict[int, float]
    sequential_buffered: float
    sorted_direct: dict[float, float]
    words_per_s: float
    one: Processors
    all: Processors

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)

    def processors(self, threads: int) -> Processors:
        """What a join with so many threads has: one processor, or all."""
        return self.one if threads == 1 else self.all

    def pages_per_s(self, share: float, threads: int, *, cold: bool) -> float:
        """Useful pages per second, where this share of all pages is wanted in one pass."""
        rates = self.sorted_direct if cold else self.processors(threads).sorted_buffered
        return float(np.interp(share, list(rates), list(rates.values())))


@dataclass(frozen=True)
class LimitsResult:
    """One cell of semistream beside its limits. Pages are per stream row.

    `best_page_cache` is Belady's MIN on pages for rows that are answered one by one; a join that
    caches rows or lets rows share reads may be below it. `fewest_pages` no join can be below.
    `reference_pages` is what the disk's limit is computed with: see docs/limits.md.
    """

    system: str
    threads: int
    memory: str
    skew: float
    batch_rows: int
    cache: str
    rows_per_s: float
    pages: float
    best_page_cache: float
    fewest_pages: float
    reference_pages: float
    disk_limit: float
    memory_limit: float
    copy_limit: float
    binds: str
    share_of_limit: float
    verified: bool

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


def measure_machine(
    master: FileMaster, buffered: FileMaster, *, tell: Told = lambda line: None
) -> MachineLimits:
    """The machine's rates; both masters are the same one, opened for direct and buffered reads."""
    clock = SystemClock()
    generator = np.random.default_rng(1)
    tell("direct reads")
    one = _random_runs(master.pages, 1, generator)
    _reads(master, one, DEPTHS[0], clock)  # loads the kernel
    direct = {depth: _reads(master, one, depth, clock) for depth in DEPTHS}
    best = max(direct, key=lambda depth: direct[depth])
    through = _all_runs(master.pages)
    sequential = {depth: _reads(master, through, depth, clock) for depth in DEPTHS}
    fastest = max(sequential, key=lambda depth: sequential[depth])
    shares = {share: _some_runs(master.pages, share, 2) for share in DENSITIES}
    sorted_direct = {
        share: max(
            _wanted_reads(master, runs, _some_runs(master.pages, share, 2, gap), depth, clock)
            for depth in {best, fastest}
            for gap in GAPS
        )
        for share, runs in shares.items()
    }
    tell("buffered reads")
    # In order: a cache that came about page by page is slower.
    drop_from_cache(buffered.path)
    read_into_cache(buffered.path)
    random_buffered = _reads(buffered, one, best, clock)
    sequential_buffered = _reads(buffered, through, best, clock)
    table = np.arange(TABLE_BYTES // 8, dtype=np.int64)
    groups = []
    for threads in (1, default_threads()):
        tell(f"buffered reads and memory, {threads} threads")
        with ThreadPoolExecutor(threads) as pool:
            groups.append(
                Processors(
                    threads,
                    {
                        share: _together(
                            pool, [partial(_reads, buffered, runs, best, clock)] * threads
                        )
                        for share, runs in shares.items()
                    },
                    _together(pool, [partial(_lines, table, 8, n, clock) for n in range(threads)]),
                    _together(pool, [partial(_copies, clock)] * threads),
                )
            )
    return MachineLimits(
        page_bytes=master.page_bytes,
        random_direct=direct,
        random_buffered=random_buffered,
        sequential_direct=sequential,
        sequential_buffered=sequential_buffered,
        sorted_direct=sorted_direct,
        words_per_s=_lines(table, 1, 1, clock),
        one=groups[0],
        all=groups[1],
    )


def run_limits(
    options: PeersOptions,
    workdir: Path,
    machine: MachineLimits,
    *,
    tell: Told = lambda line: None,
) -> Iterator[LimitsResult]:
    """semistream in the cells of a grid, each with the limit that binds it."""
    clock = SystemClock()
    streams = streams_of(options, workdir, tell)
    with product_master(workdir, options.rows, io="buffered") as master:
        read_into_cache(master.path)
        pages = master.pages
        tell("the stream again, for the bounds on reads")
        most = max(options.memory_bytes(memory) for memory in options.memories)
        rows = max(TRACE_ROWS, _waiting_rows(most))
        traces = {
            skew: Trace.of(
                master, sales(rows, products=options.rows, skew=skew, seed=options.seed), KEY
            )
            for skew in options.skews
        }
    known: dict[tuple[str, float, int, str], _Bounds] = {}
    for number, cell in enumerate(options.cells, start=1):
        tell(f"[{number:2}/{len(options.cells)}] {cell}")
        stream, expected = streams[cell.skew]
        for kind in (Drained, Waiting):
            peer = kind(workdir, options.rows)
            turns = Turns(peer, cell, options, stream, expected, clock)
            try:
                turns.attempt(turns.warm_up)
                before = peer.stats
                for _ in range(options.rounds):
                    turns.attempt(turns.round)
                did = peer.stats.since(before)
                turns.attempt(turns.finish)
            finally:
                turns.close()
            result = turns.result()
            # The cache of the operating system changes nothing in what must be read.
            key = (cell.memory, cell.skew, cell.batch_rows if kind is Drained else 0, kind.name)
            if key not in known:
                memory_bytes = options.memory_bytes(cell.memory)
                trace = traces[cell.skew]
                known[key] = _Bounds.of(trace, memory_bytes, cell, kind, machine.page_bytes)
            bounds = known[key]
            yield _limited(result.rows_per_s, result.verified, did.pages_per_row, cell, peer,
                           bounds, machine, pages)  # fmt: skip


def _waiting_rows(memory_bytes: int) -> int:
    return min(WAITING_WINDOWS * memory_bytes // STREAM_ROW_BYTES, MOST_TRACE_ROWS)


@dataclass(frozen=True)
class _Bounds:
    """Pages per row, and the stream rows that one pass over the pages can serve."""

    best_page_cache: float
    fewest: float
    reference: float
    pass_rows: int

    @classmethod
    def of(
        cls,
        trace: Trace,
        memory_bytes: int,
        cell: Cell,
        kind: type[Drained],
        page_bytes: int,
    ) -> _Bounds:
        short = trace.head(TRACE_ROWS)
        belady = fewest_faults(short.pages, memory_bytes // page_bytes) / len(short)
        if kind is Waiting:
            long = trace.head(_waiting_rows(memory_bytes))
            reads = fewest_reads(
                long,
                memory_bytes,
                master_row_bytes=RECORD.itemsize,
                stream_row_bytes=STREAM_ROW_BYTES,
            )
            fewest = reads / len(long)
            return cls(belady, fewest, fewest, memory_bytes // STREAM_ROW_BYTES)
        drained = fewest_reads_drained(
            short, memory_bytes, cell.batch_rows, master_row_bytes=RECORD.itemsize
        )
        cached = pages_of_best_row_cache(short, cell.batch_rows, memory_bytes // RECORD.itemsize)
        return cls(belady, drained / len(short), cached / len(short), cell.batch_rows)


def _limited(
    rows_per_s: float,
    verified: bool,
    pages_per_row: float,
    cell: Cell,
    peer: Drained,
    bounds: _Bounds,
    machine: MachineLimits,
    pages: int,
) -> LimitsResult:
    share = min(bounds.reference * bounds.pass_rows / pages, 1.0)
    rate = machine.pages_per_s(share, peer.threads, cold=cell.cache == COLD)
    processors = machine.processors(peer.threads)
    limits = {
        "disk": rate / bounds.reference if bounds.reference else float("inf"),
        "memory": processors.lines_per_s / LINES_PER_ROW,
        "copies": processors.copied_bytes_per_s / RESULT_ROW_BYTES,
    }
    binds = min(limits, key=lambda name: limits[name])
    return LimitsResult(
        system=peer.name,
        threads=peer.threads,
        memory=cell.memory,
        skew=cell.skew,
        batch_rows=cell.batch_rows,
        cache=cell.cache,
        rows_per_s=rows_per_s,
        pages=pages_per_row,
        best_page_cache=bounds.best_page_cache,
        fewest_pages=bounds.fewest,
        reference_pages=bounds.reference,
        disk_limit=limits["disk"],
        memory_limit=limits["memory"],
        copy_limit=limits["copies"],
        binds=binds,
        share_of_limit=rows_per_s / limits[binds],
        verified=verified,
    )


# The machine.


def _random_runs(pages: int, length: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    starts = generator.integers(0, max(pages - length, 1), 4096)
    return np.stack([starts, np.full(len(starts), length)], axis=1).astype(np.int64)


def _all_runs(pages: int) -> npt.NDArray[np.int64]:
    starts = np.arange(0, pages, LONGEST_RUN)
    return np.stack([starts, np.minimum(LONGEST_RUN, pages - starts)], axis=1).astype(np.int64)


def _some_runs(pages: int, share: float, seed: int, gap: int = 0) -> npt.NDArray[np.int64]:
    """Pages chosen at random, in order; those at most `gap` pages apart in one run."""
    wanted = np.flatnonzero(np.random.default_rng(seed).random(pages) < share)
    if not len(wanted):
        wanted = np.zeros(1, np.int64)
    near = np.diff(wanted) <= gap + 1
    begins, ends = wanted[np.append(True, ~near)], wanted[np.append(~near, True)] + 1
    # Long ones are cut.
    parts = -(-(ends - begins) // LONGEST_RUN)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    first = np.repeat(begins, parts) + LONGEST_RUN * number
    lengths = np.minimum(np.repeat(ends, parts) - first, LONGEST_RUN)
    return np.stack([first, lengths], axis=1).astype(np.int64)


def _reads(master: FileMaster, runs: npt.NDArray[np.int64], depth: int, clock: Clock) -> float:
    """Pages per second, over as many runs as fit the time; they go on where the last part ended.

    Pages that the operating system has cached are seen or copied, whichever is faster.
    """
    ways = (COPY, SEE) if master.io == "buffered" else (COPY,)
    return max(_reads_in_one_way(master, runs, depth, way, clock) for way in ways)


def _reads_in_one_way(
    master: FileMaster, runs: npt.NDArray[np.int64], depth: int, way: int, clock: Clock
) -> float:
    """The same where pages are seen through windows, or copied."""
    buffer = min(READ_BUFFER_PAGES, max(master.pages, LONGEST_RUN))
    reader = master.reader(buffer, depth=depth, windows=True, check=False)
    reader.ring.told = way
    part = 512
    at, done = 0, 0
    try:
        begin = clock.now_ns()
        while True:
            some = np.ascontiguousarray(runs[at : at + part])
            if not read_only_runs(reader.ring.kernel, some):
                raise reader.error()
            done += int(some[:, 1].sum())
            at = at + part if at + part < len(runs) else 0
            spent = (clock.now_ns() - begin) / 1e9
            if spent >= READ_S:
                return done / spent
    finally:
        reader.close()


def _wanted_reads(
    master: FileMaster,
    wanted: npt.NDArray[np.int64],
    runs: npt.NDArray[np.int64],
    depth: int,
    clock: Clock,
) -> float:
    """Wanted pages per second by runs that go through gaps between them."""
    useful = wanted[:, 1].sum() / runs[:, 1].sum()
    return float(_reads(master, runs, depth, clock) * useful)


def _rate(work: float, clock: Clock, do: Callable[[], object]) -> float:
    """Work per second, the best of three, after one to warm up."""
    do()
    best = float("inf")
    for _ in range(3):
        begin = clock.now_ns()
        do()
        best = min(best, (clock.now_ns() - begin) / 1e9)
    return work / best


def _together(pool: ThreadPoolExecutor, rates: Sequence[Callable[[], float]]) -> float:
    """The sum of the rates that threads reach at the same time."""
    under_way = [pool.submit(rate) for rate in rates]
    return sum(one.result() for one in under_way)


def _lines(table: npt.NDArray[np.int64], words: int, seed: int, clock: Clock) -> float:
    """Places of memory read at random in a second, each of so many words."""
    return _rate(PROBES, clock, lambda: _probe(table, PROBES, words, seed))


def _copies(clock: Clock) -> float:
    """Bytes of Arrow data copied in a second."""
    table = pa.Table.from_batches([product_rows(np.arange(200_000))] * 4)
    return _rate(table.nbytes, clock, table.combine_chunks)


@kernel
def _probe(table: Any, count: Any, words: Any, seed: Any) -> Any:
    """Read `words` neighbouring words at places that no prefetcher can foresee."""
    state = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    lines = np.uint64(table.size // 8)
    total = np.int64(0)
    for _ in range(count):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        at = np.int64(((state >> np.uint64(32)) * lines) >> np.uint64(32)) * 8
        for word in range(words):
            total += table[at + word]
    return total
