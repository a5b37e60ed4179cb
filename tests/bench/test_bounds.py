"""Belady's MIN against brute force; the bounds on reads against what joins really read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.bench.bounds import (
    Trace,
    fewest_faults,
    fewest_reads,
    fewest_reads_drained,
    pages_of_best_row_cache,
)
from semistream.bench.masters import product_master
from semistream.bench.peers.ours import Drained, Waiting
from semistream.workloads import sales

ROWS = 20_000


def brute_force(asked: tuple[int, ...], capacity: int) -> int:
    """Tries every choice of what to keep."""

    @cache
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(asked):
            return 0
        one = asked[at]
        if one in held:
            return min(best(at + 1, held), best(at + 1, held - {one}))
        options = [best(at + 1, held)]
        if len(held) < capacity:
            options.append(best(at + 1, held | {one}))
        elif capacity:
            options += [best(at + 1, held - {other} | {one}) for other in held]
        return 1 + min(options)

    return best(0, frozenset())


@settings(deadline=None)  # the kernel is compiled in the first example
@given(asked=st.lists(st.integers(0, 5), min_size=1, max_size=14), capacity=st.integers(0, 4))
def test_min_is_what_brute_force_finds(asked: list[int], capacity: int) -> None:
    assert fewest_faults(np.array(asked), capacity) == brute_force(tuple(asked), capacity)


def test_min_with_room_for_all_misses_each_once() -> None:
    asked = np.random.default_rng(1).integers(0, 100, 5000)
    assert fewest_faults(asked, 100) == len(np.unique(asked))
    assert fewest_faults(asked, 0) == len(asked)


def test_a_row_cache_that_holds_nothing_reads_each_batchs_pages() -> None:
    trace = Trace(np.arange(100) % 50, np.arange(100) % 50 // 10)
    assert pages_of_best_row_cache(trace, 50, 0) == 10
    assert pages_of_best_row_cache(trace, 50, 50) == 5


@pytest.mark.parametrize("memory", [180_000, 300_000])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_no_join_reads_fewer_pages_than_the_bounds(
    tmp_path_factory: pytest.TempPathFactory, skew: float, memory: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (stream,) = sales(60_000, products=ROWS, skew=skew, batch_rows=60_000).read_all().to_batches()
    with product_master(folder, ROWS) as master:
        trace = Trace.of(master, [stream], "product_id")
        pages = master.pages
    bound = fewest_reads(trace, memory, master_row_bytes=120, stream_row_bytes=20)
    assert bound <= reads(Waiting(folder, ROWS), stream, 5000, memory)
    assert bound > 0 or skew == 1.0
    for rows in (500, 5000):
        drained = fewest_reads_drained(trace, memory, rows, master_row_bytes=120)
        assert bound <= drained <= reads(Drained(folder, ROWS), stream, rows, memory)
        assert drained >= pages // 2, "there is more to read than once through the master"


def reads(join: Drained, stream: pa.RecordBatch, batch_rows: int, memory: int) -> int:
    join.build()
    join.open(memory, cold=False)
    for start in range(0, stream.num_rows, batch_rows):
        join.join(stream.slice(start, batch_rows))
    join.drain()
    pages = join.stats.pages_read
    join.close()
    return pages


def test_bounds_grow_as_memory_shrinks(tmp_path: Path) -> None:
    (stream,) = sales(50_000, products=ROWS, skew=0.5, batch_rows=50_000).read_all().to_batches()
    with product_master(tmp_path, ROWS) as master:
        trace = Trace.of(master, [stream], "product_id")
    bounds = [
        fewest_reads(trace, memory, master_row_bytes=120, stream_row_bytes=20)
        for memory in (10_000, 100_000, 1_000_000, 10_000_000)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1] == 0
