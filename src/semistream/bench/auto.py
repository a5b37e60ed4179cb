"""`algorithm="auto"` beside single joins, on masters with unique and with duplicated keys.

Each cell is a memory, a skew and a master. All joins that fit the memory run on the same preloaded
stream, in turns, so that a noisy machine hurts all alike; what they give is verified by a checksum
over stream row and master row of every result, which is computed from the keys alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.core import BATCH_ROWS, Told
from semistream.core.budget import parse_bytes
from semistream.core.clock import Clock, SystemClock
from semistream.core.errors import BudgetError, StoreError
from semistream.joins.registry import make_join
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.workloads import permute
from semistream.workloads.zipf import zipf_ranks

COMPETITORS = (
    "inlj", "meshjoin", "hybridjoin", "cachejoin", "sscj", "ssij", "ssbj", "sweepjoin",
    "memoryjoin",
)  # fmt: skip
"""Joins that `auto` is compared with: the best of every kind."""

AUTO = "auto"

INFO_BYTES = 104
"""Fills a row of the master up to 120 bytes."""

STREAM_ROWS = 2_000_000
ROUNDS = 9
"""Turns of each join, over which medians are taken."""

ROW_FACTOR, STREAM_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class AutoCell:
    """One cell: what `auto` chose and answered, and the best single join.

    Rates are medians of the rounds; `of_best` is the median of what `auto` had of the best join's
    rate in the same round.
    """

    memory: str
    skew: float
    copies: int
    chosen: str
    auto_rows_per_s: float
    best: str
    best_rows_per_s: float
    rows_per_s: dict[str, float]
    reason: str
    verified: bool
    of_best: float

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


def run_auto(
    workdir: Path,
    *,
    rows: int = 1_000_000,
    memories: Sequence[str] = ("1%", "5%", "10%", "120%"),
    skews: Sequence[float] = (0, 0.5, 1),
    copies: Sequence[int] = (1, 2),
    joins: Sequence[str] = COMPETITORS,
    io: str = "buffered",
    seconds: float = 2.0,
    seed: int = 1,
    tell: Told = lambda line: None,
    clock: Clock | None = None,
) -> Iterator[AutoCell]:
    """Run the grid; each cell is yielded when it is done."""
    clock = clock or SystemClock()
    for copy, skew in itertools.product(copies, skews):
        stream = _Stream(rows // copy, skew, seed)
        with _master(workdir, rows, copy, io) as master:
            for memory in memories:
                tell(f"{copy} rows a key, skew {skew:g}, memory {memory}")
                size = parse_bytes(memory, of=master.data_bytes)
                yield _cell(master, stream, (memory, skew, copy), joins, size, seconds, clock)


def _cell(
    master: FileMaster,
    stream: _Stream,
    named: tuple[str, float, int],
    joins: Sequence[str],
    memory_bytes: int,
    seconds: float,
    clock: Clock,
) -> AutoCell:
    with ExitStack() as opened:
        running = []
        for join in (*joins, AUTO):
            with suppress(BudgetError):  # a join that needs more memory
                one = _Running(join, master, stream, memory_bytes, clock)
                opened.callback(one.operator.close)
                running.append(one)
        for one in running:
            one.turn(seconds / 2)
        rates: dict[str, list[float]] = {one.join: [] for one in running}
        for _, one in itertools.product(range(ROUNDS), running):
            rates[one.join].append(one.turn(seconds / 2 / ROUNDS))
        verified = [one.finish(named[2]) for one in running]
        final = running[-1].operator.stats
    mine = rates.pop(AUTO)
    of_others = {
        # A join with long loops may answer nothing in a turn.
        join: statistics.median(
            own / other if other else math.inf for own, other in zip(mine, found, strict=True)
        )
        for join, found in rates.items()
    }
    best = min(of_others, key=lambda join: of_others[join])
    medians = {join: statistics.median(found) for join, found in rates.items()}
    return AutoCell(
        *named,
        chosen=final.algorithm,
        auto_rows_per_s=statistics.median(mine),
        best=best,
        best_rows_per_s=medians[best],
        rows_per_s=medians,
        reason="" if final.plan is None else final.plan.reason,
        verified=all(verified),
        of_best=of_others[best],
    )


class _Stream:
    """Rows with keys by Zipf's law, scattered over the master, and what they must give."""

    def __init__(self, keys: int, skew: float, seed: int) -> None:
        numbers = permute(zipf_ranks(keys, skew, STREAM_ROWS, seed) - 1, keys, seed)
        table = pa.table(
            {
                "key": numbers,
                "amount": np.arange(STREAM_ROWS, dtype=np.int32),
                "number": np.arange(STREAM_ROWS),
            }
        )
        self.batches = table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
        self.keys = numbers

    def expected(self, rows: int, copies: int) -> tuple[int, int]:
        """Checksum and number of the results of the first `rows` rows of the endless stream."""
        keys = self.keys.astype(np.uint64)
        number = np.arange(STREAM_ROWS, dtype=np.uint64)
        sums = np.zeros(STREAM_ROWS, np.uint64)
        for copy in range(copies):
            sums += _mixed(number, keys * np.uint64(copies) + np.uint64(copy))
        reach = np.concatenate([[np.uint64(0)], np.cumsum(sums, dtype=np.uint64)])
        rounds, rest = divmod(rows, STREAM_ROWS)
        total = rounds * int(reach[-1]) + int(reach[rest])
        return total % 2**64, rows * copies


