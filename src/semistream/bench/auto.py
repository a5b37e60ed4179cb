"""`algorithm="auto"` beside single joins, on masters with unique and with duplicated keys.

Each cell is a memory, a skew and a master. All joins that fit the memory run on the same preloaded
stream; what they give is verified by a checksum over stream row and master row of every result,
which is computed from the keys alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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

INFO_BYTES = 104
"""Fills a row of the master up to 120 bytes."""

STREAM_ROWS = 2_000_000
ROW_FACTOR, STREAM_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class AutoCell:
    """One cell: what `auto` chose and answered, and the best single join."""

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

    @property
    def of_best(self) -> float:
        """The rate of `auto` as a share of the best join's."""
        return self.auto_rows_per_s / self.best_rows_per_s

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return {**asdict(self), "of_best": self.of_best}


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
                rates: dict[str, float] = {}
                verified, chosen, reason = True, "", ""
                for join in (*joins, "auto"):
                    tell(f"{copy} rows a key, skew {skew:g}, memory {memory}: {join}")
                    size = parse_bytes(memory, of=master.data_bytes)
                    try:
                        done = _run(join, master, stream, size, copy, seconds, clock)
                    except BudgetError:
                        continue
                    rates[join], good, name, why = done
                    verified = verified and good
                    if join == "auto":
                        chosen, reason = name, why
                mine = rates.pop("auto")
                best = max(rates, key=lambda join: rates[join])
                yield AutoCell(
                    memory, skew, copy, chosen, mine, best, rates[best], rates, reason, verified
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


def _run(
    join: str,
    master: FileMaster,
    stream: _Stream,
    memory: int,
    copies: int,
    seconds: float,
    clock: Clock,
) -> tuple[float, bool, str, str]:
    """Rows/s of the second half of the time, whether all was right, and what the join was."""
    schema = stream.batches[0].schema
    operator = make_join(join, master, on="key", schema=schema, memory=memory, clock=clock)
    total, count = 0, 0

    def add(batch: pa.RecordBatch | None) -> int:
        """Check results; how long that took."""
        nonlocal total, count
        begin = clock.now_ns()
        if batch is not None:
            mixed = _mixed(
                batch.column("number").to_numpy().astype(np.uint64),
                batch.column("row").to_numpy().astype(np.uint64),
            )
            total += int(mixed.sum(dtype=np.uint64))
            count += batch.num_rows
        return clock.now_ns() - begin

    with operator:
        batches = itertools.cycle(stream.batches)
        rest = next(batches)
        began, paused = clock.now_ns(), 0
        answered = measured_from = 0
        while True:
            accepted = operator.push(rest)
            rest = rest.slice(accepted)
            result = operator.step() if rest.num_rows else operator.take()
            paused += add(result)
            if not rest.num_rows:
                rest = next(batches)
            spent = clock.now_ns() - began - paused
            if not measured_from and spent >= seconds * 5e8:
                stats, measured_from = operator.stats, spent
                answered = stats.rows_in - stats.rows_waiting
            if measured_from and spent - measured_from >= seconds * 5e8:
                break
        stats = operator.stats
        rate = (stats.rows_in - stats.rows_waiting - answered) / (spent - measured_from) * 1e9
        for batch in operator.finish():
            add(batch)
        final = operator.stats
    wanted = stream.expected(final.rows_in, copies)
    plan = final.plan
    why = "" if plan is None else plan.reason
    return rate, (total % 2**64, count) == wanted, final.algorithm, why


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
