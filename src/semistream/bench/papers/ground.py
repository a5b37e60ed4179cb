"""What experiments run on: a scale, masters that are kept, and joins that are played and counted.

*Scale.* A paper's R and M are made smaller by the same factor; pages, partitions, the disk and the
skew stay as they are. Rates then stay what they are, by all equations of the papers: a scan of R
takes as much less time as fewer rows wait for it, and a partition holds as much more of the rows
that wait as there are fewer of them.

What is held of the hottest rows is chosen such that it has the same share of the stream as at the
paper's size, see `Ground.held_rows`.

*Memory.* The papers' rows take more memory than ours do (f = 8 in the thesis: 172 bytes for a
stream row of 20). So that rates can be compared, a join of ours gets the memory in which as many
rows find room as in the paper's by its own equations, see `Held`; what that was is noted with each
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.masters import product_master
from semistream.bench.papers.machine import PAGE_BYTES, Machine
from semistream.core.errors import BudgetError
from semistream.core.progress import Report
from semistream.core.stats import JoinStats
from semistream.cost import Frequencies, Workload
from semistream.joins.operator import Operator
from semistream.joins.registry import make_join
from semistream.joins.scanning import ScanJoin
from semistream.store.file import FileMaster
from semistream.workloads import Placement, product_rows, sale_schema, sales

ScaleName = Literal["small", "medium", "paper"]
SCALES: dict[ScaleName, float] = {"small": 1 / 16, "medium": 1 / 8, "paper": 1.0}
"""By how much R and M are smaller than the papers'."""

COLUMNS = ["price"]
"""What sales get from their product."""

ENDLESS = 1 << 40
BATCH_ROWS = 16_384
ROUNDS, SCAN_ROUNDS = (3.0, 13.0), (1.0, 2.0)
MOST_ROWS = 200_000_000
"""A join that has not filled its memory by then never will."""


class Check(Protocol):
    """Compares results with what they must be."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in some of them."""

    def agrees(self, rows: int) -> bool:
        """Whether they are exactly those of the first `rows` stream rows."""


@dataclass(frozen=True)
class Held:
    """What a join holds: stream rows that wait, rows of the master, pages of a pool."""

    waiting: float = 0.0
    cached: float = 0.0
    pool_pages: float = 0.0


@dataclass(frozen=True)
class Played:
    """What a join did in the measured part of a run, and what it had."""

    did: JoinStats
    loops: int
    waiting: float
    memory_bytes: int
    rows_per_page: float
    verified: bool

    @property
    def rows(self) -> int:
        """Stream rows that were answered."""
        return self.did.rows_matched + self.did.rows_unmatched

    @property
    def seconds(self) -> float:
        """Seconds that the join took here, reads included."""
        return self.did.time_busy_s + self.did.time_io_s

    @property
    def probes(self) -> float:
        """Rows of the pages that were read."""
        return self.did.pages_read * self.rows_per_page

    def rate(self, machine: Machine, held_rows: float = 0.0) -> float:
        """Rows/s on a paper's machine, where `held_rows` of the master are probed every loop."""
        return self.rows / machine.seconds(self.did, self.probes + self.loops * held_rows)

    def facts(self) -> dict[str, Any]:
        """What a stored result says of it."""
        rows = max(self.rows, 1)
        return {
            "rows": self.rows,
            "pages_per_row": self.did.pages_read / rows,
            "seeks_per_row": self.did.seeks / rows,
            "hit_share": self.did.hit_share,
            "rows_per_loop": rows / max(self.loops, 1),
            "waiting_rows": self.waiting,
            "memory_bytes": self.memory_bytes,
            "rows_per_s_here": rows / self.seconds if self.seconds else None,
        }