def _mixed(number: _U64, row: _U64) -> _U64:
    word = number * STREAM_FACTOR ^ row * ROW_FACTOR
    mixed: _U64 = (word ^ (word >> np.uint64(29))) * ROW_FACTOR
    return mixed


class _Running:
    """A join that is fed in turns with others, and the check of its results."""

    def __init__(
        self, join: str, master: FileMaster, stream: _Stream, memory: int, clock: Clock
    ) -> None:
        schema = stream.batches[0].schema
        self.join = join
        self.operator = make_join(join, master, on="key", schema=schema, memory=memory, clock=clock)
        self._stream, self._clock = stream, clock
        self._batches = itertools.cycle(stream.batches)
        self._rest = next(self._batches)
        self._total = self._count = 0

    def turn(self, seconds: float) -> float:
        """Feed it for so long; rows/s that it answered. Checks of results are not counted."""
        answered, spent_ns = self._answered, 0
        while spent_ns < seconds * 1e9:
            began_ns = self._clock.now_ns()
            accepted = self.operator.push(self._rest)
            self._rest = self._rest.slice(accepted)
            result = self.operator.step() if self._rest.num_rows else self.operator.take()
            spent_ns += self._clock.now_ns() - began_ns
            self._check(result)
            if not self._rest.num_rows:
                self._rest = next(self._batches)
        return (self._answered - answered) / spent_ns * 1e9

    def finish(self, copies: int) -> bool:
        """Drain it; whether all results were right."""
        for batch in self.operator.finish():
            self._check(batch)
        wanted = self._stream.expected(self.operator.stats.rows_in, copies)
        return (self._total % 2**64, self._count) == wanted

    @property
    def _answered(self) -> int:
        stats = self.operator.stats
        return stats.rows_in - stats.rows_waiting

    def _check(self, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            mixed = _mixed(
                batch.column("number").to_numpy().astype(np.uint64),
                batch.column("row").to_numpy().astype(np.uint64),
            )
            self._total += int(mixed.sum(dtype=np.uint64))
            self._count += batch.num_rows


def _master(workdir: Path, rows: int, copies: int, io: str) -> FileMaster:
    """A master of `rows` rows with keys that occur so many times each, kept between runs."""
    path = workdir / f"auto-{rows}-copies{copies}.master"
    try:
        with open_master(path) as opened:
            opened.read_page(0)
    except StoreError:
        workdir.mkdir(parents=True, exist_ok=True)
        number = np.arange(rows // copies * copies)
        info = np.random.default_rng(0).bytes(len(number) * INFO_BYTES)
        filler = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(INFO_BYTES), len(number), [None, pa.py_buffer(info)]
        )
        build_master(
            path, pa.table({"key": number // copies, "row": number, "info": filler}), "key"
        )
    return open_master(path, io=io)