@dataclass
class Ground:
    """A scale, a seed and a folder in which masters are kept."""

    scale: ScaleName
    workdir: Path
    seed: int = 1
    report: Report | None = None
    _open: dict[str, FileMaster] = field(default_factory=dict, repr=False)
    _prices: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict, repr=False)
    _played: dict[tuple[Any, ...], Played] = field(default_factory=dict, repr=False)

    @property
    def share(self) -> float:
        """By how much R and M are smaller than the papers'."""
        return SCALES[self.scale]

    def scaled(self, rows: float) -> int:
        """Rows of R, or of the stream, at this scale."""
        return max(round(rows * self.share), 1)

    def held_rows(self, rows: float, of: float, skew: float) -> float:
        """How many of the hottest rows have the share of the stream that `rows` out of `of` have at
        the paper's size."""
        share = Frequencies.zipf(round(of), skew).top(rows)
        return Frequencies.zipf(self.scaled(of), skew).reach(share)

    def kept(self, name: str, make: Callable[[], FileMaster]) -> FileMaster:
        """A master that stays open until the end; opened, and built if need be, by `make`."""
        if name not in self._open:
            self._open[name] = make()
        return self._open[name]

    def products(self, rows: int) -> FileMaster:
        """The master of so many products (as they are, not scaled), in the order of their keys."""
        return self.kept(
            f"products-{rows}",
            lambda: product_master(
                self.workdir, rows, page_size=PAGE_BYTES, io="buffered", report=self.report
            ),
        )

    def close(self) -> None:
        """Close the masters."""
        for master in self._open.values():
            master.close()
        self._open.clear()

    def play_sales(
        self,
        join: str,
        *,
        rows: int,
        held: Held,
        skew: float,
        placement: Placement = "random",
        rounds: tuple[float, float] | None = None,
        **options: Any,
    ) -> Played:
        """Join sales with the master of so many products, see `play`.

        With `placement="rank"` the products that sell most come first in the master, as the thesis
        has R sorted; with "random" they lie anywhere. What was played with the same arguments is
        not played again: many experiments have such points in common.
        """
        key = (join, rows, held, skew, placement, rounds, *sorted(options.items()))
        if key not in self._played:
            self._played[key] = self._play_sales(
                join, rows, held, skew, placement, rounds, dict(options)
            )
        return self._played[key]

    def _play_sales(
        self,
        join: str,
        rows: int,
        held: Held,
        skew: float,
        placement: Placement,
        rounds: tuple[float, float] | None,
        options: dict[str, Any],
    ) -> Played:
        master = self.products(rows)
        if held.cached:
            sizes = Workload.of(master, sale_schema(), "product_id", columns=COLUMNS)
            cache = held.cached * sizes.cached_bytes
            options["cache_share"] = cache / (cache + held.waiting * sizes.slot_bytes)
        if rows not in self._prices:
            batch = product_rows(np.arange(rows))
            self._prices = {rows: batch.column("price").to_numpy()}
        stream = sales(
            ENDLESS,
            products=rows,
            skew=skew,
            placement=placement,
            seed=self.seed,
            batch_rows=BATCH_ROWS,
        )
        return play(
            lambda memory: make_join(
                join,
                master,
                on="product_id",
                schema=sale_schema(),
                memory=memory,
                columns=COLUMNS,
                seed=self.seed,
                **options,
            ),
            stream,
            held,
            SaleCheck(self._prices[rows]),
            rounds=rounds,
        )


class SaleCheck:
    """Every sale once, with the price of its product."""

    def __init__(self, prices: npt.NDArray[np.float64]) -> None:
        self._prices = prices
        self._rows = 0
        self._sum = 0
        self._squares = 0
        self._right = True

    def add(self, batch: pa.RecordBatch) -> None:
        price = batch.column("price").to_numpy()
        product = batch.column("product_id").to_numpy()
        sale = batch.column("sale_id").to_numpy().astype(np.uint64)
        self._right = self._right and bool((price == self._prices[product]).all())
        self._rows += batch.num_rows
        self._sum += int(sale.sum(dtype=np.uint64))
        self._squares += int((sale * sale).sum(dtype=np.uint64))

    def agrees(self, rows: int) -> bool:
        n = rows - 1
        sums = (n * (n + 1) // 2, n * (n + 1) * (2 * n + 1) // 6)
        seen = (self._sum % 2**64, self._squares % 2**64)
        return self._right and self._rows == rows and seen == tuple(s % 2**64 for s in sums)


def play(
    make: Callable[[int], Operator],
    stream: Iterator[pa.RecordBatch],
    held: Held,
    check: Check,
    *,
    rounds: tuple[float, float] | None = None,
    settle: bool = False,
    whole: int | None = None,
    memory_bytes: int | None = None,
) -> Played:
    """Feed an endless stream to a join, and count what it does once it is warm.

    The join gets `memory_bytes`, or what it needs for `held`. It is fed until its memory is full,
    then until `rounds[0]` times the rows that wait have been answered after waiting, and
    `rounds[1]` times as many are counted. In the end it is drained, and all that it gave is
    checked. A join that chooses what it reads answers many rows at once when the hottest partition
    is loaded, about once a round, so that it needs more rounds than a scan. INLJ gets row by
    row, as the papers have it, so that no rows share a read; its pool counts as what it holds.
    With `settle`, for joins that scan, it is warm when its cache answers no more than a while
    before, see `_settle`, and `rounds` are scans of the master.
    With `whole` the stream has so many rows, and all counts, from the first one to the last result.
    """
    memory = memory_for(make, held) if memory_bytes is None else memory_bytes
    operator = make(memory)
    with operator:
        feed = _Feed(operator, _one_by_one(stream) if operator.name == "inlj" else stream, check)
        before, loops = operator.stats, operator.loops
        if whole is None:
            feed.until_full()
            capacity = held.waiting or max(held.pool_pages, 256) or operator.rows_waiting
            warm, counted = rounds or (SCAN_ROUNDS if isinstance(operator, ScanJoin) else ROUNDS)
            if settle:
                assert isinstance(operator, ScanJoin)
                _settle(feed, operator)
                before, loops = operator.stats, operator.loops
                feed.scan(operator, counted)
            else:
                feed.go(warm * capacity)
                before, loops = operator.stats, operator.loops
                feed.go(counted * capacity)
        else:
            feed.take_in(whole)
        per_page = operator.master.rows / max(operator.master.pages, 1)
        after, loops = operator.stats, operator.loops - loops
        feed.end()
        final = operator.stats
    return Played(
        did=(after if whole is None else final).since(before),
        loops=loops,
        waiting=after.rows_waiting,
        memory_bytes=memory,
        rows_per_page=per_page,
        verified=check.agrees(final.rows_in) and final.rows_waiting == 0,
    )


WINDOW_SCANS, MOST_WINDOWS, IDLE_WINDOWS, GROWTH = 10, 24, 3, 0.005


def _settle(feed: _Feed, operator: ScanJoin) -> None:
    """Until the share of hits did not grow by 0.5 % of the stream in thirty scans.

    SSBJ moves keys to its cache a buffer at a time, every third scan, and throws out every tenth.
    """
    best, idle = -1.0, 0
    for _ in range(MOST_WINDOWS):
        before = operator.stats
        feed.scan(operator, WINDOW_SCANS)
        share = operator.stats.since(before).hit_share
        if share >= best + GROWTH:
            best, idle = share, 0
            continue
        idle += 1
        if idle == IDLE_WINDOWS:
            return


class _Feed:
    """Offers a stream to a join, as `semistream.join` does, and checks what comes out."""

    def __init__(self, operator: Operator, stream: Iterator[pa.RecordBatch], check: Check) -> None:
        self._operator, self._stream, self._check = operator, stream, check
        self._rest = next(stream)
        self._refused = False

    @property
    def rows(self) -> int:
        """Rows that the join has taken."""
        return self._operator.stats.rows_in

    def until_full(self) -> None:
        """Until rows are refused for the first time."""
        while not self._refused and self.rows < MOST_ROWS and self._operator.name != "inlj":
            self._advance()

    def take_in(self, rows: int) -> None:
        """Until the join has taken so many rows in all."""
        while self.rows < rows:
            self._rest = self._rest.slice(0, rows - self.rows)
            self._advance()

    def go(self, rows: float) -> None:
        """Until so many more rows that waited were answered."""
        wanted = _answered(self._operator) + rows
        while _answered(self._operator) < wanted:
            self._advance()

    def scan(self, operator: ScanJoin, times: float) -> None:
        """Until the join has read its master so many times more."""
        wanted = operator.loops + times * operator.most_packets(operator.chunk_pages)
        while operator.loops < wanted:
            self._advance()

    def end(self) -> None:
        """Drain the join."""
        for batch in self._operator.finish():
            self._check.add(batch)

    def _advance(self) -> None:
        accepted = self._operator.push(self._rest)
        if accepted == self._rest.num_rows:
            self._rest = next(self._stream)
            alone = self._operator.name == "inlj"
            result = self._operator.step() if alone else self._operator.take()
        else:
            self._rest = self._rest.slice(accepted)
            # Results of rows that did not wait may leave no room for those of others: a scan would
            # go on with fewer rows than it could take.
            result = self._operator.take()
            if result is None:
                self._refused = True
                result = self._operator.step()
        if result is not None:
            self._check.add(result)


def _one_by_one(stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in stream:
        for row in range(batch.num_rows):
            yield batch.slice(row, 1)


def _answered(operator: Operator) -> int:
    """Rows that were answered, without those that did not wait."""
    answered = int(operator.match.matched) + int(operator.match.unmatched)
    return answered if operator.name == "inlj" else answered - int(operator.match.hits)


def memory_for(make: Callable[[int], Operator], held: Held) -> int:
    """The least memory with which a join holds that much.

    Joins with a cache divide what is left between it and waiting rows by their option
    `cache_share`: what they need for waiting rows decides.
    """
    low, high = 1, 1 << 16
    while not _holds(make, high, held):
        low, high = high, 2 * high
        if high > 1 << 46:
            raise BudgetError(f"no memory holds {held}", hint="hold less")
    while high - low > max(high // 500, 1):
        middle = (low + high) // 2
        if _holds(make, middle, held):
            high = middle
        else:
            low = middle
    return high


def _holds(make: Callable[[int], Operator], memory: int, held: Held) -> bool:
    try:
        operator = make(memory)
    except BudgetError:
        return False
    with operator:
        plan, row = operator.plan, row_bytes(operator)
        waiting = (plan.shares.get("waiting rows") or plan.shares.get("stream and cache", 0)) / row
        pool = plan.shares.get("buffer pool", 0) / operator.master.page_bytes
        return waiting >= held.waiting and pool >= held.pool_pages


def row_bytes(operator: Operator) -> int:
    """Bytes of a waiting row in a join of ours."""
    return operator.binding.layout.record_bytes + (4 if isinstance(operator, ScanJoin) else 0)
